"""Put the demo's table into README.md and its page into docs/pictures/demo.png: `make picture`.

Both come from the run in runs/demo, so that they agree. The words around the table in README.md are not touched: read
them again afterwards. The picture needs Chromium.
"""

import io
import shutil
import subprocess
import tempfile
import textwrap
from pathlib import Path

from rich.console import Console

from fairlead.report.tables import WIDTH, advice_lines, verdict_table
from fairlead.runs.summary import read_summary

ROOT = Path(__file__).parents[1]
RUN, PICTURE, README = ROOT / "runs" / "demo", ROOT / "docs" / "pictures" / "demo.png", ROOT / "README.md"
BEGIN, END = "<!-- the demo's table, by docs/demo.py -->\n", "<!-- end -->\n"
SIZE = "1280,1500"


def printed() -> str:
    """The table and the recommendation as `fairlead compare` prints them, as a block of a Markdown file."""
    summary, out = read_summary(RUN), io.StringIO()
    Console(file=out, width=WIDTH).print(verdict_table(summary))
    lines = out.getvalue().rstrip().split("\n")
    for text in advice_lines(summary):
        lead = text[: len(text) - len(text.lstrip())]
        lines += textwrap.wrap(text.strip(), 116, initial_indent=lead, subsequent_indent="      ")
    return "".join(f"    {line}".rstrip() + "\n" for line in lines)


def main() -> None:
    """Write both."""
    before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    README.write_text(f"{before}{BEGIN}\n{printed()}\n{END}{after}", encoding="utf-8")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("no browser here for the picture: apt-get install chromium")
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars")
    flags += ("--disable-background-networking", "--disable-component-update", "--disable-sync")
    with tempfile.TemporaryDirectory() as profile:
        asked = (f"--user-data-dir={profile}", f"--window-size={SIZE}", f"--screenshot={PICTURE}")
        page = (RUN / "report.html").as_uri()
        subprocess.run([browser, *flags, *asked, page], check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
