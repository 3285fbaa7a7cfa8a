"""The reference of Python is what signatures and docstrings say, and has every public name."""

import importlib
import inspect
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.test_public_names import PACKAGES

ROOT = Path(__file__).parent.parent
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "api_reference.py"))
prose: Callable[[str], str] = SCRIPT["prose"]
PAGES: dict[str, Any] = SCRIPT["PAGES"]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_docstrings_say(name: str) -> None:
    """Whoever changes a signature or docstring writes the pages again."""
    if name == "api-spark.md":
        pytest.importorskip("pyspark", reason="needs PySpark")
    # In a fresh program: where much was imported, Python 3.11 now and then fails to parse
    # ("AST constructor recursion depth mismatch").
    program = "import runpy, sys; print(runpy.run_path(sys.argv[1])['page'](sys.argv[2]), end='')"
    script = ROOT / "scripts" / "api_reference.py"
    written = subprocess.run(
        [sys.executable, "-c", program, script, name], stdout=subprocess.PIPE, check=True
    ).stdout.decode()
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == written, (
        "run: .venv/bin/python scripts/api_reference.py"
    )


def test_every_public_name_has_one_place() -> None:
    """What a package exports is a heading of one page, once."""
    text = "\n".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in PAGES)
    headings = re.findall(r"^### `(\S+)`$", text, re.MULTILINE)
    assert len(headings) == len(set(headings))
    packages = {section.package for _, sections in PAGES.values() for section in sections}
    assert packages >= set(PACKAGES)
    root = set(importlib.import_module("stillframe").__all__)
    for package in packages:
        public = importlib.import_module(package).__all__
        elsewhere = root if package != "stillframe" else set()
        wanted = {f"{package}.{name}" for name in public if name not in elsewhere}
        assert wanted - set(headings) == set()


@pytest.mark.parametrize("name", PAGES)
def test_paths_are_also_text_and_snapshots_also_ids(name: str) -> None:
    """Everywhere alike: an argument takes what another function returned, and what a user types."""
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    signatures = "".join(re.findall(r"^```py\n(.*?)```$", text, re.MULTILINE | re.DOTALL))
    assert re.findall(r"\w+: Path\b", signatures) == []
    snapshots = "snapshots?|restore|first|second|before|after|of"
    assert re.findall(rf"\b(?:{snapshots}): str\b", signatures) == []


def test_what_must_be_awaited_is_shown_as_a_coroutine() -> None:
    """A program that calls it without ``await`` does nothing."""
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    awaited_count = 0
    for section in text.split("\n### `")[1:]:
        home, _, name = section.partition("`")[0].rpartition(".")
        for awaited, member in re.findall(rf"(?m)^(async def )?{name}\.(\w+)\(", section):
            kind = getattr(importlib.import_module(home), name)
            assert inspect.iscoroutinefunction(getattr(kind, member)) == bool(awaited)
            awaited_count += bool(awaited)
    assert awaited_count


@pytest.mark.parametrize("name", PAGES)
def test_every_attribute_has_a_type(name: str) -> None:
    """Next to its name, or in the signature of the constructor."""
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    lists = [
        (re.findall("```py\n(.*?)```", section, re.DOTALL)[0], items)
        for section in text.split("\n### `")[1:]
        for items in re.findall(r"\*\*Attributes\*\*:\n\n((?:- .*\n)+)", section)
    ]
    assert lists
    for signature, items in lists:
        names = ", ".join(re.findall(r"^- (`.*?`): ", items, re.MULTILINE))
        untyped = re.findall(r"`(\w+)`", names)
        assert [one for one in untyped if f"{one}: " not in signature] == [], signature


ELSEWHERE = frozenset(
    """
    AbstractContextManager Any AsyncBaseTransport AsyncContextManager AsyncIterator Awaitable
    BinaryIO Callable Collection ContextManager DataFrame Expression False Item Iterable Iterator
    Key Literal Mapping MutableMapping None Path RecordBatch Records Schema Self Sequence
    SparkSession StreamingQuery Table True Union Value
    """.split()
)
"""What signatures name of Python, httpx, Arrow and Spark, and type variables."""


def test_every_class_in_a_signature_is_public() -> None:
    """Users can import it, and it has a heading."""
    text = "\n".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in PAGES)
    public = {name.rpartition(".")[2] for name in re.findall(r"^### `(\S+)`$", text, re.MULTILINE)}
    signatures = "".join(re.findall(r"^```py\n(.*?)```$", text, re.MULTILINE | re.DOTALL))
    named = set(re.findall(r"\b[A-Z]\w*[a-z]\w*", re.sub(r"'[^']*'", "", signatures)))
    assert named - public == ELSEWHERE


def test_a_docstring_becomes_markdown() -> None:
    """Sections become lists, and code keeps one tick on each side."""
    written = """Do ``this``
    over two lines.

    And that.

    Args:
        one, two: what
            to do.
        three: more.

    Returns:
        nothing
        much.

    Raises:
        UsageError: it is wrong.
    """
    assert prose(inspect.cleandoc(written)).split("\n\n") == [
        "Do `this` over two lines.",
        "And that.",
        "**Arguments**:",
        "- `one`, `two`: what to do.\n- `three`: more.",
        "**Returns**: nothing much.",
        "**Raises**:",
        "- `UsageError`: it is wrong.\n",
    ]


def test_no_page_needs_a_program_to_be_read() -> None:
    """There are no directives of Sphinx, which the repository's own pages do not show."""
    for name in PAGES:
        assert "{eval-rst}" not in (ROOT / "docs" / name).read_text(encoding="utf-8")
