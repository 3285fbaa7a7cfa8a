"""The page on metrics has every metric, as the code means it."""

from pathlib import Path

from stillframe.watch import observation_traces, snapshot_traces
from stillframe.watch.metrics import PREFIX, SECTIONS

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "metrics.md"
ATTRIBUTES = snapshot_traces.ATTRIBUTES | observation_traces.ATTRIBUTES


def tables() -> str:
    """Return the tables of the page: what stands between its two comments."""
    lines = []
    for title, section in SECTIONS.items():
        lines += [
            f"### {title}",
            "",
            "| metric | kind | unit | meaning |",
            "|---|---|---|---|",
        ]
        for name, (kind, unit, text, labels, _) in section.items():
            told = f"`{{{', '.join(labels)}}}`" if labels else ""
            lines.append(f"| `{PREFIX}{name}`{told} | {kind} | {unit} | {text} |")
        lines.append("")
    return "\n".join(lines)


def attributes() -> str:
    """Return the table of the attributes of spans and events."""
    lines = ["| span or event | attribute | meaning |", "|---|---|---|"]
    for kind, told in ATTRIBUTES.items():
        lines += [f"| `{kind}` | `{name}` | {words} |" for name, words in told.items()]
    return "\n".join(lines)


def between(comment: str) -> str:
    """Return what stands on the page between a comment and its end."""
    _, _, rest = PAGE.read_text().partition(f"<!-- {comment} -->\n")
    return rest.partition(f"<!-- end of {comment} -->")[0].strip()


def test_the_page_has_every_metric() -> None:
    """With its labels, its kind, its unit, and what it says."""
    assert between("tables") == tables().strip()


def test_the_page_has_every_attribute() -> None:
    """Of spans and of events."""
    assert between("attributes") == attributes()
