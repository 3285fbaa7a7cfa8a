"""The page on metrics has every metric, as the code means it."""

from pathlib import Path

from stillframe.watch.families import PREFIX
from stillframe.watch.meanings import SECTIONS

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "metrics.md"


def tables() -> str:
    """Return the tables of the page: what stands between its two comments."""
    lines = []
    for title, section in SECTIONS.items():
        lines += [
            f"### {title}",
            "",
            "| metric | kind | unit | what it says |",
            "|---|---|---|---|",
        ]
        for name, (kind, unit, words, labels, _) in section.items():
            told = f"`{{{', '.join(labels)}}}`" if labels else ""
            lines.append(f"| `{PREFIX}{name}`{told} | {kind} | {unit} | {words} |")
        lines.append("")
    return "\n".join(lines)


def test_the_page_has_every_metric() -> None:
    """With its labels, its kind, its unit, and what it says."""
    _, _, rest = PAGE.read_text().partition("<!-- tables -->\n")
    assert rest.partition("<!-- end of tables -->")[0].strip() == tables().strip()
