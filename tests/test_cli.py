"""The command as a user types it."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer

from fairlead.cli import app, main
from fairlead.comparison.compare import FOLDS, SMALL_TABLE
from fairlead.effort import EFFORTS
from fairlead.settings import Settings, check, default_of, resolve

FAST = ["--clients", "4", "--rounds", "3", "--engine", "loop", "--model", "logistic"]


class Done(NamedTuple):
    """What a call of the command left behind."""

    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Done]


@pytest.fixture
def fairlead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command, in this process: starting Python anew for each call would take most of the time."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["fairlead", *words])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        return Done(int(left.value.code or 0), out, err)

    return call


def test_the_command_is_installed_and_python_m_runs_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fairlead", "scenarios"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    assert "rotated-fashion-mnist" in done.stdout


def test_version_is_that_of_the_package(fairlead: Command) -> None:
    done = fairlead("--version")
    assert (done.returncode, done.stdout) == (0, f"fairlead {metadata.version('fairlead')}\n")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("fairlead co", ["compare"]),
        ("fairlead compare --sc", ["--scenario", "--scaling", "--schedule"]),
        ("fairlead compare fedavg fedr", ["fedrep", "fedres", "fedrod"]),
        ("fairlead run fedrep+tri", ["fedrep+trimmed"]),
    ],
)
def test_the_shell_completes(
    fairlead: Command, monkeypatch: pytest.MonkeyPatch, words: str, offered: list[str]
) -> None:
    monkeypatch.setattr(
        sys.modules["__main__"], "__package__", None
    )  # the command is `fairlead`, not `python -m pytest`
    monkeypatch.setenv("_FAIRLEAD_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    assert fairlead().stdout.split() == offered


def test_data_shows_owners_columns_and_what_looks_wrong(fairlead: Command) -> None:
    done = fairlead("data", "heart-disease", "--words", "cp", "--drop", "chol")
    assert done.returncode == 0, done.stderr
    for expected in ("740 rows", "switzerland", "one of 4 categories", "left out", "in one class"):
        assert expected in done.stdout
    assert fairlead("data", "heart-disease", "--drop", "cholesterol").returncode == 2


def test_compare_prints_the_verdict_and_writes_a_page(fairlead: Command, tmp_path: Path) -> None:
    done = fairlead("compare", "fedavg", "ditto+confree", *FAST, "--out", "here")
    assert done.returncode == 0, done.stderr
    for expected in ("ditto+confree", "local *", "the bar is local", "the federation: ", "here/report.html"):
        assert expected in done.stdout.replace("\n", " ")
    assert (tmp_path / "here" / "report.html").exists()
    again = fairlead("report", "here")
    assert again.returncode == 0
    assert "ditto+confree" in again.stdout


def test_a_settings_file_has_the_same_names_and_flags_win(fairlead: Command, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(
        'methods = ["fedora"]\nclients = 4\nrounds = 3\nengine = "loop"\nmodel = "logistic"\nbatch-size = 8\n'
        "[set.fedora]\na = 0.5\n"
    )
    done = fairlead("compare", "--config", "x.toml", "--rounds", "2", "--out", "o")
    assert done.returncode == 0, done.stderr
    settings = json.loads((tmp_path / "o" / "summary.json").read_text())["settings"]
    assert (settings["rounds"], settings["batch_size"], settings["options"]) == (2, 8, {"fedora": {"a": 0.5}})


WRONG = {
    "compare dito": "did you mean 'ditto'",
    "compare fedavg --rond 3": "--rounds",
    "compare fedavg --rounds x": "rounds='x'",
    "compare fedavg --lr inf": "lr='inf': Input should be a finite number",
    "compare fedora --set fedora.a=inf": "option fedora.a=inf: Input should be a finite number",
    "compare fedavg --seeds 0": "--seeds must be at least 1",
    "compare fedrep+confree --set confree.c=1.5": "c must lie in (0, 1), got 1.5",
    "compare fedrep+confree --set confree.d=1": "option 'confree.d' is unknown; Valid: ",
    "compare fedavg --set fedora.b=1": "option 'fedora.b' is unknown",
    "compare fedavg --set fedora.a=0.3": "option fedora.a has no effect: fedora is not among local, fedavg",
    "compare fedavg --beta 0.3": "beta=0.3 has no effect here: it needs split 'dirichlet'",
    "compare fedavg --label y": "label='y' has no effect here",
    "compare fedavg --scenario rotated-digits --column y": "column='y' has no effect here",
    "run fedavg --decay 0.9": "decay=0.9 has no effect here: it needs schedule 'exponential'",
    "compare fedora+confree": "averages nothing",
    "compare fedavg+confre": "did you mean 'confree'",
    "compare fedavg --scenario rotated-minst": "did you mean 'rotated-mnist'",
    "compare fedavg --data-dir nowhere --scenario rotated-mnist": "check --data-dir",
    "compare fedavg --engine vectorized": "did you mean 'vectorised'",
    "compare fedavg --model cnn": "use mlp",
    "compare fedavg --participation 99": "more than the 12 clients",
    "compare fedavg --data no.csv": "no file no.csv",
    "compare fedavg --data bad.csv --label label": "row",
    "compare fedavg --data good.csv --label lable": "did you mean 'label'",
    "compare fedavg --config no.toml": "expected a TOML file",
    "resume nowhere": "settings.json is missing",
    "report nowhere": "summary.json",
    "methods fedra": "did you mean 'fedora'",
    "bogus": "bogus",
}


@pytest.mark.parametrize("words", WRONG)
def test_bad_input_is_one_sentence_and_leaves_nothing(words: str, fairlead: Command, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("a,b,label\n1,2,\n1,3,NA\n")
    (tmp_path / "good.csv").write_text("a,b,label\n1,2,0\n1,3,1\n")
    before = sorted(tmp_path.iterdir())
    done = fairlead(*words.split())
    assert done.returncode == 2
    assert WRONG[words] in done.stderr
    assert done.stderr.startswith("fairlead: ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("command", ["compare", "run", "resume", "report", "methods", "scenarios"])
def test_help_shows_an_example(command: str, fairlead: Command) -> None:
    done = fairlead(command, "--help")
    assert done.returncode == 0
    assert f"fairlead {command}" in done.stdout


def test_lists_name_methods_stages_and_scenarios(fairlead: Command) -> None:
    listed = fairlead("methods").stdout
    assert "ICML" in listed
    assert "confree" in listed
    assert "λ" in fairlead("methods", "ditto").stdout


def test_default_folders_differ_for_other_data_and_settings_and_take_more_methods(
    fairlead: Command, tmp_path: Path
) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        rows = [f"{i % 7},{i % 5 + len(name)},{i % 2}" for i in range(60)]
        (tmp_path / name / "t.csv").write_text("a,b,label\n" + "\n".join(rows) + "\n")
    quick = ["--rounds", "1", "--engine", "loop", "--clients", "3", "--model", "logistic"]
    asked = [["--folds", "1", "--data", f"{name}/t.csv"] for name in ("here", "there")] + [[], ["--lr", "0.5"]]
    for i, more in enumerate(asked):
        done = fairlead("compare", "fedavg", *quick, *more)
        assert done.returncode == 0, done.stderr
        assert len(list((tmp_path / "runs").iterdir())) == i + 1
    names = sorted(p.name.rpartition("-")[0] for p in (tmp_path / "runs").iterdir())
    assert names == ["rotated-digits", "rotated-digits", "t", "t"]
    added = fairlead("compare", "fedavg", "fedora", *quick, "--set", "fedora.a=0.5")
    assert added.returncode == 0, added.stderr
    assert len(list((tmp_path / "runs").iterdir())) == len(asked)
    assert fairlead("run", "fedprox", *quick).returncode == 0
    assert len(list((tmp_path / "runs").glob("fedprox-rotated-digits-*"))) == 1


def test_the_same_command_in_the_same_folder_always_works(fairlead: Command) -> None:
    for _ in range(3):
        done = fairlead("compare", "fedavg", "--clients", "3", "--rounds", "1", "--model", "logistic", "--out", "o")
        assert done.returncode == 0, done.stderr


def test_fresh_and_more_rounds_on_the_command_line(fairlead: Command, tmp_path: Path) -> None:
    rows = "\n".join(f"{i % 7},{i % 5},{i % 2}" for i in range(60))
    (tmp_path / "t.csv").write_text(f"a,b,label\n{rows}\n")
    command = ["compare", "fedavg", *FAST, "--folds", "1", "--data", "t.csv", "--out", "o"]
    assert fairlead(*command).returncode == 0
    (tmp_path / "t.csv").write_text(f"a,b,label\n{rows}\n3,4,0\n")
    refused = fairlead(*command)
    assert refused.returncode == 2
    assert "the data changed" in refused.stderr
    assert "--fresh" in refused.stderr
    assert fairlead(*command, "--fresh").returncode == 0
    longer = fairlead("resume", "o", "--rounds", "5")
    assert longer.returncode == 0, longer.stderr
    assert json.loads((tmp_path / "o" / "summary.json").read_text())["settings"]["rounds"] == 5
    assert fairlead("resume", "o", "--rounds", "2").returncode == 2


def test_ctrl_c_says_how_to_go_on(fairlead: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fairlead.runs.run.train", stop)
        done = fairlead("compare", "fedavg", *FAST, "--out", "my results")
    assert done.returncode == 130
    assert "`fairlead resume 'my results'` goes on from the last checkpoint" in done.stderr
    assert fairlead("resume", "my results").returncode == 0
    with monkeypatch.context() as patch:
        patch.setattr("fairlead.data.Scenario.load", stop)
        done = fairlead("compare", "fedavg", *FAST, "--out", "other")
    assert (done.returncode, "nothing was written" in done.stderr) == (130, True)
    assert not (tmp_path / "other").exists()


def test_help_shows_what_every_option_is_when_left_out(fairlead: Command) -> None:
    def commands(group: Any) -> Iterator[Any]:
        for one in group.commands.values():
            yield from commands(one) if hasattr(one, "commands") else [one]

    silent = [
        f"{one.name} {option.opts[0]}"
        for one in commands(typer.main.get_command(app))
        for option in one.params
        if option.param_type_name == "option" and not option.required
        if not isinstance(option.show_default, str) and option.default in (None, False)
    ]
    assert silent == []
    told = " ".join(fairlead("compare", "--help").stdout.replace("│", " ").split())
    for default in ("[default: (16 on your own data, else as published)]", "[default: (0.1)]", "[default: (off)]"):
        assert default in told


def test_defaults_in_the_help_are_those_that_are_used() -> None:
    preset, own = resolve(check({})), resolve(check({"data": "heart-disease"}))
    assert default_of("scenario").startswith(preset.name)
    for name in ("epochs", "weight_decay", "schedule", "steps"):
        assert default_of(name).split(" ")[0] == str(getattr(own.training, name)).replace("None", "none")
    for name in ("batch_size", "momentum"):
        assert default_of(name).split(" ")[0] == str(getattr(own.training, name))
    assert default_of("model").split(" ")[0] == own.model
    assert own.effort is not None
    assert (own.effort.rates, default_of("effort").split(" ")[0]) == (EFFORTS["standard"].rates, "standard")
    assert default_of("evaluate_every").split(" ")[0] == str(own.effort.every)
    assert default_of("folds") == f"{FOLDS} for tables of less than {SMALL_TABLE:,} rows, else 1"
    assert default_of("device") == own.device
    assert all(default_of(name) for name in Settings.model_fields)


def test_report_writes_the_page_of_one_owner(fairlead: Command, tmp_path: Path) -> None:
    assert fairlead("compare", "fedavg", *FAST, "--out", "here").returncode == 0
    done = fairlead("report", "here", "--owner", "2")
    assert done.returncode == 0, done.stderr
    assert "here/report-2.html" in done.stdout
    assert (tmp_path / "here" / "report-2.html").exists()
    wrong = fairlead("report", "here", "--owner", "nobody")
    assert wrong.returncode == 2
    assert "owner 'nobody' is unknown; Valid: 0, 1, 2, 3" in wrong.stderr


def test_the_command_that_the_terminal_gives_for_new_rows_works(fairlead: Command, tmp_path: Path) -> None:
    rows = [f"{x},{x % 2},{owner}" for owner in ("St. Mary's", "b") for x in range(40)]
    (tmp_path / "table.csv").write_text("\n".join(["x,y,who", *rows]), encoding="utf-8")
    asked = ("--data", "table.csv", "--label", "y", "--column", "who", "--effort", "quick", "--folds", "1")
    done = fairlead("compare", "fedavg", *asked, "--out", "my run")
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("Use a model: ")]
    (tmp_path / "new.csv").write_text("x\n1\n2\n", encoding="utf-8")
    used = fairlead(*shlex.split(line.removeprefix("Use a model: fairlead ")))
    assert (used.returncode, len(used.stdout.splitlines())) == (0, 3), used.stderr


def test_a_tracker_is_refused_before_training(fairlead: Command, tmp_path: Path) -> None:
    done = fairlead("compare", "fedavg", *FAST, "--out", "here", "--track", "paper")
    assert done.returncode == 2
    assert "--track paper: unknown; Valid: mlflow, tensorboard, wandb" in done.stderr
    assert not (tmp_path / "here").exists()


def test_watch_wants_a_comparison(fairlead: Command) -> None:
    done = fairlead("watch", "nowhere")
    assert done.returncode == 2
    assert "nowhere/settings.json is missing" in done.stderr


def test_keys_without_the_package_that_makes_them_are_one_sentence(
    fairlead: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fairlead.machines.flower.keys", None)
    monkeypatch.delattr("fairlead.machines.flower.keys", raising=False)
    for words in (("certificates", "keys", "--host", "127.0.0.1"), ("key", "keys/a")):
        done = fairlead("flower", *words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "pip install 'fairlead[flower]'" in done.stderr
