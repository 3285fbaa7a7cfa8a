"""The invariants of a simulated run, the evidence on one epoch, and the checks of its snapshots."""

import enum
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property

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
from stillframe.protocol.lai_yang import LaiYangRecorder
from stillframe.protocol.replay import Replay
from stillframe.sim import choices
from stillframe.sim.network import Fifo, Reordering
from stillframe.sim.world import World
from stillframe.trace import Cut, Event, MarkerStep, Step, Trace

Counts = dict[Channel, tuple[int, int]]
"""How many messages were sent and received on each channel before a cut."""
ENDS_IN: Mapping[Reason, tuple[type, ...]] = {
    Reason.DEADLINE: (choices.Expire,),
    Reason.PROCESS_DIED: (choices.Crash,),
    Reason.STOPPED: (choices.Restart,),
    Reason.NOT_RECORDED: (choices.Initiate, choices.Deliver),
    Reason.NOT_CONSISTENT: (choices.Initiate, choices.Deliver),
}
"""The choices in which a snapshot can be abandoned for a reason; a world's store never fails."""


class Invariant(enum.Enum):
    """An invariant; the value is its sentence for people."""

    ONCE = "every message is accepted at most once, after it was sent, and in order"
    BOOKS = "the books of every channel balance"
    CONSISTENT = "no message that was accepted before the cut was sent after it"
    EXACT = "the recorded states and messages are exactly those at the cut"
    MARKERS = "one marker travels on each channel for each snapshot, behind what was sent before"
    ATOMIC = "recording a state and sending the markers is one step"
    WHOLE = "a snapshot is published whole, or abandoned with the names of the missing"
    UNCHANGED = "a snapshot changes nothing: without it the processes do the same"
    EPOCHS = "after a restore the epoch is higher, and nothing of an older one is accepted"
    RESTORED = (
        "a restore goes back to the last restore point, and what was on its channels is first"
    )
    ORDERED_WORLD = "the recording rules find nothing wrong with a channel that keeps order"
    TAKEN = "each thing that is let happen does what it says, once, and nothing else"
    ARRIVED = "in the end every message that was sent is accepted"
    POINTS = "the restore point is the last snapshot that was begun after the one before was whole"
    TIMES = "a snapshot says rightly when and in which epoch it was taken"
    REASON = "a snapshot is given up for a reason that is there, and not before its deadline"
    HEARD = "who has heard that a snapshot is over does not record it any more"
    TOLD = "every process is told of every restore point once, in their order, and of nothing else"
    CAUSED = "a snapshot that shows what was told of another one has that one's cut behind it"
    LIVE = "when nothing goes wrong any more, a snapshot is published"


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
    """One epoch of a world that is checked, the one at `index` (from 0) of its epochs.

    `points` are the restore points of every epoch.
    """

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
        """The trace of the epoch; NotConsistent if no execution is like that."""
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
        return Replay(
            self.world.topology, self.start, contents=self.epoch.contents, trace=self.trace
        )

    @cached_property
    def cut_of(self) -> Callable[[SnapshotId], Cut]:
        """The function that returns the cut of a snapshot."""
        return cache(self.trace.cut_of)


def snapshot_violations(known: Evidence, snapshot: SnapshotId) -> Iterator[Violation]:
    """Yield the violations of `snapshot`, which may be pending: against the trace, or of an
    abandoned one that did not have to be."""
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
    sent: Counter[Channel] = Counter()
    arrived: Counter[Channel] = Counter()
    cuts: Counter[ProcessId] = Counter()
    for step in known.epoch.steps:
        if not isinstance(step, MarkerStep) or step.snapshot != snapshot:
            continue
        sent.update(Channel(step.process, target) for target in step.targets)
        cuts[step.process] += step.is_cut
        if step.source is not None:
            arrived[Channel(step.source, step.process)] += 1
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
                yield Violation(
                    Invariant.MARKERS,
                    f"snapshot {snapshot}: a marker {what} {number} times on {channel}",
                )
    for process in known.description.processes:
        if not least <= cuts[process] <= 1:
            yield Violation(
                Invariant.ATOMIC,
                f"snapshot {snapshot}: process {process} recorded {cuts[process]} states",
            )


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
    yield from _check_channels(known, snapshot, cut, counts)
    if known.world.network is Fifo:
        yield from _check_marker_places(known, snapshot, counts)


