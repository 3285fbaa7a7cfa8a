"""The commands about executions of other systems, ``import`` and ``cuts``; and the proof of a
snapshot, which is the equivalent computation of EWD 864a, step by step."""

import re
import reprlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, TimeRemainingColumn

from stillframe import tracefile
from stillframe.cli import output, quantities
from stillframe.cli.command import Commands, argument, conclude, end_with_failure, flag, option
from stillframe.cuts import (
    STEP_MAX,
    CutView,
    Predicate,
    count_at_least,
    count_consistent_cuts,
    cuts_where,
    definitely,
    explain,
    shown_count,
)
from stillframe.detect.view import yes_or_no
from stillframe.diagram.layout import count_messages
from stillframe.durable_files import check_target
from stillframe.errors import NotConsistent, UsageError
from stillframe.importer import Execution, Imported, JsonPaths, read_log
from stillframe.importer.clocks import show_host
from stillframe.imports import add_cwd_to_path, load_function
from stillframe.model import SnapshotId
from stillframe.protocol.equivalent import Equivalent, equivalent, interchanges
from stillframe.trace import Cut, Position, Trace

_COUNT = re.compile(r"(?P<process>[^=,#\s]+)=(?P<count>[0-9]{1,18})")
_RENAMED_SHOWN_MAX = 5
_WARNINGS_SHOWN_MAX = 5
_POSITION = re.compile(r"(?P<process>[^=,#\s]+)#(?P<index>[0-9]{1,18})")
COUNTED_MAX = 10**1000
"""More cuts than this are not counted: no other program reads the number."""
SEARCHED_MAX = 2_000_000
"""A predicate is not asked at more cuts than this: all that an observation can pass are kept."""
_PROGRESS_STEP = 1000
INTERCHANGES_SHOWN_MAX = 200


def _messages(row: Mapping[str, Any]) -> str:
    number = f"{row['message_count']:,}"
    if row["filled_count"]:
        return f"possibly {number}"
    return number if row["is_message_count_exact"] else f"at least {number}"


EXECUTION_COLUMNS: output.Columns[dict[str, Any]] = {
    "execution": lambda row: f"{row['number']} {row['label']}".rstrip(),
    "processes": itemgetter("process_count"),
    "events": itemgetter("event_count"),
    "messages": _messages,
    "in transit at the end": lambda row: (
        "unknown" if row["in_transit_count"] is None else row["in_transit_count"]
    ),
}

COUNT_COLUMNS = ("processes", "events", "messages", "consistent cuts")

app = Commands()


def parse_cut(text: str, trace: Trace) -> Cut:
    """Return the cut of `trace` that `text` says; processes left out have no event before it."""
    counts: dict[str, int] = {}
    for part in text.split(","):
        found = _COUNT.fullmatch(part.strip())
        if found is None or found["process"] in counts:
            raise UsageError(
                f"{part!r} is not part of a cut: write the number of events before the cut once "
                "for each process, as in P1=3,P2=5; 0 for those left out"
            )
        counts[found["process"]] = int(found["count"])
    if strangers := [process for process in counts if process not in trace.index_of]:
        raise UsageError(
            f"the trace has no process {strangers[0]!r}: it has {', '.join(trace.processes)}"
        )
    cut = tuple(counts.get(process, 0) for process in trace.processes)
    trace.check_cut(cut)
    return cut


