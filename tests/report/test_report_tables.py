from io import StringIO
from typing import Any

import pytest
from report_folders import METHODS, make_summary
from rich.console import Console

from fairlead.report import caption, headline, latex_table, markdown_table, verdict_lines, verdict_table


def shown(summary: dict[str, Any], width: int = 100) -> str:
    out = StringIO()
    Console(width=width, file=out).print(verdict_table(summary))
    return out.getvalue()


def numbers(entry: dict[str, Any]) -> list[str]:
    accuracy = f"{100 * entry['accuracy']:.1f} ± 0.4"
    shares = [
        f"{100 * entry['r_accuracy']:+.1f}",
        *(f"{100 * entry[key]:.1f}" for key in ("ptr", "low5", "top5", "std")),
    ]
    return [accuracy, *shares, f"{entry['bytes_up'] / 1e6:.0f}", f"{len(entry['worse'])}/12"]


def test_table_fits_100_columns_and_carries_the_numbers(summary: dict[str, Any]) -> None:
    lines = shown(summary).splitlines()
    assert max(map(len, lines)) <= 100
    for name in METHODS[1:]:
        (line,) = [line for line in lines if line.split(" ")[0] == name]
        for number in numbers(summary["methods"][name]):
            assert number in line


def test_a_narrow_terminal_cuts_no_number(summary: dict[str, Any]) -> None:
    text = shown(summary, width=90)
    assert "…" not in text
    assert numbers(summary["methods"]["fedora"])[0] in text


def test_a_method_named_like_markup_is_shown_as_it_is() -> None:
    assert "[red]x" in shown(make_summary(("local", "[red]x")))


@pytest.mark.parametrize("render", [markdown_table, latex_table])
def test_markdown_and_latex_carry_the_numbers(summary: dict[str, Any], render: Any) -> None:
    text = render(summary).replace(r" $\pm$ ", " ± ")
    for name in METHODS[1:]:
        (line,) = [line for line in text.splitlines() if name in line.replace("|", "").split()[:1]]
        for number in numbers(summary["methods"][name]):
            assert number in line
    assert caption(summary) in render(summary)


def test_markdown_and_latex_escape_names() -> None:
    summary = make_summary(("local", "a|b_c&d"))
    assert "| a\\|b_c&d |" in markdown_table(summary)
    assert r"a|b\_c\&d &" in latex_table(summary)


def client(k: int, difference: float, half: float) -> dict[str, Any]:
    interval = [difference - half, difference + half]
    sizes = {"n_train": 90, "n_test": 30}
    return {"id": k, "difference": difference, "interval": interval, "accuracy": 0.7, "local_accuracy": 0.7} | sizes


def test_sentences_name_the_worse_off_and_mark_the_sure_ones(summary: dict[str, Any]) -> None:
    clients = [client(0, -0.003, 0.01), client(1, 0.05, 0.01), client(2, -0.042, 0.01), client(3, -0.0002, 0.01)]
    summary["methods"]["ditto"] |= {"clients": clients, "worse": [0, 2, 3]}
    lines = verdict_lines(summary)
    assert (
        "ditto: 3 of 4 clients are worse off than alone, in points: "
        "surely client 2 by 4.2; perhaps client 0 by 0.3, client 3 by less than 0.1."
    ) in lines
    assert "fedora: nobody is worse off than alone." in lines
    assert not any(line.startswith("local:") for line in lines)
    assert lines[-1] == caption(summary)


def test_long_lists_are_cut_but_counted(summary: dict[str, Any]) -> None:
    clients = [client(k, -0.01 * (k + 1), 0.001) for k in range(5)]
    summary["methods"]["ditto"] |= {"clients": clients, "worse": [0, 1, 2, 3, 4]}
    (line,) = [line for line in verdict_lines(summary, most=2) if line.startswith("ditto")]
    assert line.endswith("surely client 4 by 5.0, client 3 by 4.0; 3 more, 3 of them surely, by at most 3.0.")


def test_caption_says_model_round_rule_and_average(summary: dict[str, Any]) -> None:
    assert caption(summary) == (
        "The numbers: test accuracy of each client's personal model at the round with the best validation accuracy, "
        "averaged over clients, each counting the same; mean over 3 seeds, ± their standard deviation."
    )
    summary["methods"]["fedavg"] |= {"model": "global", "round": {"rule": "last", "rounds": [50, 50, 50]}}
    assert "the global model at the last round, averaged over clients, each counting the same (fedavg)" in caption(
        summary
    )


def test_one_seed_shows_no_spread() -> None:
    summary = make_summary(seeds=1)
    assert "±" not in markdown_table(summary)
    assert caption(summary).endswith("one seed.")


def test_headline_follows_the_verdict(summary: dict[str, Any]) -> None:
    alone, best = (f"{100 * summary['methods'][name]['accuracy']:.1f}%" for name in ("local", "fedora"))
    assert headline(summary) == (
        "1 of 5 methods leaves nobody worse off than alone. "
        f"With fedora, mean accuracy goes from {alone} alone to {best}."
    )
    summary["methods"]["fedora"] |= {"clients": [client(0, -0.02, 0.01), client(1, 0.02, 0.01)], "worse": [0]}
    assert headline(summary) == (
        "Every method leaves somebody worse off than alone. The fewest are with fedora: "
        "1 of 2 clients is worse off than alone, 1 of them surely."
    )
    assert headline(make_summary(("local",))) == "Only local was run; there is nothing to compare it with."
