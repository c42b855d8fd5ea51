"""Pages made from docstrings say what the docstrings say; links lead somewhere."""

import ast
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def names_in(path: str) -> dict[str, Any]:
    """What a Python file defines."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(vars(module))


def test_method_pages_are_up_to_date() -> None:
    pages = names_in("docs/generate.py")["pages"]()
    stale = [p.name for p, text in pages.items() if not p.exists() or p.read_text(encoding="utf-8") != text]
    assert not stale, f"run python docs/generate.py; stale: {stale}"


def test_the_first_change_in_contributing_works() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    stage, check = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    file = names_in("src/fairlead/servers/mean.py")
    exec(stage, file)
    tests = names_in("tests/servers/test_stages.py") | {"equal_length": file["equal_length"]}
    exec(check, tests)
    (written,) = re.findall(r"def (test_\w+)", check)
    tests[written]()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def place(path: Path) -> str:
    """The folder or file at the top of the package that a file belongs to."""
    first, *more = path.parts
    return f"{first}/" if more else first


def imports(path: Path) -> set[str]:
    """The places at the top of the package that a file imports from."""
    package = ROOT / "src" / "fairlead"
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "fairlead":
            name = (node.module or "").partition(".")[2].partition(".")[0] or node.names[0].name
            found.add(f"{name}/" if (package / name).is_dir() else f"{name}.py")
    return found - {place(path.relative_to(package))}


def test_where_a_line_belongs_says_what_each_place_imports() -> None:
    page = (ROOT / "docs" / "all-of-fairlead.md").read_text(encoding="utf-8")
    table = page.partition("## Where a line belongs")[2]
    rows = re.findall(r"^\| `([^`]+)` \|[^|]*\|([^|]*)\|$", table, re.MULTILINE)
    told = {name: set(re.findall(r"`([^`]+)`", leans)) for name, leans in rows}
    found: dict[str, set[str]] = {}
    package = ROOT / "src" / "fairlead"
    for file in package.rglob("*.py"):
        found.setdefault(place(file.relative_to(package)), set()).update(imports(file))
    del found["__init__.py"], found["__main__.py"]
    assert told == found


def test_the_walk_through_one_round_names_files_that_are_there_and_each_once() -> None:
    page = (ROOT / "docs" / "all-of-fairlead.md").read_text(encoding="utf-8")
    walk = page.partition("## One round, file by file")[2].partition("\n## ")[0]
    named = re.findall(r"`([a-z_/]+\.py)`", walk)
    assert len(named) == len(re.findall(r"^\d+\. ", walk, re.MULTILINE)) > 10
    assert len(set(named)) == len(named)
    missing = [name for name in named if not (ROOT / "src" / "fairlead" / name).exists()]
    assert not missing
