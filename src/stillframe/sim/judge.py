"""Says whether a run kept the promises, from what happened, without asking any recorder.

The promises are the lines of "what must always hold". A snapshot is compared with the trace: which
messages were sent and accepted before each process's cut follows from the order of its steps alone,
what they contained from the process that sent them, and what its state was from a second run of its
actions without any snapshot.
"""

import enum
from collections import Counter
from collections.abc import Iterator

import msgspec

from stillframe.errors import NotConsistent, UsageError
from stillframe.model import (
    Abandoned,
    Channel,
    ChannelState,
    ProcessId,
    ProcessState,
    Reason,
    Snapshot,
    SnapshotId,
)
from stillframe.protocol.colour import ColourRecorder
from stillframe.protocol.equivalent import prove
from stillframe.protocol.replay import RESTORED, Replay
from stillframe.sim.epoch import Epoch
from stillframe.sim.network import Fifo, Network, Reordering
from stillframe.sim.world import World
from stillframe.topology import Description
from stillframe.trace import Cut, Event, MarkerStep, MessageId, Step

DETERMINISM = (
    "a handler may depend on its process's recorded fields and on messages alone: let it draw "
    "chance from a recorded field, and take the time from a message"
)


class Promise(enum.Enum):
    """What must always hold; the value is the sentence for people."""

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
    LIVE = "when nothing goes wrong any more, a snapshot is published"


class Violation(msgspec.Struct, frozen=True):
    """A promise that was not kept, and how that shows."""

    promise: Promise
    detail: str

    def __str__(self) -> str:
        return f"not kept: {self.promise.value}\n  {self.detail}"


def judge(world: World) -> Violation | None:
    """Return the first promise that the run so far did not keep; None if it kept all.

    A promise about snapshots is judged for those that have ended. That the rules refused to go on
    comes last: what made them do so says more.
    """
    for index in range(len(world.epochs)):
        violation = next(_Bench(world, index).violations(), None)
        if violation is not None:
            return violation
    if world.refusal and rules_fit(world):
        return Violation(Promise.ORDERED_WORLD, world.refusal)
    return None


def rules_fit(world: World) -> bool:
    """Return whether the recording rules are made for such channels: then they must succeed."""
    if world.network is Reordering:
        return all(isinstance(r, ColourRecorder) for r in world.recorders.values())
    return world.network is Fifo


