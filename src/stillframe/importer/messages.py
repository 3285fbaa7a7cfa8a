"""Which messages there were: implied by the clocks, or stated by the log and matched by them.

A log in ShiViz form says nothing of messages. There, whoever learned of events of others accepted
messages; the fewest that explain it come from those events that none of the others knew of (the
transitive reduction of happened-before), as in the diagrams that ShiViz draws.

Where a log says which events send and receive, a receive is matched to its send by clock: a message
brings the clock of its send, so that what the receiver learned is exactly that event of the source
and what that knew. A receiver that knew of the send already learns nothing; then it accepted the
oldest message of the channel with the same content that it knows of and has not accepted. If there
is none, no message came in: the log has one a second time (as where a process puts a message back
into its own queue), and the event accepts nothing.
"""

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from stillframe.importer.clocks import Clocks, Progress, Step
from stillframe.importer.names import show_host


class Sending(msgspec.Struct, gc=False):
    """One message: the event that sent it, the host to which, and the event that accepted it."""

    sender: int
    target: int
    receiver: int | None


class Statements(msgspec.Struct):
    """What a log says of messages: for an event the host to which it sent or from which it
    received, and the content."""

    sent_to: dict[int, int] = msgspec.field(default_factory=dict)
    received_from: dict[int, int] = msgspec.field(default_factory=dict)
    contents: dict[int, bytes] = msgspec.field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing of messages."""
        return not self.sent_to and not self.received_from


def implied(clocks: Clocks, progress: Progress) -> Iterator[Sending]:
    """Yield the fewest messages that explain what the clocks learned.

    Raises:
        NotConsistent: the clocks contradict themselves.
    """
    for step in clocks.walk(progress):
        for cause in step.causes:
            yield Sending(cause, step.host, step.event)


class Matching:
    """Matches what a log says that it received to what it says that it sent.

    Attributes:
        repeat_count: how many events receive, by the log, a message that had come before.
    """

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
        """Yield every message that was sent.

        Raises:
            NotConsistent: the clocks contradict themselves, or what is said of messages.
        """
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
