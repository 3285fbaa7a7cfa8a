"""A snapshot may go on without a process that has no channels, and without no other."""

from collections.abc import Iterator

import msgspec
import pytest

from stillframe.errors import NotConsistent, ProtocolViolation
from stillframe.model import (
    Channel,
    ChannelState,
    Fragment,
    GlobalState,
    KeyedChange,
    KeyedRows,
    ProcessState,
    Reason,
    Snapshot,
    SnapshotId,
    encode_array,
)
from stillframe.protocol.assembler import Assembler
from stillframe.protocol.policy import LastRecorded, LastStates
from tests.protocol.execution import Execution, describe, messages_in, state_of

FIRST, SECOND = SnapshotId("P", 1), SnapshotId("P", 2)
LOOSE = [("P", "Q"), ("Q", "P")]
JOINED = [*LOOSE, ("Q", "R")]
STEPS = ("P sends", "Q sends", "R acts", "P->Q", "Q->P", "Q->R", "begin", "R records")
STEP_COUNT = 7
"""So many steps are enough for all that matters to happen in every order: see the counts."""


class System:
    """P and Q pay each other; R is alone, or is paid by Q. The first snapshot is complete.

    The second is taken step by step; R may be too late for it.
    """

    def __init__(self, channels: list[tuple[str, str]], steps: tuple[str, ...] = ()) -> None:
        self.execution = Execution(
            channels, {"P": 10, "Q": 10, "R": 0}, lambda state, amount: state + amount
        )
        self.r_states = [0]
        for process in "PR":
            self.execution.initiate(FIRST, process)
        self.execution.drain()
        self.first = self.execution.complete(FIRST)
        self.steps: tuple[str, ...] = ()
        for step in steps:
            self.take(step)

    def possible(self) -> Iterator[str]:
        """Yield what could happen next."""
        begun = SECOND in self.execution.snapshots
        busy = {str(channel) for channel in self.execution.busy()}
        for step in STEPS:
            if (
                (step.endswith("sends") and self.steps.count(step) < 2)
                or (step == "R acts" and self.steps.count(step) < 2)
                or step in busy
                or (step == "begin" and not begun)
                or (step == "R records" and begun and "R records" not in self.steps)
            ):
                yield step

    def take(self, step: str) -> None:
        """Let `step` happen."""
        execution = self.execution
        self.steps = (*self.steps, step)
        match step:
            case "P sends":
                self._pay("P", "Q")
            case "Q sends":
                self._pay("Q", "P")
                if Channel("Q", "R") in execution.queues:
                    self._pay("Q", "R")
            case "R acts":
                execution.states["R"] += 1000
            case "begin":
                execution.initiate(SECOND)
            case "R records":
                execution.initiate(SECOND, "R")
            case _:
                source, _, target = step.partition("->")
                execution.deliver(source, target)
        if execution.states["R"] != self.r_states[-1]:
            self.r_states.append(execution.states["R"])

    def _pay(self, source: str, target: str) -> None:
        self.execution.states[source] -= 1
        self.execution.send(source, target, 1)


def executions(channels: list[tuple[str, str]]) -> Iterator[System]:
    """Yield every system that up to ``STEP_COUNT`` steps lead to, each state of it once."""
    seen: set[object] = set()
    frontier: list[tuple[str, ...]] = [()]
    while frontier:
        system = System(channels, frontier.pop())
        execution = system.execution
        key = (
            tuple(sorted(execution.states.items())),
            tuple((c, tuple(map(str, queue))) for c, queue in sorted(execution.queues.items())),
            tuple(str(execution.recorders[p].progress(SECOND)) for p in "PQR"),
            tuple(str(execution.fragments.get((SECOND, p))) for p in "PQR"),
            tuple(sorted(system.steps)),
        )
        if key in seen:
            continue
        seen.add(key)
        yield system
        if len(system.steps) < STEP_COUNT:
            frontier.extend((*system.steps, step) for step in system.possible())


def test_every_snapshot_without_a_process_that_has_no_channels_is_consistent() -> None:
    """Wherever R is when the deadline comes: the books balance, money is conserved between P and Q,
    and R's state is one that it was in before it was left out."""
    count = late_count = 0
    for system in executions(LOOSE):
        execution = system.execution
        if execution.assembler.pending != (SECOND,):
            continue
        if execution.assembler.missing(SECOND) != ("R",):
            continue
        last = LastStates(execution.description)
        last.published(system.first)
        recorded = last.of("R")
        assert recorded is not None
        outcome = execution.assembler.exclude(SECOND, recorded, 0.9)
        assert isinstance(outcome, Snapshot)
        outcome.state.check_books()
        values = {s.process: msgspec.msgpack.decode(s.encoded) for s in outcome.state.processes}
        on_the_way = sum(sum(messages_in(c.batches)) for c in outcome.state.channels)
        assert values["P"] + values["Q"] + on_the_way == 20
        assert values["R"] in system.r_states
        assert outcome.excluded == {"R": FIRST}
        count += 1
        late_count += "R acts" in system.steps
    assert (count, late_count) == (83, 34)