class _Bench:
    """One epoch before the judge."""

    def __init__(self, world: World, index: int) -> None:
        self._world = world
        self._before = world.epochs[:index]
        self._epoch = world.epochs[index]
        self._description: Description = world.description
        self._network: Network = world.network

    def violations(self) -> Iterator[Violation]:
        epoch = self._epoch
        try:
            self._trace = epoch.trace(self._description)
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
        for snapshot in epoch.initiated:
            outcome = epoch.outcomes.get(snapshot)
            yield from self._check_markers(snapshot, is_complete=isinstance(outcome, Snapshot))
            if isinstance(outcome, Snapshot):
                yield from self._check_snapshot(outcome, captured)
            elif outcome is not None:
                yield from self._check_abandoned(outcome)
        yield from self._check_proof()

    def _check_order(self) -> Iterator[Violation]:
        if self._network is not Fifo:
            return
        following: dict[Channel, int] = {}
        for _, event in self._trace.positions():
            for message in event.sent:
                following.setdefault(message.channel, message.number)
            for message in event.accepted:
                expected = following[message.channel]
                if message.number != expected:
                    yield Violation(Promise.ONCE, f"{message} was accepted, not #{expected}")
                following[message.channel] = expected + 1

    def _check_epoch(self) -> Iterator[Violation]:
        epoch, world = self._epoch, self._world
        if not self._before:
            return
        before = self._before[-1]
        if epoch.number <= before.number:
            yield Violation(Promise.EPOCHS, f"epoch {epoch.number} came after {before.number}")
        if epoch.refused_count != len(world.channels):
            yield Violation(
                Promise.EPOCHS,
                f"epoch {epoch.number} refused {epoch.refused_count} of {len(world.channels)} "
                f"connections of epoch {before.number}",
            )

    def _check_restore(self) -> Iterator[Violation]:
        start, where = self._epoch.start, f"epoch {self._epoch.number}"
        published = [
            s for e in self._before for s in e.outcomes.values() if isinstance(s, Snapshot)
        ]
        if start is None:
            if published:
                yield Violation(
                    Promise.RESTORED,
                    f"{where} begins afresh, but {published[-1].id} was published",
                )
            return
        for later in published[published.index(start) + 1 :] if start in published else [None]:
            if later is None or later.initiated_at >= start.completed_at:
                newer = "was never published" if later is None else f"is older than {later.id}"
                yield Violation(Promise.RESTORED, f"{where} begins with {start.id}, which {newer}")
        open_ = {
            MessageId(state.channel, number)
            for state in start.state.channels
            for number in range(state.received_count + 1, state.sent_count + 1)
        }
        for position, event in self._trace.positions():
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
        replay, captured = self._new_replay(), {}
        for step in self._epoch.steps:
            if isinstance(step, Event):
                replay.perform(step)
            elif step.is_cut:
                captured[step.snapshot, step.process] = replay.capture(step.process)
        if self._epoch is self._world.epoch:
            for name, performer in self._world.performers.items():
                if performer.capture() != replay.capture(name):
                    raise NotConsistent(f"process {name} ends in another state without snapshots")
        return captured

    def _new_replay(self) -> Replay:
        start = self._epoch.start
        return Replay(
            self._world.topology,
            start.state if start is not None else None,
            contents=self._epoch.contents,
        )

    # --- one snapshot

    def _check_markers(self, snapshot: SnapshotId, *, is_complete: bool) -> Iterator[Violation]:
        sent: Counter[Channel] = Counter()
        arrived: Counter[Channel] = Counter()
        cuts: Counter[ProcessId] = Counter()
        for step in self._epoch.steps:
            if not isinstance(step, MarkerStep) or step.snapshot != snapshot:
                continue
            sent.update(Channel(step.process, target) for target in step.targets)
            cuts[step.process] += step.is_cut
            if step.source is not None:
                arrived[Channel(step.source, step.process)] += 1
            expected = self._description.outgoing(step.process) if step.is_cut else ()
            if step.targets != expected:
                yield Violation(
                    Promise.ATOMIC,
                    f"snapshot {snapshot}: process {step.process} "
                    f"{'recorded its state' if step.is_cut else 'had recorded its state before'} "
                    f"and sent markers to {step.targets}, not to {expected}",
                )
        least = 1 if is_complete else 0
        for channel in self._description.channels:
            for what, number in (("was sent", sent[channel]), ("arrived", arrived[channel])):
                if not least <= number <= 1:
                    yield Violation(
                        Promise.MARKERS,
                        f"snapshot {snapshot}: a marker {what} {number} times on {channel}",
                    )
        for process in self._description.processes:
            if not least <= cuts[process] <= 1:
                yield Violation(
                    Promise.ATOMIC,
                    f"snapshot {snapshot}: process {process} recorded {cuts[process]} states",
                )

    def _check_snapshot(
        self, snapshot: Snapshot, captured: dict[tuple[SnapshotId, ProcessId], ProcessState]
    ) -> Iterator[Violation]:
        where, state = f"snapshot {snapshot.id}", snapshot.state
        found = tuple(process.process for process in state.processes)
        channels = tuple(channel.channel for channel in state.channels)
        if found != tuple(self._description.processes) or channels != self._description.channels:
            yield Violation(Promise.WHOLE, f"{where} has {found} and {channels}")
        try:
            state.check_books()
        except NotConsistent as error:
            yield Violation(Promise.BOOKS, f"{where}: {error}")
            return
        cut = self._trace.cut_of(snapshot.id)
        for message in self._trace.orphans(cut):
            yield Violation(Promise.CONSISTENT, f"{where}: {message}")
        for recorded in state.processes:
            actual = captured[snapshot.id, recorded.process]
            if recorded != actual:
                yield Violation(
                    Promise.EXACT,
                    f"{where}: process {recorded.process} was {_shown(actual.encoded)} at its "
                    f"cut, but {_shown(recorded.encoded)} was recorded",
                )
        in_transit = self._trace.in_transit(cut)
        counts = self._counts(cut)
        for channel_state in state.channels:
            yield from self._check_channel(
                where, channel_state, in_transit[channel_state.channel], counts
            )
        if self._network is Fifo:
            yield from self._check_marker_places(snapshot, counts)

    def _counts(self, cut: Cut) -> dict[Channel, tuple[int, int]]:
        """Return for each channel how many messages were sent and received before `cut`."""
        first = _first_numbers(self._epoch, self._description)
        sent: Counter[Channel] = Counter(first)
        received: Counter[Channel] = Counter(first)
        for process, count in zip(self._trace.processes, cut, strict=True):
            for event in self._trace.lines[process][:count]:
                sent.update(message.channel for message in event.sent)
                received.update(message.channel for message in event.accepted)
        return {channel: (sent[channel], received[channel]) for channel in first}

    def _check_channel(
        self,
        where: str,
        recorded: ChannelState,
        in_transit: tuple[MessageId, ...],
        counts: dict[Channel, tuple[int, int]],
    ) -> Iterator[Violation]:
        actual = [self._epoch.contents[message] for message in in_transit]
        found = [message for batch in recorded.batches for message in batch.messages()]
        if found != actual:
            yield Violation(
                Promise.EXACT,
                f"{where}: on {recorded.channel} were {[_shown(m) for m in actual]}, but "
                f"{[_shown(m) for m in found]} were recorded",
            )
        if (recorded.sent_count, recorded.received_count) != counts[recorded.channel]:
            yield Violation(
                Promise.BOOKS,
                f"{where}: {counts[recorded.channel]} messages were sent and received on "
                f"{recorded.channel} at the cuts, not "
                f"{(recorded.sent_count, recorded.received_count)}",
            )

    def _check_marker_places(
        self, snapshot: Snapshot, counts: dict[Channel, tuple[int, int]]
    ) -> Iterator[Violation]:
        """Where order is kept, everything sent before a marker has arrived when the marker does."""
        arrived: Counter[Channel] = Counter()
        first = _first_numbers(self._epoch, self._description)
        for step in self._epoch.steps:
            if isinstance(step, Event):
                arrived.update(message.channel for message in step.accepted)
            elif step.snapshot == snapshot.id and step.source is not None:
                channel = Channel(step.source, step.process)
                sent_count, _ = counts[channel]
                if first[channel] + arrived[channel] != sent_count:
                    yield Violation(
                        Promise.MARKERS,
                        f"snapshot {snapshot.id}: its marker came behind message "
                        f"{first[channel] + arrived[channel]} of {channel}, not {sent_count}",
                    )

    def _check_abandoned(self, outcome: Abandoned) -> Iterator[Violation]:
        """Who is named as missing is who had not recorded all of its part by then."""
        if outcome.reason is Reason.NOT_CONSISTENT:
            if rules_fit(self._world):
                yield Violation(Promise.BOOKS, str(outcome))
            return
        steps = self._epoch.steps[: self._epoch.ended_at[outcome.snapshot]]
        if outcome.reason is Reason.NOT_RECORDED and self._can_record(steps):
            yield Violation(Promise.WHOLE, f"{outcome}; but every process could")
        awaited = {
            process: {None, *self._description.incoming(process)}
            for process in self._description.processes
        }
        for step in steps:
            if isinstance(step, MarkerStep) and step.snapshot == outcome.snapshot:
                awaited[step.process].discard(step.source)
                if step.is_cut:
                    awaited[step.process].discard(None)
        missing = tuple(process for process, sources in awaited.items() if sources)
        if outcome.missing != missing and self._network is Fifo:
            yield Violation(
                Promise.WHOLE, f"{outcome}; but the parts of {', '.join(missing)} were missing"
            )

    def _can_record(self, steps: list[Step]) -> bool:
        """Return whether the state of every process can be recorded after `steps`."""
        replay = self._new_replay()
        for step in steps:
            if isinstance(step, Event):
                replay.perform(step)
        try:
            return all(replay.capture(process) for process in self._description.processes)
        except UsageError:
            return False

    def _check_proof(self) -> Iterator[Violation]:
        """Put every white action before every red one (EWD 864a), for the last snapshot."""
        start = self._epoch.start
        published = [o for o in self._epoch.outcomes.values() if isinstance(o, Snapshot)]
        for snapshot in published[-1:]:
            try:
                prove(
                    self._trace,
                    snapshot,
                    self._world.topology,
                    start.state if start is not None else None,
                    contents=self._epoch.contents,
                )
            except NotConsistent as error:
                yield Violation(Promise.CONSISTENT, f"snapshot {snapshot.id}: {error}")


def _first_numbers(epoch: Epoch, description: Description) -> dict[Channel, int]:
    """Return for each channel how many messages were received on it before the epoch began."""
    if epoch.start is None:
        return dict.fromkeys(description.channels, 0)
    return {state.channel: state.received_count for state in epoch.start.state.channels}


def _shown(encoded: bytes) -> str:
    return str(msgspec.msgpack.decode(encoded))