def _counts(known: Evidence, cut: Cut) -> Counts:
    first = known.first_numbers
    sent: Counter[Channel] = Counter(first)
    received: Counter[Channel] = Counter(first)
    for process, count in zip(known.trace.processes, cut, strict=True):
        for event in known.trace.lines[process][:count]:
            sent.update(message.channel for message in event.sent)
            received.update(message.channel for message in event.accepted)
    return {channel: (sent[channel], received[channel]) for channel in first}


def _check_channels(
    known: Evidence, snapshot: Snapshot, cut: Cut, counts: Counts
) -> Iterator[Violation]:
    in_transit = known.trace.in_transit(cut)
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
    known: Evidence, snapshot: Snapshot, counts: Counts
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
                yield Violation(
                    Invariant.MARKERS,
                    f"snapshot {snapshot.id}: its marker came behind message "
                    f"{arrived[channel]} of {channel}, not {sent_count}",
                )


def _check_times(known: Evidence, snapshot: Snapshot) -> Iterator[Violation]:
    epoch = known.epoch
    said = (snapshot.epoch, snapshot.initiated_at, snapshot.completed_at)
    was = (epoch.number, epoch.began_s[snapshot.id], epoch.ended_s[snapshot.id])
    if said != was:
        yield Violation(
            Invariant.TIMES,
            f"snapshot {snapshot.id} says that it is of epoch {said[0]}, from {said[1]} s to "
            f"{said[2]} s; it is of epoch {was[0]}, from {was[1]} s to {was[2]} s",
        )


def _check_reason(known: Evidence, outcome: Abandoned) -> Iterator[Violation]:
    epoch, snapshot = known.epoch, outcome.snapshot
    taken = epoch.taken[epoch.ended_in[snapshot]]
    if not isinstance(taken.choice, ENDS_IN.get(outcome.reason, ())):
        yield Violation(Invariant.REASON, f"{outcome}; but it ended with '{taken.choice}'")
    deadline = epoch.began_s[snapshot] + known.world.timeout_s
    if outcome.reason is Reason.DEADLINE and taken.at < deadline:
        yield Violation(
            Invariant.REASON,
            f"{outcome}; but it was {taken.at} s, and the deadline {deadline} s",
        )


def _check_abandoned(known: Evidence, outcome: Abandoned) -> Iterator[Violation]:
    """Exactly the processes without a complete fragment by then are named as missing."""
    if outcome.reason is Reason.NOT_CONSISTENT:
        if rules_fit(known.world):
            yield Violation(Invariant.BOOKS, str(outcome))
        return
    steps = known.epoch.steps[: known.epoch.ended_at[outcome.snapshot]]
    if outcome.reason is Reason.NOT_RECORDED and _can_record(known, steps):
        yield Violation(Invariant.WHOLE, f"{outcome}; but every process could")
    awaited = {
        process: {None, *known.description.incoming(process)}
        for process in known.description.processes
    }
    for step in steps:
        if isinstance(step, MarkerStep) and step.snapshot == outcome.snapshot:
            awaited[step.process].discard(step.source)
            if step.is_cut:
                awaited[step.process].discard(None)
    missing = tuple(process for process, sources in awaited.items() if sources)
    if outcome.missing != missing and known.world.network is Fifo:
        yield Violation(
            Invariant.WHOLE, f"{outcome}; but the parts of {', '.join(missing)} were missing"
        )


def _can_record(known: Evidence, steps: Sequence[Step]) -> bool:
    """Return whether the state of every process can be recorded after `steps`."""
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
