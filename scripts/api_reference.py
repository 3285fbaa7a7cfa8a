"""The reference of Python, from signatures and docstrings, as plain Markdown that reads well where
the repository is shown: ``python scripts/api_reference.py`` writes docs/api.md and
docs/api-spark.md. The second page needs PySpark."""

import ast
import enum
import functools
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, get_overloads, is_typeddict

ROOT = Path(__file__).parent.parent
WIDTH = 88
ROOT_PACKAGE = "stillframe"
GENERATED = "<!-- Generated: .venv/bin/python scripts/api_reference.py -->\n"


class Section(NamedTuple):
    """A heading, a paragraph below it, and public names of a package; "*" are all others of it."""

    title: str
    intro: str
    package: str
    names: str


PYTHON = [
    Section(
        "Processes, messages, channels",
        "",
        ROOT_PACKAGE,
        "Process Message every Keyed Channel ProcessId SnapshotId Quantities",
    ),
    Section("Systems", "", ROOT_PACKAGE, "Topology ExternalProcess Recorded InTransit"),
    Section(
        "Running a system",
        "`stillframe.run` does what the command `stillframe run` does, in a script or a notebook: "
        "see [examples](python.md).",
        ROOT_PACKAGE,
        "run RunningSystem Policy Abandoned Reason",
    ),
    Section(
        "Reading a store",
        "`stillframe.open_store` works while the system runs. It needs neither Spark nor the code "
        "of the system.",
        ROOT_PACKAGE,
        "open_store SnapshotStore LoadedSnapshot SnapshotEntry AbandonedSnapshot DecodedMessage "
        "ObjectPath",
    ),
    Section(
        "Programs with their own event loop",
        "[Two programs before and after](existing-program.md) are in the how-to.",
        ROOT_PACKAGE,
        "join JoinedProcess",
    ),
    Section(
        "Services that keep their transports",
        "[A how-to](services.md) shows them in whole programs. `ObservedTransport` needs httpx; "
        "`ObservedCalls` and `ObservedChannel` need grpcio and protobuf.",
        "stillframe.services",
        "attach connected_agent Settings Agent MadeCall ObservedLock Message ObservedTransport "
        "ObservedCalls ObservedChannel ObservedApplication",
    ),
    Section(
        "Effects outside",
        "[When each effect happens exactly once](guarantees.md#effects-outside-each-exactly-once), "
        "and what that rests on.",
        ROOT_PACKAGE,
        "Outbox Due OutboxEntry",
    ),
    Section(
        "Predicates",
        "Your own function for [`detect`](detection.md) takes a view of a snapshot. "
        "`Process.waits_for` returns what a process waits for.",
        ROOT_PACKAGE,
        "SnapshotView Waiting for_all for_any",
    ),
    Section(
        "Pipelines",
        "[A whole pipeline](pipeline.md) is in the how-to; queries are on the page of "
        "[Python on Spark](api-spark.md).",
        ROOT_PACKAGE,
        "Pipeline",
    ),
    Section("Parts of a pipeline", "", "stillframe.pipeline", "channel JoinedService *"),
    Section(
        "Errors",
        "`except StillframeError` catches all of them.",
        ROOT_PACKAGE,
        "StillframeError UsageError ApplicationError ProtocolViolation Refused NotConsistent "
        "StoreError Damaged Fenced Unavailable",
    ),
    Section(
        "Events of a running system",
        "`stillframe.run(..., on_event=...)` is called with these.",
        "stillframe.runtime.events",
        "*",
    ),
    Section(
        "The simulator",
        "Examples are in [the simulator from Python](simulator.md).",
        "stillframe.sim",
        "play explore run_seed *",
    ),
    Section("Traces", "", "stillframe.trace", "Trace *"),
    Section("Files of traces", "", "stillframe.tracefile", "*"),
    Section("Consistent cuts of a trace", "", "stillframe.cuts", "*"),
    Section("Logs of other systems", "", "stillframe.importer", "*"),
]
SPARK = [
    Section("A session", "", "stillframe.spark", "spark_session s3_settings"),
    Section(
        "Queries of a pipeline",
        "",
        "stillframe.spark",
        "start_query read_channels counted kafka_options to_channel with_barriers register "
        "checkpoint_location",
    ),
    Section(
        "Snapshots of a pipeline",
        "",
        "stillframe.spark",
        "query_state log_records diff",
    ),
    Section(
        "Whole stores",
        "",
        "stillframe.analytics",
        "audit_store Audit SnapshotAudit detect summary Summary EpochSummary Evaluation Verdict "
        "Unevaluable follow assemble diff_store Difference",
    ),
    Section(
        "Tables of a store",
        "",
        "stillframe.analytics",
        "store_tables snapshot_history spread channel_history channel_spread compact_store "
        "Compaction compacted_tables spark_errors",
    ),
    Section(
        "Observations of services",
        "[Questions over time](history.md#observations-of-services) are in the how-to.",
        "stillframe.analytics",
        "observation_tables",
    ),
    Section(
        "Event logs",
        "",
        "stillframe.analytics",
        "verify log_pieces published_cuts event_rows locate vector_clock LogMessage marker_steps "
        "marker_paths",
    ),
    Section("Wait-for graphs", "", "stillframe.analytics", "deadlocks"),
]
PYTHON_INTRO = """# Python

Everything that is public, except for [Python on Spark](api-spark.md).
The commands are in [the command line](cli.md).
What `stillframe` exports is imported when it is first used, so `import stillframe` is cheap.
`stillframe.__version__` is the version of the installed package, such as `0.2.0`.
Call with `await` what is shown as `async def`.
"""
SPARK_INTRO = """# Python on Spark

The public names of `stillframe.spark`, for pipelines, and of `stillframe.analytics`, for stores and
event logs.
They need the extra `spark` and Java 17, 21 or 25; importing the two packages needs neither.
Examples are in [the history of a system](history.md) and in [pipelines](pipeline.md).
"""
PAGES = {"api.md": (PYTHON_INTRO, PYTHON), "api-spark.md": (SPARK_INTRO, SPARK)}
NOT_CONSTRUCTED = frozenset(
    """
    AbandonedSnapshot Agent Assembler Audit AwaitedChannel ChannelCut Compaction Counting Dataflow
    DecodedMessage Difference Due EpochSummary Evaluation Fragment JoinedProcess JoinedService
    JoinedTopicService KafkaRecord Label LabelRange LaiYangRecorder LoadedSnapshot Manifest
    ObservedLock OutboxEntry PipelineView Played Progress Reason Recorder RunningSystem Snapshot
    SnapshotAudit SnapshotEntry SnapshotStore Summary Topic TopicCut Trace Unevaluable Verdict World
    """.split()
)
"""Classes whose objects are only returned: their constructors are not public."""
MEMBERS = {
    "Agent": "calls held leave lock settled step",
    "Assembler": "",
    "Awaited": "",
    "Batch": "last messages",
    "ChannelCut": "sent_count received_count record_count duplicate_count",
    "Counting": "condition counts ranges",
    "Dataflow": "participants log topic",
    "Due": "items after",
    "JoinedService": "append boundary leave receive __iter__",
    "JoinedTopicService": "append boundary leave receive __iter__",
    "KafkaRecord": "label",
    "Keyed": "",
    "Label": "",
    "LabelRange": "",
    "LaiYangRecorder": "initiate meet receive marker abandon ended colour",
    "ObservedApplication": "",
    "ObservedCalls": "",
    "ObservedChannel": "",
    "ObservedLock": "acquire locked release __aenter__",
    "ObservedTransport": "",
    "Manifest": "cut record_count duplicate_count unaligned",
    "Outbox": "put",
    "PipelineView": "channels in_flight in_flight_count states",
    "Progress": "awaited stragglers",
    "Recorder": "initiate receive marker abandon",
    "Script": "",
    "StillframeError": "",
    "Topology": "mesh ring",
    "World": "steps pending trace state recorded in_transit enabled fragments take",
}
"""The public members of classes that have others, which only this package calls."""


