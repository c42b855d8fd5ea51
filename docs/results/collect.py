"""Take finished reproductions into this folder, with the commit that made them, and write the index anew.

    python docs/results/collect.py OUT COMMIT NAME [NAME ...] [--budget standard] [--part PART]

OUT is the folder given to `fairlead reproduce --out`; a PART of a table goes to a folder NAME-PART of its own. Without
names, only the index is written.
"""

import argparse
import json
import re
import shutil
from pathlib import Path

HERE = Path(__file__).parent
# The folder where the data lay belongs to one machine; the page does not show it.
PLACE = re.compile(r"(no \S+/train-\*\.parquet) in [^\"\n]*?(?=[\"\n]|$)")
INTRODUCTION = """# Published tables, run again

Each folder holds one table or figure of the four papers: `table.md` (the paper's value, ours, the difference, and what
became of each claim), `numbers.json` and `numbers.csv` (the same as data), `table.tex`, and a figure as SVG: the
paper's where it has one, else its numbers beside ours. All of it is written by `fairlead reproduce NAME`, with
`--jobs N` on N cells at a time; the command and the commit stand in `numbers.json`. `python docs/results/collect.py`
writes this page from them.

Budgets: `full` is the published protocol, `standard` what two cores do in about an hour, `quick` a check that all runs.
A claim is judged on the means over seeds; with one seed, small differences are within what another seed would change.
"""


def take(out: Path, commit: str, name: str, budget: str, part: str | None) -> None:
    """Copy one reproduction."""
    source, target = out / name / budget, HERE / (f"{name}-{part}" if part else name)
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for path in sorted(source.iterdir()):
        if path.suffix != ".png":  # the SVG is the same figure
            (target / path.name).write_text(PLACE.sub(r"\1 at hand", path.read_text("utf-8")), "utf-8")
    page = json.loads((target / "numbers.json").read_text("utf-8")) | {"commit": commit}
    (target / "numbers.json").write_text(json.dumps(page, indent=1, ensure_ascii=False) + "\n", "utf-8")
    figure = "![The figure, from our runs](figure.svg)\n\n" if (target / "figure.svg").exists() else ""
    made = f"\n{figure}Made by `{page['command']}` at commit {commit}.\n"
    with (target / "table.md").open("a", encoding="utf-8") as file:
        file.write(made)


def index() -> str:
    """The page that names every table here and what became of its claims."""
    lines = [
        INTRODUCTION,
        "| table | budget | seeds | commit | claims that hold | that do not |",
        "|---|---|---|---|---|---|",
    ]
    against = []
    for path in sorted(HERE.glob("*/numbers.json")):
        page = json.loads(path.read_text("utf-8"))
        counts = {s: sum(c["status"] == s for c in page["claims"]) for s in ("holds", "does not hold")}
        link = f"[{path.parent.name}]({path.parent.name}/table.md)"
        cells = [link, page["budget"], page["seeds"], page["commit"], counts["holds"], counts["does not hold"]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
        against += [
            f"- {path.parent.name}: {c['text']} ({c['held']} of {c['measured']} pairs)."
            for c in page["claims"]
            if c["status"] == "does not hold"
        ]
    lines += ["", "## Claims that do not hold in these runs", "", *(against or ["None."]), ""]
    remarks = HERE / "remarks.md"
    return "\n".join(lines) + ("\n" + remarks.read_text("utf-8") if remarks.exists() else "")


def main() -> None:
    """Take what is named, then write the index."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", nargs="?", type=Path)
    parser.add_argument("commit", nargs="?")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--budget", default="standard")
    parser.add_argument("--part")
    given = parser.parse_args()
    for name in given.names:
        take(given.out, given.commit, name, given.budget, given.part)
    (HERE / "README.md").write_text(index(), "utf-8")


if __name__ == "__main__":
    main()
