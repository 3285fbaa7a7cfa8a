"""Worlds that do something else than they are told to, as in ``mutants``: what a snapshot must not
change, who is told of publications, where a restart goes back to, why snapshots are given up."""

# ruff: noqa: D102 - each class says which rule its methods change

from collections.abc import Iterable
from typing import Any

import msgspec

from stillframe.errors import ProtocolViolation
from stillframe.model import (
    Abandoned,
    Batch,
    Channel,
    Fragment,
    ProcessId,
    Reason,
    Snapshot,
    SnapshotId,
)
from stillframe.protocol.assembler import Assembler
from stillframe.protocol.recorder import Phase, Recorder
from stillframe.sim.world import World

BATCH_COUNT_MAX = 3


class Batching(World):
    """No mutant: what one action sends to one target travels together."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options["batch_count_max"] = BATCH_COUNT_MAX
        super().__init__(*arguments, **options)


class BatchAsOne(Recorder):
    """Counts a batch as one message, whatever is in it."""

    def receive(self, source: ProcessId, batch: Batch) -> None:
        if batch.first != self._received_counts[source] + 1:
            raise ProtocolViolation(f"message {batch.first} came out of turn")
        self._received_counts[source] += 1
        for recording in self._recordings.values():
            if (batches := recording.awaited.get(source)) is not None:
                batches.append(batch)


# --- a snapshot changes what the application does


class ActsFrozen(World):
    """A process that records takes no action."""

    def _act(self, process: ProcessId, action: str, arguments: tuple[Any, ...]) -> None:
        if not _records(self, process):
            super()._act(process, action, arguments)


class AllFrozen(World):
    """Nobody takes an action while a snapshot is under way anywhere."""

    def _act(self, process: ProcessId, action: str, arguments: tuple[Any, ...]) -> None:
        if not self.pending:
            super()._act(process, action, arguments)


class ActsTwice(World):
    """A process that records takes every action twice."""

    def _act(self, process: ProcessId, action: str, arguments: tuple[Any, ...]) -> None:
        super()._act(process, action, arguments)
        if _records(self, process):
            super()._act(process, action, arguments)


class DeliversNothing(World):
    """While a snapshot is under way no message arrives, but only markers."""

    def _deliver(self, channels: tuple[Channel, ...], position: int) -> None:
        if not self.pending or self.channels[channels[0]].peek(position).batch is None:
            super()._deliver(channels, position)


class DeliversForSnapshots(World):
    """The first channel delivers only while a snapshot is under way."""

    def _deliver(self, channels: tuple[Channel, ...], position: int) -> None:
        if self.pending or channels[0] != next(iter(self.channels)):
            super()._deliver(channels, position)


# --- publications


class NeverTold(World):
    """No process is told of any publication."""

    def _announce(self, snapshots: Iterable[SnapshotId]) -> None:
        pass


class ToldTwice(World):
    """Every process is told twice."""

    def _announce(self, snapshots: Iterable[SnapshotId]) -> None:
        announced = list(snapshots)
        super()._announce(announced)
        super()._announce(announced)


class ToldOfAll(World):
    """Processes are told of whatever ends, abandoned or no restore point."""

    def _announce(self, snapshots: Iterable[SnapshotId]) -> None:
        pass

    def _end(self, snapshot: SnapshotId, outcome: Snapshot | Abandoned) -> None:
        super()._end(snapshot, outcome)
        super()._announce([snapshot])


class ToldAtOnce(World):
    """A publication is told of while older snapshots are under way."""

    def _announce(self, snapshots: Iterable[SnapshotId]) -> None:
        pass

    def _end(self, snapshot: SnapshotId, outcome: Snapshot | Abandoned) -> None:
        super()._end(snapshot, outcome)
        if self.restore_point is outcome:
            super()._announce([snapshot])


# --- restore points


class NewestPoint(World):
    """Whatever is published last is the restore point, though it overlapped the one before."""

    def _end(self, snapshot: SnapshotId, outcome: Snapshot | Abandoned) -> None:
        super()._end(snapshot, outcome)
        if isinstance(outcome, Snapshot):
            self.restore_point = outcome


class WrongTimes(Assembler):
    """A snapshot says that it was begun when it was complete."""

    def add(self, fragment: Fragment, now: float) -> Snapshot | Abandoned | None:
        outcome = super().add(fragment, now)
        if isinstance(outcome, Snapshot):
            return msgspec.structs.replace(outcome, initiated_at=now)
        return outcome


class WrongEpoch(Assembler):
    """A snapshot says that it is of the epoch after its own."""

    def add(self, fragment: Fragment, now: float) -> Snapshot | Abandoned | None:
        outcome = super().add(fragment, now)
        if isinstance(outcome, Snapshot):
            return msgspec.structs.replace(outcome, epoch=outcome.epoch + 1)
        return outcome


# --- what is given up


class ReasonsExchanged(Assembler):
    """What passed its deadline is said to have ended by a death, and the other way around."""

    def abandon(self, snapshot: SnapshotId, reason: Reason, detail: str = "") -> Abandoned | None:
        exchanged = {Reason.DEADLINE: Reason.PROCESS_DIED, Reason.PROCESS_DIED: Reason.DEADLINE}
        return super().abandon(snapshot, exchanged.get(reason, reason), detail)


class ExpiresAll(Assembler):
    """When one deadline has passed, every snapshot is given up."""

    def expire(self, now: float) -> list[Abandoned]:
        late = super().expire(now)
        others = self.pending if late else ()
        return late + [e for s in others if (e := self.abandon(s, Reason.DEADLINE)) is not None]


class HalfDeadline(Assembler):
    """A snapshot has half the time that it should have."""

    def begin(self, snapshot: SnapshotId, now: float, *, timeout_s: float) -> None:
        super().begin(snapshot, now, timeout_s=timeout_s / 2)


class HearsIdle(Recorder):
    """Who hears of the end before any marker forgets it: a late marker begins to record."""

    def abandon(self, snapshot: SnapshotId) -> None:
        if self.phase(snapshot) is not Phase.IDLE:
            super().abandon(snapshot)


class AbandonIgnored(Recorder):
    """What was given up is recorded for ever."""

    def abandon(self, snapshot: SnapshotId) -> None:
        pass


def _records(world: World, process: ProcessId) -> bool:
    recorder = world.recorders[process]
    return any(recorder.phase(snapshot) is Phase.RECORDING for snapshot in world.pending)
