"""Makes a trace of the events of a log: finds their messages, and names their processes.

A log in ShiViz form does not mention messages. There, a process that learned of events of others
accepted messages; the fewest that explain it come from those events that none of the others knew of
(the transitive reduction of happened-before), as in the diagrams that ShiViz draws.

Where a log states which events send and receive, a receive is matched to its send by clock. A
message brings the clock of its send, so that what the receiver learned is exactly that event of the
source and what that knew. A receiver that knew of the send already learns nothing; then it accepted
the oldest message of the channel with the same content that it knows of and has not accepted. If
there is none, no message came in: the log has one twice (as where a process puts a message back
into its own queue), and the event accepts nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import msgspec

from stillframe.errors import UsageError
from stillframe.importer.clocks import ClockedEvent, Clocks, Progress, Step
from stillframe.importer.names import name_processes, show_host
from stillframe.model import Channel, ProcessId
from stillframe.trace import Event, MessageId, Trace, clean_label

_encode_content = msgspec.json.Encoder(order="deterministic").encode


class Sending(msgspec.Struct, gc=False):
    """One message: the event that sent it, the host to which, and the event that accepted it."""

    sender: int
    target: int
    receiver: int | None


class Statements(msgspec.Struct):
    """The messages that a log states: for an event the target or the source, and the content."""

    sent_to: dict[int, int] = msgspec.field(default_factory=dict)
    received_from: dict[int, int] = msgspec.field(default_factory=dict)
    contents: dict[int, bytes] = msgspec.field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether no event states a message."""
        return not self.sent_to and not self.received_from


def implied(clocks: Clocks, progress: Progress) -> Iterator[Sending]:
    """Yield the fewest messages that explain what the clocks learned."""
    for step in clocks.walk(progress):
        for cause in step.causes:
            yield Sending(cause, step.host, step.event)


class Matching:
    """Matches the receives that a log states to its sends, and counts the repeated receives."""

    def __init__(self, clocks: Clocks, statements: Statements) -> None:
        self._clocks = clocks
        self._stated = statements
        self._receiver_of: dict[int, int] = {}
        self._waiting: dict[tuple[int, int, bytes | None], list[int]] = defaultdict(list)
        self.repeat_count = 0
        # Last first: the oldest is popped from the end.
        for sender in sorted(statements.sent_to, key=clocks.own, reverse=True):
            target = statements.sent_to[sender]
            content = statements.contents.get(sender)
            self._waiting[clocks.owner(sender), target, content].append(sender)

    def match(self, progress: Progress) -> Iterator[Sending]:
        """Yield every message that was sent; raise NotConsistent if the log contradicts itself."""
        for step in self._clocks.walk(progress):
            source = self._stated.received_from.get(step.event)
            if source is not None:
                self._take_receive(step, source)
            elif step.causes:
                self._refuse_causes(step, "is said to have come in here")
        for sender, target in self._stated.sent_to.items():
            yield Sending(sender, target, self._receiver_of.get(sender))

    def _take_receive(self, step: Step, source: int) -> None:
        if not self._clocks.count(source):
            self._clocks.refuse(
                step.event,
                f"it receives from {self._name(source)}, which is unknown: it has no "
                "event in this log",
            )
        if not step.causes:
            sender = self._oldest_known(step, source)
            if sender is None:
                self.repeat_count += 1
                return
        else:
            sender = step.causes[0]
            if len(step.causes) > 1 or self._clocks.owner(sender) != source:
                self._refuse_causes(step, f"came in here but one from {self._name(source)}")
            if self._stated.sent_to.get(sender) != step.host:
                self._clocks.refuse(
                    step.event,
                    f"by its clock it receives what {self._clocks.describe(sender)} sent, but "
                    "that event sends nothing to it",
                )
        self._receiver_of[sender] = step.event

    def _oldest_known(self, step: Step, source: int) -> int | None:
        content = self._stated.contents.get(step.event)
        waiting = self._waiting.get((source, step.host, content), [])
        while waiting and waiting[-1] in self._receiver_of:
            waiting.pop()
        # A message to itself comes in after the event that sent it.
        known = step.known[source] - (source == step.host)
        return waiting[-1] if waiting and self._clocks.own(waiting[-1]) <= known else None

    def _refuse_causes(self, step: Step, nothing: str) -> None:
        causes = " and ".join(map(self._clocks.describe, step.causes))
        self._clocks.refuse(step.event, f"the clock learned of {causes}, but no message {nothing}")

    def _name(self, host: int) -> str:
        return show_host(self._clocks.hosts[host])


class Execution(msgspec.Struct, frozen=True):
    """One execution of a log.

    Attributes:
        label: what the log calls it; may be empty.
        trace: what happened, checked.
        hosts: for each process the name that the log has for it.
        are_messages_stated: whether the log states what was sent and received. If not, messages are
            implied by clocks, and one that never arrived is unknown.
        repeat_count: how many events receive, by the log, a message that had arrived before.
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
    """Ignore the progress of an import."""


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
        progress: called with the number of checked events.

    Raises:
        NotConsistent: the clocks contradict each other or the stated messages; log, line and host
            are named.
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
        _record(statements, number, event, clocks)
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


def _record(statements: Statements, number: int, event: ClockedEvent, clocks: Clocks) -> None:
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
