"""Checks the invariants of a run against what happened, without asking any recorder.

A snapshot is compared with the trace. The order of a process's steps alone gives the messages that
were sent and accepted before its cut, the sender gives their content, and a second run of the
actions without any snapshot gives its state. The choices are compared with their effects, and the
times of snapshots with what they say of themselves.
"""

import enum
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import pairwise

import msgspec

from stillframe.errors import NotConsistent, UsageError
from stillframe.model import (
    Abandoned,
    Channel,
    ProcessId,
    ProcessState,
    Reason,
    Snapshot,
    SnapshotId,
)
from stillframe.process import Process
from stillframe.protocol.action_runner import PUBLISHED, RECEIVE, START
from stillframe.protocol.equivalent import prove
from stillframe.protocol.lai_yang import LaiYangRecorder
from stillframe.protocol.recorder import Phase
from stillframe.protocol.replay import RESTORED, Replay
from stillframe.sim import choices
from stillframe.sim.network import Fifo, Frame, Network, Reordering
from stillframe.sim.world import Epoch, Taken, World
from stillframe.trace import Cut, Event, MarkerStep, MessageId, Step, Trace

ENDS_IN: Mapping[Reason, tuple[type, ...]] = {
    Reason.DEADLINE: (choices.Expire,),
    Reason.PROCESS_DIED: (choices.Crash,),
    Reason.STOPPED: (choices.Restart,),
    Reason.NOT_RECORDED: (choices.Initiate, choices.Deliver),
    Reason.NOT_CONSISTENT: (choices.Initiate, choices.Deliver),
}
"""The choices in which a snapshot can be abandoned for a reason; a world's store never fails."""
DETERMINISM = (
    "a handler may depend on its process's recorded fields and on messages only: take random "
    "numbers from a recorded field, and the time from a message"
)
_Checks = tuple[tuple["Invariant", Callable[["Evidence"], Iterator[str]]], ...]
"""For each invariant a function that yields how an epoch contradicts it."""
_Called = tuple[ProcessId, str, tuple[MessageId, ...]]
"""A process, the handler that was called, and the messages that it accepted."""


_Counts = dict[Channel, tuple[int, int]]
"""How many messages were sent and received on each channel before a cut."""


class Invariant(enum.Enum):
    """An invariant; the value is its sentence."""

    ONCE = "every message is accepted at most once, after it was sent, and in order"
    BOOKS = "the books of every channel balance"
    CONSISTENT = "no message that was accepted before the cut was sent after it"
    EXACT = "the recorded states and messages are exactly those at the cut"
    MARKERS = (
        "one marker travels on each channel for each snapshot, after the messages sent before it"
    )
    ATOMIC = "recording a state and sending the markers is one step"
    WHOLE = "a snapshot is published whole, or abandoned with the names of the missing"
    UNCHANGED = "a snapshot changes nothing: without it the processes do the same"
    EPOCHS = "after a restore the epoch is higher, and nothing of an older one is accepted"
    RESTORED = (
        "a restore starts from the last restore point, and delivers the messages on its channels "
        "first"
    )
    ORDERED_WORLD = "the recording rules find nothing wrong with a channel that keeps order"
    TAKEN = "each choice has exactly the effect that it names, once"
    ARRIVED = "in the end every message that was sent is accepted"
    POINTS = (
        "the restore point is the last snapshot that was initiated after the previous one was "
        "complete"
    )
    TIMES = "a snapshot records the right times and epoch"
    REASON = "a snapshot is abandoned only for a true reason, and not before its deadline"
    HEARD = "a process that knows that a snapshot has ended no longer records it"
    TOLD = (
        "every process receives a notice of every restore point once, in their order, and no other"
    )
    SAFE = "an outbox commits only entries that its notified restore point recorded"
    CAUSED = "a snapshot that shows a notice of another one has a later cut than that one"
    LIVE = "once faults have ended, a snapshot is published"


class Violation(msgspec.Struct, frozen=True):
    """An invariant that does not hold, and the evidence."""

    invariant: Invariant
    detail: str

    def __str__(self) -> str:
        return f"not kept: {self.invariant.value}\n  {self.detail}"


