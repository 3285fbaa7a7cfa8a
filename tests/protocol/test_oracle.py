"""The recorder against the dumb oracle: everything that it says of every snapshot, at scale."""

from collections import Counter
from collections.abc import Iterable
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillframe.model import Batch, ProcessId, Snapshot, SnapshotId
from stillframe.protocol.recorder import Effect, Phase, Recorder
from tests.nightly import Figure, by_night
from tests.protocol import execution, oracle
from tests.protocol.execution import (
    PROCESS_COUNT_MAX,
    Execution,
    What,
    accounts,
    messages_in,
    random_execution,
    scheduled,
)

EXECUTION_COUNT = by_night(10_000, check=200)

executions = given(
    process_count=st.integers(2, PROCESS_COUNT_MAX),
    graph=st.integers(0, 2**20 - 1),
    is_ring=st.booleans(),
    schedule=st.binary(min_size=50, max_size=130),
    is_drained=st.sampled_from([True, True, True, False]),
)
"""Of what fails hypothesis makes steps of the schedule 0, and takes channels out of the graph."""


def numbered(batches: Iterable[Batch]) -> oracle.Numbered:
    """Return messages with the numbers that they have in `batches`."""
    batches = list(batches)
    numbers = [n for batch in batches for n in range(batch.first, batch.last + 1)]
    return list(zip(numbers, messages_in(batches), strict=True))


def expected_phase(part: oracle.Part) -> Phase:
    """Return where a process is with a snapshot by what the log says of it."""
    if part.gave_up:
        return Phase.ABANDONED
    if part.is_whole:
        return Phase.RECORDED
    return Phase.IDLE if part.cut is None else Phase.RECORDING


def compare_part(
    system: Execution,
    snapshot: SnapshotId,
    process: ProcessId,
    part: oracle.Part,
    truth: oracle.Truth,
) -> None:
    """Compare what one process recorded: phase, markers, state, counts, every channel."""
    recorder = system.recorders[process]
    assert recorder.phase(snapshot) is expected_phase(part)
    targets = system.description.outgoing(process) if part.cut is not None else ()
    assert [target for _, target in part.markers_sent] == list(targets)
    if part.cut is not None:
        behind = range(part.cut + 1, part.cut + 1 + len(targets))
        assert [index for index, _ in part.markers_sent] == list(behind)
    fragment, progress = (system.fragments.get((snapshot, process)), recorder.progress(snapshot))
    assert (fragment is not None) == part.is_whole
    assert (progress is not None) == (expected_phase(part) is Phase.RECORDING)
    recorded = fragment or progress
    if recorded is None:
        return
    outgoing = {c: c.target for c in system.queues if c.source == process}
    incoming = {c: c.source for c in system.queues if c.target == process}
    assert msgspec.msgpack.decode(recorded.state.encoded) == truth.balances[process]
    assert recorded.sent_counts == {t: len(truth.sent[c]) for c, t in outgoing.items()}
    received_counts = {s: len(truth.received[c]) for c, s in incoming.items()}
    closed = {s: truth.on_channel(c) for c, s in incoming.items() if s in part.marked}
    if fragment is not None:
        assert {r.source: r.received_count for r in fragment.incoming} == received_counts
        assert {r.source: numbered(r.batches) for r in fragment.incoming} == closed
    if progress is not None:
        awaited = {s: truth.received_later[c] for c, s in incoming.items() if s not in part.marked}
        assert progress.received_counts == received_counts
        assert {s: numbered(batches) for s, batches in progress.closed.items()} == closed
        assert {s: numbered(batches) for s, batches in progress.awaited.items()} == awaited


def compare_whole(system: Execution, snapshot: Snapshot, truth: oracle.Truth) -> None:
    """Compare a complete snapshot: every state, every channel with its counts and messages."""
    snapshot.state.check_books()
    assert system.recorded_states(snapshot.id) == truth.balances
    assert [
        (s.channel, s.sent_count, s.received_count, numbered(s.batches))
        for s in snapshot.state.channels
    ] == [
        (c, len(truth.sent[c]), len(truth.received[c]), truth.on_channel(c)) for c in system.queues
    ]


def compare(system: Execution) -> Counter[str]:
    """Compare everything that the recorders say of every snapshot with the oracle.

    Returns:
        how often there was what.
    """
    seen = Counter({"executions": 1, "batches cut in pieces": system.split_count})
    description = system.description
    seen["not strongly connected"] = any(len(description.initiators(p)) > 1 for p in system.states)
    happened = oracle.actions(system.log)
    spans = []
    given_up = {event.snapshot for event in system.log if event.what is What.GAVE_UP}
    for snapshot, parts in oracle.parts(system).items():
        truth = oracle.Truth(system, parts)
        for process, part in parts.items():
            compare_part(system, snapshot, process, part, truth)
        is_complete = all(part.is_whole for part in parts.values())
        outcome = system.outcomes.get(snapshot)
        assert isinstance(outcome, Snapshot) == is_complete
        if isinstance(outcome, Snapshot):
            compare_whole(system, outcome, truth)
            seen["complete"] += 1
            seen["messages in transit"] += outcome.state.message_count
            seen["channels not empty"] += sum(bool(s.batches) for s in outcome.state.channels)
            seen["abandoned too late"] += snapshot in given_up
            seen["never occurred"] += truth.white != happened[: len(truth.white)]
        else:
            assert outcome is None
            seen["incomplete"] += 1
        seen["snapshots"] += 1
        seen["abandoned"] += any(part.gave_up for part in parts.values())
        seen["pending"] += any(expected_phase(p) is Phase.RECORDING for p in parts.values())
        spans.append([i for i, event in enumerate(system.log) if event.snapshot == snapshot])
        cuts = [system.log[p.cut] for p in parts.values() if p.cut is not None]
        seen["several initiators"] += sum(event.what is What.INITIATED for event in cuts) > 1
    seen["overlapping pairs"] = sum(
        one[0] < other[0] < one[-1] for one in spans for other in spans if one is not other
    )
    return seen


