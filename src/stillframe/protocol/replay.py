"""The events of a trace, performed again by the real processes.

A trace names the messages that were accepted and sent, without their content. But the messages that
a process sends, and its state, follow from its start state and the messages that it accepts. So the
events, performed in any possible order, reproduce the content of each message, and the global state
after any of them. A process that deviates from the trace is no function of what it accepts, or no
process of this trace.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from stillframe.errors import (
    ApplicationError,
    NotConsistent,
    ProtocolViolation,
    UsageError,
    text_of,
)
from stillframe.model import (
    DECODING_ERRORS,
    Channel,
    ChannelState,
    GlobalState,
    ProcessId,
    ProcessState,
    SnapshotId,
)
from stillframe.protocol.action_runner import PUBLISHED, RECEIVE, START, ActionRunner, Sent
from stillframe.topology import Topology
from stillframe.trace import Event, MarkerStep, MessageId, Position, Trace, named

RESTORED = "restored"
"""The handler of the first event of a process in a restored epoch: it "sends" the messages recorded
on its channels, so that the trace of one epoch is complete."""
_SHOWN_CHARACTER_MAX = 200


class Replay:
    """A system that performs a trace, event by event.

    It begins with `start` or the initial states. Sending another message than a known one
    in `contents` is refused; the attribute has every message that was sent so far, or recorded at
    the start, encoded. Where the processes recorded their states in `trace` they are notified
    (``on_cut``). NotConsistent if the books of `start` do not balance; UsageError if it is not of
    this topology, or a process has its own loop.
    """

    def __init__(
        self,
        topology: Topology,
        start: GlobalState | None = None,
        *,
        contents: Mapping[MessageId, bytes] | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.contents: dict[MessageId, bytes] = {}
        self._known = contents or {}
        self._event_counts = dict.fromkeys(topology.processes, 0)
        self._received_counts = dict.fromkeys(topology.description.channels, 0)
        self._in_transit: dict[Channel, dict[int, bytes]] = {c: {} for c in self._received_counts}
        encoded: dict[ProcessId, bytes] = {}
        if start is not None:
            _check_start(start, topology)
            encoded = {state.process: state.encoded for state in start.processes}
            for state in start.channels:
                self._load(state)
        self._recorded = tuple(self.contents)
        self._runners = {p: ActionRunner(p, topology, encoded.get(p)) for p in topology.processes}
        self._cuts: dict[Position, list[SnapshotId]] = defaultdict(list)
        for step, count in trace.numbered() if trace is not None else ():
            if isinstance(step, MarkerStep) and step.is_cut:
                self._cuts[Position(step.process, count)].append(step.snapshot)
        for process in topology.processes:
            self._notify_cuts(Position(process, 0))

    def _load(self, state: ChannelState) -> None:
        channel = state.channel
        self._received_counts[channel] = state.received_count
        for number, message in enumerate(_messages(state), state.received_count + 1):
            self._in_transit[channel][number] = message
            self.contents[MessageId(channel, number)] = message

    def perform(self, event: Event) -> None:
        """Perform `event` as one atomic action, and check that the process sends the same messages.
        Raises NotConsistent if it accepts what is not in transit, or does something else than it
        says; ApplicationError if its handler raised; UsageError if the process or the handler is
        not of this topology. After an error the replay cannot be used any more."""
        if event.process not in self._event_counts:
            raise UsageError(
                f"the trace has a process {event.process!r}, but the topology has "
                f"{', '.join(self._event_counts)}: give the topology of the trace"
            )
        self._event_counts[event.process] += 1
        position = Position(event.process, self._event_counts[event.process])
        where = named(position, event)
        if event.handler == RESTORED:
            self._check_restored(where, event)
            return
        sent = [
            self._send(where, Channel(event.process, target), encoded)
            for target, encoded in self._call(where, event)
        ]
        # The order in which one action sends on several channels makes no difference.
        if sorted(sent) != sorted(event.sent):
            raise NotConsistent(
                f"{where}: the replay sends {_named(sent)}, but the trace has "
                f"{_named(event.sent)}: process {event.process}, or one that sent to it, is not "
                "a function of the messages that it accepts, or the trace is of another program"
            )
        self._notify_cuts(position)

    def _notify_cuts(self, position: Position) -> None:
        for snapshot in self._cuts.get(position, ()):
            self._runners[position.process].cut(snapshot)

    def _check_restored(self, where: str, event: Event) -> None:
        recorded = [m for m in self._recorded if m.channel.source == event.process]
        if sorted(recorded) != sorted(event.sent) or event.accepted:
            raise NotConsistent(
                f"{where} restores {_named(event.sent)}, but the initial state has "
                f"{_named(recorded)} on the channels of {event.process}: give the state with "
                "which the epoch began"
            )

    def _call(self, where: str, event: Event) -> list[Sent]:
        runner = self._runners[event.process]
        arguments = _arguments(where, event, runner)
        encoded = [(message.channel, self._take(where, message)) for message in event.accepted]
        try:
            if event.handler == RECEIVE:
                return runner.receive([(c, runner.decode(message)) for c, message in encoded])
            if event.handler in runner.actions:
                return runner.act(event.handler, arguments)
            return runner.perform(event.handler, *arguments)
        except ProtocolViolation as error:
            raise NotConsistent(f"{where}: {error}") from error
        except UsageError as error:
            raise ApplicationError(f"{where}, replayed: {error}") from error

    def _take(self, where: str, message: MessageId) -> bytes:
        encoded = self._in_transit.get(message.channel, {}).pop(message.number, None)
        if encoded is None:
            raise NotConsistent(
                f"{where} accepts message {message}, but on that channel "
                f"{_named(self.in_transit(message.channel))} is in transit"
            )
        self._received_counts[message.channel] += 1
        return encoded

    def _send(self, where: str, channel: Channel, encoded: bytes) -> MessageId:
        number = self._received_counts[channel] + len(self._in_transit[channel]) + 1
        message = MessageId(channel, number)
        if self._known.get(message, encoded) != encoded:
            raise NotConsistent(
                f"{where}: the replay sends {_shown(encoded)} as message {message}, but "
                f"{_shown(self._known[message])} was sent: process {channel.source} is not a "
                "function of the messages that it accepts"
            )
        self._in_transit[channel][number] = encoded
        self.contents[message] = encoded
        return message

    def in_transit(self, channel: Channel) -> tuple[MessageId, ...]:
        """Return the messages that are on `channel`, in the order of sending."""
        return tuple(MessageId(channel, number) for number in self._in_transit.get(channel, ()))

    def state(self) -> GlobalState:
        """Return the current global state; UsageError if a field of a process cannot be recorded.
        Messages on a channel are numbered from received_count + 1 on, in the order of sending, even
        where messages overtake each other: the books must balance there too."""
        return GlobalState(
            processes=tuple(runner.capture() for runner in self._runners.values()),
            channels=tuple(
                ChannelState.of(channel, self._received_counts[channel], list(messages.values()))
                for channel, messages in self._in_transit.items()
            ),
        )

    def capture(self, process: ProcessId) -> ProcessState:
        """Return the current state of one process; UsageError if a field cannot be recorded."""
        return self._runners[process].capture()


def compare(recorded: GlobalState, replayed: GlobalState) -> None:
    """Check that two global states are the same: process states by their bytes, counts, and
    messages one by one, whatever their batches. NotConsistent with the first that differs."""
    recorded.check_books()
    replayed.check_books()
    _check_parts([s.process for s in recorded.processes], [s.process for s in replayed.processes])
    for ours, theirs in zip(recorded.processes, replayed.processes, strict=True):
        if ours != theirs:
            was, becomes = _difference(ours.encoded, theirs.encoded)
            raise NotConsistent(
                f"process {ours.process}: recorded as {ours.kind} {was}, replayed as "
                f"{theirs.kind} {becomes}"
            )
    _check_parts(
        [str(s.channel) for s in recorded.channels], [str(s.channel) for s in replayed.channels]
    )
    for before, after in zip(recorded.channels, replayed.channels, strict=True):
        _compare_channel(before, after)


def _compare_channel(recorded: ChannelState, replayed: ChannelState) -> None:
    counts = [(state.sent_count, state.received_count) for state in (recorded, replayed)]
    if counts[0] != counts[1]:
        raise NotConsistent(
            f"channel {recorded.channel}: recorded as {counts[0][0]} sent and {counts[0][1]} "
            f"received, replayed as {counts[1][0]} sent and {counts[1][1]} received"
        )
    pairs = zip(_messages(recorded), _messages(replayed), strict=True)
    for number, (ours, theirs) in enumerate(pairs, recorded.received_count + 1):
        if ours != theirs:
            raise NotConsistent(
                f"channel {recorded.channel}, message {number}: recorded as {_shown(ours)}, "
                f"replayed as {_shown(theirs)}"
            )


def _check_parts(recorded: list[str], replayed: list[str]) -> None:
    if recorded != replayed:
        raise NotConsistent(
            f"the recorded state has {_listed(recorded)}, the replayed one {_listed(replayed)}"
        )


def _check_start(start: GlobalState, topology: Topology) -> None:
    description = topology.description
    kinds = [(state.process, state.kind) for state in start.processes]
    channels = [state.channel for state in start.channels]
    if kinds != list(description.processes.items()) or channels != list(description.channels):
        raise UsageError(
            "the initial state has a different topology: its processes are "
            f"{_shortened(', '.join(f'{process} ({kind})' for process, kind in kinds))}, its "
            f"channels {_shortened(', '.join(map(str, channels)))}"
        )
    start.check_books()


def _arguments(where: str, event: Event, runner: ActionRunner) -> tuple[Any, ...]:
    """Return the arguments of the handler of `event`, except messages. A trace may come from a
    file: nothing but a handler is called by a name in it."""
    handlers = (START, RECEIVE, PUBLISHED, *runner.actions)
    if event.handler not in handlers:
        raise UsageError(
            f"{where} is a call of {event.handler!r}, but process {event.process} has "
            f"{', '.join(handlers)}: only a trace of these processes can be replayed"
        )
    if event.accepted and event.handler != RECEIVE:
        raise NotConsistent(f"{where} accepts messages in {event.handler}: only {RECEIVE} does")
    if event.handler in runner.actions:
        arguments = (event.fields or {}).get("arguments", [])
        if not isinstance(arguments, list):
            raise UsageError(f"{where}: its field 'arguments' must be a list of values")
        return tuple(arguments)
    if event.handler != PUBLISHED:
        return ()
    try:
        return (SnapshotId.parse(str((event.fields or {}).get("snapshot"))),)
    except UsageError as error:
        raise UsageError(f"{where}: {PUBLISHED} needs its field 'snapshot': {error}") from error


def _messages(state: ChannelState) -> list[bytes]:
    try:
        return [message for batch in state.batches for message in batch.messages()]
    except DECODING_ERRORS as error:
        raise NotConsistent(
            f"channel {state.channel}: a batch cannot be read: {text_of(error)}"
        ) from error


def _difference(ours: bytes, theirs: bytes) -> tuple[str, str]:
    """Return two encoded states as text, with only the fields that differ."""
    try:
        left = msgspec.msgpack.decode(ours, type=dict[str, Any])
        right = msgspec.msgpack.decode(theirs, type=dict[str, Any])
    except DECODING_ERRORS:
        return _shown(ours), _shown(theirs)
    same = {name for name in left if name in right and left[name] == right[name]}
    if not (left.keys() | right.keys()) - same:
        return _shortened(ours.hex()), _shortened(theirs.hex())
    return _shown_without(same, left), _shown_without(same, right)


def _shown_without(hidden: set[str], fields: dict[str, Any]) -> str:
    return _shortened(str({name: v for name, v in fields.items() if name not in hidden}))


def _shown(encoded: bytes) -> str:
    try:
        return _shortened(repr(msgspec.msgpack.decode(encoded)))
    except DECODING_ERRORS:
        return f"unreadable {_shortened(encoded.hex())}"


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTER_MAX else f"{text[: _SHOWN_CHARACTER_MAX - 1]}…"


def _named(messages: Iterable[MessageId]) -> str:
    return _listed(map(str, sorted(messages)))


def _listed(names: Iterable[str]) -> str:
    return _shortened(", ".join(names)) or "nothing"
