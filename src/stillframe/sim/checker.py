"""Checks the invariants of a run against what happened, without asking any recorder.

A snapshot is compared with the trace. The order of a process's steps alone gives the messages that
were sent and accepted before its cut, the sender gives their content, and a second run of the
actions without any snapshot gives its state. The choices are compared with their effects, and the
times of snapshots with what they say of themselves.
"""

from collections.abc import Iterator, Sequence

from stillframe.errors import NotConsistent
from stillframe.model import Channel, ProcessId, ProcessState, Snapshot, SnapshotId
from stillframe.protocol.equivalent import prove
from stillframe.protocol.recorder import Phase
from stillframe.protocol.replay import RESTORED
from stillframe.sim import choices
from stillframe.sim.action_checker import (
    caused_violations,
    choice_violations,
    missing_notices,
    notice_violations,
    publication_violations,
)
from stillframe.sim.epoch import Epoch
from stillframe.sim.invariants import Evidence, Invariant, Violation, rules_fit
from stillframe.sim.network import Fifo
from stillframe.sim.snapshot_checker import SnapshotChecker
from stillframe.sim.world import World
from stillframe.trace import Event, MessageId

__all__ = ["DETERMINISM", "Invariant", "Violation", "check_end", "check_run", "rules_fit"]

DETERMINISM = (
    "a handler may depend on its process's recorded fields and on messages alone: let it draw "
    "chance from a recorded field, and take the time from a message"
)


def check_run(world: World) -> Violation | None:
    """Return the first invariant that does not hold in the run so far; None if all do.

    Those about snapshots are checked for the ones that have ended. A refusal of the recording rules
    comes last, since its cause is more informative.
    """
    points = _restore_points(world.epochs)
    for index in range(len(world.epochs)):
        violation = next(_EpochChecker(Evidence(world, index), points).violations(), None)
        if violation is not None:
            return violation
    newest = _newest(points)
    if world.restore_point != newest:
        return Violation(
            Invariant.POINTS,
            f"the restore point is {_name(world.restore_point)}, not {_name(newest)}",
        )
    if world.refusal and rules_fit(world):
        return Violation(Invariant.ORDERED_WORLD, world.refusal)
    return _still_recording(world)


def check_end(world: World) -> Violation | None:
    """Return the first liveness invariant that does not hold at the end of a run; None if all do.

    Call it at the end of the liveness phase, when ``check_run`` found nothing. It checks nothing if
    the rules do not fit the channels, or found something wrong.
    """
    if world.refusal or not rules_fit(world):
        return None
    epoch = world.epoch
    accepted = {m for step in epoch.steps if isinstance(step, Event) for m in step.accepted}
    in_flight = {
        MessageId(channel, number)
        for channel, memory in world.channels.items()
        for frame in memory.contents
        if frame.batch is not None
        for number in range(frame.batch.first, frame.batch.last + 1)
    }
    for message in sorted(epoch.contents.keys() - accepted - in_flight):
        return Violation(Invariant.ARRIVED, f"message {message} was sent, and never came")
    return None if world.pending else missing_notices(world, _restore_points(world.epochs)[-1])


def _restore_points(epochs: Sequence[Epoch]) -> list[list[Snapshot]]:
    """Return for each epoch its restore points: published, and initiated after the one before, of
    any epoch, had ended."""
    ended_s: float | None = None
    points: list[list[Snapshot]] = []
    for epoch in epochs:
        points.append([])
        for snapshot, outcome in epoch.outcomes.items():
            if not isinstance(outcome, Snapshot):
                continue
            if ended_s is None or epoch.began_s[snapshot] >= ended_s:
                points[-1].append(outcome)
                ended_s = epoch.ended_s[snapshot]
    return points


def _newest(points: Sequence[Sequence[Snapshot]]) -> Snapshot | None:
    return next((here[-1] for here in reversed(points) if here), None)


def _name(snapshot: Snapshot | None) -> str:
    return "the beginning" if snapshot is None else str(snapshot.id)


def _still_recording(world: World) -> Violation | None:
    """The one question to a recorder: whether it records a snapshot after the notice of its end."""
    for taken in world.epoch.taken:
        if not isinstance(taken.choice, choices.DeliverNotice):
            continue
        process, snapshot = taken.choice.process, taken.choice.snapshot
        if world.recorders[process].phase(snapshot) is Phase.RECORDING:
            return Violation(
                Invariant.HEARD,
                f"process {process} still records {snapshot}, heard at {taken.at} s",
            )
    return None


