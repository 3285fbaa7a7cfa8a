"""``stillframe cuts``: questions about the consistent cuts of a trace."""

import re
from pathlib import Path

import msgspec
import typer

from stillframe import tracefile
from stillframe.cli import output, quantities
from stillframe.cli.verdict import EXIT_NO
from stillframe.errors import UsageError
from stillframe.trace import Cut, MessageId, Position, Trace

_COUNT = re.compile(r"(?P<process>[^=,#\s]+)=(?P<count>[0-9]{1,18})")
_POSITION = re.compile(r"(?P<process>[^=,#\s]+)#(?P<index>[0-9]{1,18})")
_ORPHANS_SHOWN_MAX = 20


class Question(msgspec.Struct, frozen=True):
    """What is asked; exactly one of these.

    Attributes:
        cut: whether this cut is consistent, such as ``P1=3,P2=5``.
        before: what happened before this event, such as ``P2#7``.
    """

    cut: str | None = None
    before: str | None = None


def answer(path: Path, question: Question, *, is_json: bool) -> None:
    """Answer a question about the trace in the file at `path`.

    Raises:
        typer.Exit: with 1; the answer is no.
        UsageError: nothing is asked, or more than one thing, or what the trace does not have.
    """
    asked = [name for name, value in msgspec.structs.asdict(question).items() if value is not None]
    if len(asked) != 1:
        options = ", ".join(f"--{name}" for name in Question.__struct_fields__)
        raise UsageError(f"ask one question: {options}")
    trace = tracefile.read(path)
    if question.cut is not None:
        _check(trace, _parse_cut(question.cut, trace), is_json=is_json)
    elif question.before is not None:
        _put_past(trace, _parse_position(question.before), is_json=is_json)


def _check(trace: Trace, cut: Cut, *, is_json: bool) -> None:
    orphans = list(trace.orphans(cut))
    if is_json:
        output.put_json({"is_consistent": not orphans, **_describe(trace, cut), "orphans": orphans})
    elif not orphans:
        _put_cut(trace, cut)
    if orphans:
        for orphan in orphans[:_ORPHANS_SHOWN_MAX]:
            output.say(f"no: {_tell(trace, orphan)}")
        if len(orphans) > _ORPHANS_SHOWN_MAX:
            output.say(f"and {len(orphans) - _ORPHANS_SHOWN_MAX} other messages: see --json")
        raise typer.Exit(EXIT_NO)
    output.say("yes: the cut is consistent")


def _put_past(trace: Trace, position: Position, *, is_json: bool) -> None:
    cut = trace.clock(position)
    if is_json:
        output.put_json({"event": str(position), **_describe(trace, cut)})
    else:
        _put_cut(trace, cut)
    events = quantities.count(sum(cut) - 1, "event")
    output.say(f"done: {events} happened before {position}")


def _parse_cut(text: str, trace: Trace) -> Cut:
    counts: dict[str, int] = {}
    for part in text.split(","):
        found = _COUNT.fullmatch(part.strip())
        if found is None or found["process"] in counts:
            raise UsageError(
                f"{part!r} is no part of a cut: write once for each process how many of its "
                "events lie before the cut, as in P1=3,P2=5; 0 for those left out"
            )
        counts[found["process"]] = int(found["count"])
    if strangers := [process for process in counts if process not in trace.index_of]:
        raise UsageError(
            f"the trace has no process {strangers[0]!r}: it has {', '.join(trace.processes)}"
        )
    cut = tuple(counts.get(process, 0) for process in trace.processes)
    trace.check_cut(cut)
    return cut


def _parse_position(text: str) -> Position:
    found = _POSITION.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is no event: they look like P2#7, the seventh event of P2")
    return Position(found["process"], int(found["index"]))


def _tell(trace: Trace, orphan: MessageId) -> str:
    receiver, sender = trace.accepted_in(orphan), trace.sent_in(orphan)
    return (
        f"message {orphan} is accepted in {receiver}, before the cut, but sent in {sender}, "
        "after it"
    )


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
