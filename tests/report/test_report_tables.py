from collections import Counter
from io import StringIO
from typing import Any

import numpy as np
import pytest
from report_folders import METHODS, draw_answers, make_summary
from rich.console import Console

from fairlead.comparison.findings import Answers, Way, find
from fairlead.metrics import METRICS
from fairlead.report import caption, headline, latex_table, markdown_table, opening_lines, verdict_lines, verdict_table
from fairlead.report.tables import VERDICTS, counts, lowest, marks, rows, told_counts


def shown(summary: Any, width: int = 100) -> str:
    out = StringIO()
    Console(width=width, file=out).print(verdict_table(summary))
    return out.getvalue()


def found(summary: Any, name: str) -> Any:
    return next(way for way in summary["findings"]["ways"] if way["name"] == name)


def numbers(summary: Any, name: str) -> list[str]:
    entry, way = summary["methods"][name], found(summary, name)
    tally = Counter(v["verdict"] for v in way["verdicts"])
    ptr = f"{100 * way['ptr']['share']:.0f} ({100 * way['ptr']['expected']:.0f})"
    told = [f"{100 * entry['accuracy']:.1f} ± 0.4", f"{100 * way['gain']:+.1f}", f"{100 * way['lowest']:.1f}"]
    return [*told, *(str(tally[word]) for word in VERDICTS), ptr, f"{entry['bytes_up'] / 1e6:.0f}"]


def test_table_fits_100_columns_and_carries_the_numbers(summary: Any) -> None:
    lines = shown(summary).splitlines()
    assert max(map(len, lines)) <= 100
    for name in METHODS[1:]:
        (line,) = [line for line in lines if line.split(" ")[0] == name]
        at = 0
        for number in numbers(summary, name):
            at = line.index(number, at) + len(number)


def test_ways_are_grouped_and_the_bar_is_marked() -> None:
    first = [line.split("  ")[0].strip() for line in shown(make_summary(("local", "ditto"), own=True)).splitlines()[3:]]
    assert first == ["alone:", "local *", "majority", "together:", "ditto", "in one place:", "pooled"]


def test_a_narrow_terminal_cuts_no_number(summary: Any) -> None:
    text = shown(summary, width=90)
    assert "…" not in text
    assert numbers(summary, "fedora")[0] in text


def test_relative_accuracy_is_shown_for_published_protocols_where_it_fits() -> None:
    assert "R-Acc" in shown(make_summary(("local", "ditto"), seeds=1))
    assert "R-Acc" not in shown(make_summary(seeds=3))
    assert "R-Acc" not in shown(make_summary(("local", "ditto"), own=True))
    assert "R-Acc" in markdown_table(make_summary(seeds=3))


def test_a_method_named_like_markup_is_shown_as_it_is() -> None:
    assert "[red]x" in shown(make_summary(("local", "[red]x")))


@pytest.mark.parametrize("render", [markdown_table, latex_table])
def test_markdown_and_latex_carry_the_numbers(summary: Any, render: Any) -> None:
    text = render(summary).replace(r" $\pm$ ", " ± ")
    for name in METHODS[1:]:
        (line,) = [line for line in text.splitlines() if name in line.replace("|", "").split()[:1]]
        for number in numbers(summary, name):
            assert number in line
    assert caption(summary) in render(summary)


def test_markdown_and_latex_escape_names_and_marks() -> None:
    summary = make_summary(("local", "a|b_c&d"))
    assert "| a\\|b_c&d |" in markdown_table(summary)
    assert "| local \\* |" in markdown_table(summary)
    assert r"a|b\_c\&d &" in latex_table(summary)


def test_counts_are_of_the_four_verdict_words(summary: Any) -> None:
    assert counts(found(summary, "fedora")) == dict(zip(VERDICTS, (11, 0, 0, 1), strict=True))
    assert told_counts(found(summary, "fedora")) == "11 better, 1 too few rows to tell"
    assert told_counts(found(summary, "local")) == "the bar"
    assert lowest(summary, found(summary, "fedavg")) == "owner 11"


