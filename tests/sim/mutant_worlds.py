"""Worlds, connections and assemblers with one thing wrong each, as in ``mutants``."""

# ruff: noqa: D102 - each class says which rule its methods change

from typing import Any

import msgspec

from stillframe.model import (
    Abandoned,
    Batch,
    Channel,
    ChannelState,
    Fragment,
    GlobalState,
    Marker,
    ProcessId,
    Reason,
    Snapshot,
    SnapshotId,
)
from stillframe.protocol.assembler import Assembler
from stillframe.protocol.lai_yang import Colour
from stillframe.protocol.recorder import Effect, SendMarker
from stillframe.protocol.session import ReceiveSession
from stillframe.sim import choices
from stillframe.sim.world import World
from stillframe.trace import MessageId

# --- recording


class MarkerBehind(World):
    """A marker waits at its source, and goes behind the next message of its channel."""

    def _begin(self, start: Snapshot | None) -> None:
        self._held: dict[Channel, list[Marker]] = {}
        super()._begin(start)

    def _send_marker(self, channel: Channel, marker: Marker) -> None:
        self._held.setdefault(channel, []).append(marker)

    def _send(self, channel: Channel, messages: list[bytes]) -> list[MessageId]:
        sent = super()._send(channel, messages)
        for marker in self._held.pop(channel, ()):
            super()._send_marker(channel, marker)
        return sent


class MarkerLost(World):
    """No marker ever arrives on the first channel."""

    def _send_marker(self, channel: Channel, marker: Marker) -> None:
        if channel != next(iter(self.channels)):
            super()._send_marker(channel, marker)


class ActsBetween(World):
    """A process acts between the recording of its state and the sending of the markers."""

    def _carry_out(self, process: ProcessId, effects: list[Effect]) -> None:
        if any(isinstance(effect, SendMarker) for effect in effects):
            self._perform(process, self.runners[process].actions[-1])
        super()._carry_out(process, effects)


class ActsAtCut(World):
    """A process that records its state does something that it would not have done."""

    def _carry_out(self, process: ProcessId, effects: list[Effect]) -> None:
        super()._carry_out(process, effects)
        if any(isinstance(effect, SendMarker) for effect in effects):
            self.runners[process].perform(self.runners[process].actions[-1])


class DroppedAtCut(World):
    """A message that arrives while its target records never reaches it."""

    def _accept(self, arrivals: list[tuple[Channel, Batch, Colour]]) -> None:
        target = arrivals[0][0].target
        recorder = self.recorders[target]
        if any(recorder.progress(snapshot) for snapshot in self.pending):
            runner = self.runners[target]
            runner.receive = lambda messages: []  # type: ignore[method-assign]
            super()._accept(arrivals)
            del runner.receive
        else:
            super()._accept(arrivals)


# --- restoring


class ChannelsForgotten(World):
    """A restore sets the states and counts, and what was on the channels is gone."""

    def _begin(self, start: Snapshot | None) -> None:
        if start is not None:
            channels = tuple(
                msgspec.structs.replace(c, received_count=c.sent_count, batches=())
                for c in start.state.channels
            )
            state = msgspec.structs.replace(start.state, channels=channels)
            super()._begin(msgspec.structs.replace(start, state=state))
            self.epoch.start = start
        else:
            super()._begin(start)


class ChannelsDoubled(World):
    """A restore delivers twice what was on the channels."""

    def _replay(self, start: Snapshot) -> None:
        super()._replay(start)
        for channel, batch in _recorded(start.state.channels):
            self._accept([(channel, batch, ())])


class ChannelsLast(World):
    """A restore delivers what was on the channels when the first new messages have come."""

    def _replay(self, start: Snapshot) -> None:
        for name in self.runners:
            self._perform(name, self.runners[name].actions[-1])
        super()._replay(start)


class ChannelsTurned(World):
    """A restore delivers what was on each channel in the opposite order."""

    _held: list[list[tuple[Channel, Batch, Colour]]] | None = None

    def _replay(self, start: Snapshot) -> None:
        held: list[list[tuple[Channel, Batch, Colour]]] = []
        self._held = held
        super()._replay(start)
        self._held = None
        for arrivals in reversed(held):
            super()._accept(arrivals)

    def _accept(self, arrivals: list[tuple[Channel, Batch, Colour]]) -> None:
        if self._held is not None:
            self._held.append(arrivals)
        else:
            super()._accept(arrivals)


class EpochKept(World):
    """A restore keeps the number of the epoch."""

    def _begin(self, start: Snapshot | None) -> None:
        super()._begin(start)
        self.epoch.number = 1


