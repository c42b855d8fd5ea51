"""A real SuperLink with SuperNodes on loopback: a round goes on whatever a site does."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from sites import MOST_SECONDS, SETTINGS, rounds_done, started, three_sites, until

pytest.importorskip("flwr", reason="Flower is not installed; `make test-machines` installs and tests it")

from fairlead.machines.flower.tryout import Tryout
from fairlead.machines.flower.write import write_app
from fairlead.machines.study import Study
from fairlead.runs.files import read_json, read_table

# What an app's client half might do wrong, by round and site; appended to the app.
SPOIL = """

honest = ask
last = {}


def ask(node, question, data):
    found = honest(node, question, data)
    if json.loads(question)["what"] != "ask":
        return found
    about = json.loads(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]["fairlead"])[0]
    site, key = str(node["client"]), (about["what"], about["round"])
    memory = Path(str(node["state-dir"])) / "old-answer"
    if key == ("train", 1):
        memory.write_bytes(found)
    first, second = site == SITES[0], site == SITES[1]
    if key == ("train", 2) and first:
        raise ValueError("the disk is full")
    if key == ("train", 2) and second:
        return b"x" * 20_000_000
    if key == ("train", 3) and first:
        return memory.read_bytes()
    if key == ("train", 3) and second:
        start = 8 + int.from_bytes(found[:8], "little")
        return found[:start] + b"\\xff" * (len(found) - start)
    rounds, back = Path(OUT) / "runs" / "fedora-seed0" / "rounds.parquet", Path(OUT) / "flower" / "sites" / SITES[2]
    if key == ("train", 4) and second:  # too late: the others have gone on
        wait_until(lambda: any(rounds.glob("000000004-*")))
    if key == ("train", 10):  # so that the third, which was killed, is back before the last round
        wait_until((back / "worker.json").exists)
    return found


def wait_until(what):
    while not what():
        time.sleep(0.2)
"""


def test_a_round_goes_on_whatever_a_site_does(tmp_path: Path) -> None:
    data = three_sites(tmp_path / "data")
    settings = SETTINGS | {"rounds": 11, "evaluate_every": 11}
    study = Study(tuple(p.stem for p in data.glob("*.csv")), ("fedora",), settings)
    write_app(tmp_path / "app", study, tmp_path / "elsewhere", insecure=True)
    client, out, run = tmp_path / "app" / "fairlead_study" / "client_app.py", tmp_path / "out", "fedora-seed0"
    client.write_text(client.read_text() + SPOIL.replace("SITES", repr(study.sites)).replace("OUT", repr(str(out))))
    project = tmp_path / "app" / "pyproject.toml"
    project.write_text(project.read_text().replace("grace-seconds = 20", "grace-seconds = 12"))
    with Tryout(out, insecure=True) as tried:
        started(tried, study, data)
        tried.run(tmp_path / "app")
        until(lambda: rounds_done(out, run) >= 5, MOST_SECONDS)
        victim = study.sites[2]
        worker = tried.home / "sites" / victim / "worker.json"
        tried.end(victim, signal.SIGKILL)
        os.kill(int(read_json(worker)["pid"]), signal.SIGKILL)
        worker.unlink()
        killed = rounds_done(out, run)
        until(lambda: rounds_done(out, run) >= killed + 2)
        tried.add(victim, data / f"{victim}.csv")
        tried.wait(study, print, MOST_SECONDS)
    events = {(e["round"], e["who"]): e["what"] for e in read_json(out / "runs" / run / "events.json")}
    first, second, third = study.sites
    assert "the disk is full" in events[2, first]
    assert "answer has 20,000,000 bytes" in events[2, second]
    assert "answer is to another question (train, round 1)" in events[3, first]
    assert "NaN or infinite" in events[3, second]
    assert "did not come" in events[4, second]
    assert any(who == third and round > 5 for round, who in events)
    table = read_table(out / "runs" / run / "rounds.parquet")
    assert table["left_out"][:4] == [0, 2, 2, 1]
    assert table["left_out"][-1] == 0  # back again
    assert read_json(out / "results.json")["unjudged"] == {}