SYNTAX = ("__aenter__", "__aiter__", "__enter__", "__iter__")
"""What ``with`` and ``for`` call: the reference says what they give."""


def page(name: str) -> str:
    """Return a page of the reference."""
    intro, sections = PAGES[name]
    parts = [GENERATED, intro]
    for section in sections:
        parts.append(f"## {section.title}\n")
        if section.intro:
            parts.append(f"{section.intro}\n")
        parts += (described(section.package, one) for one in names_of(section))
    return "\n".join(parts)


def names_of(section: Section) -> list[str]:
    """Return the names of a section, those that "*" stands for included."""
    names = section.names.split()
    if "*" not in names:
        return names
    names.remove("*")
    shown = {
        one
        for _, sections in PAGES.values()
        for other in sections
        if other.package == section.package
        for one in other.names.split()
    }
    public = importlib.import_module(section.package).__all__
    # What the root exports is described there.
    root = importlib.import_module(ROOT_PACKAGE).__all__ if section.package != ROOT_PACKAGE else ()
    return names + [one for one in public if one not in shown and one not in root]


def described(package: str, name: str) -> str:
    """Return the description of one public name."""
    found = getattr(importlib.import_module(package), name)
    lines = [f"### `{package}.{name}`\n"]
    if inspect.isclass(found) and found.__name__ == name:
        lines += _class(found)
    elif inspect.isfunction(found):
        lines += [_code(_signature(name, found)), prose(inspect.getdoc(found) or "")]
    else:
        lines.append(prose(_alias_doc(package, name)))
    return "\n".join(lines)


