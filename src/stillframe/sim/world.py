"""Many processes in one thread, as a function of a schedule: real processes, real recording rules.

A world does what it is told and nothing else (``take``); what could happen next is the business of
whoever drives it: chance (``drive``), a search of every way (``explore``), or a script
(``scenario``). Everything that happens is kept as a trace for each epoch, so that a judge who knows
nothing of the recorder can say whether the snapshots are right (``judge``).

As in the runtime: a death takes the whole system back to the last restore point, in a new epoch;
the states are set, and what was recorded on the channels is received before anything new.
"""

from collections.abc import Callable, Iterable
from typing import assert_never

import msgspec

from stillframe.errors import ProtocolViolation, Refused, UsageError
from stillframe.model import (
    Abandoned,
    Batch,
    Channel,
    Marker,
    ProcessId,
    Reason,
    Snapshot,
    SnapshotId,
)
from stillframe.process import Message, Process
from stillframe.protocol.announcements import Announcements
from stillframe.protocol.assembler import Assembler
from stillframe.protocol.colour import Colour, ColourRecorder, CountingMarker
from stillframe.protocol.handshake import Hello, Listener
from stillframe.protocol.performer import PUBLISHED, RECEIVE, START, Performer, Sent
from stillframe.protocol.recorder import Effect, NotRecorded, Phase, Recorded, Recorder, SendMarker
from stillframe.protocol.replay import RESTORED
from stillframe.restore import start_states
from stillframe.sim import choices
from stillframe.sim.epoch import Epoch
from stillframe.sim.network import Fifo, Frame, MemoryChannel, Network
from stillframe.sim.possible import why_not
from stillframe.topology import Topology
from stillframe.trace import Event, MarkerStep, MessageId, Step

LABEL_CHARACTER_MAX = 60
SnapshotRecorder = Recorder | ColourRecorder


