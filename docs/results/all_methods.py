"""Write all-methods/ from a finished comparison: every method's scores, and the FEDORA paper's ordering beside ours.

    python docs/results/all_methods.py OUT

OUT is the folder given to `fairlead compare --out`; the command is written into the page.
"""

import json
import sys
from itertools import combinations
from pathlib import Path

from fairlead.report import markdown_table
from fairlead.reproduce.fedora import BALANCED, METHODS

HERE = Path(__file__).parent / "all-methods"
TITLE = """# Every method on Rotated MNIST

36 clients, each turned 10 degrees further, MLP 784-128-128-10 and the FEDORA protocol: SGD at 5e-3 with momentum 0.9,
5 local epochs of batches of 64, {rounds} rounds, the round with the best validation accuracy, looked for every 10. One
seed, each method at its default options. Times are from a machine that others used.
"""


def page(summary: dict, command: str) -> str:
    """The whole page."""
    return "\n".join(
        [
            TITLE.format(rounds=summary["settings"]["rounds"]),
            f"    {command}\n",
            markdown_table(summary),
            *ordering(summary),
        ]
    )


def ordering(summary: dict) -> list[str]:
    """Method by method: the paper's accuracy and ours, and on which side of LOCAL both stand."""
    ours = {name: m["accuracy"] for name, m in summary["methods"].items()}
    paper = {code: BALANCED[i][0] for i, code in enumerate(METHODS.values())}
    ratio = {code: BALANCED[i][2] for i, code in enumerate(METHODS.values())}
    others = [code for code in paper if code != "local"]
    lines = [
        "\n## The FEDORA paper's ordering, point by point\n",
        "| method | paper | ours | difference | above LOCAL in the paper | in ours | PTR, paper | PTR, ours |",
        "|---|---|---|---|---|---|---|---|",
        f"| local | {paper['local']:.4f} | {ours['local']:.4f} | {ours['local'] - paper['local']:+.4f} | | | | |",
    ]
    for code in others:
        sides = [("yes" if a[code] > a["local"] else "no") for a in (paper, ours)]
        values = f"{paper[code]:.4f} | {ours[code]:.4f} | {ours[code] - paper[code]:+.4f}"
        ptr = f"{ratio[code]:.2f} | {summary['methods'][code]['ptr']:.2f}"
        lines.append(f"| {code} | {values} | {' | '.join(sides)} | {ptr} |")
    agree = sum((paper[c] > paper["local"]) == (ours[c] > ours["local"]) for c in others)
    pairs = list(combinations(paper, 2))
    same = sum((paper[a] > paper[b]) == (ours[a] > ours[b]) for a, b in pairs)
    best = sorted(ours, key=lambda name: -ours[name])[:3]
    lines += [
        f"\nOn the paper's side of LOCAL: {agree} of {len(others)} methods. In the paper's order: {same} of "
        f"{len(pairs)} pairs of methods. The paper's best of these is {max(paper, key=lambda c: paper[c])}, ours "
        f"{max(paper, key=lambda c: ours[c])}. The three best of all methods here are "
        + ", ".join(f"{name} ({ours[name]:.4f})" for name in best)
        + ".",
    ]
    return lines


def main(out: Path) -> None:
    """Read the comparison, write page and numbers."""
    summary = json.loads((out / "summary.json").read_text("utf-8"))
    methods = {n: {k: v for k, v in m.items() if k != "clients"} for n, m in summary["methods"].items()}
    settings = summary["settings"]
    command = (
        f"fairlead compare {' '.join(n for n in methods if n != 'local')} --scenario {summary['scenario']['name']} "
        f"--rounds {settings['rounds']} --engine {settings['engine']} --data-dir DIR --out OUT"
    )
    remarks = HERE / "remarks.md"
    text = page(summary, command) + "\n" + ("\n" + remarks.read_text("utf-8") if remarks.exists() else "")
    (HERE / "table.md").write_text(text, "utf-8")
    slim = summary | {"methods": methods, "command": command}
    (HERE / "summary.json").write_text(json.dumps(slim, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
