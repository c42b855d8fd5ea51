"""Pages made from docstrings say what the docstrings say; links lead somewhere."""

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