class World:
    """A system that does what it is told.

    Args:
        topology: the system; it is not changed.
        network: what is assumed of every channel.
        recorder: the recording rules: ``Recorder`` (Chandy-Lamport), ``ColourRecorder`` (Lai-Yang).
        assembler: what puts the parts of a snapshot together.
        timeout_s: the deadline of a snapshot, in virtual seconds.

    Raises:
        UsageError: the topology has processes that cannot be stepped through.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        network: Network = Fifo,
        recorder: Callable[..., SnapshotRecorder] = Recorder,
        assembler: Callable[..., Assembler] = Assembler,
        timeout_s: float = 1.0,
    ) -> None:
        self.topology = topology
        self.description = topology.description
        self.network = network
        self.now = 0.0
        self.epochs: list[Epoch] = []
        self.restore_point: Snapshot | None = None
        self.refusal = ""
        self.sendings: list[Channel] = []
        self.down: set[ProcessId] = set()
        self.parted: frozenset[ProcessId] = frozenset()
        self.channels: dict[Channel, MemoryChannel] = {}
        self._make_recorder = recorder
        self._make_assembler = assembler
        self.timeout_s = timeout_s
        self._topology_hash = self.description.hash
        self._begin(None)

    @property
    def epoch(self) -> Epoch:
        """The epoch that is now."""
        return self.epochs[-1]

    @property
    def steps(self) -> list[Step]:
        """What happened in this epoch."""
        return self.epoch.steps

    @property
    def pending(self) -> tuple[SnapshotId, ...]:
        """The snapshots that are under way."""
        return self.assembler.pending

    def take(self, choice: choices.Choice) -> None:
        """Let `choice` happen.

        A channel or a recorder that finds its rules broken ends the run: see `refusal`.

        Raises:
            UsageError: it is not possible now, or a handler cannot do what it tries to.
        """
        if reason := why_not(self, choice):
            raise UsageError(f"{choice}: {reason}")
        try:
            self._take(choice)
        except ProtocolViolation as error:
            self.refusal = str(error)

    def _take(self, choice: choices.Choice) -> None:
        match choice:
            case choices.Act(process, action):
                self._perform(process, action)
            case choices.Deliver(channels, position):
                self._deliver(channels, position)
            case choices.Initiate(process, snapshot):
                self._initiate(process, snapshot)
            case choices.Expire():
                for abandoned in self.assembler.expire(self.now):
                    self._end(abandoned.snapshot, abandoned)
            case choices.Hear(process, snapshot):
                self._hear(process, snapshot)
            case _:
                self._suffer(choice)

    def _suffer(self, fault: choices.Fault) -> None:
        match fault:
            case choices.Lose(channel, position):
                self.channels[channel].lose(position)
            case choices.Double(channel):
                self.channels[channel].double()
            case choices.Break(channel):
                self.channels[channel].disconnect()
            case choices.Connect(channel):
                self.channels[channel].connect()
                self.sendings.append(channel)
            case choices.Partition(processes):
                self.parted = frozenset(processes)
            case choices.Heal():
                self._heal()
            case choices.Crash(process):
                self._crash(process)
            case choices.Restart():
                self._end_epoch(Reason.STOPPED)
                self._begin(self.restore_point)
            case _:
                assert_never(fault)

    # --- the beginning and the end of an epoch

    def _begin(self, start: Snapshot | None) -> None:
        number = self.epochs[-1].number + 1 if self.epochs else 1
        self.epochs.append(Epoch(number, start))
        names, description = self.description.processes, self.description
        starts = start_states(start, description) if start is not None else {}
        self.down, self.parted, self.sendings = set(), frozenset(), []
        self.channels = {channel: MemoryChannel(self.network) for channel in description.channels}
        self.performers = {
            name: Performer(name, self.topology, starts[name].encoded if starts else None)
            for name in names
        }
        self.sent_counts = {
            channel: starts[channel.source].sent_counts[channel.target] if starts else 0
            for channel in description.channels
        }
        received = {
            Channel(record.source, name): record.received_count
            for name, begin in starts.items()
            for record in begin.incoming
        }
        self.recorders = {
            name: self._make_recorder(
                name,
                incoming={s: received.get(Channel(s, name), 0) for s in description.incoming(name)},
                outgoing={
                    t: self.sent_counts[Channel(name, t)] for t in description.outgoing(name)
                },
                capture=self.performers[name].capture,
            )
            for name in names
        }
        self.assembler = self._make_assembler(description, number)
        self.announcements = Announcements()
        if number > 1:
            self._refuse_the_past(number)
        if start is None:
            for name in names:
                if type(self.performers[name].process).start is not Process.start:
                    self._perform(name, START)
        else:
            self._replay(start)

    def _replay(self, start: Snapshot) -> None:
        """Let what was recorded on the channels be received, before anything new."""
        for name in self.description.processes:
            sent = tuple(
                MessageId(state.channel, number)
                for state in start.state.channels
                if state.channel.source == name
                for number in range(state.received_count + 1, state.sent_count + 1)
            )
            self.steps.append(Event(name, RESTORED, RESTORED, sent=sent, at=self.now))
        for state in start.state.channels:
            for batch in state.batches:
                for single in batch.singles():
                    message = MessageId(state.channel, single.first)
                    self.epoch.contents[message] = single.messages()[0]
                    self._accept([(state.channel, single, ())])

    def _refuse_the_past(self, number: int) -> None:
        """Let every channel's source of the epoch before try to connect: it must be refused."""
        for channel in self.channels:
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

    def _heal(self) -> None:
        self.parted = frozenset()
        self.sendings.extend(channel for channel, memory in self.channels.items() if len(memory))

    # --- atomic actions of the application

    def _perform(self, process: ProcessId, handler: str, *arguments: SnapshotId) -> None:
        sent = self.performers[process].perform(handler, *arguments)
        fields = {"snapshot": str(arguments[0])} if arguments else None
        self._happened(Event(process, handler, handler, at=self.now, fields=fields), sent)

    def _accept(self, arrivals: list[tuple[Channel, Batch, Colour]]) -> None:
        """Hand messages to their target, in one atomic action; each batch has one."""
        target = arrivals[0][0].target
        performer, recorder = self.performers[target], self.recorders[target]
        messages = [(c, performer.decode(batch.messages()[0])) for c, batch, _ in arrivals]
        label = ", ".join(dict.fromkeys(shown(message) for _, message in messages))
        sent = performer.receive(messages)
        accepted = tuple(MessageId(channel, batch.first) for channel, batch, _ in arrivals)
        self._happened(Event(target, label, RECEIVE, accepted, at=self.now), sent)
        for channel, batch, colour in arrivals:
            if isinstance(recorder, ColourRecorder):
                self._carry_out(target, recorder.receive(channel.source, batch, colour))
            else:
                recorder.receive(channel.source, batch)

    def _happened(self, event: Event, sent: Iterable[Sent]) -> None:
        """Note an event, and put what was sent on its way."""
        ids = tuple(self._send(Channel(event.process, target), encoded) for target, encoded in sent)
        self.steps.append(msgspec.structs.replace(event, sent=ids))

    def _send(self, channel: Channel, encoded: bytes) -> MessageId:
        number = self.sent_counts[channel] = self.sent_counts[channel] + 1
        recorder, memory = self.recorders[channel.source], self.channels[channel]
        colour = recorder.colour if isinstance(recorder, ColourRecorder) else ()
        memory.send(Frame(memory.next_sequence, Batch.of(number, [encoded]), colour))
        self.sendings.append(channel)
        message = MessageId(channel, number)
        self.epoch.contents[message] = encoded
        return message

    # --- recording

    def _initiate(self, process: ProcessId, snapshot: SnapshotId) -> None:
        if snapshot not in self.epoch.initiated:
            self.epoch.initiated.append(snapshot)
            self.assembler.begin(snapshot, self.now, timeout_s=self.timeout_s)
        self._record(process, snapshot, None, lambda recorder: recorder.initiate(snapshot))

    def _deliver(self, channels: tuple[Channel, ...], position: int) -> None:
        frames = [(channel, self.channels[channel].take(position)) for channel in channels]
        arrivals = []
        for channel, frame in frames:
            if frame is None:
                continue
            if frame.batch is None:
                self._receive_marker(channel, frame.as_marker())
            else:
                self._turn_red(channel.target, frame.colour)
                arrivals.append((channel, frame.batch, frame.colour))
        if arrivals:
            self._accept(arrivals)

    def _receive_marker(self, channel: Channel, marker: Marker) -> None:
        def step(recorder: SnapshotRecorder) -> list[Effect]:
            if isinstance(recorder, ColourRecorder):
                assert isinstance(marker, CountingMarker), marker
                return recorder.marker(channel.source, marker)
            return recorder.marker(channel.source, marker)

        self._record(channel.target, marker.snapshot, channel.source, step)

    def _turn_red(self, process: ProcessId, colour: Colour) -> None:
        """Record what the colour of an arriving message asks for, before it is accepted."""
        for snapshot in colour:

            def step(recorder: SnapshotRecorder, snapshot: SnapshotId = snapshot) -> list[Effect]:
                assert isinstance(recorder, ColourRecorder), recorder
                return recorder.meet((snapshot,))

            self._record(process, snapshot, None, step)

    def _record(
        self,
        process: ProcessId,
        snapshot: SnapshotId,
        source: ProcessId | None,
        step: Callable[[SnapshotRecorder], list[Effect]],
    ) -> None:
        """Take one step of the recording rules, and note it."""
        recorder = self.recorders[process]
        before = recorder.phase(snapshot)
        for target in self.description.outgoing(process):
            recorder.sent(target, self.sent_counts[Channel(process, target)])
        effects = step(recorder)
        # A state that was recorded may turn out useless in the same step: that comes last.
        could_record = not any(isinstance(effect, NotRecorded) for effect in effects[:1])
        is_cut = could_record and before is Phase.IDLE and recorder.phase(snapshot) is not before
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
                    self.epoch.parts.setdefault(snapshot, {})[process] = fragment
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

    def _hear(self, process: ProcessId, snapshot: SnapshotId) -> None:
        recorder = self.recorders[process]
        if isinstance(self.epoch.outcomes[snapshot], Abandoned):
            recorder.abandon(snapshot)
        if isinstance(recorder, ColourRecorder):
            recorder.ended(snapshot)

    def _end(self, snapshot: SnapshotId, outcome: Snapshot | Abandoned) -> None:
        self.epoch.outcomes[snapshot] = outcome
        self.epoch.ended_at[snapshot] = len(self.steps)
        self._announce(self.announcements.ended(snapshot))
        if isinstance(outcome, Abandoned):
            return
        point = self.restore_point
        if point is not None and outcome.initiated_at < point.completed_at:
            return
        self.restore_point = outcome
        self._announce(self.announcements.published(snapshot, self.assembler.pending))

    def _announce(self, snapshots: Iterable[SnapshotId]) -> None:
        for snapshot in snapshots:
            for name, performer in self.performers.items():
                is_told = type(performer.process).on_published is not Process.on_published
                if is_told and name not in self.down:
                    self._perform(name, PUBLISHED, snapshot)


def shown(message: Message) -> str:
    """Return a message as a label: as it prints itself, shortened."""
    text = str(message)
    return text if len(text) <= LABEL_CHARACTER_MAX else f"{text[: LABEL_CHARACTER_MAX - 1]}…"
