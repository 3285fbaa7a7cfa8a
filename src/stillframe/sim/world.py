"""Many processes in one thread, as a function of a schedule: real processes, real recording rules.

A world takes one choice at a time (``take``). The next choice comes from a random scheduler
(``scheduler``), a search of every interleaving (``explore``), or a script (``scenario``).
Everything that happens is kept as a trace for each epoch, so that a checker that knows nothing of
the recorder can tell whether the snapshots are right (``checker``).

As in the runtime, a death rolls the whole system back to the last restore point, in a new epoch:
the states are restored, and the recorded messages are received before any new one.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar, assert_never

import msgspec

from stillframe.detect.view import state_of
from stillframe.errors import ProtocolViolation, Refused, UsageError, check_kind
from stillframe.model import (
    Abandoned,
    Batch,
    Channel,
    Fragment,
    Marker,
    ProcessId,
    ProcessState,
    Reason,
    Snapshot,
    SnapshotId,
)
from stillframe.outbox import Due
from stillframe.process import Message, Process
from stillframe.protocol.action_runner import PUBLISHED, RECEIVE, START, ActionRunner, Sent
from stillframe.protocol.assembler import Assembler
from stillframe.protocol.handshake import Hello, Listener
from stillframe.protocol.lai_yang import Colour, CountingMarker, LaiYangRecorder
from stillframe.protocol.policy import PublicationNotices
from stillframe.protocol.recorder import Effect, NotRecorded, Phase, Recorded, Recorder, SendMarker
from stillframe.protocol.replay import RESTORED
from stillframe.restore import Start, start_states
from stillframe.sim import choices
from stillframe.sim.network import Fifo, Frame, Lossy, MemoryChannel, Network, Reordering
from stillframe.topology import Description, Topology
from stillframe.trace import Event, MarkerStep, MessageId, Step, Trace, clean_label

_State = TypeVar("_State")
SnapshotRecorder = Recorder | LaiYangRecorder
_RuleStep = Callable[[], list[Effect]]
LABEL_CHARACTER_MAX = 60


class StateView(msgspec.Struct, frozen=True):
    """A global state, decoded: the argument of predicates and invariants.

    Attributes:
        processes: an object of each process's own class, with its recorded fields; a copy.
        channels: the messages on each channel, in the order in which they were sent.
    """

    processes: dict[ProcessId, Any]
    channels: dict[Channel, tuple[Any, ...]]

    def process(self, process: ProcessId, kind: type[_State]) -> _State:
        """Return the state of a process, as an object of its class `kind`. UsageError if it is not
        here, or is of another class."""
        return state_of(self.processes, process, kind)

    def in_transit(self) -> Iterator[tuple[Channel, Any]]:
        """Yield every message on a channel, with the channel."""
        for channel, messages in self.channels.items():
            for message in messages:
                yield channel, message


class RecordedSnapshot(StateView, frozen=True):
    """The recording of a snapshot so far, decoded.

    `processes` has those that recorded their states, and `channels` the channels into them with
    the messages recorded so far.

    Attributes:
        snapshot: its id.
        recording: the channels that are still being recorded.
        outcome: the published snapshot, or why it was abandoned; None while it is pending.
    """

    snapshot: SnapshotId
    recording: tuple[Channel, ...] = ()
    outcome: Snapshot | Abandoned | None = None


class Taken(msgspec.Struct):
    """A choice that was taken at `at` virtual seconds, after `step_count` steps.

    Its steps end where those of the next one begin. `frames` are those that it delivered. It is
    done if no rule was found broken and no handler raised.
    """

    choice: choices.Choice
    at: float
    step_count: int
    frames: tuple[tuple[Channel, Frame], ...] = ()
    is_done: bool = False


@dataclass
class Epoch:
    """The steps between two restores. Times are in virtual seconds.

    It was restored from `start`; None: fresh. `steps` has events and recording steps in the order
    in which they happened, `taken` the choices that caused them, except for those of the start.
    The `initiated` snapshots began at `began_s`. `fragments` has their complete recordings by
    process, and `outcomes` how they ended: at `ended_s`, after `ended_at` steps, in
    ``taken[ended_in]``. `contents` has every message that was sent, or recorded at the start, and
    `lost` those that a lossy network lost. `committed` has what outboxes committed, each with the
    snapshot whose publication made it due.

    `refused_count` connections of the epoch before were attempted and refused; `resent_count`
    frames were lost with a connection and sent again by the next, `dropped_count` arrived a second
    time, and `held_count` were between the two sides when a partition ended.
    """

    number: int
    start: Snapshot | None
    steps: list[Step] = field(default_factory=list)
    taken: list[Taken] = field(default_factory=list)
    initiated: list[SnapshotId] = field(default_factory=list)
    began_s: dict[SnapshotId, float] = field(default_factory=dict)
    fragments: dict[SnapshotId, dict[ProcessId, Fragment]] = field(default_factory=dict)
    outcomes: dict[SnapshotId, Snapshot | Abandoned] = field(default_factory=dict)
    ended_at: dict[SnapshotId, int] = field(default_factory=dict)
    ended_s: dict[SnapshotId, float] = field(default_factory=dict)
    ended_in: dict[SnapshotId, int] = field(default_factory=dict)
    contents: dict[MessageId, bytes] = field(default_factory=dict)
    lost: set[MessageId] = field(default_factory=set)
    committed: list[tuple[SnapshotId, Due[Any]]] = field(default_factory=list)
    refused_count: int = 0
    resent_count: int = 0
    dropped_count: int = 0
    held_count: int = 0

    @property
    def published(self) -> list[Snapshot]:
        """The snapshots that were published, in this order."""
        return [outcome for outcome in self.outcomes.values() if isinstance(outcome, Snapshot)]

    def trace(self, description: Description) -> Trace:
        """Return what happened as a trace; NotConsistent if a message was accepted twice, or never
        sent: the steps contradict each other, so no execution has them."""
        return Trace(description.processes, self.steps, description.channels)


class World:
    """A system that takes one choice at a time.

    Args:
        topology: the system; it is not changed.
        network: what is assumed of every channel.
        recorder: the recording rules of a process.
        assembler: puts the fragments of a snapshot together.
        timeout_s: the deadline of a snapshot, in virtual seconds.
        batch_count_max: how many messages travel and arrive together at most, which one action
            sends one after the other to the same target.

    Attributes:
        now: the virtual time in seconds; by the clock of ``play`` in ticks.
        restore_point: the snapshot to which a restart rolls back; None: the initial state.
        refusal: why the rules ended the run; empty if they did not.

    Raises:
        UsageError: a process has its own loop, and cannot be stepped through.
    """

    now: float
    restore_point: Snapshot | None
    refusal: str

    def __init__(
        self,
        topology: Topology,
        *,
        network: Network = Fifo,
        recorder: Callable[..., SnapshotRecorder] = Recorder,
        assembler: Callable[..., Assembler] = Assembler,
        timeout_s: float = 1.0,
        batch_count_max: int = 1,
    ) -> None:
        check_kind("topology", topology, Topology, "a Topology")
        self.topology = topology
        self.description = topology.description
        self.network = network
        self.now = 0.0
        self.epochs: list[Epoch] = []
        self.restore_point = None
        self.refusal = ""
        self.sendings: list[Channel] = []
        self.down: set[ProcessId] = set()
        self.parted: frozenset[ProcessId] = frozenset()
        self.channels: dict[Channel, MemoryChannel] = {}
        self._make_recorder = recorder
        self._make_assembler = assembler
        self.timeout_s = timeout_s
        self._batch_count_max = batch_count_max
        self._point_s = 0.0
        self._topology_hash = self.description.hash
        self._begin(None)

    @property
    def epoch(self) -> Epoch:
        """The current epoch."""
        return self.epochs[-1]

    @property
    def steps(self) -> list[Step]:
        """What happened in this epoch."""
        return self.epoch.steps

    @property
    def pending(self) -> tuple[SnapshotId, ...]:
        """The snapshots that have not ended."""
        return self.assembler.pending

    def trace(self) -> Trace:
        """Return the events of this epoch as a trace. NotConsistent if a message was accepted
        twice, or never sent."""
        return self.epoch.trace(self.description)

    def state(self) -> StateView:
        """Return the global state now."""
        gone = {m for step in self.steps if isinstance(step, Event) for m in step.accepted}
        gone |= self.epoch.lost
        channels: dict[Channel, list[Message]] = {channel: [] for channel in self.channels}
        for message, encoded in self.epoch.contents.items():
            if message not in gone:
                channel = message.channel
                channels[channel].append(self.runners[channel.target].decode(encoded))
        return StateView(
            processes={
                name: self._decoded(runner.capture()) for name, runner in self.runners.items()
            },
            channels={channel: tuple(messages) for channel, messages in channels.items()},
        )

    def recorded(self, snapshot: SnapshotId | str) -> RecordedSnapshot:
        """Return what is recorded for `snapshot` so far, whether it has ended or not. UsageError if
        it was not initiated in this epoch."""
        snapshot = self._initiated(snapshot)
        processes: dict[ProcessId, Any] = {}
        batches: dict[Channel, Iterable[Batch]] = {}
        recording: list[Channel] = []
        for name, recorder in self.recorders.items():
            fragment = self.epoch.fragments.get(snapshot, {}).get(name)
            progress = recorder.progress(snapshot)
            if fragment is not None:
                processes[name] = self._decoded(fragment.state)
                batches |= {Channel(one.source, name): one.batches for one in fragment.incoming}
            elif progress is not None:
                processes[name] = self._decoded(progress.state)
                awaited = {Channel(source, name): of for source, of in progress.awaited.items()}
                batches |= awaited
                batches |= {Channel(source, name): of for source, of in progress.closed.items()}
                recording += awaited
        return RecordedSnapshot(
            processes=processes,
            channels={
                channel: tuple(
                    self.runners[channel.target].decode(message)
                    for batch in batches[channel]
                    for message in batch.messages()
                )
                for channel in self.channels
                if channel in batches
            },
            snapshot=snapshot,
            recording=tuple(recording),
            outcome=self.epoch.outcomes.get(snapshot),
        )

    def in_transit(self, channel: Channel) -> tuple[Message | Marker, ...]:
        """Return what travels on a channel, the oldest first: messages, and the markers of
        snapshots. UsageError if there is no such channel."""
        if channel not in self.channels:
            names = ", ".join(map(str, self.channels)) or "none"
            raise UsageError(f"there is no channel {channel}; there are {names}")
        travelling: list[Message | Marker] = []
        for frame in self.channels[channel].contents:
            if frame.batch is None:
                travelling.append(frame.as_marker())
            else:
                travelling += map(self.runners[channel.target].decode, frame.batch.messages())
        return tuple(travelling)

    def enabled(self) -> tuple[choices.Choice, ...]:
        """Return the choices that are possible now.

        Each action is there once, without arguments, and each process can initiate a snapshot of
        the next number. Partitions are left out, since any processes may be in one, and so are
        deliveries from several channels in one action."""
        initiated = (snapshot for epoch in self.epochs for snapshot in epoch.initiated)
        number = 1 + max((snapshot.number for snapshot in initiated), default=0)
        candidates: list[choices.Choice] = [*deliverable(self)]
        for name, runner in self.runners.items():
            candidates += (choices.Act(name, action) for action in runner.actions)
            candidates.append(choices.Initiate(name, SnapshotId(name, number)))
            for snapshot in self.pending:
                if self.recorders[name].phase(snapshot) is Phase.IDLE:
                    candidates.append(choices.Initiate(name, snapshot))
            candidates += (choices.DeliverNotice(name, ended) for ended in self.epoch.outcomes)
            candidates.append(choices.Crash(name))
        for channel in self.channels:
            candidates += (choices.Lose(channel), choices.Duplicate(channel))
            candidates += (choices.Break(channel), choices.Connect(channel))
        candidates += [choices.Expire()] * bool(self.pending) + [choices.Heal()] * bool(self.parted)
        candidates.append(choices.Restart())
        return tuple(one for one in candidates if not disabled_reason(self, one))

    def fragments(self, snapshot: SnapshotId | str) -> dict[ProcessId, Fragment]:
        """Return the complete fragments of `snapshot` by process, for ``assemble``. UsageError if
        it was not initiated in this epoch."""
        return dict(self.epoch.fragments.get(self._initiated(snapshot), {}))

    def _initiated(self, snapshot: SnapshotId | str) -> SnapshotId:
        if isinstance(snapshot, str):
            snapshot = SnapshotId.parse(snapshot)
        if snapshot not in self.epoch.initiated:
            names = ", ".join(map(str, self.epoch.initiated)) or "none"
            raise UsageError(f"there is no snapshot {snapshot} in this epoch; there are {names}")
        return snapshot

    def _decoded(self, state: ProcessState) -> Process:
        return ActionRunner(state.process, self.topology, state.encoded).process

    def take(self, choice: choices.Choice | str) -> None:
        """Take `choice`, or the one with this text; a channel or recorder that detects a violation
        of its rules ends the run: see `refusal`. UsageError if it is not enabled now, or a handler
        did what is not allowed."""
        if not isinstance(choice, choices.Choice):
            choice = choices.parse_choice(choice)
        if reason := disabled_reason(self, choice):
            raise UsageError(f"{choice}: {reason}")
        taken = Taken(choice, self.now, len(self.steps))
        if isinstance(choice, choices.Deliver):
            at = choice.position
            taken.frames = tuple((c, self.channels[c].peek(at)) for c in choice.channels)
        self.epoch.taken.append(taken)
        try:
            self._take(choice)
        except ProtocolViolation as error:
            self.refusal = str(error)
        else:
            taken.is_done = True

    def _take(self, choice: choices.Choice) -> None:
        match choice:
            case choices.Act(process, action, arguments):
                self._act(process, action, arguments)
            case choices.Deliver(channels, position):
                self._deliver(channels, position)
            case choices.Initiate(process, snapshot):
                self._initiate(process, snapshot)
            case choices.Expire():
                for abandoned in self.assembler.expire(self.now):
                    self._end(abandoned.snapshot, abandoned)
            case choices.DeliverNotice(process, snapshot):
                recorder = self.recorders[process]
                if isinstance(self.epoch.outcomes[snapshot], Abandoned):
                    recorder.abandon(snapshot)
                if isinstance(recorder, LaiYangRecorder):
                    recorder.ended(snapshot)
            case _:
                self._suffer(choice)

    def _suffer(self, fault: choices.Fault) -> None:
        match fault:
            case choices.Lose(channel, position):
                if (batch := self.channels[channel].peek(position).batch) is not None:
                    numbers = range(batch.first, batch.first + batch.count)
                    self.epoch.lost |= {MessageId(channel, number) for number in numbers}
                self.channels[channel].lose(position)
            case choices.Duplicate(channel):
                self.channels[channel].duplicate()
            case choices.Break(channel):
                self.channels[channel].disconnect()
            case choices.Connect(channel):
                memory = self.channels[channel]
                lost_count = memory.lost_count
                self.epoch.resent_count += min(lost_count, memory.connect())
                self.sendings.append(channel)
            case choices.Partition(processes):
                self.parted = frozenset(processes)
            case choices.Heal():
                crossing = (m for c, m in self.channels.items() if _is_parted(self, c))
                self.epoch.held_count += sum(map(len, crossing))
                self.parted = frozenset()
                self.sendings.extend(c for c, memory in self.channels.items() if len(memory))
            case choices.Crash(process):
                self._crash(process)
            case choices.Restart():
                self._end_epoch(Reason.STOPPED)
                self._begin(self.restore_point)
            case _:
                assert_never(fault)

    # --- the start and the end of an epoch

    def _begin(self, start: Snapshot | None) -> None:
        number = self.epochs[-1].number + 1 if self.epochs else 1
        self.epochs.append(Epoch(number, start))
        description, names = self.description, self.description.processes
        starts = start_states(start, description) if start is not None else {}
        self.down, self.parted, self.sendings = set(), frozenset(), []
        self.channels = {channel: MemoryChannel(self.network) for channel in description.channels}
        self.runners = {
            name: ActionRunner(name, self.topology, starts[name].encoded if starts else None)
            for name in names
        }
        self.sent_counts = {
            channel: starts[channel.source].sent_counts[channel.target] if starts else 0
            for channel in description.channels
        }
        self.recorders = {name: self._new_recorder(name, starts.get(name)) for name in names}
        self.assembler = self._make_assembler(description, number)
        self.announcements = PublicationNotices()
        if number > 1:
            self._refuse_previous_epoch(number)
        if start is None:
            for name in names:
                if type(self.runners[name].process).start is not Process.start:
                    self._perform(name, START)
        else:
            self._replay(start)

    def _new_recorder(self, name: ProcessId, start: Start | None) -> SnapshotRecorder:
        incoming = dict.fromkeys(self.description.incoming(name), 0)
        if start is not None:
            incoming |= {record.source: record.received_count for record in start.incoming}
        outgoing = {t: self.sent_counts[Channel(name, t)] for t in self.description.outgoing(name)}
        capture = self.runners[name].capture
        return self._make_recorder(name, incoming=incoming, outgoing=outgoing, capture=capture)

    def _refuse_previous_epoch(self, number: int) -> None:
        """Let every channel's source of the epoch before try to connect, and count how many are
        refused: it must be all."""
        for channel in self.description.channels:
            hello = Hello(channel.source, channel.target, number - 1, self._topology_hash, b"")
            listener = Listener(
                secret=b"",
                epoch=number,
                topology_hash=self._topology_hash,
                target=channel.target,
                sources=self.description.incoming(channel.target),
                nonce=b"",
            )
            try:
                listener.receive(hello)
            except Refused:
                self.epoch.refused_count += 1

    def _replay(self, start: Snapshot) -> None:
        """Let the recorded messages be received, before any new one; the first event of every
        process "sends" those of its channels."""
        for name in self.description.processes:
            sent = tuple(
                MessageId(state.channel, number)
                for state in start.state.channels
                if state.channel.source == name
                for number in range(state.received_count + 1, state.sent_count + 1)
            )
            self.steps.append(Event(name, RESTORED, RESTORED, sent=sent, at=self.now))
        for state in start.state.channels:
            for single in (single for batch in state.batches for single in batch.singles()):
                message = MessageId(state.channel, single.first)
                self.epoch.contents[message] = single.messages()[0]
                self._accept([(state.channel, single, ())])

    def _end_epoch(self, reason: Reason) -> None:
        for snapshot in self.assembler.pending:
            if abandoned := self.assembler.abandon(snapshot, reason):
                self._end(snapshot, abandoned)

    def _crash(self, process: ProcessId) -> None:
        self.down.add(process)
        self._end_epoch(Reason.PROCESS_DIED)
        for channel, memory in self.channels.items():
            if process in (channel.source, channel.target) and memory.is_connected:
                memory.disconnect()

    # --- atomic actions of the application

    def _perform(self, process: ProcessId, handler: str, *arguments: SnapshotId) -> None:
        sent = self.runners[process].perform(handler, *arguments)
        fields = {"snapshot": str(arguments[0])} if arguments else None
        self._happened(Event(process, handler, handler, at=self.now, fields=fields), sent)

    def _act(self, process: ProcessId, action: str, arguments: tuple[Any, ...]) -> None:
        sent = self.runners[process].act(action, arguments)
        label = clean_label(f"{action}{choices.write_arguments(arguments)}")
        fields = {"arguments": list(arguments)} if arguments else None
        self._happened(Event(process, label, action, at=self.now, fields=fields), sent)

    def _accept(self, arrivals: list[tuple[Channel, Batch, Colour]]) -> None:
        """Deliver messages to their target: one of each of several channels in one atomic action,
        or those of one batch in one each, with nothing in between."""
        if len(arrivals) > 1:
            self._receive([(channel, batch) for channel, batch, _ in arrivals])
        else:
            [(channel, batch, _)] = arrivals
            for single in batch.singles() if batch.count > 1 else [batch]:
                self._receive([(channel, single)])
        for channel, batch, colour in arrivals:
            recorder = self.recorders[channel.target]
            if isinstance(recorder, LaiYangRecorder):
                effects = recorder.receive(channel.source, batch, colour)
                self._carry_out(channel.target, effects)
            else:
                recorder.receive(channel.source, batch)

    def _receive(self, arrivals: list[tuple[Channel, Batch]]) -> None:
        target = arrivals[0][0].target
        runner = self.runners[target]
        messages = [(c, runner.decode(batch.messages()[0])) for c, batch in arrivals]
        label = ", ".join(dict.fromkeys(message_label(message) for _, message in messages))
        sent = runner.receive(messages)
        accepted = tuple(MessageId(channel, batch.first) for channel, batch in arrivals)
        self._happened(Event(target, label, RECEIVE, accepted, at=self.now), sent)

    def _happened(self, event: Event, sent: Iterable[Sent]) -> None:
        ids: list[MessageId] = []
        for target, pairs in groupby(sent, itemgetter(0)):
            encoded = [message for _, message in pairs]
            for first in range(0, len(encoded), self._batch_count_max):
                together = encoded[first : first + self._batch_count_max]
                ids += self._send(Channel(event.process, target), together)
        self.steps.append(msgspec.structs.replace(event, sent=tuple(ids)))

    def _send(self, channel: Channel, messages: list[bytes]) -> list[MessageId]:
        first = self.sent_counts[channel] + 1
        self.sent_counts[channel] += len(messages)
        recorder, memory = self.recorders[channel.source], self.channels[channel]
        colour = recorder.colour if isinstance(recorder, LaiYangRecorder) else ()
        memory.send(Frame(memory.next_sequence, Batch.of(first, messages), colour))
        self.sendings.append(channel)
        ids = [MessageId(channel, number) for number, _ in enumerate(messages, first)]
        self.epoch.contents.update(zip(ids, messages, strict=True))
        return ids

    # --- recording

    def _initiate(self, process: ProcessId, snapshot: SnapshotId) -> None:
        if snapshot not in self.epoch.initiated:
            self.epoch.initiated.append(snapshot)
            self.epoch.began_s[snapshot] = self.now
            self.assembler.begin(snapshot, self.now, timeout_s=self.timeout_s)
        step = partial(self.recorders[process].initiate, snapshot)
        self._record(process, snapshot, None, step)

    def _deliver(self, channels: tuple[Channel, ...], position: int) -> None:
        frames = [(channel, self.channels[channel].take(position)) for channel in channels]
        arrivals = []
        for channel, frame in frames:
            if frame is None:
                self.epoch.dropped_count += 1
            elif frame.batch is None:
                self._receive_marker(channel, frame.as_marker())
            else:
                recorder = self.recorders[channel.target]
                for snapshot in frame.colour:  # recorded before what is red is accepted
                    assert isinstance(recorder, LaiYangRecorder), recorder
                    step = partial(recorder.meet, (snapshot,))
                    self._record(channel.target, snapshot, None, step)
                arrivals.append((channel, frame.batch, frame.colour))
        if arrivals:
            self._accept(arrivals)

    def _receive_marker(self, channel: Channel, marker: Marker) -> None:
        recorder = self.recorders[channel.target]
        assert isinstance(recorder, Recorder) or isinstance(marker, CountingMarker), marker
        receive: Callable[..., list[Effect]] = recorder.marker
        step = partial(receive, channel.source, marker)
        self._record(channel.target, marker.snapshot, channel.source, step)

    def _record(
        self, process: ProcessId, snapshot: SnapshotId, source: ProcessId | None, step: _RuleStep
    ) -> None:
        recorder = self.recorders[process]
        before = recorder.phase(snapshot)
        for target in self.description.outgoing(process):
            recorder.sent(target, self.sent_counts[Channel(process, target)])
        effects = step()
        # A state that was recorded may turn out useless in the same step: that comes last.
        could_record = not any(isinstance(effect, NotRecorded) for effect in effects[:1])
        is_cut = could_record and before is Phase.IDLE and recorder.phase(snapshot) is not before
        if is_cut:
            self.runners[process].cut(snapshot)
        if source is not None or is_cut:
            targets = tuple(effect.target for effect in effects if isinstance(effect, SendMarker))
            self.steps.append(MarkerStep(process, snapshot, source, is_cut, targets, self.now))
        self._carry_out(process, effects)

    def _carry_out(self, process: ProcessId, effects: list[Effect]) -> None:
        outcome: Snapshot | Abandoned | None
        for effect in effects:
            match effect:
                case SendMarker(target, marker):
                    self._send_marker(Channel(process, target), marker)
                    continue
                case Recorded(fragment):
                    snapshot = fragment.snapshot
                    self.epoch.fragments.setdefault(snapshot, {})[process] = fragment
                    outcome = self.assembler.add(fragment, self.now)
                case NotRecorded(snapshot, detail):
                    outcome = self.assembler.abandon(snapshot, Reason.NOT_RECORDED, detail)
                case _:
                    assert_never(effect)
            if outcome is not None:
                self._end(snapshot, outcome)

    def _send_marker(self, channel: Channel, marker: Marker) -> None:
        memory = self.channels[channel]
        memory.send(Frame.of_marker(memory.next_sequence, marker))
        self.sendings.append(channel)

    def _end(self, snapshot: SnapshotId, outcome: Snapshot | Abandoned) -> None:
        epoch = self.epoch
        epoch.outcomes[snapshot] = outcome
        epoch.ended_at[snapshot] = len(self.steps)
        epoch.ended_s[snapshot] = self.now
        epoch.ended_in[snapshot] = len(epoch.taken) - 1
        self._announce(self.announcements.ended(snapshot))
        if isinstance(outcome, Abandoned):
            return
        if self.restore_point is not None and epoch.began_s[snapshot] < self._point_s:
            return
        self.restore_point, self._point_s = outcome, self.now
        self._announce(self.announcements.published(snapshot, self.assembler.pending))

    def _announce(self, snapshots: Iterable[SnapshotId]) -> None:
        for snapshot in snapshots:
            for name, runner in self.runners.items():
                if runner.is_notified and name not in self.down:
                    self._perform(name, PUBLISHED, snapshot)
                    self.epoch.committed += ((snapshot, due) for due in runner.committed)
                    runner.committed.clear()


def message_label(message: Message) -> str:
    """Return a message as a label of a trace: as it prints itself, on one line, shortened."""
    text = clean_label(str(message))
    return text if len(text) <= LABEL_CHARACTER_MAX else f"{text[: LABEL_CHARACTER_MAX - 1]}…"


# --- what is enabled


def deliverable(world: World) -> list[choices.Deliver]:
    """Return every arrival that is enabled, in the order of the channels."""
    if world.refusal:
        return []
    return [
        choices.Deliver((channel,), position)
        for channel, memory in world.channels.items()
        if not any(_shut(world, channel))
        for position in range(len(memory) if world.network is Reordering else 1)
        if position < len(memory)
    ]


def disabled_reason(world: World, choice: choices.Choice) -> str:
    """Return why `choice` is not enabled; empty if it is."""
    if world.refusal:
        return f"the run has ended: {world.refusal}"
    return next(_obstacles(world, choice), "")


def _obstacles(world: World, choice: choices.Choice) -> Iterator[str]:
    """Yield why `choice` is not enabled; each reason presumes that those before it do not hold."""
    match choice:
        case choices.Deliver(channels, position):
            yield from _undeliverable(world, channels, position)
        case choices.Act(process, action):
            yield from _down(world, process)
            if action not in (actions := world.runners[process].actions):
                yield f"{process} has no action {action!r}; it has {', '.join(actions) or 'none'}"
        case choices.Initiate(process, _) | choices.Crash(process):
            yield from _down(world, process)
        case choices.DeliverNotice(process, snapshot):
            yield from _down(world, process)
            if snapshot not in world.epoch.outcomes:
                yield f"snapshot {snapshot} has not ended"
        case choices.Lose(channel, position):
            yield from _no_frame(world, channel, position)
            yield from _unsuited(world, Lossy, "they lose nothing")
        case choices.Duplicate(channel):
            yield from _no_frame(world, channel, 0)
            yield from _unsuited(world, Fifo, "duplicates are not removed")
        case choices.Break(channel) | choices.Connect(channel):
            is_break = isinstance(choice, choices.Break)
            yield from _connection_obstacles(world, channel, is_break=is_break)
        case choices.Partition(processes):
            yield from _unknown(world, processes)
        case choices.Expire() | choices.Heal() | choices.Restart():
            pass
        case _:
            assert_never(choice)


def _unknown(world: World, processes: Iterable[ProcessId]) -> Iterator[str]:
    for process in processes:
        if process not in world.runners:
            yield f"there is no process {process!r}; there are {', '.join(world.runners)}"


def _down(world: World, process: ProcessId) -> Iterator[str]:
    yield from _unknown(world, [process])
    if process in world.down:
        yield f"process {process} has crashed"


def _unsuited(world: World, network: Network, why: str) -> Iterator[str]:
    if world.network is not network:
        yield f"channels are {world.network.value}: {why}"


def _is_parted(world: World, channel: Channel) -> bool:
    return (channel.source in world.parted) != (channel.target in world.parted)


def _shut(world: World, channel: Channel) -> Iterator[str]:
    """Yield why nothing can arrive on an existing channel."""
    if channel.target in world.down:
        yield f"process {channel.target} has crashed"
    if not world.channels[channel].is_connected:
        yield f"the connection of {channel} is lost"
    if _is_parted(world, channel):
        yield f"a partition separates {channel.source} and {channel.target}"


def _no_frame(world: World, channel: Channel, position: int) -> Iterator[str]:
    if channel not in world.channels:
        yield f"there is no channel {channel}"
    count = len(world.channels[channel])
    if position >= count:
        counted = ", counted from 0" if count else ""
        yield f"{count} messages and markers are on {channel}{counted}"


def _undeliverable(world: World, channels: tuple[Channel, ...], position: int) -> Iterator[str]:
    for channel in channels:
        if channel in world.channels:
            yield from _shut(world, channel)
        yield from _no_frame(world, channel, position)
        if position:
            yield from _unsuited(world, Reordering, "only the oldest can arrive")
    if len(channels) == 1:
        return
    if len({channel.target for channel in channels}) > 1 or len({*channels}) < len(channels):
        yield "one atomic action accepts one message from each of several channels of one process"
    for channel in channels:
        batch = world.channels[channel].peek(position).batch
        if batch is None or batch.count > 1:
            what = "a marker" if batch is None else "a batch"
            yield f"the next item on {channel} is {what}, which is not part of an action"


def _connection_obstacles(world: World, channel: Channel, *, is_break: bool) -> Iterator[str]:
    if channel not in world.channels:
        yield f"there is no channel {channel}"
    yield from _unsuited(world, Fifo, "they have no connections")
    is_lost = not world.channels[channel].is_connected
    if is_lost == is_break:
        yield f"the connection of {channel} is already {'lost' if is_lost else 'open'}"
    if not is_break and {channel.source, channel.target} & world.down:
        yield "one of its processes has crashed"
