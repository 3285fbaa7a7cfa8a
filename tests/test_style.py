"""Our style as a test: functions, words and sentences. The form of docstrings, line length and
leftovers are ruff's part."""

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main

from stillframe.cli.app import app
from stillframe.cli.command import DeferredCommand

ROOT = Path(__file__).parent.parent
FUNCTION_LINES_MAX = 60
PARAMETERS_MAX = 8

BANNED_MODULE_NAMES = frozenset(
    "manager managers handler util utils helper helpers base common misc data info".split()
)
GLOSSARY = ROOT / "docs" / "glossary.md"
REPLACES = 4
"""The column of the glossary that holds, in code type, the words that a term replaces."""


def replaced_words(glossary: str) -> frozenset[str]:
    """Return the words that the terms of a glossary replace."""
    rows = [line.split("|") for line in glossary.splitlines() if line.startswith("| ")]
    return frozenset(word for row in rows for word in re.findall(r"`(\w+)`", row[REPLACES]))


BANNED_WORDS = replaced_words(GLOSSARY.read_text(encoding="utf-8"))

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("src/stillframe/spark/session.py", "master"): "Spark's name for where it runs",
    ("src/stillframe/cli/options.py", "master"): "the same",
    ("src/stillframe/cli/spark_session.py", "master"): "the same",
    ("src/stillframe/cli/pipeline_contents.py", "master"): "the same",
    ("src/stillframe/spark/topics.py", "master"): "the same",
    ("tests/spark/test_topic_refusals.py", "master"): "the same",
    ("docs/cli.md", "master"): "the same",
    ("docs/pipeline-format.md", "stretches"): "the name of a member in version 1",
    ("docs/api-spark.md", "master"): "the same",
    ("docs/api.md", "node"): "the default name of a field of JSON Lines",
    ("docs/spark-cluster.md", "master"): "the same",
    ("docs/comparison.md", "actors"): "in the address of a page of Ray's",
    ("tests/sparks.py", "workers"): "Spark's name for its Python processes",
    ("docs/object-storage.md", "node"): "the name of a part of HDFS",
    ("docs/object-storage.md", "nodes"): "the name of a part of HDFS",
    ("tests/costs.py", "node"): "the argument of a hook of pytest-xdist",
}
"""(file, banned word) -> why it may stay. This list only shrinks."""

PHRASES = re.compile(
    r"\b(somebody|nobody|anybody|whoever|people|so long|so many|so often|of which|in what|by itself"
    r"|of its own|of ours|of yours|is told|are told|was told|said to be|know(?:s)? of|see to"
    r"|go(?:es)? (?:on|back)|going (?:on|back)|(?:come|comes|came) back|came in|(?:is|are) gone"
    r"|on its way|under way|giv(?:e|es|en) up|take(?:s)? (?:back|turns)|taken back"
    r"|stands? still|stood still|afresh|anew|beside|for ever|(?:messages|records) on channels)\b",
    re.IGNORECASE,
)
"""Phrases for which plain English has a role, a technical verb or a shorter construction."""

SENTENCE_WORDS_MAX = 30

HEADLESS = frozenset(
    "what who whose which where when whether why how that of nothing everything something".split()
)

SOURCES = sorted(
    path
    for folder in ("src", "tests", "examples", "bench")
    for path in ROOT.glob(f"{folder}/**/*.py")
)
OURS = [path for path in SOURCES if path.is_relative_to(ROOT / "src")]
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


def words_of(text: str) -> frozenset[str]:
    """Return the words of an identifier or a sentence, in lower case: ``lastNode_id``, 3 words."""
    found = set(re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text))
    return frozenset(map(str.lower, found))