@app.add("trace import simpledb.log --out simpledb.trace", name="import")
def import_(
    paths: list[Path] = argument(
        "LOG...",
        "Log with vector clocks: text as for ShiViz, or JSON lines in files that "
        "end in .ndjson, .jsonl or .json. Several files, such as one per host, "
        "are merged execution by execution.",
    ),
    regex: str | None = option(
        "REGEX",
        "Pattern of an event, with groups (?<host>...), (?<clock>...) and "
        "(?<event>...). It is faster if it starts with ^.  [default: line 1 of a "
        "file for ShiViz; otherwise two lines, the event and its host with the "
        "clock, in the order that fits]",
    ),
    delimiter: str | None = option(
        "REGEX",
        "Pattern that separates executions. A group (?<trace>...) names the next "
        "one.  [default: line 2, if line 1 is an expression]",
    ),
    json_paths: str | None = option(
        "NAME=PATH,...",
        "Read JSON lines, with the paths of host, clock, kind, source, target, "
        "content and time: host=who,clock=meta.clock.",
    ),
    fill_gaps: bool = flag(
        "--fill-gaps",
        "Fill in the events that a log leaves out. They are ordered by their hosts alone, and "
        "messages are derived from the clocks.",
    ),
    number: int | None = option("N", "Import only this execution, counted from 1.", "--execution"),
    out: Path | None = option(
        "FILE",
        "Trace file to write. Several executions are numbered: m-1.trace, m-2.trace.",
    ),
) -> None:
    """Check that the vector clocks of a log agree, find its messages, and write a trace. Exit 1
    at a contradiction, and name its line and host."""
    if out is not None:
        check_target(out, inputs=paths)
    try:
        with output.progress_bar("reading", BarColumn(), TimeRemainingColumn()) as update:

            def progress(phase: str, done: int, total: int) -> None:
                update(description=phase, completed=done, total=total)

            imported = read_log(
                *paths,
                regex=regex,
                delimiter=delimiter,
                json_paths=JsonPaths.parse(json_paths) if json_paths else None,
                fill_gaps=fill_gaps,
                progress=progress,
            )
    except NotConsistent as error:
        output.answer({"is_consistent": False, "detail": str(error)})
        end_with_failure(str(error))
    chosen = dict(enumerate(imported.executions, 1))
    if number is not None:
        if number not in chosen:
            raise UsageError(
                f"{paths[0]} has no execution {number}: it has {len(chosen)}, counted from 1"
            )
        chosen = {number: chosen[number]}
    files: dict[int, Path] = {}
    if out is not None:
        for index, found in chosen.items():
            name = out.name if len(chosen) == 1 else f"{out.stem}-{index}{out.suffix}"
            files[index] = out.with_name(name)
            tracefile.write(files[index], found.trace, inputs=paths)
    rows = [
        {
            "number": index,
            "label": found.label,
            "process_count": len(found.trace.processes),
            "event_count": found.trace.event_count,
            "message_count": found.trace.message_count,
            "is_message_count_exact": not found.trace.are_messages_implied,
            "in_transit_count": None
            if found.trace.are_messages_implied
            else sum(map(len, found.trace.in_transit(found.trace.end).values())),
            "repeat_count": found.repeat_count,
            "filled_count": found.trace.filled_count,
            "warnings": found.warnings,
            "hosts": found.hosts,
            "file": files.get(index),
        }
        for index, found in chosen.items()
    ]
    ignored_count = imported.ignored_line_count
    output.answer(
        {"is_consistent": True, "executions": rows, "ignored_line_count": ignored_count},
        lambda: output.put_table("", EXECUTION_COLUMNS, rows),
    )
    _say_executions(chosen, imported, files)


def _say_executions(
    chosen: dict[int, Execution], imported: Imported, files: dict[int, Path]
) -> None:
    if imported.ignored_line_count:
        lines = quantities.count(imported.ignored_line_count, "line")
        output.say(f"{lines} without an event skipped")
    if repeat_count := sum(execution.repeat_count for execution in chosen.values()):
        receives = quantities.count(repeat_count, "receive")
        output.say(f"{receives} accepted nothing: by the clocks, the message had arrived before")
    if filled_count := sum(execution.trace.filled_count for execution in chosen.values()):
        events = quantities.count(filled_count, "event")
        output.say(f"{events} filled in, which the log leaves out")
    warnings = [text for execution in chosen.values() for text in execution.warnings]
    for text in warnings[:_WARNINGS_SHOWN_MAX]:
        output.say(f"warning: {text}")
    if len(warnings) > _WARNINGS_SHOWN_MAX:
        output.say(f"and {len(warnings) - _WARNINGS_SHOWN_MAX} other warnings: see --json")
    renamed = {
        host: process
        for execution in chosen.values()
        for process, host in execution.hosts.items()
        if process != host
    }
    for host, process in islice(renamed.items(), _RENAMED_SHOWN_MAX):
        output.say(f"host {show_host(host)} is process {process}")
    if len(renamed) > _RENAMED_SHOWN_MAX:
        output.say(f"and {len(renamed) - _RENAMED_SHOWN_MAX} other hosts renamed: see --json")
    for file in files.values():
        output.report(f"written: {file}")
    output.report(
        f"PASS: the clocks of {quantities.count(len(chosen), 'execution')} do not contradict "
        "each other"
    )


