"""Write docs/methods/ from the docstrings: `python docs/generate.py`. A test keeps the pages and the code the same."""

from pathlib import Path

from fairlead.catalogue import about
from fairlead.methods import CONVOYS, DECISIONS, METHODS, WRAPPERS
from fairlead.servers import STAGES

AFTER_A_PLUS = {**STAGES, **WRAPPERS, **DECISIONS}
HERE = Path(__file__).parent / "methods"
BUFFERS = """A stage acts on the model's parameters. Buffers, such as the running statistics of BatchNorm, get the
weighted mean with every stage. So `median`, `trimmed` and `krum` do not protect these from a client that sends wrong
numbers."""


def page(name: str) -> str:
    """One method's or stage's page."""
    one = about(name)
    title, _, rest = one.text.partition("\n")
    options = "".join(f"| `{name}.{key}` | `{default}` |\n" for key, default in one.keywords.items())
    table = (
        f"\n## Options\n\n| option, as in `--set {name}.KEY=VALUE` | default |\n| --- | --- |\n{options}"
        if options
        else ""
    )
    use = f"fedavg+{name}" if name in AFTER_A_PLUS else name
    body = f"\n```text\n{rest.strip()}\n```\n" if rest.strip() else ""
    return f"# {name}\n\n{title}\n{body}{table}\n## Use\n\n    fairlead compare {use}\n"


def index() -> str:
    """The list of all pages."""
    lines = ["# Methods and stages", "", "Written from the docstrings by `python docs/generate.py`.", ""]
    lines += ["| method | what it is | cost |", "| --- | --- | --- |"]
    lines += [f"| [{n}]({n}.md) | {about(n).title} | {about(n).cost} |" for n in {**METHODS, **CONVOYS}]
    lines += ["", "| after a plus | what it does |", "| --- | --- |"]
    lines += [f"| [{n}]({n}.md) | {about(n).title} |" for n in AFTER_A_PLUS]
    lines += ["", BUFFERS]
    return "\n".join(lines) + "\n"


def pages() -> dict[Path, str]:
    """Every file and what it should say."""
    return {HERE / "README.md": index()} | {HERE / f"{n}.md": page(n) for n in {**METHODS, **CONVOYS, **AFTER_A_PLUS}}


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
