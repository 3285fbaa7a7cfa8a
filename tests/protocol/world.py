"""A tiny world of recorders over queues that keep order, and an oracle that knows everything.

The oracle is written without the recorder: it keeps the whole history of every process and channel
and derives from it what a snapshot should hold.
"""

import random
from collections import deque
from collections.abc import Iterable

import msgspec

from stillframe.model import (
    Abandoned,
    Batch,
    Channel,
    Fragment,
    Marker,
    ProcessId,
    ProcessState,
    Snapshot,
    SnapshotId,
)
from stillframe.protocol.assembler import Assembler
from stillframe.protocol.recorder import Effect, NotRecorded, Recorded, Recorder, SendMarker
from stillframe.topology import Description

START_MONEY = 100


def describe(processes: Iterable[ProcessId], channels: Iterable[tuple[str, str]]) -> Description:
    """Return the description of a world without classes of its own."""
    names = sorted(processes)
    return Description(
        processes=dict.fromkeys(names, "Account"),
        channels=tuple(sorted(Channel(a, b) for a, b in channels)),
        states={"Account": ()},
        messages={},
        accepts=dict.fromkeys(names, ()),
    )


class World:
    """Accounts that hold money and pay each other, one recorder each."""

    def __init__(self, processes: Iterable[ProcessId], channels: Iterable[tuple[str, str]]) -> None:
        self.description = describe(processes, channels)
        self.money = dict.fromkeys(self.description.processes, START_MONEY)
        self.queues: dict[Channel, deque[tuple[int, int] | Marker]] = {
            channel: deque() for channel in self.description.channels
        }
        self.sent: dict[Channel, list[int]] = {c: [] for c in self.description.channels}
        self.received: dict[Channel, list[int]] = {c: [] for c in self.description.channels}
        self.markers_sent: dict[tuple[Channel, SnapshotId], int] = {}
        self.cuts: dict[tuple[SnapshotId, ProcessId], tuple[int, dict[Channel, int]]] = {}
        self.assembler = Assembler(self.description, epoch=1)
        self.finished: dict[SnapshotId, Snapshot] = {}
        self.not_recorded: list[NotRecorded] = []
        self.fragments: dict[SnapshotId, list[Fragment]] = {}
        self.overlap_count = 0
        self._capturing: ProcessId | None = None
        self.recorders = {process: self._recorder(process) for process in self.money}

    def _recorder(self, process: ProcessId) -> Recorder:
        return Recorder(
            process,
            incoming=dict.fromkeys(self.description.incoming(process), 0),
            outgoing=dict.fromkeys(self.description.outgoing(process), 0),
            capture=lambda: self._capture(process),
        )

    def _capture(self, process: ProcessId) -> ProcessState:
        self._capturing = process
        return ProcessState(process, "Account", msgspec.msgpack.encode(self.money[process]))

    def pay(self, source: ProcessId, target: ProcessId, amount: int) -> None:
        """Send money."""
        channel = Channel(source, target)
        self.money[source] -= amount
        self.sent[channel].append(amount)
        self.queues[channel].append((len(self.sent[channel]), amount))

    def initiate(self, process: ProcessId, snapshot: SnapshotId) -> None:
        """Begin a snapshot at one process, and at others if markers would not reach all."""
        self.overlap_count += len(self.assembler.pending)
        self.assembler.begin(snapshot, 0.0, timeout_s=10.0)
        for initiator in self.description.initiators(process):
            self._step(initiator, snapshot, None)

    def deliver(self, channel: Channel) -> None:
        """Deliver the item at the head of a channel."""
        item = self.queues[channel].popleft()
        if isinstance(item, Marker):
            self._step(channel.target, item.snapshot, channel.source)
            return
        number, amount = item
        self.money[channel.target] += amount
        self.received[channel].append(amount)
        batch = Batch.of(number, [msgspec.msgpack.encode(amount)])
        self.recorders[channel.target].receive(channel.source, batch)

    def abandon(self, snapshot: SnapshotId) -> None:
        """Give a snapshot up everywhere."""
        for recorder in self.recorders.values():
            recorder.abandon(snapshot)

    def _step(self, process: ProcessId, snapshot: SnapshotId, source: ProcessId | None) -> None:
        recorder = self.recorders[process]
        for target in self.description.outgoing(process):
            recorder.sent(target, len(self.sent[Channel(process, target)]))
        self._capturing = None
        effects = (
            recorder.initiate(snapshot)
            if source is None
            else recorder.marker(source, Marker(snapshot))
        )
        if self._capturing is not None:
            own = [c for c in self.queues if process in (c.source, c.target)]
            counts = {c: len((self.sent if c.source == process else self.received)[c]) for c in own}
            self.cuts[snapshot, process] = (self.money[process], counts)
        self._carry_out(process, effects)

    def _carry_out(self, process: ProcessId, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendMarker(target, marker):
                    channel = Channel(process, target)
                    self.queues[channel].append(marker)
                    key = (channel, marker.snapshot)
                    self.markers_sent[key] = self.markers_sent.get(key, 0) + 1
                case Recorded(fragment):
                    self.fragments.setdefault(fragment.snapshot, []).append(fragment)
                    outcome = self.assembler.add(fragment, 1.0)
                    assert not isinstance(outcome, Abandoned), str(outcome)
                    if outcome is not None:
                        self.finished[outcome.id] = outcome
                case NotRecorded():
                    self.not_recorded.append(effect)

    def drain(self, chance: random.Random) -> None:
        """Deliver everything that is under way, in random order between channels."""
        while full := [channel for channel, queue in self.queues.items() if queue]:
            self.deliver(chance.choice(full))

    def check(self, snapshot: Snapshot) -> None:
        """Compare a finished snapshot with what the oracle knows."""
        money = 0
        for state in snapshot.state.processes:
            held = msgspec.msgpack.decode(state.encoded)
            assert held == self.cuts[snapshot.id, state.process][0]
            money += held
        for channel_state in snapshot.state.channels:
            channel = channel_state.channel
            sent = self.cuts[snapshot.id, channel.source][1][channel]
            received = self.cuts[snapshot.id, channel.target][1][channel]
            recorded = [
                amount
                for batch in channel_state.batches
                for amount in msgspec.msgpack.decode(batch.encoded)
            ]
            # Consistent: nothing was received before the target's cut that was sent after the
            # source's, and what was in between is exactly what was recorded.
            assert received <= sent
            assert recorded == self.sent[channel][received:sent]
            assert (channel_state.sent_count, channel_state.received_count) == (sent, received)
            assert self.markers_sent[channel, snapshot.id] == 1
            money += sum(recorded)
        assert money == START_MONEY * len(self.money)
        snapshot.state.check_books()