def function_line_count(function: Function, lines: list[str]) -> int:
    """Count a function's lines of code: no signature, no docstring, no comment, no blank line."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    if not body:
        return 0
    code = lines[body[0].lineno - 1 : function.end_lineno]
    return sum(1 for line in code if line.strip() and not line.lstrip().startswith("#"))


class Seen(NamedTuple):
    """What is looked at of a file: its words, the functions that are too long, and the constructors
    with too many parameters."""

    words: frozenset[str]
    long_functions: dict[str, int]
    wide_constructors: dict[str, int]


def defined_names(items: Iterable[ast.AST]) -> Iterator[str]:
    """Yield every name that a module gives: classes, functions, arguments, variables."""
    for item in items:
        if isinstance(item, ast.ClassDef | Function):
            yield item.name
        elif isinstance(item, ast.arg):
            yield item.arg
        elif isinstance(item, ast.Name | ast.Attribute) and isinstance(item.ctx, ast.Store):
            yield item.id if isinstance(item, ast.Name) else item.attr


def parameter_count(function: Function) -> int:
    """Return how many parameters a method has besides the object itself."""
    arguments = function.args
    return len(arguments.posonlyargs + arguments.args + arguments.kwonlyargs) - 1


def docstrings(items: Iterable[ast.AST]) -> Iterator[str]:
    """Yield every docstring of a module."""
    for item in items:
        if isinstance(item, ast.Module | ast.ClassDef | Function):
            yield ast.get_docstring(item, clean=False) or ""


@cache
def seen(path: Path) -> Seen:
    """Read a file: the words of a module's names and docstrings, or all of a page or notebook."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".md", ".ipynb"):
        return Seen(words_of(text), {}, {})
    lines = text.splitlines()
    items = list(ast.walk(ast.parse(text)))
    functions = {
        f"{item.name}, line {item.lineno}": item for item in items if isinstance(item, Function)
    }
    line_counts = {where: function_line_count(item, lines) for where, item in functions.items()}
    parameter_counts = {
        where: parameter_count(item) for where, item in functions.items() if item.name == "__init__"
    }
    written = docstrings(items) if path.is_relative_to(ROOT / "src") else ()
    return Seen(
        words_of("\n".join({*defined_names(items), *written})),
        {where: count for where, count in line_counts.items() if count > FUNCTION_LINES_MAX},
        {where: count for where, count in parameter_counts.items() if count > PARAMETERS_MAX},
    )


def test_functions_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """A short one does not hide a long one."""
    path = tmp_path / "two.py"
    body = "        x = 1\n" * (FUNCTION_LINES_MAX + 1)
    path.write_text(f"class A:\n    def f(self):\n{body}\n\ndef f():\n    pass\n")
    assert seen(path).long_functions == {"f, line 2": FUNCTION_LINES_MAX + 1}


def test_functions_stay_small() -> None:
    """No function has more than 60 lines of code.

    Files have no limit: one that counts docstrings splits a class that belongs together.
    """
    long = {named(path): seen(path).long_functions for path in SOURCES}
    assert {file: functions for file, functions in long.items() if functions} == {}


def test_all_parameters_of_a_constructor_are_counted(tmp_path: Path) -> None:
    """Those by place and those by name, and not the object itself."""
    path = tmp_path / "wide.py"
    path.write_text("class A:\n    def __init__(self, a, /, b, c, d, *, e, f, g, h=1, i=2): pass\n")
    assert seen(path).wide_constructors == {"__init__, line 2": 9}


def test_constructors_take_few_parameters() -> None:
    """No constructor of ours has more than 8: more belong together in an object of settings."""
    wide = {named(path): seen(path).wide_constructors for path in OURS}
    assert {file: constructors for file, constructors in wide.items() if constructors} == {}


def test_modules_are_named_after_what_they_hold() -> None:
    """No module is a manager, a helper or another name that says nothing."""
    empty = [
        named(path)
        for path in SOURCES
        if BANNED_MODULE_NAMES & set(path.relative_to(ROOT).with_suffix("").parts[-1].split("_"))
    ]
    assert empty == []