class PastAccepted(World):
    """Connections of the epoch before are not refused."""

    def _refuse_previous_epoch(self, number: int) -> None:
        self.epoch.refused_count = 0


class BeginsAfresh(World):
    """A restore goes back to the beginning, whatever was published."""

    def _begin(self, start: Snapshot | None) -> None:
        super()._begin(None)


class GoesBackTooFar(World):
    """A restore goes back to the first snapshot that was published."""

    def _begin(self, start: Snapshot | None) -> None:
        published = [o for e in self.epochs for o in e.outcomes.values() if isinstance(o, Snapshot)]
        super()._begin(published[0] if published else None)


class StatesOfTheStart(World):
    """A restore takes the channels from the snapshot, but the states from the beginning."""

    def _begin(self, start: Snapshot | None) -> None:
        if start is None:
            super()._begin(None)
            self._first = {name: p.capture() for name, p in self.runners.items()}
            return
        states = tuple(self._first[state.process] for state in start.state.processes)
        state = msgspec.structs.replace(start.state, processes=states)
        super()._begin(msgspec.structs.replace(start, state=state))
        self.epoch.start = start


def _recorded(states: tuple[ChannelState, ...]) -> list[tuple[Channel, Batch]]:
    return [
        (c.channel, single) for c in states for batch in c.batches for single in batch.singles()
    ]


# --- connections


class _Session(ReceiveSession):
    """Lets everything through."""

    def accept(self, sequence: int) -> bool:
        self.received = sequence
        return True


class DoubledAccepted(World):
    """What comes a second time is let through."""

    def _begin(self, start: Snapshot | None) -> None:
        super()._begin(start)
        for memory in self.channels.values():
            memory._target = _Session(acknowledge_bytes=0)


class RestLost(World):
    """A connection that is taken up again goes on with what is new, not with what was lost."""

    def _take(self, choice: choices.Choice) -> None:
        super()._take(choice)
        if isinstance(choice, choices.Connect):
            self.channels[choice.channel]._frames.clear()


# --- assembling


class WithoutOne(Assembler):
    """A snapshot is published although the part of the last process is missing."""

    def missing(self, snapshot: SnapshotId) -> tuple[ProcessId, ...]:
        missing = super().missing(snapshot)
        return () if len(missing) == 1 else missing

    def _assemble(self, fragments: dict[ProcessId, Fragment]) -> GlobalState:
        incoming = {
            Channel(record.source, process): record
            for process, fragment in fragments.items()
            for record in fragment.incoming
            if record.source in fragments
        }
        return GlobalState(
            tuple(fragments[p].state for p in self.description.processes if p in fragments),
            tuple(
                ChannelState(
                    channel,
                    fragments[channel.source].sent_counts[channel.target],
                    incoming[channel].received_count,
                    incoming[channel].batches,
                )
                for channel in self.description.channels
                if channel in incoming
            ),
        )


class NamesNobody(Assembler):
    """What is abandoned names no process."""

    def abandon(self, snapshot: SnapshotId, reason: Reason, detail: str = "") -> Abandoned | None:
        abandoned = super().abandon(snapshot, reason, detail)
        return None if abandoned is None else msgspec.structs.replace(abandoned, missing=())


class NamesAll(Assembler):
    """What is abandoned names every process, those that had handed in their parts among them."""

    def abandon(self, snapshot: SnapshotId, reason: Reason, detail: str = "") -> Abandoned | None:
        abandoned = super().abandon(snapshot, reason, detail)
        names = tuple(self.description.processes)
        return None if abandoned is None else msgspec.structs.replace(abandoned, missing=names)


class NeverExpires(Assembler):
    """A snapshot waits for its missing parts for ever."""

    def expire(self, now: float) -> list[Abandoned]:
        return []


class AlwaysLate(Assembler):
    """A snapshot has no time to be completed in."""

    def begin(self, snapshot: SnapshotId, now: float, *, timeout_s: float) -> None:
        super().begin(snapshot, now, timeout_s=0.0)

    def add(self, fragment: Fragment, now: float) -> Snapshot | Abandoned | None:
        outcome = super().add(fragment, now)
        if isinstance(outcome, Snapshot):
            return Abandoned(outcome.id, Reason.DEADLINE)
        return outcome


class StateOfAnother(Assembler):
    """A process's state is taken from the part that it handed in for the snapshot before."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._latest: dict[ProcessId, Fragment] = {}

    def add(self, fragment: Fragment, now: float) -> Snapshot | Abandoned | None:
        process = fragment.state.process
        before = self._latest.get(process, fragment)
        self._latest[process] = fragment
        return super().add(msgspec.structs.replace(fragment, state=before.state), now)
