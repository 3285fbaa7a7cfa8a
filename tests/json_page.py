"""The page on JSON, ``docs/json.md``, as rules for what commands write with ``--json``."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stillframe.cli.renamed import rename_command

PAGE = Path(__file__).parent.parent / "docs" / "json.md"
SHARED = "Shared objects"
GROUPS = ("pipeline", "store", "log", "trace", "sim")
_PLAIN: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("string", "sentence", "path"), (str,)),
    "integer": (int,),
    **dict.fromkeys(("number", "time"), (int, float)),
    "boolean": (bool,),
    "null": (type(None),),
}
_PATTERNS = {"id": r".+-\d+", "timestamp": r"\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)"}
Rules = dict[str, str]
"""Key -> type, of one kind of object; a key that can be absent ends with a question mark."""

WRITTEN: set[str] = set()
"""The tables of which the present test has written an object."""


class Page(NamedTuple):
    """The kinds of objects that each command writes, and those that are parts of others."""

    of_command: dict[str, list[Rules]]
    shared: dict[str, Rules]

    def names(self) -> dict[int, str]:
        """Return the name of each table, by its identity: commands can share one."""
        found = {id(rules): name for name, rules in self.shared.items()}
        for command, kinds in self.of_command.items():
            for number, rules in enumerate(kinds, 1):
                found.setdefault(id(rules), f"{command}, table {number}")
        return found


@cache
def page() -> Page:
    """Return what the page says."""
    of_command: dict[str, list[Rules]] = {}
    shared: dict[str, Rules] = {}
    for part in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        chapter, *sections = re.split(r"^### ", part, flags=re.MULTILINE)
        for section in sections:
            title, _, text = section.partition("\n")
            tables = [
                dict(re.findall(r"^\| `(\S+)` \| `(.+?)` \|", table, re.MULTILINE))
                for table in text.split("|---|---|---|\n")[1:]
            ]
            if chapter.startswith(SHARED):
                (shared[title.strip("`")],) = tables
            else:
                of_command |= dict.fromkeys(title.split(", "), tables)
    # They prove in the same way.
    of_command["trace cuts"] = [*of_command["trace cuts"], *of_command["sim script"][-2:]]
    return Page(of_command, shared)


def mismatch(kind: str, value: Any, where: str = "") -> str:
    """Return where a value is not of a type of the page and why; an empty text if it is."""
    if kind.endswith(" or null"):
        return "" if value is None else mismatch(kind.removesuffix(" or null"), value, where)
    wrong = f"{where or 'the document'} is no {kind}: {value!r}"
    if kind == "any":
        return ""
    if kind in _PLAIN:
        is_fitting = type(value) in _PLAIN[kind]
        return "" if is_fitting else wrong
    if kind in _PATTERNS:
        return "" if isinstance(value, str) and re.fullmatch(_PATTERNS[kind], value) else wrong
    if kind.startswith('"'):
        return "" if value == kind.strip('"') else wrong
    if kind.startswith("list of "):
        if not isinstance(value, list):
            return wrong
        parts = [(f"{where}[{index}]", item) for index, item in enumerate(value)]
        return next(filter(None, (mismatch(kind[8:], item, at) for at, item in parts)), "")
    if kind.startswith("map of "):
        if not isinstance(value, dict):
            return wrong
        found = (mismatch(kind[7:], item, f"{where}.{key}") for key, item in value.items())
        return next(filter(None, found), "")
    return wrong if not isinstance(value, dict) else misfit(page().shared[kind], value, where)


def misfit(rules: Rules, document: dict[str, Any], where: str = "") -> str:
    """Return which key of an object is not as a table of the page says."""
    known = {key.removesuffix("?"): kind for key, kind in rules.items()}
    missing = {key for key in rules if not key.endswith("?")} - document.keys()
    if missing or (more := document.keys() - known.keys()):
        return f"{where}: missing {sorted(missing)}" if missing else f"{where}: more {sorted(more)}"
    found = (mismatch(known[key], value, f"{where}.{key}") for key, value in document.items())
    wrong = next(filter(None, found), "")
    if not wrong:
        WRITTEN.add(page().names()[id(rules)])
    return wrong


def command_of(arguments: list[str]) -> str:
    """Return the name of the command in a command line, as the page has it."""
    words = rename_command(arguments)
    if words[:1] == ["sim"] and words[1] not in ("run", "script", "explore"):
        return "sim script"
    return " ".join(words[:2]) if words[0] in GROUPS else words[0]


def check_output(arguments: list[str], stdout: str) -> None:
    """Assert that every line that a command wrote with ``--json`` is as the page says."""
    if "--json" not in arguments or "--help" in arguments:
        return
    command = command_of(arguments)
    for line in stdout.splitlines():
        document = json.loads(line)
        assert document.pop("version") == 2
        kinds = page().of_command[command]
        errors = [misfit(rules, document) for rules in kinds]
        named = document.get("event")
        of_event = [e for r, e in zip(kinds, errors, strict=True) if r.get("event") == f'"{named}"']
        assert "" in errors, f"{command} is not as docs/json.md says: {of_event or errors}: {line}"


class Written:
    """Lets a run of all tests fail if none wrote an object of some table of the page."""

    def __init__(self) -> None:
        self.written: set[str] = set()
        self.missing: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Put what a test wrote into its report, which reaches the process that controls others."""
        item.user_properties += [("table", name) for name in sorted(WRITTEN)]
        WRITTEN.clear()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what a test wrote."""
        self.written |= {str(name) for key, name in report.user_properties if key == "table"}

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Compare what all tests wrote with the page, if all were run and passed."""
        config = session.config
        is_part = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
        is_part |= bool(config.option.markexpr or config.option.keyword)
        if not (is_part or hasattr(config, "workerinput") or session.testsfailed):
            self.missing = [name for name in page().names().values() if name not in self.written]
        if self.missing:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Name the tables."""
        for name in self.missing:
            terminalreporter.write_line(f"no test writes what docs/json.md has as {name}")