def rules_fit(world: World) -> bool:
    """Return whether the recording rules are made for such channels: then they must succeed."""
    if world.network is Reordering:
        return all(isinstance(r, LaiYangRecorder) for r in world.recorders.values())
    return world.network is Fifo


class Evidence:
    """One epoch of a world that is checked, the one at `index` (from 0) of its epochs; `points` are
    the restore points of every epoch."""

    def __init__(self, world: World, index: int, points: Sequence[Sequence[Snapshot]]) -> None:
        self.world = world
        self.before = world.epochs[:index]
        self.epoch = world.epochs[index]
        self.points = points[index]
        self.points_before = points[:index]
        self.description = world.description
        self.start = None if self.epoch.start is None else self.epoch.start.state

    @cached_property
    def trace(self) -> Trace:
        """The trace of the epoch; NotConsistent if the steps contradict each other, so no execution
        has them."""
        return self.epoch.trace(self.description)

    @cached_property
    def first_numbers(self) -> dict[Channel, int]:
        """How many messages were received on each channel before the epoch began."""
        if self.start is None:
            return dict.fromkeys(self.description.channels, 0)
        return {state.channel: state.received_count for state in self.start.channels}

    @cached_property
    def captured(self) -> dict[tuple[SnapshotId, ProcessId], ProcessState]:
        """The state of each process at each cut, from a second run of the actions without
        snapshots. NotConsistent if a process does something else then."""
        replay, captured = self.new_replay(), {}
        for step in self.epoch.steps:
            if isinstance(step, Event):
                replay.perform(step)
            elif step.is_cut:
                captured[step.snapshot, step.process] = replay.capture(step.process)
        if self.epoch is self.world.epoch:
            for name, runner in self.world.runners.items():
                if runner.capture() != replay.capture(name):
                    raise NotConsistent(f"process {name} ends in another state without snapshots")
        return captured

    def new_replay(self) -> Replay:
        """Return the system in its initial state, to perform the actions again."""
        topology, contents = self.world.topology, self.epoch.contents
        return Replay(topology, self.start, contents=contents, trace=self.trace)

    @cached_property
    def cut_of(self) -> Callable[[SnapshotId], Cut]:
        """The function that returns the cut of a snapshot."""
        return cache(self.trace.cut_of)

    def marker_steps(self, snapshot: SnapshotId, count: int | None = None) -> Iterator[MarkerStep]:
        """Yield the steps of a snapshot among the first `count` of the epoch, or all of them."""
        for step in self.epoch.steps[:count]:
            if isinstance(step, MarkerStep) and step.snapshot == snapshot:
                yield step


def check_run(world: World) -> Violation | None:
    """Return the first invariant that does not hold in the run so far; None if all do.

    Those about snapshots are checked for the ones that have ended. A refusal by the recording rules
    is reported last, because its cause is more informative.
    """
    return next(_violations(world), None)


def _violations(world: World) -> Iterator[Violation]:
    """Yield the violations; a check presumes that those before it found nothing."""
    points = _restore_points(world.epochs)
    for index in range(len(world.epochs)):
        known = Evidence(world, index, points)
        yield from _failed(HISTORY_CHECKS, known)
        for snapshot in known.epoch.initiated:
            yield from _snapshot_violations(known, snapshot)
        yield from _failed(CHOICE_CHECKS, known)
    if (newest := _newest(points)) != world.restore_point:
        name, expected = _name(world.restore_point), _name(newest)
        yield Violation(Invariant.POINTS, f"the restore point is {name}, not {expected}")
    if world.refusal and rules_fit(world):
        yield Violation(Invariant.ORDERED_WORLD, world.refusal)
    for detail in _still_recording(world):
        yield Violation(Invariant.HEARD, detail)


def _failed(checks: _Checks, known: Evidence) -> Iterator[Violation]:
    for invariant, check in checks:
        for detail in check(known):
            yield Violation(invariant, detail)


