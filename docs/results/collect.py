"""Judge the claims of the tables in this folder anew, and write their pages and the index; nothing is trained.

    python docs/results/collect.py

With arguments, first take finished reproductions into this folder:

    python docs/results/collect.py OUT NAME [NAME ...] [--budget standard] [--part PART]

OUT is the folder given to `fairlead reproduce --out`; a PART of a table goes to a folder NAME-PART of its own. The
commits that trained a table are those which its cells recorded.
"""

import argparse
import json
import re
import shutil
from pathlib import Path

from fairlead.reproduce import across, rewrite
from fairlead.reproduce.table import STATUSES, sentence

HERE = Path(__file__).parent
# The folder where the data lay belongs to one machine; the page does not show it.
PLACE = re.compile(r"(no \S+/train-\*\.parquet) in [^\"\n]*?(?=[\"\n]|$)")
INTRODUCTION = """# Published tables, run again

Each folder holds one table or figure of the four papers: `table.md` (the paper's value, ours, the difference, and what
became of each claim), `numbers.json` and `numbers.csv` (the same as data), `table.tex`, and a figure as SVG: the
paper's where it has one, else its numbers beside ours. All of it is written by `fairlead reproduce NAME`, with
`--jobs N` on N cells at a time; the command and the commit stand in `numbers.json`. `python docs/results/collect.py`
writes this page, and judges every claim anew, from the saved numbers.

[Which method wins where](where.md) is the page to read first; `python docs/results/where.py` writes it.

Budgets: `full` is the published protocol, `standard` what two cores do in about an hour, `quick` a check that all runs.

A claim has three answers. It **holds** if every pair of numbers it is about differs in the claimed direction by more
than the spread, one standard deviation over seeds of the difference seed by seed. It **does not hold** if some pair
differs by more than the spread in the other direction. Otherwise it is **within the spread**: these runs do not tell.
With one seed no spread is known, and the sign of the difference decides; another seed may change it.
"""


def take(out: Path, name: str, budget: str, part: str | None) -> None:
    """Copy one reproduction."""
    source, target = out / name / budget, HERE / (f"{name}-{part}" if part else name)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for path in sorted(source.iterdir()):
        if path.suffix != ".png":  # the SVG is the same figure
            (target / path.name).write_text(PLACE.sub(r"\1 at hand", path.read_text("utf-8")), "utf-8")
    page = json.loads((target / "numbers.json").read_text("utf-8"))
    commits = sorted({commit for entry in page["entries"] for commit in entry["commits"]})
    page["commit"] = ", ".join(commits) or "unknown"
    (target / "numbers.json").write_text(json.dumps(page, indent=1, ensure_ascii=False) + "\n", "utf-8")


def again(folder: Path) -> dict:
    """The folder's texts from its numbers, and where these come from."""
    page = rewrite(folder)
    text = json.dumps(page, indent=1, ensure_ascii=False) + "\n"
    (folder / "numbers.json").write_text(text, "utf-8")  # as `take` writes it, line by line
    figure = "![The figure, from our runs](figure.svg)\n\n" if (folder / "figure.svg").exists() else ""
    made = f"\n{figure}Made by `{page['command']}` at commit {page['commit']}; claims as judged since.\n"
    with (folder / "table.md").open("a", encoding="utf-8") as file:
        file.write(made)
    return page


def index() -> str:
    """The page that names every table here and what became of its claims."""
    judged = [status for status in STATUSES if status != "not run"]
    lines = [
        INTRODUCTION,
        "| table | budget | seeds | commit | claims that hold | within the spread | that do not |",
        "|---|---|---|---|---|---|---|",
    ]
    told: dict[str, list[str]] = {status: [] for status in judged}
    parts: dict[tuple[str, str], list[dict]] = {}
    for path in sorted(HERE.glob("*/numbers.json")):
        page = again(path.parent)
        name = path.parent.name
        parts.setdefault((page["name"], page["budget"]), []).append(page)
        counts = [sum(c["status"] == status for c in page["claims"]) for status in judged]
        cells = [f"[{name}]({name}/table.md)", page["budget"], page["seeds"], page["commit"], *counts]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
        for c in page["claims"]:
            if c["status"] in told:
                told[c["status"]].append(f"- {name}: {c['text']} ({c['held']} of {c['measured']} pairs).")
    for title, status in (("do not hold", "does not hold"), ("are within the spread", "within the spread")):
        lines += ["", f"## Claims that {title} in these runs", "", *(told[status] or ["None."])]
    together = [sentence(v, most=8) for pages in parts.values() if len(pages) > 1 for v in across(pages)]
    if together:
        lines += ["", "## Claims about several tables at once", "", *(f"- {line}" for line in together)]
    remarks = HERE / "remarks.md"
    return "\n".join([*lines, ""]) + ("\n" + remarks.read_text("utf-8") if remarks.exists() else "")


def main() -> None:
    """Take what is named, then write all pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--budget", default="standard")
    parser.add_argument("--part")
    given = parser.parse_args()
    for name in given.names:
        take(given.out, name, given.budget, given.part)
    (HERE / "README.md").write_text(index(), "utf-8")


if __name__ == "__main__":
    main()
