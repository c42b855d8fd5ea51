"""Write where.md from the numbers saved here: which method wins where, and by how much over training alone.

    python docs/results/where.py

Its first part comes from `fairlead reproduce where`, its second from the tables of the papers.
"""

import json
import statistics
from pathlib import Path

HERE = Path(__file__).parent
INTRODUCTION = """# Which method wins where

Two kinds of rows, from runs on real data, tables and images. In the first, every method and LOCAL searched their own
step size and number of rounds on validation rows: a gain there is one over a LOCAL that was trained as hard. In the
second, all had the step size and rounds of a paper's protocol (most of them fewer rounds than published), so that LOCAL
may be undertrained, and a part of a gain may be training alone.

Written by `python docs/results/where.py` from the `numbers.json` files. A winner of many methods is partly luck: with
one seed no spread is known, and differences of a percent or less say little. What helps *your* clients is a question
for `fairlead compare`, which also says how sure it is of every owner.
"""
SEARCHED = """
## Against a LOCAL that was trained as hard

Score is the mean over owners: accuracy in percent, root mean square error (less is better), or c-index. A gain is each
owner's, in percent of its own score alone, mean over owners; ± is the standard deviation over seeds, where there are
several. `best alone` is the best that owners do alone with standard tools or the network, chosen on validation rows;
`pooled` has all rows in one place. Made by `fairlead reproduce where`; options are the methods' defaults.
"""
PROTOCOLS = """
## By the papers' protocols

LOCAL's accuracy, the three methods with the largest gain over it and the one with the smallest, in points. LOCAL has
the same rounds and step size as the others. Methods ran at their defaults of the commit that a table names.
"""
CHOSEN = """
## Step sizes and rounds that were chosen

By the mean loss over validation rows, for the rows of the first kind: step size and rounds, seed by seed. An asterisk:
the loss was still falling at the last round that the effort allows.
"""
Entries = dict[tuple[str, str], list[float]]


def pages() -> dict[str, dict]:
    """Every saved table, by its folder."""
    found = {p.parent.name: json.loads(p.read_text("utf-8")) for p in sorted(HERE.glob("*/numbers.json"))}
    return {name: page for name, page in found.items() if page["budget"] != "quick"}


def number(values: list[float], places: int, sign: str = "") -> str:
    """A mean with its spread."""
    spread = f" ± {statistics.stdev(values):.{places}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):{sign}.{places}f}{spread}"


def searched(folder: str, page: dict) -> tuple[list[str], list[str]]:
    """A line per data set, and a line per data set with what was chosen."""
    ours: Entries = {(e["row"], e["column"]): e["ours"] for e in page["entries"] if e["ours"]}
    lines, chosen = [], []
    for place in dict.fromkeys(e["group"] for e in page["entries"]):
        at = {row: values for (row, column), values in ours.items() if column == f"{place}: gain"}
        if not at:
            continue
        places = 1 if place.endswith("accuracy") else 3
        scores = {row: number(ours[row, f"{place}: score"], places) for row in ("LOCAL", "best alone", "pooled")}
        methods = sorted((r for r in at if r not in ("best alone", "pooled")), key=lambda r: -statistics.fmean(at[r]))
        best = "; ".join(f"{r} {number(at[r], 1, '+')}" for r in methods[:3])
        last = f"{methods[-1]} {number(at[methods[-1]], 1, '+')}"
        above = f"{sum(clear(at[r]) for r in methods)} of {len(methods)}"
        nobody = [r for r in methods if not any(ours[r, f"{place}: below"])]
        cells = [f"[{place}]({folder}/table.md)", str(page["seeds"]), *scores.values(), best, last, above]
        lines.append("| " + " | ".join([*cells, ", ".join(nobody) or "none"]) + " |")
        told = [f"{row}: {settings(ours, row, place)}" for row in ("LOCAL", *methods)]
        chosen.append(f"- {place}. " + "; ".join(told) + ".")
    return lines, chosen


def settings(ours: Entries, row: str, place: str) -> str:
    """What a method chose, seed by seed."""
    each = zip(*(ours[row, f"{place}: {what}"] for what in ("lr", "rounds", "improving")), strict=True)
    return ", ".join(f"{lr:.3g} for {rounds:.0f}{'*' if still else ''}" for lr, rounds, still in each)


