"""Write a page as one file, with its style, script and document inside; it loads nothing, and no
other script can run in it.

The script is the modules of the live page, concatenated. They import names only from each other,
and no two of them define the same name, or the browser would refuse all of it.
"""

import base64
import hashlib
import re
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

import msgspec

from stillframe.diagram import svg
from stillframe.trace import clean_label

ENTRY = "file.js"
"""The entry module of the script in a file; it comes last."""

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([a-z_-]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(async )?(function|const|class) )", re.MULTILINE)


def render(document: Any, *, title: str) -> str:
    """Return the text of an HTML file that shows `document`, whose ``kind`` says which module of
    the page does; the title is foreign text, made harmless here."""
    style, script = style_sheet(), bundle(ENTRY)
    # Inside a script element '<' could end it; JSON knows another way to write it.
    held = msgspec.json.encode(document).decode().replace("<", "\\u003c")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(clean_label(title))}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        '<main tabindex="-1"></main>\n'
        f'<script type="application/json" id="document">{held}</script>\n'
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


@cache
def style_sheet() -> str:
    """Return the style of all pages, with the colours of diagrams."""
    return f"{read('style.css')}\n{svg.style_sheet()}\n"


@cache
def bundle(entry: str) -> str:
    """Return a module of the page with all that it imports, as one script."""
    order: dict[str, None] = {}

    def add(name: str) -> None:
        for imported in _IMPORT.findall(read(name)):
            if imported not in order:
                add(imported)
        order[name] = None

    add(entry)
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", read(name))) for name in order)


def read(name: str) -> str:
    """Return a file of the page as text."""
    return (files("stillframe.pages") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