def with_old_part(system: System, fragments: dict[str, Fragment]) -> GlobalState:
    """Return the second snapshot with R's part of the first: what must never be published."""
    parts = {**fragments, "R": system.execution.fragments[FIRST, "R"]}
    incoming = {
        Channel(record.source, process): record
        for process, part in parts.items()
        for record in part.incoming
    }
    return GlobalState(
        tuple(parts[process].state for process in "PQR"),
        tuple(
            ChannelState(
                channel,
                parts[channel.source].sent_counts[channel.target],
                incoming[channel].received_count,
                incoming[channel].batches,
            )
            for channel in system.execution.description.channels
        ),
    )


def is_consistent(state: GlobalState) -> bool:
    """Return whether the books balance."""
    try:
        state.check_books()
    except NotConsistent:
        return False
    return True


@pytest.mark.slow
def test_a_process_with_channels_would_be_left_out_at_the_price_of_a_lie() -> None:
    """With R's older state the snapshot loses what Q paid to R in between; so it is refused."""
    whole = broken = 0
    for system in executions(JOINED):
        execution = system.execution
        found = {p: execution.fragments.get((SECOND, p)) for p in "PQ"}
        fragments = {p: fragment for p, fragment in found.items() if fragment is not None}
        if execution.assembler.pending != (SECOND,) or len(fragments) < 2:
            continue
        is_whole = is_consistent(with_old_part(system, fragments))
        whole, broken = whole + is_whole, broken + (not is_whole)
        last = LastStates(execution.description)
        last.published(system.first)
        assert last.of("R") is None
        old = LastRecorded(system.first.state.processes[2], FIRST)
        with pytest.raises(ProtocolViolation, match="its channels or its class"):
            execution.assembler.exclude(SECOND, old, 0.9)
        execution.assembler.abandon(SECOND, Reason.DEADLINE)
    assert (whole, broken) == (100, 49)


def assembler() -> Assembler:
    """Return one for P, Q and R without any channel; the second snapshot has begun."""
    made = Assembler(describe("PQR", []), epoch=1)
    made.begin(SECOND, 100.0, timeout_s=10.0)
    return made


def part(process: str, value: int = 0) -> Fragment:
    """Return the part of one without channels."""
    return Fragment(SECOND, state_of(process, value), {}, ())


def test_a_part_that_comes_after_its_process_was_left_out_is_dropped() -> None:
    """What stands for it stands; the others complete the snapshot."""
    made = assembler()
    last = LastRecorded(state_of("R", 7), FIRST)
    assert made.exclude(SECOND, last, 101.0) is None
    assert made.add(part("R", 8), 101.0) is None
    assert made.add(part("P"), 102.0) is None
    snapshot = made.add(part("Q"), 103.0)
    assert isinstance(snapshot, Snapshot)
    assert snapshot.state.processes[2] == state_of("R", 7)
    assert snapshot.excluded == {"R": FIRST}


def test_a_process_whose_part_is_in_is_not_left_out() -> None:
    """Nor one of a snapshot that has ended."""
    made = assembler()
    made.add(part("R", 8), 101.0)
    assert made.exclude(SECOND, LastRecorded(state_of("R", 7), FIRST), 101.0) is None
    made.add(part("P"), 102.0)
    snapshot = made.add(part("Q"), 103.0)
    assert isinstance(snapshot, Snapshot)
    assert snapshot.excluded == {}
    assert made.exclude(SECOND, LastRecorded(state_of("R", 7), FIRST), 104.0) is None


def published(state: ProcessState, excluded: dict[str, SnapshotId]) -> Snapshot:
    """Return the second snapshot, of one process."""
    return Snapshot(SECOND, 1, 0.0, 1.0, GlobalState((state,), ()), excluded=excluded)


def test_the_state_that_stands_for_a_process_is_called_what_it_is() -> None:
    """From the snapshot in which the process recorded it, however often it was left out since."""
    last = LastStates(describe("R", []), {"R": LastRecorded(state_of("R", 1), FIRST)})
    last.published(published(state_of("R", 1), {"R": FIRST}))
    assert last.of("R") == LastRecorded(state_of("R", 1), FIRST)
    last.published(published(state_of("R", 2), {}))
    assert last.of("R") == LastRecorded(state_of("R", 2), SECOND)


def test_keyed_fields_are_read_where_they_were_published() -> None:
    """They are as in the published snapshot, without a change, and are not kept in memory."""
    empty = encode_array([])
    rows = KeyedRows(1, encode_array([b"\x01"]), encode_array([b"\x02"]))
    state = ProcessState("R", "Account", b"\x80", keyed={"paid": KeyedChange((rows,), 0, empty)})
    last = LastStates(describe("R", []))
    last.published(published(state, {}))
    recorded = last.of("R")
    assert recorded is not None
    assert recorded.state == ProcessState(
        "R", "Account", b"\x80", SECOND, {"paid": KeyedChange((), 0, empty)}
    )


def test_the_refusal_says_why() -> None:
    """Because of its channels, or because nothing was recorded yet."""
    last = LastStates(describe("PQR", LOOSE))
    assert last.refusal("P").startswith("P cannot be excluded: it has channels (P->Q, Q->P)")
    assert last.refusal("R") == "R cannot be excluded: no snapshot has its state yet"
