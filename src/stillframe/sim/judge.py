"""Says whether a run kept the promises, from what happened, without asking any recorder.

The promises are the lines of "what must always hold". A snapshot is compared with the trace: which
messages were sent and accepted before each process's cut follows from the order of its steps alone,
what they contained from the process that sent them, and what its state was from a second run of its
actions without any snapshot. What was let happen is compared with what came of it, and when
snapshots began and ended with what they say of themselves.
"""

from collections.abc import Iterator, Sequence

from stillframe.errors import NotConsistent
from stillframe.model import Channel, ProcessId, ProcessState, Snapshot, SnapshotId
from stillframe.protocol.equivalent import prove
from stillframe.protocol.recorder import Phase
from stillframe.protocol.replay import RESTORED
from stillframe.sim import choices
from stillframe.sim.action_judge import (
    caused_violations,
    heard_violations,
    taken_violations,
    told_violations,
    untold,
)
from stillframe.sim.epoch import Epoch
from stillframe.sim.evidence import Evidence, rules_fit
from stillframe.sim.network import Fifo
from stillframe.sim.promise import Promise, Violation
from stillframe.sim.snapshot_judge import SnapshotJudge
from stillframe.sim.world import World
from stillframe.trace import Event, MessageId

__all__ = ["DETERMINISM", "Promise", "Violation", "judge", "judge_end", "rules_fit"]

DETERMINISM = (
    "a handler may depend on its process's recorded fields and on messages alone: let it draw "
    "chance from a recorded field, and take the time from a message"
)


def judge(world: World) -> Violation | None:
    """Return the first promise that the run so far did not keep; None if it kept all.

    A promise about snapshots is judged for those that have ended. That the rules refused to go on
    comes last: what made them do so says more.
    """
    points = _restore_points(world.epochs)
    for index in range(len(world.epochs)):
        violation = next(_Bench(Evidence(world, index), points).violations(), None)
        if violation is not None:
            return violation
    newest = _newest(points)
    if world.restore_point != newest:
        return Violation(
            Promise.POINTS,
            f"the restore point is {_name(world.restore_point)}, not {_name(newest)}",
        )
    if world.refusal and rules_fit(world):
        return Violation(Promise.ORDERED_WORLD, world.refusal)
    return _still_recording(world)


def judge_end(world: World) -> Violation | None:
    """Return the first promise of the end that was not kept; None if all were.

    Call it when a run has come to the end of its liveness phase, and ``judge`` found nothing. Where
    the rules do not fit the channels, or found something wrong, nothing is promised of the end.
    """
    if world.refusal or not rules_fit(world):
        return None
    epoch = world.epoch
    accepted = {m for step in epoch.steps if isinstance(step, Event) for m in step.accepted}
    on_the_way = {
        MessageId(channel, number)
        for channel, memory in world.channels.items()
        for frame in memory.contents
        if frame.batch is not None
        for number in range(frame.batch.first, frame.batch.last + 1)
    }
    for message in sorted(epoch.contents.keys() - accepted - on_the_way):
        return Violation(Promise.ARRIVED, f"message {message} was sent, and never came")
    return None if world.pending else untold(world, _restore_points(world.epochs)[-1])


def _restore_points(epochs: Sequence[Epoch]) -> list[list[Snapshot]]:
    """Return for each epoch its restore points: published, and begun when the one before, of
    whichever epoch, had ended."""
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
    """Only this is asked of a recorder: whether it goes on after it has heard that it need not."""
    for taken in world.epoch.taken:
        if not isinstance(taken.choice, choices.Hear):
            continue
        process, snapshot = taken.choice.process, taken.choice.snapshot
        if world.recorders[process].phase(snapshot) is Phase.RECORDING:
            return Violation(
                Promise.HEARD, f"process {process} still records {snapshot}, heard at {taken.at} s"
            )
    return None


class _Bench:
    """One epoch before the judge.

    Args:
        known: the epoch.
        points: the restore points of each epoch.
    """

    def __init__(self, known: Evidence, points: Sequence[Sequence[Snapshot]]) -> None:
        self._known = known
        self._points = points

    def violations(self) -> Iterator[Violation]:
        """Yield what is wrong, what says most first."""
        known = self._known
        try:
            known.trace  # noqa: B018 - it is checked when it is made
        except NotConsistent as error:
            yield Violation(Promise.ONCE, str(error))
            return
        yield from self._check_order()
        yield from self._check_epoch()
        yield from self._check_restore()
        try:
            captured = self._replay()
        except NotConsistent as error:
            yield Violation(Promise.UNCHANGED, f"{error}; {DETERMINISM}")
            return
        snapshots = SnapshotJudge(known, captured)
        for snapshot in known.epoch.initiated:
            yield from snapshots.violations(snapshot)
        yield from taken_violations(known)
        points = self._points[known.index]
        yield from told_violations(known, points)
        yield from caused_violations(known, points)
        yield from heard_violations(known)
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
                    yield Violation(Promise.ONCE, f"{message} was accepted, not #{expected}")
                following[message.channel] = expected + 1

    def _check_epoch(self) -> Iterator[Violation]:
        epoch, world = self._known.epoch, self._known.world
        if not self._known.before:
            return
        before = self._known.before[-1]
        if epoch.number <= before.number:
            yield Violation(Promise.EPOCHS, f"epoch {epoch.number} came after {before.number}")
        if epoch.refused_count != len(world.channels):
            yield Violation(
                Promise.EPOCHS,
                f"epoch {epoch.number} refused {epoch.refused_count} of {len(world.channels)} "
                f"connections of epoch {before.number}",
            )

    def _check_restore(self) -> Iterator[Violation]:
        start, where = self._known.epoch.start, f"epoch {self._known.epoch.number}"
        newest = _newest(self._points[: self._known.index])
        if start is None:
            if newest is not None:
                yield Violation(
                    Promise.RESTORED, f"{where} begins afresh, but {newest.id} was published"
                )
            return
        if start != newest:
            published = [o for epoch in self._known.before for o in epoch.outcomes.values()]
            what = f"is older than {_name(newest)}" if start in published else "was never published"
            yield Violation(Promise.RESTORED, f"{where} begins with {start.id}, which {what}")
        open_ = {
            MessageId(state.channel, number)
            for state in start.state.channels
            for number in range(state.received_count + 1, state.sent_count + 1)
        }
        for position, event in self._known.trace.positions():
            if open_ and event.handler != RESTORED and not open_.intersection(event.accepted):
                yield Violation(
                    Promise.RESTORED,
                    f"{where}: {position} ({event.label}) comes before {min(open_)}, which "
                    f"snapshot {start.id} has on its channel",
                )
            open_.difference_update(event.accepted)
        if open_:
            yield Violation(
                Promise.RESTORED,
                f"{where}: {min(open_)} never comes, which snapshot {start.id} has on its channel",
            )

    def _replay(self) -> dict[tuple[SnapshotId, ProcessId], ProcessState]:
        """Do the actions again without snapshots; return the state of each process at each cut.

        Raises:
            NotConsistent: a process does something else then.
        """
        replay, captured = self._known.new_replay(), {}
        for step in self._known.epoch.steps:
            if isinstance(step, Event):
                replay.perform(step)
            elif step.is_cut:
                captured[step.snapshot, step.process] = replay.capture(step.process)
        if self._known.epoch is self._known.world.epoch:
            for name, performer in self._known.world.performers.items():
                if performer.capture() != replay.capture(name):
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
                yield Violation(Promise.CONSISTENT, f"snapshot {snapshot.id}: {error}")