def check_end(world: World) -> Violation | None:
    """Return the first liveness invariant that does not hold at the end of a run; None if all do.

    Call it at the end of the liveness phase, when ``check_run`` found nothing. It checks nothing if
    the rules do not fit the channels, or found something wrong.
    """
    if world.refusal or not rules_fit(world):
        return None
    epoch = world.epoch
    accepted = {m for step in epoch.steps if isinstance(step, Event) for m in step.accepted}
    in_transit = {
        MessageId(channel, number)
        for channel, memory in world.channels.items()
        for frame in memory.contents
        if frame.batch is not None
        for number in range(frame.batch.first, frame.batch.last + 1)
    }
    for message in sorted(epoch.contents.keys() - accepted - in_transit):
        return Violation(Invariant.ARRIVED, f"message {message} was sent, and never arrived")
    return None if world.pending else _missing_notices(world, _restore_points(world.epochs)[-1])


def _restore_points(epochs: Sequence[Epoch]) -> list[list[Snapshot]]:
    """Return for each epoch its restore points: published, and initiated after the one before, of
    any epoch, had ended."""
    ended_s: float | None = None
    points: list[list[Snapshot]] = []
    for epoch in epochs:
        points.append([])
        for snapshot in epoch.published:
            if ended_s is None or epoch.began_s[snapshot.id] >= ended_s:
                points[-1].append(snapshot)
                ended_s = epoch.ended_s[snapshot.id]
    return points


def _newest(points: Sequence[Sequence[Snapshot]]) -> Snapshot | None:
    return next((here[-1] for here in reversed(points) if here), None)


def _name(snapshot: Snapshot | None) -> str:
    return "the beginning" if snapshot is None else str(snapshot.id)


def _still_recording(world: World) -> Iterator[str]:
    """Check with the one question to a recorder: whether it records a snapshot after its end."""
    for taken in world.epoch.taken:
        if isinstance(taken.choice, choices.DeliverNotice):
            process, snapshot = taken.choice.process, taken.choice.snapshot
            if world.recorders[process].phase(snapshot) is Phase.RECORDING:
                yield f"process {process} still records {snapshot}, although it was notified of "
                f"its end at {taken.at} s"


# --- what happened in one epoch


def _check_trace(known: Evidence) -> Iterator[str]:
    try:
        known.trace  # noqa: B018 - it is checked when it is made
    except NotConsistent as error:
        yield str(error)


def _check_order(known: Evidence) -> Iterator[str]:
    if known.world.network is not Fifo:
        return
    following: dict[Channel, int] = {}
    for _, event in known.trace.positions():
        for message in event.sent:
            following.setdefault(message.channel, message.number)
        for message in event.accepted:
            expected = following[message.channel]
            if message.number != expected:
                yield f"{message} was accepted, not #{expected}"
            following[message.channel] = expected + 1


def _check_number(known: Evidence) -> Iterator[str]:
    number, channel_count = known.epoch.number, len(known.world.channels)
    for before in known.before[-1:]:
        if number <= before.number:
            yield f"epoch {number} followed {before.number}"
        if (refused_count := known.epoch.refused_count) != channel_count:
            yield (
                f"epoch {number} refused {refused_count} of {channel_count} connections of epoch "
                f"{before.number}"
            )


def _check_restore(known: Evidence) -> Iterator[str]:
    start, where = known.epoch.start, f"epoch {known.epoch.number}"
    newest = _newest(known.points_before)
    if start is None:
        if newest is not None:
            yield f"{where} begins from the initial states, but {newest.id} was published"
        return
    if start != newest:
        published = [snapshot for epoch in known.before for snapshot in epoch.published]
        what = f"is older than {_name(newest)}" if start in published else "was never published"
        yield f"{where} begins with {start.id}, which {what}"
    open_ = {
        MessageId(state.channel, number)
        for state in start.state.channels
        for number in range(state.received_count + 1, state.sent_count + 1)
    }
    on_channel = f"which snapshot {start.id} has on its channel"
    for position, event in known.trace.positions():
        if open_ and event.handler != RESTORED and not open_.intersection(event.accepted):
            what = f"{position} ({event.label}) comes before {min(open_)}"
            yield f"{where}: {what}, {on_channel}"
        open_.difference_update(event.accepted)
    if open_:
        yield f"{where}: {min(open_)} never arrives, {on_channel}"


def _check_unchanged(known: Evidence) -> Iterator[str]:
    try:
        known.captured  # noqa: B018 - the actions are performed again
    except NotConsistent as error:
        yield f"{error}; {DETERMINISM}"


# --- choices and their effects