def compare_execution(system: Execution) -> Counter[str]:
    """Compare; a difference comes with what happened."""
    try:
        return compare(system)
    except AssertionError as error:
        error.add_note("\n".join(["what happened:", *map(str, system.log)]))
        raise


def compare_executions(execution_count: int) -> Counter[str]:
    """Let hypothesis choose executions and compare each; return how often there was what."""
    seen: Counter[str] = Counter()

    @settings(max_examples=execution_count)
    @executions
    def agree(
        process_count: int, graph: int, is_ring: bool, schedule: bytes, is_drained: bool
    ) -> None:
        bank = accounts(process_count, graph, is_ring=is_ring)
        seen.update(compare_execution(scheduled(bank, schedule, is_drained=is_drained)))

    agree()
    assert seen["executions"] >= execution_count
    assert all(times >= execution_count // 30 for times in seen.values()), seen
    return seen


@pytest.mark.slow
def test_the_recorder_agrees_with_the_oracle() -> None:
    """Any graph, any interleaving, overlapping and abandoned snapshots: which are complete, and
    every phase, marker, state, count and message. What is worth looking at is among them."""
    assert compare_executions(300)["messages in transit"] > 300


@pytest.mark.nightly(part="simulator", only=True)
@pytest.mark.slow
def test_the_recorder_agrees_with_the_oracle_at_scale(figure: Figure) -> None:
    """The same on 50,000 executions."""
    seen = compare_executions(50_000)
    for what, count in seen.items():
        figure(what, f"{count:,}")
    assert seen["messages in transit"] > 50_000


@pytest.mark.nightly(part="simulator")
def test_a_snapshot_is_complete_where_markers_reach_everybody() -> None:
    """C&L 3.3, on random graphs: when nothing is on its way any more, a snapshot that nobody gave
    up is complete exactly if there is a path from some initiator to every process."""
    seen = Counter({True: 0, False: 0})
    for seed in range(EXECUTION_COUNT):
        system = random_execution(Random(seed))
        for snapshot, parts in oracle.parts(system).items():
            if any(part.gave_up for part in parts.values()):
                continue
            begun = {
                event.process
                for event in system.log
                if (event.what, event.snapshot) == (What.INITIATED, snapshot)
            }
            reached = set().union(*map(system.description.reachable, begun))
            is_reached = reached == set(system.states)
            assert (snapshot in system.outcomes) == is_reached
            seen[is_reached] += 1
    assert min(seen.values()) > EXECUTION_COUNT // 4


class RecordsNothing(Recorder):
    """Wrong: no channel holds anything."""

    def receive(self, source: ProcessId, batch: Batch) -> None:
        """Forget what came."""
        super().receive(source, batch)
        for recording in self._recordings.values():
            recording.awaited.update({source: [] for source in recording.awaited})


class RecordsBehindTheMarker(Recorder):
    """Wrong: a channel goes on being recorded when its marker has come."""

    def receive(self, source: ProcessId, batch: Batch) -> None:
        """Add the batch to what is closed, too."""
        super().receive(source, batch)
        for recording in self._recordings.values():
            if source in recording.closed:
                recording.closed[source] += (batch,)


class RecordsOnlyTheNewest(Recorder):
    """Wrong: of overlapping snapshots it records the channels of one."""

    def receive(self, source: ProcessId, batch: Batch) -> None:
        """Give the batch to the newest only."""
        recordings = self._recordings
        self._recordings = dict(list(recordings.items())[-1:])
        super().receive(source, batch)
        self._recordings = recordings


class SkipsAMarker(Recorder):
    """Wrong: it sends no marker on its first channel."""

    def _cut(self, snapshot: SnapshotId) -> list[Effect]:
        return super()._cut(snapshot)[1:]


class GivesUpAll(Recorder):
    """Wrong: who gives one snapshot up gives up the others, too."""

    def abandon(self, snapshot: SnapshotId) -> None:
        """Give up everything."""
        for other in (snapshot, *self._recordings):
            super().abandon(other)


@pytest.mark.parametrize(
    "wrong",
    [RecordsNothing, RecordsBehindTheMarker, RecordsOnlyTheNewest, SkipsAMarker, GivesUpAll],
)
def test_the_oracle_finds_a_recorder_that_breaks_a_rule(
    wrong: type[Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever rule is broken, it shows within a few executions."""
    monkeypatch.setattr(execution, "Recorder", wrong)
    with pytest.raises(AssertionError):
        sum((compare(random_execution(Random(seed))) for seed in range(50)), Counter())