def test_the_opening_says_what_verdicts_are_about_and_what_is_odd_about_the_data() -> None:
    summary = make_summary(own=True)
    basis = (
        "Verdicts are about accuracy, because the target is a class and no class is rare; "
        "the bar is the network alone, since nothing else alone is better on validation rows by more than chance."
    )
    assert opening_lines(summary) == [basis]
    summary["data"]["notes"] = ["owner 0 has 3 rows", "'id' looks like a number for each row."]
    assert opening_lines(summary) == ["Data: owner 0 has 3 rows; 'id' looks like a number for each row.", basis]


def test_a_method_that_still_improved_is_marked_and_told(summary: Any) -> None:
    assert "†" not in shown(summary) + "".join(verdict_lines(summary))
    note = "still improving after 60 rounds: a longer training may change the verdict"
    found(summary, "ditto")["notes"] = ["step size 0.1, 60 rounds", note]
    assert [row.cells[0] for row in rows(summary) if "†" in row.cells[0]] == ["ditto †"]
    assert f"†: ditto was {note}." in verdict_lines(summary)
    assert r"ditto \dag{}" in latex_table(summary)


def test_the_recommendation_is_given_to_every_owner_or_counted(summary: Any) -> None:
    advice = summary["findings"]["recommendation"]
    lines = verdict_lines(summary)
    start = lines.index("Recommendation:")
    assert lines[start + 1 :] == [
        *(f"  {one['owner']}: {one['why']}" for one in advice["owners"]),
        f"  the federation: {advice['federation']['why']}",
    ]
    counted = verdict_lines(summary, most=11)
    expected = Counter(
        f"join with {one['method']}" if one["action"] == "join" else one["action"] for one in advice["owners"]
    )
    assert set(counted[start + 1 : -1]) == {f"  {what}: {n} of 12 owners" for what, n in expected.items()}


def test_caption_says_model_round_rule_and_average(summary: Any) -> None:
    assert caption(summary) == (
        "The numbers: test accuracy of each owner's personal model at the round with the best validation accuracy, "
        "averaged over owners, each counting the same; mean over 3 seeds, ± their standard deviation."
    )
    summary["methods"]["fedavg"] |= {"model": "global", "round": {"rule": "last", "rounds": [50, 50, 50]}}
    assert "the global model at the last round, averaged over owners, each counting the same (fedavg)" in caption(
        summary
    )


def test_caption_of_own_data_speaks_of_folds() -> None:
    said = caption(make_summary(own=True, seeds=3))
    assert "at the number of rounds with the lowest validation loss" in said
    assert said.endswith("every row tested once in 3 folds.")
    assert caption(make_summary(own=True, seeds=1)).endswith("one division into train and test rows.")


def test_one_seed_shows_no_spread() -> None:
    summary = make_summary(seeds=1)
    assert "±" not in markdown_table(summary)
    assert caption(summary).endswith("one seed.")


def test_headline_is_the_recommendation(summary: Any) -> None:
    assert headline(summary).startswith("With fedora 11 of 12 owners are better off than alone and none was found")
    assert headline(summary) == summary["findings"]["recommendation"]["federation"]["why"]
    assert headline(make_summary(("local",))) == "Only local was run; there is nothing to compare it with."


def test_nothing_says_that_nobody_is_worse_off_where_nothing_was_learned() -> None:
    summary = make_summary(("local", "coin"), seeds=1)
    same = draw_answers(12, 0.5)
    ways = [Way("local", "local", "alone", same, []), Way("coin", "coin", "method", same, [])]
    summary["findings"] = find(ways, summary["findings"]["owners"], METRICS["accuracy"], "accuracy").to_json()
    text = " ".join([headline(summary), shown(summary), *opening_lines(summary), *verdict_lines(summary)])
    assert "nobody" not in text
    assert "none was found worse off" not in text