def _check_choices(known: Evidence) -> Iterator[str]:
    """Yield the choices that had another effect than they say, notices of publications aside."""
    epoch = known.epoch
    bounds = [*(taken.step_count for taken in epoch.taken), len(epoch.steps)]
    yield from _check_start(known, epoch.steps[: bounds[0]])
    arrived: dict[Channel, int] = {}
    for taken, (first, end) in zip(epoch.taken, pairwise(bounds), strict=True):
        fresh = list(_fresh(taken, arrived, known.world.network))
        if not taken.is_done:
            continue
        where, steps = f"'{taken.choice}' at {taken.at} s", epoch.steps[first:end]
        called, expected = _called(steps), _calls(taken, fresh)
        if called != expected:
            yield f"{where}: {_named(called)} happened, not {_named(expected)}"
        marked = [
            (step.process, step.source, step.snapshot)
            for step in steps
            if isinstance(step, MarkerStep) and step.source is not None
        ]
        if marked != [(c.target, c.source, f.marker) for c, f in fresh if f.batch is None]:
            yield f"{where}: {len(marked)} markers arrived, not {len(fresh)}"


def _fresh(
    taken: Taken, arrived: dict[Channel, int], network: Network
) -> Iterator[tuple[Channel, Frame]]:
    """Yield the frames that arrived for the first time, and remember them."""
    for channel, frame in taken.frames:
        if network is not Fifo or frame.sequence > arrived.get(channel, 0):
            arrived[channel] = frame.sequence
            yield channel, frame


def _calls(taken: Taken, fresh: Sequence[tuple[Channel, Frame]]) -> list[_Called]:
    if isinstance(taken.choice, choices.Act):
        return [(taken.choice.process, taken.choice.action, ())]
    messages = [
        [MessageId(channel, frame.batch.first + index) for index in range(frame.batch.count)]
        for channel, frame in fresh
        if frame.batch is not None
    ]
    if not messages:
        return []
    target = messages[0][0].channel.target
    if len(messages) > 1:
        return [(target, RECEIVE, tuple(message for [message] in messages))]
    return [(target, RECEIVE, (message,)) for message in messages[0]]


def _called(steps: Sequence[Step]) -> list[_Called]:
    return [
        (step.process, step.handler, step.accepted)
        for step in steps
        if isinstance(step, Event) and step.handler != PUBLISHED
    ]


def _check_start(known: Evidence, steps: Sequence[Step]) -> Iterator[str]:
    """Check that an epoch begins only with start(), or with the recorded states and messages."""
    runners = known.world.runners
    called = [(process, handler, ()) for process, handler, _ in _called(steps)]
    expected: list[_Called]
    if known.start is None:
        names = [p for p in runners if type(runners[p].process).start is not Process.start]
        expected = [(process, START, ()) for process in names]
    else:
        expected = [(process, RESTORED, ()) for process in runners]
        for state in known.start.channels:
            expected += [(state.channel.target, RECEIVE, ())] * state.message_count
    if called != expected:
        yield f"epoch {known.epoch.number} begins with {_named(called)}, not {_named(expected)}"


def _named(called: Sequence[_Called]) -> str:
    return ", ".join(f"{handler} of {process}" for process, handler, _ in called) or "no action"


# --- notices


def _check_notices(known: Evidence) -> Iterator[str]:
    """Yield the processes that recorded an abandoned snapshot after the notice of its end."""
    epoch = known.epoch
    heard: dict[tuple[SnapshotId, ProcessId], int] = {}
    for taken in epoch.taken:
        choice = taken.choice
        if isinstance(choice, choices.DeliverNotice) and isinstance(
            epoch.outcomes[choice.snapshot], Abandoned
        ):
            heard.setdefault((choice.snapshot, choice.process), taken.step_count)
    if not heard:
        return
    awaited: dict[tuple[SnapshotId, ProcessId], set[ProcessId | None]] = {
        key: {*known.description.incoming(key[1])} for key in heard
    }
    for count, step in enumerate(epoch.steps):
        if not isinstance(step, MarkerStep):
            continue
        key = (step.snapshot, step.process)
        if key not in heard:
            continue
        if count < heard[key]:
            awaited[key] -= {step.source}
        elif step.is_cut:
            yield f"process {step.process} recorded {step.snapshot} then"
    for (snapshot, process), sources in awaited.items():
        if sources and process in epoch.fragments.get(snapshot, {}):
            lacked = ", ".join(sorted(map(str, sources)))
            yield (
                f"process {process} submitted its fragment of {snapshot}, which lacked the "
                f"markers of {lacked} when it was notified"
            )


