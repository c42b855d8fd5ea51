"""Write where.md from the numbers saved here: which method wins where, and by how much over training alone.

python docs/results/where.py
"""

import json
import statistics
from pathlib import Path

HERE = Path(__file__).parent
INTRODUCTION = """# Which method wins where

For every data set here on which LOCAL was trained beside the methods, with the same rounds and step size: LOCAL's
accuracy, the three methods with the largest gain over it and the one with the smallest, in points, with the standard
deviation over seeds where there are several. Written by `python docs/results/where.py` from the `numbers.json` files.

Read it with care. A winner of many methods is partly luck: with one seed, differences of less than a point say little.
Budgets are those of the tables, most of them shorter than published. Methods ran at their defaults of the commit that
a table names, unless the last table says otherwise. What helps *your* clients is a question for `fairlead compare`.
"""


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
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{row} {statistics.fmean(values):{sign}.1f}{spread}".strip()


def clear(values: list[float]) -> bool:
    """Whether a gain is above zero by more than the spread."""
    return statistics.fmean(values) > (statistics.stdev(values) if len(values) > 1 else 0.0)


def line(folder: str, column: str, rows: dict[str, list[float]], page: dict) -> str:
    """One data set."""
    others = sorted((r for r in rows if r != "LOCAL"), key=lambda r: -statistics.fmean(rows[r]))
    best = "; ".join(told(r, rows[r]) for r in others[:3])
    above = f"{sum(clear(rows[r]) for r in others)} of {len(others)}"
    name = column if column.endswith(" Acc") else f"{page['title']}: {column}"
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
    lines = ["| data set and table | budget | seeds | LOCAL, % | largest gains | smallest | above LOCAL |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for path in sorted(HERE.glob("*/numbers.json")):
        page = json.loads(path.read_text("utf-8"))
        lines += [line(path.parent.name, column, rows, page) for column, rows in gains(page).items()]
    parts = [INTRODUCTION, *lines, "", "## Settings that were chosen on validation samples", "", *tuned(), ""]
    (HERE / "where.md").write_text("\n".join(parts), "utf-8")


if __name__ == "__main__":
    main()
