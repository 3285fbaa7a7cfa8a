"""``stillframe cuts``: questions about the consistent cuts of a trace."""

import re
import reprlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import msgspec
import typer
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from stillframe import tracefile
from stillframe.cli import output, quantities
from stillframe.cli.command import EXIT_NO
from stillframe.cli.cut_option import parse_cut
from stillframe.cli.proof import put_order
from stillframe.cuts import (
    CutView,
    Predicate,
    count_consistent_cuts,
    cuts_where,
    definitely,
    explain,
)
from stillframe.detect.evaluate import yes_or_no
from stillframe.errors import UsageError
from stillframe.imports import add_cwd_to_path, load_function
from stillframe.trace import Cut, Position, Trace

_POSITION = re.compile(r"(?P<process>[^=,#\s]+)#(?P<index>[0-9]{1,18})")
COUNTED_MAX = 100_000_000
"""More cuts than this are not counted, which takes under a second."""
SEARCHED_MAX = 2_000_000
"""A predicate is not asked at more cuts than this: all that an observation can pass are kept."""
_PROGRESS_STEP = 1000


class Question(msgspec.Struct, frozen=True):
    """What is asked: one of these, or how many consistent cuts there are.

    Attributes:
        cut: whether this cut is consistent, such as ``P1=3,P2=5``.
        before: what happened before this event, such as ``P2#7``.
        where: in which cuts this predicate holds, such as ``predicates:terminated``.
        prove: why the cut of this snapshot is consistent, such as ``P1-1``.
    """

    cut: str | None = None
    before: str | None = None
    where: str | None = None
    prove: str | None = None


def answer(path: Path, question: Question, *, is_json: bool) -> None:
    """Answer a question about the trace in the file at `path`.

    Raises:
        typer.Exit: with 1; the answer is no.
        UsageError: more than one thing is asked, or what the trace does not have.
    """
    if sum(value is not None for value in msgspec.structs.asdict(question).values()) > 1:
        options = ", ".join(f"--{name}" for name in Question.__struct_fields__)
        raise UsageError(f"ask one question at a time: {options}")
    add_cwd_to_path()
    predicate = None if question.where is None else load_function(question.where)
    trace = tracefile.read(path)
    if question.cut is not None:
        _check(trace, parse_cut(question.cut, trace), is_json=is_json)
    elif question.before is not None:
        _put_past(trace, _parse_position(question.before), is_json=is_json)
    elif question.prove is not None:
        put_order(trace, question.prove, is_json=is_json)
    elif predicate is not None:
        _search(trace, predicate, is_json=is_json)
    else:
        _count(trace, is_json=is_json)


def _count(trace: Trace, *, is_json: bool) -> None:
    cut_count = count_consistent_cuts(trace, count_max=COUNTED_MAX)
    is_exact = cut_count <= COUNTED_MAX
    counts = {
        "process_count": len(trace.processes),
        "event_count": trace.event_count,
        "message_count": trace.message_count,
    }
    if is_json:
        output.put_json(counts | {"consistent_cut_count": cut_count if is_exact else None})
        return
    shown = f"{cut_count:,}" if is_exact else f"more than {COUNTED_MAX:,}"
    columns = ("PROCESSES", "EVENTS", "MESSAGES", "CONSISTENT CUTS")
    rows = [(*(f"{count:,}" for count in counts.values()), shown)]
    output.put_table("", columns, rows, texts=0)


def _check(trace: Trace, cut: Cut, *, is_json: bool) -> None:
    orphans = list(trace.orphans(cut))
    if is_json:
        output.put_json({"is_consistent": not orphans, **_describe(trace, cut), "orphans": orphans})
    elif not orphans:
        _put_cut(trace, cut)
    if orphans:
        output.say(f"no: {explain(trace, cut)}")
        raise typer.Exit(EXIT_NO)
    output.say("yes: the cut is consistent")


def _search(trace: Trace, predicate: Predicate, *, is_json: bool) -> None:
    total = count_consistent_cuts(trace, count_max=SEARCHED_MAX)
    if total > SEARCHED_MAX:
        raise UsageError(
            f"the trace has more than {SEARCHED_MAX:,} consistent cuts, too many to ask at each: "
            "ask about a shorter trace, or call stillframe.cuts.possibly with a bound"
        )
    first, holding_count = None, 0
    with _asking(predicate, "asking at every consistent cut", total) as asked:
        for cut in cuts_where(trace, asked):
            first = cut if first is None else first
            holding_count += 1
    with _asking(predicate, "looking for an observation without", total) as asked:
        is_definite = holding_count > 0 and definitely(trace, asked)
    if is_json:
        output.put_json(
            {
                "consistent_cut_count": total,
                "holding_count": holding_count,
                "possibly": holding_count > 0,
                "definitely": is_definite,
                "first": None if first is None else _describe(trace, first),
            }
        )
    elif first is not None:
        _put_cut(trace, first)
    cuts = quantities.count(total, "consistent cut")
    if first is None:
        output.say(f"no: it holds in none of {cuts}")
        raise typer.Exit(EXIT_NO)
    output.say(
        f"yes: it holds in {holding_count:,} of {cuts}, the first of them this; "
        + (
            "definitely: whatever the order was, it held at some time"
            if is_definite
            else "possibly: in some orders of the events it never held"
        )
    )


@contextmanager
def _asking(predicate: Predicate, what: str, total: int) -> Iterator[Predicate]:
    """Give a predicate that shows on a terminal how often it was asked, and whose errors are
    sentences; what it prints goes to stderr."""
    console = output.words()
    columns = TextColumn("{task.description}"), MofNCompleteColumn(), TimeRemainingColumn()
    with (
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar,
        redirect_stdout(sys.stderr),
    ):
        task = bar.add_task(what, total=total)
        asked_count = 0

        def asked(view: CutView) -> bool:
            nonlocal asked_count
            asked_count += 1
            if not asked_count % _PROGRESS_STEP:
                bar.update(task, completed=asked_count)
            counts = dict(zip(view.trace.processes, view.cut, strict=True))
            where = f"asked at the cut {reprlib.repr(counts)}"
            return yes_or_no(predicate, view, "the predicate", where)

        yield asked


def _put_past(trace: Trace, position: Position, *, is_json: bool) -> None:
    cut = trace.clock(position)
    if is_json:
        output.put_json({"event": str(position), **_describe(trace, cut)})
    else:
        _put_cut(trace, cut)
    events = quantities.count(sum(cut) - 1, "event")
    output.say(f"done: {events} happened before {position}")


def _parse_position(text: str) -> Position:
    found = _POSITION.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is no event: they look like P2#7, the seventh event of P2")
    return Position(found["process"], int(found["index"]))


def _describe(trace: Trace, cut: Cut) -> dict[str, object]:
    in_transit = {channel: len(m) for channel, m in trace.in_transit(cut).items() if m}
    return {"cut": dict(zip(trace.processes, cut, strict=True)), "in_transit": in_transit}


def _put_cut(trace: Trace, cut: Cut) -> None:
    rows = [
        (process, f"{count:,}", f"{most:,}")
        for process, count, most in zip(trace.processes, cut, trace.end, strict=True)
    ]
    output.put_table("", ("PROCESS", "EVENTS BEFORE THE CUT", "OF"), rows)
    for channel, messages in trace.in_transit(cut).items():
        if messages:
            output.say(f"in transit on {channel}: {quantities.count(len(messages), 'message')}")