def _check_publications(known: Evidence) -> Iterator[str]:
    """Yield the notices of a snapshot that is no restore point yet, those given twice, and those
    out of order."""
    order = {str(point.id): index for index, point in enumerate(known.points)}
    last: dict[ProcessId, int] = {}
    for count, process, name in _notices(known.epoch):
        where = f"process {process} was notified of snapshot {name}"
        index = order.get(name, -1)
        if index < 0 or known.epoch.ended_at[known.points[index].id] > count:
            yield f"{where}, which was no restore point then"
        elif index <= last.get(process, -1):
            yield f"{where} again, or after a later one"
        last[process] = index


def _check_commits(known: Evidence) -> Iterator[str]:
    """Yield the entries that were committed, and that a death at that moment would have undone."""
    states = {
        (point.id, state.process): msgspec.msgpack.decode(state.encoded)
        for point in known.points
        for state in point.state.processes
    }
    for snapshot, due in known.epoch.committed:
        process, _, name = due.outbox.rpartition(".")
        recorded = {entry["key"] for entry in states[snapshot, process][name]["entries"]}
        for entry in due.entries:
            if entry.key not in recorded:
                yield f"{due.outbox} committed {entry.item} when {snapshot} was published"


def _check_causes(known: Evidence) -> Iterator[str]:
    """Yield the snapshots that contain a notice of another one, and a process before its cut of
    that one: the effect without its cause."""
    ids = {str(point.id): point.id for point in known.points}
    lines = {
        process: [
            (count, ids[_published_name(event)])
            for count, event in enumerate(events, 1)
            if event.handler == PUBLISHED
        ]
        for process, events in known.trace.lines.items()
    }
    for snapshot in known.epoch.published:
        cut = known.cut_of(snapshot.id)
        for process, reached in zip(lines, cut, strict=True):
            notices = [point for count, point in lines[process] if count <= reached]
            for point in notices[-1:]:
                behind = known.cut_of(point)
                late = [p for p, ours, its in zip(lines, cut, behind, strict=True) if ours < its]
                if late:
                    yield (
                        f"snapshot {snapshot.id} shows {process} notified of {point}, and "
                        f"{', '.join(late)} before what {point} shows"
                    )


def _missing_notices(world: World, points: Sequence[Snapshot]) -> Violation | None:
    expected = [str(point.id) for point in points]
    notices = list(_notices(world.epoch))
    for name, runner in world.runners.items():
        found = [snapshot for _, process, snapshot in notices if process == name]
        if name not in world.down and found != (expected if runner.is_notified else []):
            return Violation(
                Invariant.TOLD,
                f"process {name} was notified of {', '.join(found) or 'nothing'}; the restore "
                "points "
                f"are {', '.join(expected) or 'none'}",
            )
    return None


def _notices(epoch: Epoch) -> Iterator[tuple[int, ProcessId, str]]:
    """Yield each notice of a publication: the number of steps before it, its process, and its
    snapshot."""
    for count, step in enumerate(epoch.steps):
        if isinstance(step, Event) and step.handler == PUBLISHED:
            yield count, step.process, _published_name(step)


def _published_name(event: Event) -> str:
    return str((event.fields or {}).get("snapshot"))


def _check_proof(known: Evidence) -> Iterator[str]:
    """Put every white action before every red one (EWD 864a), for the last snapshot."""
    topology, contents = known.world.topology, known.epoch.contents
    for snapshot in known.epoch.published[-1:]:
        try:
            prove(known.trace, snapshot, topology, known.start, contents=contents)
        except NotConsistent as error:
            yield f"snapshot {snapshot.id}: {error}"


