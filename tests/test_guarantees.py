"""The tables of docs/guarantees.md: each promise names tests that there are, and those of the night
run in the part that it names."""

import ast
import re
from pathlib import Path

import pytest

from tests.nightly import PARTS

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "guarantees.md"
LINK = re.compile(r"\]\(\.\./(tests/[^)]+\.py)\)")
PROPERTY = re.compile(r"@(given|rule)\b")


def promises() -> dict[str, tuple[str, str]]:
    """Return of each promise the cells of its tests: those of the check, and those of the night."""
    found: dict[str, tuple[str, str]] = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and LINK.search(cells[2]):
            found[f"{len(found)}-{cells[0]}"] = (cells[2], cells[3])
    return found


PROMISES = promises()


def failures() -> dict[str, str]:
    """Return what shows what happens when something fails, of each row that says so."""
    rows = [line.strip("|").split("|") for line in PAGE.read_text().splitlines()]
    return {row[0].strip(): row[2] for row in rows if len(row) == 3 and LINK.search(row[2])}


FAILURES = failures()


def test_each_promise_of_a_table_is_mapped() -> None:
    """Systems have seven, pipelines six, services four; what happens in a failure is shown as
    well."""
    assert len(PROMISES) == 17
    assert len(FAILURES) > 20


def runs_in_check(item: ast.stmt) -> bool:
    """Return whether `item` defines a test that does not only run at night."""
    if isinstance(item, ast.Assign):  # a state machine of hypothesis
        return any(isinstance(t, ast.Name) and t.id.startswith("Test") for t in item.targets)
    if not isinstance(item, ast.FunctionDef) or not item.name.startswith("test_"):
        return False
    return not any("only=True" in ast.unparse(decorator) for decorator in item.decorator_list)


@pytest.mark.parametrize("shown", [cell for cell, _ in PROMISES.values()] + [*FAILURES.values()])
def test_its_tests_run_in_the_check(shown: str) -> None:
    """Each file has a test that does not only run at night."""
    for file in LINK.findall(shown):
        assert any(map(runs_in_check, ast.parse((ROOT / file).read_text()).body)), file


@pytest.mark.parametrize("promise", PROMISES)
def test_its_tests_run_at_night(promise: str) -> None:
    """Each file has a test in the part."""
    for group in PROMISES[promise][1].split(";"):
        part, _, links = group.strip().partition(": ")
        assert part in PARTS
        for file in LINK.findall(links):
            text = (ROOT / file).read_text()
            generated = part == "generated" and PROPERTY.search(text)
            assert generated or f'part="{part}"' in text, file