def test_only_our_words_are_used() -> None:
    """Names, docstrings and pages keep to the terms of the glossary."""
    found = {
        (named(path), word) for path in SOURCES + PAGES for word in seen(path).words & BANNED_WORDS
    }
    assert found - EXCEPTIONS.keys() == set()


def test_every_exception_is_still_needed() -> None:
    """An exception that no longer excepts anything leaves the list."""
    unused = [(file, word) for file, word in EXCEPTIONS if word not in seen(ROOT / file).words]
    assert unused == []


def test_words_are_split_as_people_read_them() -> None:
    """Identifiers in any spelling are taken apart, so that none slips through."""
    assert words_of("lastNode WORKER_count backup_s HTTPLeader") == {
        *("last", "node", "worker", "count", "backup", "s", "http", "leader")
    }


def prose(page: str) -> str:
    """Return a Markdown page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)


class Texts(NamedTuple):
    """What a module says: its docstrings, those of them that belong to a module or class, and its
    other texts with every value of an f-string left out."""

    docstrings: list[str]
    openings: list[str]
    messages: list[str]


@cache
def texts(path: Path) -> Texts:
    """Read the texts of a module."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = Texts([], [], [])
    seen_already: set[int] = set()
    for item in ast.walk(tree):  # outer before inner
        if isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant):
            found.docstrings.append(str(item.value.value))
            seen_already.add(id(item.value))
        elif isinstance(item, ast.JoinedStr):
            parts = [part for part in item.values if isinstance(part, ast.Constant)]
            found.messages.append("{}".join(str(part.value) for part in parts))
            seen_already.update(map(id, parts))
        elif isinstance(item, ast.Constant) and isinstance(item.value, str):
            if id(item) not in seen_already:
                found.messages.append(item.value)
        elif isinstance(item, ast.Module | ast.ClassDef):
            found.openings.append(ast.get_docstring(item) or "")
    return found


def first_sentence(text: str) -> str:
    """Return the first sentence of a text."""
    paragraph = " ".join(text.split("\n\n", maxsplit=1)[0].split())
    return re.split(r"(?<=[.!?])\s", paragraph)[0]


def phrases(written: Iterable[str]) -> list[str]:
    """Return every phrase of `PHRASES` in some texts, with the words around it."""
    flat = (" ".join(text.split()) for text in written)
    return [
        text[max(0, match.start() - 40) : match.end() + 40]
        for text in flat
        for match in PHRASES.finditer(text)
    ]


def help_texts(command: Any) -> Iterator[str]:
    """Yield every help text of a command and of those below it."""
    if isinstance(command, DeferredCommand):
        command = command.load()
    yield command.help or ""
    for parameter in command.params:
        yield getattr(parameter, "help", None) or ""
    for child in getattr(command, "commands", {}).values():
        yield from help_texts(child)


def long_sentences(written: Iterable[str]) -> list[str]:
    """Return the sentences with more than `SENTENCE_WORDS_MAX` words."""
    sentences = (
        sentence
        for text in written
        for sentence in re.split(r"(?<=[.!?])\s", " ".join(text.split()))
    )
    return [sentence for sentence in sentences if len(sentence.split()) > SENTENCE_WORDS_MAX]


BROAD = frozenset(
    name
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, BaseException)
)
"""What code of an application raises as well, directly or as a class of its own."""


def names_in(item: ast.AST) -> set[str]:
    """Return the names that are used in a part of a module."""
    return {one.id for one in ast.walk(item) if isinstance(one, ast.Name)}


def tuples_of_errors(modules: Iterable[ast.Module]) -> frozenset[str]:
    """Return the names that modules give to tuples with one of `BROAD`, or with another of them."""
    made = {
        target.id: names_in(item.value)
        for module in modules
        for item in module.body
        if isinstance(item, ast.Assign) and isinstance(item.value, ast.Tuple)
        for target in item.targets
        if isinstance(target, ast.Name)
    }
    found: set[str] = set()
    while new := {name for name, kinds in made.items() if kinds & (BROAD | found)} - found:
        found |= new
    return frozenset(found)