def _class(kind: type[Any]) -> Iterator[str]:
    bases = [base.__name__ for base in kind.__bases__ if base.__name__ in _public_names()]
    inherits = f"({', '.join(bases)})" if bases else ""
    head = f"class {kind.__name__}{inherits}"
    types = _attributes(kind)
    is_plain = issubclass(kind, enum.Enum | BaseException) or kind.__name__ in NOT_CONSTRUCTED
    if not is_plain and not is_typeddict(kind):
        head = _signature(f"class {kind.__name__}", kind)
        parameters = inspect.signature(kind).parameters.values()
        arguments = {one.name: _annotation(one.annotation) for one in parameters}
        types = dict(types.items() - arguments.items())
    yield _code(head)
    yield prose(inspect.getdoc(kind) or "", types)
    if issubclass(kind, enum.Enum):
        yield "\n".join(f"- `{one.name}`: `{one.value!r}`" for one in kind) + "\n"
    for name, member in _members(kind):
        yield member_text(kind, name, member)


def _attributes(kind: type[Any]) -> dict[str, str]:
    """Return the types of the attributes that a class declares."""
    return {
        name: _annotation(annotation)
        for base in reversed(kind.__mro__)
        for name, annotation in vars(base).get("__annotations__", {}).items()
    }


def _members(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties that a class defines, or inherits from another one of
    this package that is not public."""
    seen = set()
    shown = MEMBERS[kind.__name__].split() if kind.__name__ in MEMBERS else None
    for base in kind.__mro__:
        if not base.__module__.startswith("stillframe") or base.__name__ == "StillframeError":
            continue
        for name, member in vars(base).items():
            function = getattr(member, "fget", None) or getattr(member, "func", None)
            function = function or getattr(member, "__func__", member)
            is_public = not name.startswith("_") or name in SYNTAX
            if not is_public or name in seen or not inspect.isfunction(function):
                continue
            if shown is not None and name not in shown:
                continue
            seen.add(name)
            if inspect.getdoc(function):
                yield name, member


def member_text(kind: type[Any], name: str, member: Any) -> str:
    """Return the description of a method or property."""
    function = getattr(member, "fget", None) or getattr(member, "func", None)
    if function is not None:
        result = _annotation(inspect.signature(function).return_annotation)
        head = f"{kind.__name__}.{name}: {result}"
    else:
        head = _signature(f"{kind.__name__}.{name}", getattr(kind, name), is_method=True)
    text = inspect.getdoc(function or getattr(kind, name)) or ""
    return f"{_code(head)}\n{prose(text)}"


def _code(text: str) -> str:
    return f"```py\n{text}\n```\n"


def _signature(name: str, found: Any, *, is_method: bool = False) -> str:
    forms = get_overloads(found) if inspect.isroutine(found) else ()
    return "\n".join(_form(name, one, is_method=is_method) for one in forms or [found])


def _form(name: str, found: Any, *, is_method: bool) -> str:
    signature = inspect.signature(found)
    parameters = list(signature.parameters.values())
    if is_method and parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    shown: list[str] = []
    is_keyword = False
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and not is_keyword:
            is_keyword = True
            shown.append("*")
        if one.kind is one.VAR_POSITIONAL:
            is_keyword = True
        shown.append(_parameter(one))
    result = _annotation(signature.return_annotation)
    if hasattr(found, "__wrapped__"):  # a context manager
        result = re.sub(r"^Async(?:Iterator|Generator)", "AsyncContextManager", result)
        result = re.sub(r"^(?:Iterator|Generator)", "ContextManager", result)
    end = f") -> {result}" if result and not name.startswith("class ") else ")"
    if inspect.iscoroutinefunction(found):
        name = f"async def {name}"
    line = f"{name}({', '.join(shown)}{end}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {one},\n" for one in shown) + end


def _parameter(one: inspect.Parameter) -> str:
    stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
    kind = _annotation(one.annotation)
    text = f"{stars}{one.name}{f': {kind}' if kind else ''}"
    if one.default is one.empty:
        return text
    return f"{text}{' = ' if kind else '='}{_default(one.default)}"


def _default(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if inspect.isclass(value):
        return value.__name__
    if repr(value).startswith("<") or type(value).__module__.startswith("msgspec"):
        return "..."
    return repr(value)


def _annotation(annotation: Any) -> str:
    if annotation is inspect.Signature.empty:
        return ""
    if annotation is None or annotation is type(None):
        return "None"
    text = _type(annotation)
    for long, short in _aliases().items():
        text = text.replace(long, short)
    return text


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", text).replace("~", "").replace("NoneType", "None")
    text = re.sub(r"Annotated\[(\w+), Meta\([^()]*\)\]", r"\1", text)
    # A union for the reader, and one type for what decodes it (``storage.location``).
    return re.sub(r"\bLocation\b", "Path | ObjectPath", text.replace("'", ""))


@functools.cache
def _aliases() -> dict[str, str]:
    """Return the long unions that have public names."""
    homes = {
        "Choice": "stillframe.sim",
        "Effect": "stillframe.sim",
        "Event": "stillframe.runtime.events",
    }
    return {_type(getattr(importlib.import_module(home), n)): n for n, home in homes.items()}


@functools.cache
def _public_names() -> frozenset[str]:
    sections = [section for _, sections in PAGES.values() for section in sections]
    return frozenset(name for section in sections for name in names_of(section))


def _alias_doc(package: str, name: str) -> str:
    """Return the docstring of a name that is neither a class nor a function: the string after its
    assignment."""
    module = importlib.import_module(package)
    for home in (package, *getattr(module, "_MODULES", {})):
        body = ast.parse(inspect.getsource(importlib.import_module(home))).body
        for before, after in pairwise(body):
            is_it = isinstance(before, ast.Assign) and ast.unparse(before.targets[0]) == name
            if is_it and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                return f"``{name} = {_type(getattr(module, name))}``\n\n{after.value.value}"
    raise LookupError(f"{package}.{name} has no docstring")


_CLASS = re.compile(r"\b((?:[A-Z][a-z]+){2,}|Unavailable|Damaged|Fenced|Refused)\b(?!')")
SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises")
_SECTION = re.compile(rf"^({'|'.join(SECTIONS)}):$", re.MULTILINE)


def prose(docstring: str, types: Mapping[str, str] = {}) -> str:
    """Return a docstring as Markdown: paragraphs on one line each, and its sections as lists, in
    which attributes have their types."""
    first, *rest = _SECTION.split(docstring)
    parts = [_paragraphs(first)]
    for title, body in zip(rest[::2], rest[1::2], strict=True):
        section, more = _dedented(body)
        if title in ("Returns", "Yields"):
            parts.append(f"**{title}**: {_flat(section)}\n")
        else:
            items = re.split(r"\n(?=\S)", section)
            shown = [_item(one, types if title == "Attributes" else {}) for one in items]
            head = "Arguments" if title == "Args" else title
            parts.append(f"**{head}**:\n\n" + "\n".join(shown) + "\n")
        if more:
            parts.append(_paragraphs(more))
    return "\n".join(part for part in parts if part.strip())


def _dedented(body: str) -> tuple[str, str]:
    """Return the indented text below the title of a section, and the text after it."""
    lines = body.strip("\n").splitlines()
    end = next((n for n, line in enumerate(lines) if line and not line.startswith(" ")), len(lines))
    section = textwrap.dedent("\n".join(lines[:end])).strip()
    return section, "\n".join(lines[end:])


def _item(text: str, types: Mapping[str, str]) -> str:
    name, _, rest = text.partition(": ")
    parts = name.strip().split(", ")
    names = ", ".join(f"`{one}: {types[one]}`" if one in types else f"`{one}`" for one in parts)
    return f"- {names}: {_flat(rest)}"


def _paragraphs(text: str) -> str:
    shown = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        is_block = re.search(r"^(?:  |- |\* |├|└)", paragraph, re.MULTILINE)
        shown.append(_ticks(paragraph) if is_block else _flat(paragraph))
    return "\n\n".join(shown) + "\n"


def _flat(text: str) -> str:
    return _ticks(" ".join(text.split()))


def _ticks(text: str) -> str:
    """Return text whose code has one tick on each side, names of classes included."""
    parts = text.replace("``", "`").split("`")
    parts[::2] = [_CLASS.sub(r"`\1`", part) for part in parts[::2]]
    return "`".join(parts)


def main() -> None:
    """Write the pages."""
    for name in PAGES:
        (ROOT / "docs" / name).write_text(page(name), encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    main()