class _EpochChecker:
    """Checks one epoch; `points` are the restore points of each epoch."""

    def __init__(self, known: Evidence, points: Sequence[Sequence[Snapshot]]) -> None:
        self._known = known
        self._points = points

    def violations(self) -> Iterator[Violation]:
        """Yield the violations, the most informative first."""
        known = self._known
        try:
            known.trace  # noqa: B018 - it is checked when it is made
        except NotConsistent as error:
            yield Violation(Invariant.ONCE, str(error))
            return
        yield from self._check_order()
        yield from self._check_epoch()
        yield from self._check_restore()
        try:
            captured = self._replay()
        except NotConsistent as error:
            yield Violation(Invariant.UNCHANGED, f"{error}; {DETERMINISM}")
            return
        snapshots = SnapshotChecker(known, captured)
        for snapshot in known.epoch.initiated:
            yield from snapshots.violations(snapshot)
        yield from choice_violations(known)
        points = self._points[known.index]
        yield from publication_violations(known, points)
        yield from caused_violations(known, points)
        yield from notice_violations(known)
        yield from self._check_proof()

    def _check_order(self) -> Iterator[Violation]:
        if self._known.world.network is not Fifo:
            return
        following: dict[Channel, int] = {}
        for _, event in self._known.trace.positions():
            for message in event.sent:
                following.setdefault(message.channel, message.number)
            for message in event.accepted:
                expected = following[message.channel]
                if message.number != expected:
                    yield Violation(Invariant.ONCE, f"{message} was accepted, not #{expected}")
                following[message.channel] = expected + 1

    def _check_epoch(self) -> Iterator[Violation]:
        epoch, world = self._known.epoch, self._known.world
        if not self._known.before:
            return
        before = self._known.before[-1]
        if epoch.number <= before.number:
            yield Violation(Invariant.EPOCHS, f"epoch {epoch.number} came after {before.number}")
        if epoch.refused_count != len(world.channels):
            yield Violation(
                Invariant.EPOCHS,
                f"epoch {epoch.number} refused {epoch.refused_count} of {len(world.channels)} "
                f"connections of epoch {before.number}",
            )

    def _check_restore(self) -> Iterator[Violation]:
        start, where = self._known.epoch.start, f"epoch {self._known.epoch.number}"
        newest = _newest(self._points[: self._known.index])
        if start is None:
            if newest is not None:
                yield Violation(
                    Invariant.RESTORED, f"{where} begins afresh, but {newest.id} was published"
                )
            return
        if start != newest:
            published = [o for epoch in self._known.before for o in epoch.outcomes.values()]
            what = f"is older than {_name(newest)}" if start in published else "was never published"
            yield Violation(Invariant.RESTORED, f"{where} begins with {start.id}, which {what}")
        open_ = {
            MessageId(state.channel, number)
            for state in start.state.channels
            for number in range(state.received_count + 1, state.sent_count + 1)
        }
        for position, event in self._known.trace.positions():
            if open_ and event.handler != RESTORED and not open_.intersection(event.accepted):
                yield Violation(
                    Invariant.RESTORED,
                    f"{where}: {position} ({event.label}) comes before {min(open_)}, which "
                    f"snapshot {start.id} has on its channel",
                )
            open_.difference_update(event.accepted)
        if open_:
            yield Violation(
                Invariant.RESTORED,
                f"{where}: {min(open_)} never comes, which snapshot {start.id} has on its channel",
            )

    def _replay(self) -> dict[tuple[SnapshotId, ProcessId], ProcessState]:
        """Perform the actions again without snapshots; return the state of each process at each
        cut. NotConsistent if a process does something else then."""
        replay, captured = self._known.new_replay(), {}
        for step in self._known.epoch.steps:
            if isinstance(step, Event):
                replay.perform(step)
            elif step.is_cut:
                captured[step.snapshot, step.process] = replay.capture(step.process)
        if self._known.epoch is self._known.world.epoch:
            for name, runner in self._known.world.runners.items():
                if runner.capture() != replay.capture(name):
                    raise NotConsistent(f"process {name} ends in another state without snapshots")
        return captured

    def _check_proof(self) -> Iterator[Violation]:
        """Put every white action before every red one (EWD 864a), for the last snapshot."""
        start = self._known.epoch.start
        published = [o for o in self._known.epoch.outcomes.values() if isinstance(o, Snapshot)]
        for snapshot in published[-1:]:
            try:
                prove(
                    self._known.trace,
                    snapshot,
                    self._known.world.topology,
                    start.state if start is not None else None,
                    contents=self._known.epoch.contents,
                )
            except NotConsistent as error:
                yield Violation(Invariant.CONSISTENT, f"snapshot {snapshot.id}: {error}")