HISTORY_CHECKS: _Checks = (
    (Invariant.ONCE, _check_trace),
    (Invariant.ONCE, _check_order),
    (Invariant.EPOCHS, _check_number),
    (Invariant.RESTORED, _check_restore),
    (Invariant.UNCHANGED, _check_unchanged),
)
CHOICE_CHECKS: _Checks = (
    (Invariant.TAKEN, _check_choices),
    (Invariant.TOLD, _check_publications),
    (Invariant.SAFE, _check_commits),
    (Invariant.CAUSED, _check_causes),
    (Invariant.HEARD, _check_notices),
    (Invariant.CONSISTENT, _check_proof),
)
"""The checks of an epoch, before and after those of its snapshots; the most informative first."""


# --- one snapshot


def _snapshot_violations(known: Evidence, snapshot: SnapshotId) -> Iterator[Violation]:
    """Yield how `snapshot`, which may be pending, contradicts the trace, or had no reason to be
    abandoned."""
    outcome = known.epoch.outcomes.get(snapshot)
    yield from _check_markers(known, snapshot, is_complete=isinstance(outcome, Snapshot))
    if isinstance(outcome, Snapshot):
        yield from _check_snapshot(known, outcome)
        yield from _check_times(known, outcome)
    elif outcome is not None:
        yield from _check_reason(known, outcome)
        yield from _check_abandoned(known, outcome)


def _check_markers(
    known: Evidence, snapshot: SnapshotId, *, is_complete: bool
) -> Iterator[Violation]:
    steps = list(known.marker_steps(snapshot))
    sent = Counter(Channel(step.process, target) for step in steps for target in step.targets)
    arrived = Counter(Channel(s.source, s.process) for s in steps if s.source is not None)
    cuts = Counter(step.process for step in steps if step.is_cut)
    for step in steps:
        expected = known.description.outgoing(step.process) if step.is_cut else ()
        if step.targets != expected:
            yield Violation(
                Invariant.ATOMIC,
                f"snapshot {snapshot}: process {step.process} "
                f"{'recorded its state' if step.is_cut else 'had recorded its state before'} "
                f"and sent markers to {step.targets}, not to {expected}",
            )
    least = 1 if is_complete else 0
    for channel in known.description.channels:
        for what, number in (("was sent", sent[channel]), ("arrived", arrived[channel])):
            if not least <= number <= 1:
                times = f"snapshot {snapshot}: a marker {what} {number} times on {channel}"
                yield Violation(Invariant.MARKERS, times)
    for process in known.description.processes:
        if not least <= cuts[process] <= 1:
            what = f"snapshot {snapshot}: process {process} recorded {cuts[process]} states"
            yield Violation(Invariant.ATOMIC, what)


def _check_snapshot(known: Evidence, snapshot: Snapshot) -> Iterator[Violation]:
    where, state = f"snapshot {snapshot.id}", snapshot.state
    found = tuple(process.process for process in state.processes)
    channels = tuple(channel.channel for channel in state.channels)
    if found != tuple(known.description.processes) or channels != known.description.channels:
        yield Violation(Invariant.WHOLE, f"{where} has {found} and {channels}")
    try:
        state.check_books()
    except NotConsistent as error:
        yield Violation(Invariant.BOOKS, f"{where}: {error}")
        return
    cut = known.cut_of(snapshot.id)
    for message in known.trace.orphans(cut):
        yield Violation(Invariant.CONSISTENT, f"{where}: {message}")
    for recorded in state.processes:
        actual = known.captured[snapshot.id, recorded.process]
        if recorded != actual:
            yield Violation(
                Invariant.EXACT,
                f"{where}: process {recorded.process} was {_shown(actual.encoded)} at its "
                f"cut, but {_shown(recorded.encoded)} was recorded",
            )
    counts = _counts(known, cut)
    yield from _check_channels(known, snapshot, counts)
    if known.world.network is Fifo:
        yield from _check_marker_places(known, snapshot, counts)


def _counts(known: Evidence, cut: Cut) -> _Counts:
    sent, received = Counter(known.first_numbers), Counter(known.first_numbers)
    for process, count in zip(known.trace.processes, cut, strict=True):
        for event in known.trace.lines[process][:count]:
            sent.update(message.channel for message in event.sent)
            received.update(message.channel for message in event.accepted)
    return {channel: (sent[channel], received[channel]) for channel in known.first_numbers}