def texts_of_errors(source: str, broad: frozenset[str] = BROAD) -> list[int]:
    """Return the lines that make the text of what an ``except`` of a `broad` class has caught."""
    found = []
    for handler in ast.walk(ast.parse(source)):
        if not isinstance(handler, ast.ExceptHandler) or handler.name is None:
            continue
        kinds = handler.type or ast.Name("BaseException")
        if broad.isdisjoint(names_in(kinds)):
            continue
        for item in ast.walk(handler):
            shown: list[ast.expr] = []
            if isinstance(item, ast.FormattedValue):
                shown = [item.value]
            elif isinstance(item, ast.Call) and isinstance(item.func, ast.Name):
                shown = item.args if item.func.id in ("str", "repr", "format") else []
            found += [
                one.lineno for one in shown if isinstance(one, ast.Name) and one.id == handler.name
            ]
    return sorted(found)


def test_only_one_module_makes_texts_of_errors_that_may_be_of_an_application() -> None:
    """`errors.describe` and `errors.text_of` cannot fail: the class may have no text, or one that
    is not UTF-8."""
    sources = {named(path): path.read_text(encoding="utf-8") for path in OURS}
    broad = BROAD | tuples_of_errors(map(ast.parse, sources.values()))
    found = {name: texts_of_errors(source, broad) for name, source in sources.items()}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize("text", ["f'{e}'", "f'{e!r}'", "str(e)", "repr(e)"])
def test_a_text_of_an_error_is_found(text: str) -> None:
    """In an ``except`` of a class that an application may have raised, and in no other one."""
    tuples = tuples_of_errors([ast.parse("A = (B, KeyError)\nD = (C, *A)\nE = (B, C)")])
    assert tuples == {"A", "D"}
    for kind, lines in (("(B, ConnectionError)", [4]), ("(B, *D)", [4]), ("(B, E)", [])):
        source = f"try:\n    act()\nexcept {kind} as e:\n    say({text})"
        assert texts_of_errors(source, BROAD | tuples) == lines


def test_no_phrase_reads_as_translated() -> None:
    """Pages, messages and docstrings have none of `PHRASES`."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")]
    written = [prose(path.read_text()) for path in pages if path != GLOSSARY]
    written += [path.read_text() for path in ROOT.glob("src/stillframe/pages/assets/*.js")]
    written += [text for path in OURS for text in texts(path).messages + texts(path).docstrings]
    assert phrases(written) == []


@pytest.mark.parametrize("text", ["Of these\nsomebody is told.", "It goes\n  back.", "is gone"])
def test_a_phrase_is_found(text: str) -> None:
    """Across lines too."""
    assert phrases(["A process reconnects.", text])


def test_sentences_of_help_texts_are_short() -> None:
    """They have up to 30 words."""
    assert long_sentences(help_texts(typer.main.get_command(app))) == []


def test_docstrings_begin_with_a_short_sentence() -> None:
    """It has up to 30 words."""
    written = (text for path in OURS for text in texts(path).docstrings)
    assert long_sentences(map(first_sentence, written)) == []


def test_docstrings_of_modules_and_classes_name_a_thing() -> None:
    """They do not begin with a word such as *what* or *who*. Those of functions begin with a verb,
    which ruff checks (D401)."""
    openings = [text.split() for path in OURS for text in texts(path).openings]
    assert [words[:5] for words in openings if words and words[0].lower() in HEADLESS] == []


def test_texts_of_a_module_are_told_apart(tmp_path: Path) -> None:
    """Docstrings, also of attributes; openings; and all other texts, f-strings as one."""
    path = tmp_path / "spoken.py"
    path.write_text(
        '"""A module."""\nA = 1\n"""An attribute."""\n'
        'def f():\n    """Do it."""\n    raise ValueError(f"no {A} way" " out")\n'
    )
    assert texts(path) == (
        ["A module.", "An attribute.", "Do it."],
        ["A module."],
        ["no {} way out"],
    )