def gains(page: dict) -> dict[str, dict[str, list[float]]]:
    """By column of accuracies, each row's gain over LOCAL in points, seed by seed; LOCAL itself as it is.

    Tables that try settings are left out: their best row would be one chosen on test samples.
    """
    found: dict[str, dict[str, list[float]]] = {}
    if any(e["measure"] == "validation" for e in page["entries"]):
        return found
    for e in page["entries"]:
        if e["measure"] == "accuracy" and e["ours"]:
            scale = 1.0 if max(e["ours"]) > 1.5 else 100.0  # some tables are in percent already
            found.setdefault(e["column"], {})[e["row"]] = [scale * x for x in e["ours"]]
    for column, rows in list(found.items()):
        alone = rows.get("LOCAL")
        if alone is None or len(rows) < 3:
            del found[column]
            continue
        for row, values in rows.items():
            if row != "LOCAL":
                rows[row] = [x - base for x, base in zip(values, alone, strict=True)]
    return found


def told(row: str, values: list[float], sign: str = "+") -> str:
    """A row and its number with its spread."""
    return f"{row} {number(values, 1, sign)}".strip()


def clear(values: list[float]) -> bool:
    """Whether a gain is above zero by more than the spread."""
    return statistics.fmean(values) > (statistics.stdev(values) if len(values) > 1 else 0.0)


def line(folder: str, column: str, rows: dict[str, list[float]], page: dict) -> str:
    """One data set."""
    others = sorted((r for r in rows if r != "LOCAL"), key=lambda r: -statistics.fmean(rows[r]))
    best = "; ".join(told(r, rows[r]) for r in others[:3])
    above = f"{sum(clear(rows[r]) for r in others)} of {len(others)}"
    name = column if column.endswith(" Acc") else f"{page['title']}: {column.removesuffix(', Acc, %')}"
    cells = [f"[{name}]({folder}/table.md)", page["budget"], page["seeds"], told("", rows["LOCAL"], "")]
    return "| " + " | ".join(map(str, [*cells, best, told(others[-1], rows[others[-1]]), above])) + " |"


def tuned() -> list[str]:
    """The settings with the best validation accuracy, method by method, where settings were tried."""
    lines = ["| data set | method | best setting by validation accuracy | validation | test | at its default |"]
    lines += ["|---|---|---|---|---|---|"]
    page = json.loads((HERE / "fedora-baselines" / "numbers.json").read_text("utf-8"))
    number = {(e["row"], e["column"]): e["mean"] for e in page["entries"]}
    for column in dict.fromkeys(c for _, c in number if c.endswith(" validation")):
        data, test = column.removesuffix(" validation"), column.replace(" validation", " test")
        for method in dict.fromkeys(row.partition(",")[0] for row, _ in number):
            tried = [r for r, c in number if c == column and r.partition(",")[0] == method]
            if len(tried) > 1:
                best = max(tried, key=lambda r, c=column: number[r, c])
                setting = best.partition(", ")[2] or "default"
                values = (number[best, column], number[best, test], number[method, test])
                lines.append(f"| {data} | {method} | {setting} | " + " | ".join(f"{v:.4f}" for v in values) + " |")
    return lines


def main() -> None:
    """Read all tables, write the page."""
    found = pages()
    ours = [searched(folder, page) for folder, page in found.items() if page["name"] == "where"]
    first = ["| data set | seeds | LOCAL | best alone | pooled | largest gains over LOCAL, % | smallest | above LOCAL "]
    first[0] += "| no owner below LOCAL |"
    first += ["|---" * 9 + "|", *(line for lines, _ in ours for line in lines)]
    second = ["| data set and table | budget | seeds | LOCAL, % | largest gains | smallest | above LOCAL |"]
    second += ["|---" * 7 + "|"]
    second += [line(f, column, rows, page) for f, page in found.items() for column, rows in gains(page).items()]
    parts = [INTRODUCTION + SEARCHED, *first, CHOSEN, *(text for _, texts in ours for text in texts)]
    parts += [PROTOCOLS, *second, "\n## Options that were chosen on validation samples\n", *tuned(), ""]
    (HERE / "where.md").write_text("\n".join(parts), "utf-8")


if __name__ == "__main__":
    main()
