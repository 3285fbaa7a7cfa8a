"""The events of a log become a trace, under names that a trace can have."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import chain
from typing import Any

import msgspec

from stillframe.errors import UsageError
from stillframe.importer.clocks import ClockedEvent, Clocks, Progress
from stillframe.importer.messages import Matching, Sending, Statements, implied
from stillframe.importer.names import name_processes
from stillframe.model import Channel, ProcessId
from stillframe.trace import Event, MessageId, Trace, clean_label

_encode_content = msgspec.json.Encoder(order="deterministic").encode


class Execution(msgspec.Struct, frozen=True):
    """One execution of a log.

    Attributes:
        label: what the log calls it; may be empty.
        trace: what happened, checked.
        hosts: for each process the name that the log has for it.
        are_messages_stated: whether the log says what was sent and received. If not, messages are
            implied by clocks, and one that never came is not known of.
        repeat_count: how many events receive, by the log, a message that had come before.
    """

    label: str
    trace: Trace
    hosts: dict[ProcessId, str]
    are_messages_stated: bool
    repeat_count: int


class Imported(msgspec.Struct, frozen=True):
    """All executions of a log, and how many of its lines belong to none."""

    executions: tuple[Execution, ...]
    ignored_line_count: int


def no_progress(phase: str, done: int, total: int) -> None:
    """Tell nobody how far an import is."""


def build(
    events: Iterable[ClockedEvent],
    *,
    where: str,
    label: str = "",
    progress: Progress = no_progress,
) -> Execution:
    """Check the clocks of one execution and make a trace of it.

    Takes time and memory for the entries of all clocks. The trace does not depend on the order of
    the events.

    Args:
        events: in any order.
        where: what errors call the log.
        label: what the log calls this execution.
        progress: is told how many events are checked.

    Raises:
        NotConsistent: the clocks contradict themselves, or what the log says of messages; log,
            line and host are named.
        UsageError: there is no event, or there are too many hosts.
    """
    clocks = Clocks(where)
    statements = Statements()
    labels: list[str] = []
    fields: list[dict[str, Any] | None] = []
    for event in events:
        number = clocks.add(event)
        labels.append(clean_label(event.label))
        fields.append(event.fields)
        _note(statements, number, event, clocks)
    if not labels:
        raise UsageError(f"{where} has no event")
    order = clocks.sort()
    matching = Matching(clocks, statements)
    sendings = [*(implied(clocks, progress) if statements.is_empty else matching.match(progress))]
    present = {host for host, line in enumerate(order) if line} | {s.target for s in sendings}
    hosts = clocks.hosts
    named = name_processes(hosts[index] for index in present)
    sent, accepted = _number(sendings, clocks, {clocks.index_of(h): p for h, p in named.items()})
    ranked = sorted(
        chain.from_iterable(order[clocks.index_of(host)] for host in named),
        key=clocks.totals.__getitem__,
    )
    steps = [
        Event(
            process=named[hosts[clocks.owner(event)]],
            label=labels[event],
            accepted=accepted.get(event, ()),
            sent=sent.get(event, ()),
            fields=fields[event],
        )
        for event in ranked
    ]
    return Execution(
        label=clean_label(label),
        trace=Trace(named.values(), steps),
        hosts={process: host for host, process in named.items()},
        are_messages_stated=not statements.is_empty,
        repeat_count=matching.repeat_count,
    )


def _note(statements: Statements, number: int, event: ClockedEvent, clocks: Clocks) -> None:
    if event.sent_to is not None:
        statements.sent_to[number] = clocks.index_of(event.sent_to)
    if event.received_from is not None:
        statements.received_from[number] = clocks.index_of(event.received_from)
    if event.content is not None:
        statements.contents[number] = _encode_content(event.content)


def _number(
    sendings: list[Sending], clocks: Clocks, processes: dict[int, ProcessId]
) -> tuple[dict[int, tuple[MessageId, ...]], dict[int, tuple[MessageId, ...]]]:
    """Return which messages each event sent and which it accepted, numbered as they were sent."""
    sent: dict[int, tuple[MessageId, ...]] = defaultdict(tuple)
    accepted: dict[int, tuple[MessageId, ...]] = defaultdict(tuple)
    channels: dict[tuple[int, int], Channel] = {}
    counts: Counter[Channel] = Counter()
    rank = {host: number for number, host in enumerate(processes)}
    totals, owner = clocks.totals, clocks.owner
    for sending in sorted(
        sendings, key=lambda s: (totals[s.sender], rank[owner(s.sender)], rank[s.target])
    ):
        ends = owner(sending.sender), sending.target
        if ends not in channels:
            channels[ends] = Channel(processes[ends[0]], processes[ends[1]])
        channel = channels[ends]
        counts[channel] += 1
        message = MessageId(channel, counts[channel])
        sent[sending.sender] += (message,)
        if sending.receiver is not None:
            accepted[sending.receiver] += (message,)
    return sent, accepted
