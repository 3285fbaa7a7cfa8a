"""Checks one snapshot against the trace, or that an abandoned one had to be abandoned."""

from collections import Counter
from collections.abc import Iterator, Mapping

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
from stillframe.sim import choices
from stillframe.sim.invariants import Evidence, Invariant, Violation, rules_fit
from stillframe.sim.network import Fifo
from stillframe.trace import Cut, Event, MarkerStep, MessageId, Step

ENDS_IN: Mapping[Reason, tuple[type, ...]] = {
    Reason.DEADLINE: (choices.Expire,),
    Reason.PROCESS_DIED: (choices.Crash,),
    Reason.STOPPED: (choices.Restart,),
    Reason.NOT_RECORDED: (choices.Initiate, choices.Deliver),
    Reason.NOT_CONSISTENT: (choices.Initiate, choices.Deliver),
}
"""The choices in which a snapshot can be abandoned for a reason; a world's store never fails."""


class SnapshotChecker:
    """Checks the snapshots of one epoch; `captured` is the state of each process at each cut, from
    a second run without snapshots."""

    def __init__(
        self, known: Evidence, captured: Mapping[tuple[SnapshotId, ProcessId], ProcessState]
    ) -> None:
        self._known = known
        self._world, self._epoch, self._trace = known.world, known.epoch, known.trace
        self._description = known.description
        self._captured = captured

    def violations(self, snapshot: SnapshotId) -> Iterator[Violation]:
        """Yield the violations of `snapshot`, which may be pending."""
        outcome = self._epoch.outcomes.get(snapshot)
        yield from self._check_markers(snapshot, is_complete=isinstance(outcome, Snapshot))
        if isinstance(outcome, Snapshot):
            yield from self._check_snapshot(outcome)
            yield from self._check_times(outcome)
        elif outcome is not None:
            yield from self._check_reason(outcome)
            yield from self._check_abandoned(outcome)

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
                    Invariant.ATOMIC,
                    f"snapshot {snapshot}: process {step.process} "
                    f"{'recorded its state' if step.is_cut else 'had recorded its state before'} "
                    f"and sent markers to {step.targets}, not to {expected}",
                )
        least = 1 if is_complete else 0
        for channel in self._description.channels:
            for what, number in (("was sent", sent[channel]), ("arrived", arrived[channel])):
                if not least <= number <= 1:
                    yield Violation(
                        Invariant.MARKERS,
                        f"snapshot {snapshot}: a marker {what} {number} times on {channel}",
                    )
        for process in self._description.processes:
            if not least <= cuts[process] <= 1:
                yield Violation(
                    Invariant.ATOMIC,
                    f"snapshot {snapshot}: process {process} recorded {cuts[process]} states",
                )

    def _check_snapshot(self, snapshot: Snapshot) -> Iterator[Violation]:
        where, state = f"snapshot {snapshot.id}", snapshot.state
        found = tuple(process.process for process in state.processes)
        channels = tuple(channel.channel for channel in state.channels)
        if found != tuple(self._description.processes) or channels != self._description.channels:
            yield Violation(Invariant.WHOLE, f"{where} has {found} and {channels}")
        try:
            state.check_books()
        except NotConsistent as error:
            yield Violation(Invariant.BOOKS, f"{where}: {error}")
            return
        cut = self._known.cut_of(snapshot.id)
        for message in self._trace.orphans(cut):
            yield Violation(Invariant.CONSISTENT, f"{where}: {message}")
        for recorded in state.processes:
            actual = self._captured[snapshot.id, recorded.process]
            if recorded != actual:
                yield Violation(
                    Invariant.EXACT,
                    f"{where}: process {recorded.process} was {_shown(actual.encoded)} at its "
                    f"cut, but {_shown(recorded.encoded)} was recorded",
                )
        in_transit = self._trace.in_transit(cut)
        counts = self._counts(cut)
        for channel_state in state.channels:
            yield from self._check_channel(
                where, channel_state, in_transit[channel_state.channel], counts
            )
        if self._world.network is Fifo:
            yield from self._check_marker_places(snapshot, counts)

    def _counts(self, cut: Cut) -> dict[Channel, tuple[int, int]]:
        """Return for each channel how many messages were sent and received before `cut`."""
        first = self._known.first_numbers
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
                Invariant.EXACT,
                f"{where}: on {recorded.channel} were {[_shown(m) for m in actual]}, but "
                f"{[_shown(m) for m in found]} were recorded",
            )
        if (recorded.sent_count, recorded.received_count) != counts[recorded.channel]:
            yield Violation(
                Invariant.BOOKS,
                f"{where}: {counts[recorded.channel]} messages were sent and received on "
                f"{recorded.channel} at the cuts, not "
                f"{(recorded.sent_count, recorded.received_count)}",
            )

    def _check_marker_places(
        self, snapshot: Snapshot, counts: dict[Channel, tuple[int, int]]
    ) -> Iterator[Violation]:
        """Where order is kept, all messages sent before a marker have arrived when it does."""
        arrived: Counter[Channel] = Counter()
        first = self._known.first_numbers
        for step in self._epoch.steps:
            if isinstance(step, Event):
                arrived.update(message.channel for message in step.accepted)
            elif step.snapshot == snapshot.id and step.source is not None:
                channel = Channel(step.source, step.process)
                sent_count, _ = counts[channel]
                if first[channel] + arrived[channel] != sent_count:
                    yield Violation(
                        Invariant.MARKERS,
                        f"snapshot {snapshot.id}: its marker came behind message "
                        f"{first[channel] + arrived[channel]} of {channel}, not {sent_count}",
                    )

    def _check_times(self, snapshot: Snapshot) -> Iterator[Violation]:
        epoch = self._epoch
        said = (snapshot.epoch, snapshot.initiated_at, snapshot.completed_at)
        was = (epoch.number, epoch.began_s[snapshot.id], epoch.ended_s[snapshot.id])
        if said != was:
            yield Violation(
                Invariant.TIMES,
                f"snapshot {snapshot.id} says that it is of epoch {said[0]}, from {said[1]} s to "
                f"{said[2]} s; it is of epoch {was[0]}, from {was[1]} s to {was[2]} s",
            )

    def _check_reason(self, outcome: Abandoned) -> Iterator[Violation]:
        epoch, snapshot = self._epoch, outcome.snapshot
        taken = epoch.taken[epoch.ended_in[snapshot]]
        if not isinstance(taken.choice, ENDS_IN.get(outcome.reason, ())):
            yield Violation(Invariant.REASON, f"{outcome}; but it ended with '{taken.choice}'")
        deadline = epoch.began_s[snapshot] + self._world.timeout_s
        if outcome.reason is Reason.DEADLINE and taken.at < deadline:
            yield Violation(
                Invariant.REASON,
                f"{outcome}; but it was {taken.at} s, and the deadline {deadline} s",
            )

    def _check_abandoned(self, outcome: Abandoned) -> Iterator[Violation]:
        """Exactly the processes without a complete fragment by then are named as missing."""
        if outcome.reason is Reason.NOT_CONSISTENT:
            if rules_fit(self._world):
                yield Violation(Invariant.BOOKS, str(outcome))
            return
        steps = self._epoch.steps[: self._epoch.ended_at[outcome.snapshot]]
        if outcome.reason is Reason.NOT_RECORDED and self._can_record(steps):
            yield Violation(Invariant.WHOLE, f"{outcome}; but every process could")
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
        if outcome.missing != missing and self._world.network is Fifo:
            yield Violation(
                Invariant.WHOLE, f"{outcome}; but the parts of {', '.join(missing)} were missing"
            )

    def _can_record(self, steps: list[Step]) -> bool:
        """Return whether the state of every process can be recorded after `steps`."""
        replay = self._known.new_replay()
        for step in steps:
            if isinstance(step, Event):
                replay.perform(step)
        try:
            return all(replay.capture(process) for process in self._description.processes)
        except UsageError:
            return False


def _shown(encoded: bytes) -> str:
    return str(msgspec.msgpack.decode(encoded))