def test_a_quantity_is_shown_in_its_own_unit_and_lower_is_better() -> None:
    summary = make_summary(("local", "ditto"), clients=2, seeds=1, own=True)

    def off(by: float) -> list[Answers]:
        y = [1000.0 + 10 * (k + 1) * (-1.0) ** draw_answers(2, 1.0)[0].rows[k] for k in range(2)]
        return [Answers(draw_answers(2, 1.0)[0].rows, y, [t + by for t in y], validation=np.full(9, by))]

    ways = [Way("local", "the network alone", "alone", off(4.0), []), Way("ditto", "ditto", "method", off(1.5), [])]
    owners = summary["findings"]["owners"]
    summary["findings"] = find(ways, owners, METRICS["rmse"], "RMSE, because the target is a quantity").to_json()
    summary["methods"]["local"]["accuracy"], summary["methods"]["ditto"]["accuracy"] = 4.0, 1.5
    assert "| ditto | 1.50 | +2.50 |" in markdown_table(summary)
    assert "RMSE (lower is better)" in markdown_table(summary)
    assert "is better)" in shown(summary)
    assert "Highest owner" in markdown_table(summary)


def test_where_one_test_part_is_too_small_folds_are_proposed() -> None:
    one = make_summary(("local", "ditto"), seeds=1, own=True)
    verdicts = found(one, "ditto")["verdicts"]
    for k, verdict in enumerate(verdicts):
        verdict["verdict"] = "too few rows to tell" if k < 6 else "no difference found"  # of 12
    assert not any("--folds" in line for line in verdict_lines(one))
    verdicts[6]["verdict"] = "too few rows to tell"
    (said,) = [line for line in verdict_lines(one) if "--folds" in line]
    assert said.startswith("Most owners have too few test rows (6 to 200 of them)")
    one["settings"]["folds"] = 5
    assert not any("--folds" in line for line in verdict_lines(one))
    one["settings"]["folds"], one["scenario"]["pool"] = 1, "train"
    assert not any("--folds" in line for line in verdict_lines(one)), "a published test part stays"


def test_what_owners_with_enough_rows_gain_is_told_where_others_move_the_mean() -> None:
    one = make_summary(("local", "ditto"), own=True)
    verdicts = found(one, "ditto")["verdicts"]
    for k, verdict in enumerate(verdicts):
        verdict["verdict"], verdict["gain"] = ("better", 0.02) if k else ("too few rows to tell", 0.5)
    said = "The mean gain, points, without the owners that have too few rows to tell: ditto +2.0 (11 of 12 owners)."
    assert said in verdict_lines(one)
    for verdict in verdicts:
        verdict["verdict"] = "too few rows to tell"
    assert not any("without the owners" in line for line in verdict_lines(one)), "nobody is left"
    for verdict in verdicts:
        verdict["verdict"] = "better"
    assert not any("without the owners" in line for line in verdict_lines(one)), "everybody counts"


def test_a_number_that_is_a_name_is_called_an_owner() -> None:
    one = make_summary(("local", "ditto"), clients=3)
    one["findings"]["owners"] = ["5", "6", "7"]
    assert lowest(one, found(one, "ditto")) in {"owner 5", "owner 6", "owner 7"}


def test_one_owner_has_nobody_to_train_with() -> None:
    one, two = (make_summary(("local", "ditto"), clients=n) for n in (1, 2))
    assert any("nobody to train with" in line for line in opening_lines(one))
    assert not any("nobody to train with" in line for line in opening_lines(two))
    assert "averaged over" not in caption(one)


def test_methods_that_still_improved_share_a_line(summary: Any) -> None:
    note = "still improving after 60 rounds: a longer training may change the verdict"
    for name in ("fedavg", "ditto"):
        found(summary, name)["notes"] = [note]
    assert [line for line in marks(summary) if "†" in line] == [f"†: fedavg, ditto were {note}."]