@app.add("trace cuts simpledb.trace --cut P24464=3,P24468=5")
def cuts(
    path: Path = argument(
        "TRACE", "Trace file, written by 'trace import --out' or 'sim run --trace'."
    ),
    cut: str | None = option(
        "PROCESS=COUNT,...",
        "Check whether this cut is consistent, given as the number of events before"
        " it per process; 0 for processes left out.",
    ),
    before: str | None = option(
        "PROCESS#INDEX",
        "Show the smallest consistent cut with this event: everything that happened before it.",
    ),
    where: str | None = option(
        "MODULE:FUNCTION",
        "Count the consistent cuts in which this function of a CutView returns True.",
    ),
    steps: int = option(
        "N",
        "Count the cuts in at most this many steps, else print how many there are at least. A"
        " million take one to three seconds, and up to 20 MB.",
        default=STEP_MAX,
        min=1,
    ),
    prove: str | None = option(
        "SNAPSHOT", "Reorder the trace so that all events before this snapshot's cut come first."
    ),
) -> None:
    """Query the consistent cuts of a trace; without options, count them. Exit 1 if the answer is
    no."""
    if sum(value is not None for value in (cut, before, where, prove)) > 1:
        raise UsageError("ask one question at a time: --cut, --before, --where, --prove")
    add_cwd_to_path()
    predicate = None if where is None else load_function(where)
    trace = tracefile.read(path)
    if cut is not None:
        chosen = parse_cut(cut, trace)
        orphans = list(trace.orphans(chosen))
        output.answer(
            lambda: {
                "is_consistent": not orphans,
                **_cut_document(trace, chosen),
                "orphans": orphans,
            },
            None if orphans else lambda: _put_cut(trace, chosen),
        )
        sentence = explain(trace, chosen) if orphans else "the cut is consistent"
        conclude(not orphans, sentence, yes="yes", no="no")
    elif before is not None:
        _put_past(trace, before)
    elif prove is not None:
        put_order(trace, prove)
    elif predicate is not None:
        _search(trace, predicate, steps)
    else:
        _count(trace, steps)


def _count(trace: Trace, step_max: int) -> None:
    with output.progress_bar("counting", BarColumn(), TimeRemainingColumn()) as update:
        count, is_exact = count_at_least(
            trace,
            count_max=COUNTED_MAX,
            step_max=step_max,
            progress=lambda done, total: update(completed=done, total=total),
        )
    counts = {
        "process_count": len(trace.processes),
        "event_count": trace.event_count,
        "message_count": trace.message_count,
        "is_message_count_exact": not trace.are_messages_implied,
        "filled_count": trace.filled_count,
    }
    row = (
        len(trace.processes),
        trace.event_count,
        _messages(counts),
        f"{'' if is_exact else 'at least '}{shown_count(count)}",
    )
    output.answer(
        counts
        | {
            "consistent_cut_count": count if is_exact else None,
            "consistent_cut_count_min": min(count, COUNTED_MAX),
        },
        lambda: output.put_table("", COUNT_COLUMNS, [row], texts=0),
    )
    if not is_exact and count <= COUNTED_MAX:
        steps = quantities.count(step_max, "step")
        output.say(f"counting stopped at its limit of {steps}: raise it with --steps")
    if trace.filled_count:
        _say_if_implied(trace)


def _search(trace: Trace, predicate: Predicate, step_max: int) -> None:
    total = count_consistent_cuts(trace, count_max=SEARCHED_MAX, step_max=step_max)
    if total > SEARCHED_MAX:
        raise UsageError(
            f"the trace has more than {SEARCHED_MAX:,} consistent cuts, too many to evaluate: "
            "use a shorter trace, or call stillframe.cuts.possibly with a bound"
        )
    first, holding_count = None, 0
    with _evaluating(predicate, "evaluating every consistent cut", total) as evaluate:
        for cut in cuts_where(trace, evaluate):
            first = cut if first is None else first
            holding_count += 1
    with _evaluating(predicate, "looking for an observation without", total) as evaluate:
        is_definite = holding_count > 0 and definitely(trace, evaluate)
    output.answer(
        lambda: {
            "consistent_cut_count": total,
            "holding_count": holding_count,
            "possibly": holding_count > 0,
            "definitely": is_definite,
            "first": None if first is None else _cut_document(trace, first),
        },
        None if first is None else lambda: _put_cut(trace, first),
    )
    all_cuts = quantities.count(total, "consistent cut")
    if first is None:
        _say_if_implied(trace)
        end_with_failure(f"it holds in none of {all_cuts}", no="no")
    output.report(
        f"yes: it holds in {holding_count:,} of {all_cuts}, the first of them as above; "
        + (
            "definitely: whatever the order was, it held at some time"
            if is_definite
            else "possibly: in some orders of the events it never held"
        )
    )


@contextmanager
def _evaluating(predicate: Predicate, what: str, total: int) -> Iterator[Predicate]:
    """Give a predicate that shows on a terminal how often it was evaluated, and whose errors are
    sentences; what it prints goes to stderr."""
    with output.progress_bar(what, total=total) as update, redirect_stdout(sys.stderr):
        evaluated_count = 0

        def evaluate(view: CutView) -> bool:
            nonlocal evaluated_count
            evaluated_count += 1
            if not evaluated_count % _PROGRESS_STEP:
                update(completed=evaluated_count)
            counts = dict(zip(view.trace.processes, view.cut, strict=True))
            where = f"evaluated at the cut {reprlib.repr(counts)}"
            return yes_or_no(predicate, view, "the predicate", where)

        yield evaluate


