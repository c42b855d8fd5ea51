"""What the page is made of: its frame, and tables with every text escaped."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from itertools import zip_longest
from typing import Any

# The browser itself refuses every other script and every connection, whatever a name or a file may hold.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; connect-src {connect}"
POLICY += "; base-uri 'none'; form-action 'none'"


class Html(str):
    """Text that is HTML already; any other is escaped."""


def minus(text: str) -> str:
    """Signs before digits become true minus signs."""
    return re.sub(r"(?<!\S)-(?=\d)", "−", text)


def html(text: Any) -> str:
    """Text for a place in the page."""
    return text if isinstance(text, Html) else escape(minus(str(text)))


def cell(text: Any, kind: str = "", title: str = "", **about: str) -> Html:
    """A table's cell with a text on hover and `data-` attributes."""
    given = "".join(f" data-{name}='{escape(value)}'" for name, value in about.items())
    given += f" title='{escape(title)}'" if title else ""
    return Html(f"<td{_class(kind)}{given}>{html(text)}</td>")


def line(cells: Iterable[Any], kind: str = "", owner: str | None = None, labels: Iterable[str] = ()) -> str:
    """A table row. `owner` is what the filter looks at; `labels` stand before the cells where there is no room for a
    table's head, on a phone."""
    texts = []
    for c, label in zip_longest(cells, labels):
        about = {"label": label} if label else {}
        texts.append(c if isinstance(c, Html) and c.startswith("<td") else cell(c, "none" * (c == "–"), **about))
    named = f" data-owner='{escape(str(owner))}'" if owner is not None else ""
    return f"<tr{_class(kind)}{named}>{''.join(texts)}</tr>"


def _class(kind: str) -> str:
    return f" class='{kind}'" if kind else ""


def table(head: Iterable[str], body: Iterable[str], kind: str = "", save: str = "", bodies: bool = False) -> str:
    """A table of rows, or of whole groups of rows; `save` is the name under which it is downloaded."""
    heads = "".join(
        c if isinstance(c, Html) and c.startswith("<th") else f"<th scope='col'>{html(c)}</th>" for c in head
    )
    inside = "".join(body) if bodies else f"<tbody>{''.join(body)}</tbody>"
    named = f" data-csv='{save}'" if save else ""
    return f"<div class='wide'><table class='{kind}'{named}><thead><tr>{heads}</tr></thead>{inside}</table></div>"


def heading(title: str) -> str:
    """A section's title, which the contents name."""
    return f"<h2 id='{title.lower().replace(' ', '-')}'>{escape(title)}</h2>"


def contents(sections: Iterable[str]) -> str:
    """Links to the sections, in their order."""
    found = re.findall(r"<h2 id='([a-z-]+)'>([^<]+)</h2>", "".join(sections))
    links = "".join(f"<a href='#{name}'>{title}</a>" for name, title in found)
    return f"<nav aria-label='Contents'>{links}</nav>"


def page(title: str, sections: Iterable[str], data: dict[str, Any]) -> str:
    """A whole page in one file: style, sections, and the script with its data."""
    style, script = (files("fairlead.report").joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = POLICY.format(digest=digest, connect="'self'" if data["live"] else "'none'")
    # Inside a script element only "<" could end it; JSON may write it as a number.
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}">'
    head += "<meta name='viewport' content='width=device-width, initial-scale=1'>"
    head += f"<title>{escape(title)}</title><style>{style}</style>"
    end = f"<script id='data' type='application/json'>{text}</script><script>{script}</script></body></html>"
    return "\n".join([f"<!doctype html>\n<html lang='en'><head>{head}</head><body>", *sections, end, ""])
