"""Our style as a test: functions and words. Docstrings, line length, leftovers are ruff's part."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FUNCTION_LINES_MAX = 60

BANNED_MODULE_NAMES = frozenset(
    "manager managers handler util utils helper helpers base common misc data info".split()
)
BANNED_WORDS = frozenset(
    "node nodes worker workers actor actors leader leaders master backup backups generation "
    "incarnation incarnations dump".split()
)
"""Words that DESIGN section 2 replaces by others: process, initiator, snapshot, epoch."""

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("src/stillframe/spark/session.py", "master"): "Spark's name for where it runs",
    ("src/stillframe/cli/options.py", "master"): "the same",
    ("src/stillframe/cli/tasks.py", "master"): "the same",
    ("docs/cli.md", "master"): "the same",
    ("docs/spark-cluster.md", "master"): "the same",
    ("docs/comparison.md", "actors"): "in the address of a page of Ray's",
    ("tests/sparks.py", "workers"): "Spark's name for its Python processes",
    ("tests/costs.py", "node"): "the argument of a hook of pytest-xdist",
}
"""(file, banned word) -> why it may stay. This list only shrinks."""

SOURCES = sorted(
    path
    for folder in ("src", "tests", "examples", "bench")
    for path in ROOT.glob(f"{folder}/**/*.py")
)
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/*.ipynb")
    for path in ROOT.glob(pattern)
    if path.stem != "glossary"
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def named(path: Path) -> str:
    """Return the path as the lists above write it."""
    return path.relative_to(ROOT).as_posix()


def words_of(text: str) -> set[str]:
    """Return the words of an identifier or a sentence, in lower case: ``lastNode_id``, 3 words."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text)}


def function_line_count(function: Function, lines: list[str]) -> int:
    """Count a function's lines of code: no signature, no docstring, no comment, no blank line."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    if not body:
        return 0
    code = lines[body[0].lineno - 1 : function.end_lineno]
    return sum(1 for line in code if line.strip() and not line.lstrip().startswith("#"))


def defined_names(tree: ast.AST) -> Iterator[str]:
    """Yield every name that a module gives: classes, functions, arguments, variables."""
    for item in ast.walk(tree):
        if isinstance(item, ast.ClassDef | Function):
            yield item.name
        elif isinstance(item, ast.arg):
            yield item.arg
        elif isinstance(item, ast.Name | ast.Attribute) and isinstance(item.ctx, ast.Store):
            yield item.id if isinstance(item, ast.Name) else item.attr


def docstrings(tree: ast.AST) -> Iterator[str]:
    """Yield every docstring of a module."""
    for item in ast.walk(tree):
        if isinstance(item, ast.Module | ast.ClassDef | Function):
            yield ast.get_docstring(item) or ""


def used_words(path: Path) -> set[str]:
    """Return the words of a module's names and docstrings, or all of a page or notebook."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".md", ".ipynb"):
        return words_of(text)
    tree = ast.parse(text)
    written = docstrings(tree) if path.is_relative_to(ROOT / "src") else ()
    return words_of("\n".join((*defined_names(tree), *written)))


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_functions_stay_small(path: Path) -> None:
    """No function has more than 60 lines of code.

    Files have no limit: one that counts docstrings splits a class that belongs together.
    """
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    long = {
        function.name: function_line_count(function, lines)
        for function in ast.walk(ast.parse(text))
        if isinstance(function, Function)
        and function_line_count(function, lines) > FUNCTION_LINES_MAX
    }
    assert long == {}


def test_modules_are_named_after_what_they_hold() -> None:
    """No module is a manager, a helper or another name that says nothing."""
    empty = [
        named(path)
        for path in SOURCES
        if BANNED_MODULE_NAMES & set(path.relative_to(ROOT).with_suffix("").parts[-1].split("_"))
    ]
    assert empty == []


@pytest.mark.parametrize("path", SOURCES + PAGES, ids=named)
def test_only_our_words_are_used(path: Path) -> None:
    """Names, docstrings and pages keep to the words of DESIGN section 2."""
    excepted = {word for file, word in EXCEPTIONS if file == named(path)}
    assert (used_words(path) & BANNED_WORDS) - excepted == set()


def test_every_exception_is_still_needed() -> None:
    """An exception that no longer excepts anything leaves the list."""
    unused = [(file, word) for file, word in EXCEPTIONS if word not in used_words(ROOT / file)]
    assert unused == []


def test_words_are_split_as_people_read_them() -> None:
    """Identifiers in any spelling are taken apart, so that none slips through."""
    assert words_of("lastNode WORKER_count backup_s HTTPLeader") == {
        *("last", "node", "worker", "count", "backup", "s", "http", "leader"),
    }
