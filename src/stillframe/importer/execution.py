"""Makes a trace of the events of a log: finds their messages, and names their processes.

A log in ShiViz form does not mention messages. There, a process that learned of events of others
accepted messages; the fewest that explain it come from those events that none of the others knew of
(the transitive reduction of happened-before), as in the diagrams that ShiViz draws.

Where a log states which events send and receive, a receive is matched to its send by clock. A
message brings the clock of its send, so that what the receiver learned is exactly that event of the
source and what that knew. A receiver that knew of the send already learns nothing; then it accepted
the oldest message of the channel with the same content that its clock covers and that it has not
accepted. If there is none, no message was received: the log has one twice (as where a process puts
a message back into its own queue), and the event accepts nothing.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import msgspec

from stillframe.errors import UsageError
from stillframe.importer.clocks import ClockedEvent, Clocks, Progress, Step
from stillframe.model import Channel, ProcessId, check_process_id, natural_order
from stillframe.trace import Event, MessageId, Trace, clean_label

_NAME_LENGTH_MAX = 64
_FOREIGN = re.compile(r"[^A-Za-z0-9_.]+")
_encode_content = msgspec.json.Encoder(order="deterministic").encode


class Sending(msgspec.Struct, gc=False):
    """One message: the event that sent it, the host to which, and the event that accepted it."""

    sender: int
    target: int
    receiver: int | None


class Messages:
    """The messages of a log: those that it states of its events, or that its clocks imply. Where
    events were filled in, they are implied: the other end of a stated one may be left out.

    `repeat_count` is how many events receive, by the log, what had arrived before.
    """

    def __init__(self, clocks: Clocks) -> None:
        self.repeat_count = 0
        self._clocks = clocks
        self._sent_to: dict[int, int] = {}
        self._received_from: dict[int, int] = {}
        self._contents: dict[int, bytes] = {}
        self._receiver_of: dict[int, int] = {}
        self._waiting: dict[tuple[int, int, bytes | None], list[int]] = defaultdict(list)

    @property
    def are_stated(self) -> bool:
        """Whether any event states a message, and none is left out."""
        return bool(self._sent_to or self._received_from) and not self._clocks.filled_count

    def add(self, number: int, event: ClockedEvent) -> None:
        """Take what is stated of the event that the clocks give this number."""
        if event.sent_to is not None:
            self._sent_to[number] = self._clocks.index_of(event.sent_to)
        if event.received_from is not None:
            self._received_from[number] = self._clocks.index_of(event.received_from)
        if event.content is not None:
            self._contents[number] = _encode_content(event.content)

    def find(self, progress: Progress) -> Iterator[Sending]:
        """Yield every message that was sent, or, if none is stated, the fewest that explain what
        the clocks learned; raise NotConsistent if the log contradicts itself."""
        # Last first: the oldest is popped from the end.
        for sender in sorted(self._sent_to, key=self._clocks.owns.__getitem__, reverse=True):
            channel = self._clocks.owners[sender], self._sent_to[sender]
            self._waiting[*channel, self._contents.get(sender)].append(sender)
        for step in self._clocks.walk(progress):
            if not self.are_stated:
                for cause in step.causes:
                    yield Sending(cause, step.host, step.event)
            elif (source := self._received_from.get(step.event)) is not None:
                self._take_receive(step, source)
            elif step.causes:
                self._refuse_causes(step, "the log names no message received here")
        for sender, target in self._sent_to.items() if self.are_stated else ():
            yield Sending(sender, target, self._receiver_of.get(sender))

    def _take_receive(self, step: Step, source: int) -> None:
        clocks = self._clocks
        if not clocks.order[source]:
            clocks.refuse(
                step.event,
                f"it receives from {clocks.name(source)}, which is unknown: it has no event in "
                "this log",
            )
        if not step.causes:
            sender = self._oldest_known(step, source)
            if sender is None:
                self.repeat_count += 1
                return
        else:
            sender = step.causes[0]
            if len(step.causes) > 1 or clocks.owners[sender] != source:
                self._refuse_causes(
                    step, f"the only message received here is from {clocks.name(source)}"
                )
            if self._sent_to.get(sender) != step.host:
                clocks.refuse(
                    step.event,
                    f"by its clock it receives a message of "
                    f"{clocks.describe(sender, step.event)}, but that event sends nothing to it",
                )
        self._receiver_of[sender] = step.event

    def _oldest_known(self, step: Step, source: int) -> int | None:
        content = self._contents.get(step.event)
        waiting = self._waiting.get((source, step.host, content), [])
        while waiting and waiting[-1] in self._receiver_of:
            waiting.pop()
        # A message to itself arrives after the event that sent it.
        known = step.known[source] - (source == step.host)
        return waiting[-1] if waiting and self._clocks.owns[waiting[-1]] <= known else None

    def _refuse_causes(self, step: Step, stated: str) -> None:
        causes = " and ".join(self._clocks.describe(cause, step.event) for cause in step.causes)
        self._clocks.refuse(step.event, f"the clock learned of {causes}, but {stated}")


class Execution(msgspec.Struct, frozen=True):
    """One execution of a log, checked.

    Attributes:
        label: what the log calls it; may be empty.
        trace: its events and messages; ``trace.are_messages_implied`` unless the log states them.
        hosts: for each process the name that the log has for it.
        repeat_count: how many events receive, by the log, what had arrived before.
        warnings: a sentence for each host whose physical time runs backwards, one if times
            contradict the order between hosts, and one if they have an unknown form.
    """

    label: str
    trace: Trace
    hosts: dict[ProcessId, str]
    repeat_count: int
    warnings: tuple[str, ...] = ()


class Imported(msgspec.Struct, frozen=True):
    """All executions of a log.

    Attributes:
        executions: in their order in the log.
        ignored_line_count: how many of its lines belong to no event.
    """

    executions: tuple[Execution, ...]
    ignored_line_count: int


def no_progress(phase: str, done: int, total: int) -> None:
    """Ignore the progress of an import."""


def build(
    events: Iterable[ClockedEvent],
    *,
    where: str,
    label: str = "",
    separation: str = "split it, and import each alone",
    fill_gaps: bool = False,
    progress: Progress = no_progress,
) -> Execution:
    """Check the clocks of one execution, which the log calls `label`, and make a trace of it.
    Errors call the log `where`, and say by `separation` how to separate executions. Events that it
    leaves out are an error, or filled in if `fill_gaps`. `progress` is called with the number of
    checked events.

    Takes time and memory for the entries of all clocks. The trace does not depend on the order of
    the events. NotConsistent: the clocks contradict each other or the stated messages, and log,
    line and host are named; UsageError: there is no event, or there are too many hosts.
    """
    clocks = Clocks(where, separation)
    messages = Messages(clocks)
    labels: list[str] = []
    fields: list[dict[str, Any] | None] = []
    for event in events:
        messages.add(clocks.add(event), event)
        labels.append(clean_label(event.label))
        fields.append(event.fields)
    if not labels:
        raise UsageError(f"{where} has no event")
    clocks.sort(fill_gaps=fill_gaps)
    sendings = [*messages.find(progress)]
    hosts = clocks.hosts
    present = {*clocks.owners, *(sending.target for sending in sendings)}
    named = name_processes(hosts[index] for index in present)
    index_of = {host: index for index, host in enumerate(hosts)}
    processes = {index_of[host]: process for host, process in named.items()}
    sent, accepted = _number(sendings, clocks, processes)
    ranked = sorted(
        chain.from_iterable(clocks.order[index] for index in processes),
        key=clocks.totals.__getitem__,
    )
    steps = [
        Event(
            process=processes[clocks.owners[event]],
            label="left out of the log" if clocks.is_filled(event) else labels[event],
            accepted=accepted.get(event, ()),
            sent=sent.get(event, ()),
            fields=None if clocks.is_filled(event) else fields[event],
            is_filled=clocks.is_filled(event),
        )
        for event in ranked
    ]
    return Execution(
        label=clean_label(label),
        trace=Trace(named.values(), steps, are_messages_implied=not messages.are_stated),
        hosts={process: host for host, process in named.items()},
        repeat_count=messages.repeat_count,
        warnings=tuple(clocks.time_warnings()),
    )


def _number(
    sendings: list[Sending], clocks: Clocks, processes: dict[int, ProcessId]
) -> tuple[dict[int, tuple[MessageId, ...]], dict[int, tuple[MessageId, ...]]]:
    """Return which messages each event sent and which it accepted, numbered as they were sent."""
    sent: dict[int, tuple[MessageId, ...]] = defaultdict(tuple)
    accepted: dict[int, tuple[MessageId, ...]] = defaultdict(tuple)
    channels: dict[tuple[int, int], Channel] = {}
    counts: Counter[Channel] = Counter()
    rank = {host: number for number, host in enumerate(processes)}
    totals, owners = clocks.totals, clocks.owners
    for sending in sorted(
        sendings, key=lambda s: (totals[s.sender], rank[owners[s.sender]], rank[s.target])
    ):
        ends = owners[sending.sender], sending.target
        if ends not in channels:
            channels[ends] = Channel(processes[ends[0]], processes[ends[1]])
        channel = channels[ends]
        counts[channel] += 1
        message = MessageId(channel, counts[channel])
        sent[sending.sender] += (message,)
        if sending.receiver is not None:
            accepted[sending.receiver] += (message,)
    return sent, accepted


def name_processes(hosts: Iterable[str]) -> dict[str, ProcessId]:
    """Return a process id for each host: its own name where that can be, else one like it.

    The hosts are in natural order: ``p2`` before ``p10``.
    """
    ordered = sorted(hosts, key=natural_order)
    names = {host: host for host in ordered if _can_name_a_process(host)}
    taken = set(names)
    twin_counts: Counter[str] = Counter()
    for host in ordered:
        if host not in names:
            names[host] = _free_name(host, taken, twin_counts)
            taken.add(names[host])
    return {host: names[host] for host in ordered}


def _can_name_a_process(host: str) -> bool:
    try:
        check_process_id(host)
    except UsageError:
        return False
    return True


def _free_name(host: str, taken: set[str], twin_counts: Counter[str]) -> ProcessId:
    name = _FOREIGN.sub("-", host).strip("-.")
    if not name[:1].isalpha():
        name = f"P{name}"
    name = name[:_NAME_LENGTH_MAX].rstrip("-.")
    candidate = name
    while candidate in taken:
        twin_counts[name] += 1
        ending = f"-{twin_counts[name] + 1}"
        candidate = name[: _NAME_LENGTH_MAX - len(ending)].rstrip("-.") + ending
    return check_process_id(candidate)
