"""The changelog names the version that is built, and has one line for each change."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
ENTRY_MAX = 200
"""How many characters an entry may have."""
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Old and new names"]
"""The sections of a version, in their order: those of Keep a Changelog, and our tables."""


def test_the_newest_version_is_the_one_that_is_built() -> None:
    """``pyproject.toml`` and the first heading name the same one, dated or not yet released. Before
    it may be what comes after that version."""
    versions = re.findall(r"^## (.*)$", CHANGELOG.replace("## [Unreleased]\n", "", 1), re.MULTILINE)
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    date = r"\d{4}-\d\d-\d\d"
    assert re.fullmatch(rf"\[{re.escape(built)}\] - ({date}|Unreleased)", versions[0])
    assert all(re.fullmatch(rf"\[\d+\.\d+\.\d+\] - {date}", version) for version in versions[1:])


def test_every_change_is_one_short_line() -> None:
    """No entry has a second line, and none is too long to be read at a glance."""
    sections = CHANGELOG.split("\n## ")[1:]
    entries = 0
    for section in sections:
        for part in section.split("\n### ")[1:]:
            kind, *lines = part.splitlines()
            assert kind in KINDS
            for line in [] if kind == "Old and new names" else lines:
                assert not line or line.startswith("- "), f"{kind} has a line of its own: {line}"
                assert len(line) <= ENTRY_MAX, line
                entries += bool(line)
    assert entries > 50


def test_the_kinds_of_changes_are_in_order() -> None:
    """Each version has each kind once at most, in the order of Keep a Changelog."""
    for section in CHANGELOG.split("\n## ")[1:]:
        kinds = re.findall(r"^### (.*)$", section, re.MULTILINE)
        assert kinds == [kind for kind in KINDS if kind in kinds]