def _check_channels(known: Evidence, snapshot: Snapshot, counts: _Counts) -> Iterator[Violation]:
    in_transit = known.trace.in_transit(known.cut_of(snapshot.id))
    for state in snapshot.state.channels:
        where = f"snapshot {snapshot.id}:"
        actual = [known.epoch.contents[message] for message in in_transit[state.channel]]
        found = [message for batch in state.batches for message in batch.messages()]
        if found != actual:
            yield Violation(
                Invariant.EXACT,
                f"{where} on {state.channel} were {[_shown(m) for m in actual]}, but "
                f"{[_shown(m) for m in found]} were recorded",
            )
        recorded, real = (state.sent_count, state.received_count), counts[state.channel]
        if recorded != real:
            yield Violation(
                Invariant.BOOKS,
                f"{where} {real} messages were sent and received on {state.channel} at the cuts, "
                f"not {recorded}",
            )


def _check_marker_places(
    known: Evidence, snapshot: Snapshot, counts: _Counts
) -> Iterator[Violation]:
    """Where order is kept, all messages sent before a marker have arrived when it does."""
    arrived: Counter[Channel] = Counter(known.first_numbers)
    for step in known.epoch.steps:
        if isinstance(step, Event):
            arrived.update(message.channel for message in step.accepted)
        elif step.snapshot == snapshot.id and step.source is not None:
            channel = Channel(step.source, step.process)
            sent_count, _ = counts[channel]
            if arrived[channel] != sent_count:
                place = f"message {arrived[channel]} of {channel}, not {sent_count}"
                what = f"snapshot {snapshot.id}: its marker arrived after {place}"
                yield Violation(Invariant.MARKERS, what)


def _check_times(known: Evidence, snapshot: Snapshot) -> Iterator[Violation]:
    epoch = known.epoch
    said = (snapshot.epoch, snapshot.initiated_at, snapshot.completed_at)
    was = (epoch.number, epoch.began_s[snapshot.id], epoch.ended_s[snapshot.id])
    if said != was:
        yield Violation(
            Invariant.TIMES,
            f"snapshot {snapshot.id} records epoch {said[0]}, from {said[1]} s to {said[2]} s; "
            f"it was taken in epoch {was[0]}, from {was[1]} s to {was[2]} s",
        )


def _check_reason(known: Evidence, outcome: Abandoned) -> Iterator[Violation]:
    epoch, snapshot = known.epoch, outcome.snapshot
    taken = epoch.taken[epoch.ended_in[snapshot]]
    if not isinstance(taken.choice, ENDS_IN.get(outcome.reason, ())):
        yield Violation(Invariant.REASON, f"{outcome}; but it ended with '{taken.choice}'")
    deadline = epoch.began_s[snapshot] + known.world.timeout_s
    if outcome.reason is Reason.DEADLINE and taken.at < deadline:
        what = f"{outcome}; but it was {taken.at} s, and the deadline {deadline} s"
        yield Violation(Invariant.REASON, what)


def _check_abandoned(known: Evidence, outcome: Abandoned) -> Iterator[Violation]:
    """Exactly the processes without a complete fragment by then are named as missing."""
    if outcome.reason is Reason.NOT_CONSISTENT:
        if rules_fit(known.world):
            yield Violation(Invariant.BOOKS, str(outcome))
        return
    count = known.epoch.ended_at[outcome.snapshot]
    if outcome.reason is Reason.NOT_RECORDED and _can_record(known, known.epoch.steps[:count]):
        yield Violation(Invariant.WHOLE, f"{outcome}; but every process could")
    system = known.description
    awaited = {process: {None, *system.incoming(process)} for process in system.processes}
    for step in known.marker_steps(outcome.snapshot, count):
        awaited[step.process] -= {step.source, None} if step.is_cut else {step.source}
    missing = tuple(process for process, sources in awaited.items() if sources)
    if outcome.missing != missing and known.world.network is Fifo:
        what = f"{outcome}; but the fragments of {', '.join(missing)} were missing"
        yield Violation(Invariant.WHOLE, what)


def _can_record(known: Evidence, steps: Sequence[Step]) -> bool:
    replay = known.new_replay()
    for step in steps:
        if isinstance(step, Event):
            replay.perform(step)
    try:
        return all(replay.capture(process) for process in known.description.processes)
    except UsageError:
        return False


def _shown(encoded: bytes) -> str:
    return str(msgspec.msgpack.decode(encoded))