def _put_past(trace: Trace, text: str) -> None:
    found = _POSITION.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is not an event, such as P2#7, the seventh event of P2")
    position = Position(found["process"], int(found["index"]))
    cut = trace.clock(position)
    output.answer(
        lambda: {"event": str(position), **_cut_document(trace, cut)}, lambda: _put_cut(trace, cut)
    )
    events = quantities.count(sum(cut) - 1, "event")
    output.report(f"done: {events} happened before {position}")


def _cut_document(trace: Trace, cut: Cut) -> dict[str, object]:
    in_transit = {channel: len(m) for channel, m in trace.in_transit(cut).items() if m}
    return {
        "cut": dict(zip(trace.processes, cut, strict=True)),
        "in_transit": in_transit,
        "is_in_transit_exact": not trace.are_messages_implied,
    }


def _put_cut(trace: Trace, cut: Cut) -> None:
    rows = zip(trace.processes, cut, trace.end, strict=True)
    output.put_table("", ("process", "events before the cut", "of"), rows)
    for channel, messages in trace.in_transit(cut).items():
        if messages:
            output.report(f"in transit on {channel}: {count_messages(trace, len(messages))}")
    _say_if_implied(trace)


def _say_if_implied(trace: Trace) -> None:
    if trace.filled_count:
        output.say(
            f"{quantities.count(trace.filled_count, 'event')} of the trace were left out of its "
            "log: some of its cuts may not be consistent, and messages in transit may have arrived"
        )
    elif trace.are_messages_implied:
        output.say(
            "the log does not state messages, and its clocks do not show those that taught their "
            "receivers nothing: more may be in transit"
        )


def put_order(trace: Trace, name: str) -> None:
    """Put the white events of a trace before the red ones; there are no processes to ask. End with
    1 if the cut is not consistent."""
    snapshot = SnapshotId.parse(name)
    if snapshot not in trace.snapshots:
        names = ", ".join(map(str, trace.snapshots)) or "none"
        raise UsageError(f"the trace has no snapshot {snapshot}; it has {names}")
    cut = trace.cut_of(snapshot)
    put_proof(trace, snapshot, lambda: equivalent(trace, cut), has_state=False)


def put_proof(
    trace: Trace, snapshot: SnapshotId, check: Callable[[], Equivalent], *, has_state: bool
) -> None:
    """Show the equivalent computation that `check` finds, with real processes if it `has_state`;
    end with 1 if there is none."""
    cut = trace.cut_of(snapshot)
    try:
        found = check()
    except NotConsistent as error:
        output.answer({"is_consistent": False, "snapshot": snapshot, "detail": str(error)})
        end_with_failure(f"snapshot {snapshot}: {error}")
    output.answer(
        lambda: {
            "is_consistent": True,
            "snapshot": snapshot,
            "inversion_count": found.inversion_count,
            "interchange_count": found.interchange_count,
            "white": [str(position) for position in found.white],
            "red": [str(position) for position in found.red],
        },
        lambda: output.put_lines(_steps(trace, cut, found)),
    )
    count = quantities.count(found.interchange_count, "interchange")
    white = f"all {len(found.white)} white events precede"
    if len(found.white) == 1:
        white = "the 1 white event precedes"
    red = "the 1 red one" if len(found.red) == 1 else f"all {len(found.red)} red ones"
    replayed = (
        "; the real processes, replayed in that order, are in the recorded state in between, and "
        "end as they did"
    )
    output.report(
        f"PASS: snapshot {snapshot}: after {count} of neighbours {white} {red}"
        f"{replayed if has_state else ''}"
    )


def _steps(trace: Trace, cut: Cut, found: Equivalent) -> Iterator[str]:
    def named(position: Position) -> str:
        return f"{position} {trace.event(position).label}".rstrip()

    def coloured(position: Position) -> str:
        is_white = position.index <= cut[trace.index_of[position.process]]
        return f"  {'white' if is_white else 'red  '}  {named(position)}"

    yield "as it happened:"
    yield from (coloured(position) for position, _ in trace.positions())
    inversions = quantities.count(found.inversion_count, "inversion")
    yield f"{inversions} (a red event before a white one)"
    for step in islice(interchanges(trace, cut), INTERCHANGES_SHOWN_MAX):
        yield f"  {named(step.white)} goes before {named(step.red)}: {step.inversion_count} left"
    if found.interchange_count > INTERCHANGES_SHOWN_MAX:
        yield f"  and {found.interchange_count - INTERCHANGES_SHOWN_MAX:,} more"
    yield "as it could have happened:"
    yield from map(coloured, found.positions)
