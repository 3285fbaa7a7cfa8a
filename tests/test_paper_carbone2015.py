"""Carbone's paper, section 4, sentence by sentence, run with the real barrier rules.

P. Carbone, G. Fóra, S. Ewen, S. Haridi, K. Tzoumas, "Lightweight Asynchronous Snapshots for
Distributed Dataflows", arXiv 1506.08603, 2015. What is meant is given in our words. A task is a
participant here, an input a position in a log, a blocked input one that is not read: nothing is
buffered for it, because it stays in the log.
"""

import pytest

from stillframe.errors import UsageError
from stillframe.protocol.aligner import Mode, Reading, may_record, read_end
from tests.protocol.dataflow_oracle import check_cut, check_end, explore
from tests.protocol.dataflow_world import Barrier, Scene, Steps, Tokens, World, flow_of

CHAIN = flow_of("a>b", "b>c")
JOIN = flow_of("a>c", "b>c")
CYCLE = flow_of("a>b", "b>a")


def first_ends(scene: Scene) -> tuple[Steps, World]:
    """Return the end of one run of a scene."""
    steps = Steps(scene)
    world = steps.first()
    while following := list(steps.after(world)):
        world = following[0]
    return steps, world


def test_sources_begin() -> None:
    """4.2: the coordinator injects barriers at the sources; a source that is told takes a snapshot
    of its state and sends the barrier on all its outputs."""
    assert CHAIN.initiators() == ("a",)
    for mode in (Mode.ALIGNED, Mode.UNALIGNED, Mode.AT_LEAST_ONCE):
        assert may_record(mode, {}, is_initiator=True)
    steps, world = first_ends(Scene(flow_of("a>b", "a>c"), Mode.ALIGNED, {"a": 2}))
    assert [log.count(Barrier(0)) for log in world.logs] == [1, 1]
    check_end(steps, world)


def test_a_barrier_blocks_its_input_until_all_have_come() -> None:
    """4.2: a task that receives a barrier on one input blocks that input until it has received the
    barrier on all of them."""
    came, awaited = Reading(4, 4), Reading(1, None)
    assert read_end(Mode.ALIGNED, came) == came.position
    assert read_end(Mode.ALIGNED, awaited) is None
    assert not may_record(Mode.ALIGNED, {"left": came, "right": awaited}, is_initiator=False)


def test_all_barriers_make_the_snapshot() -> None:
    """4.2: when the barriers of all inputs have come, the task takes a snapshot of its state."""
    came = {"left": Reading(4, 4), "right": Reading(2, 2)}
    assert may_record(Mode.ALIGNED, came, is_initiator=False)


def test_the_barrier_goes_out_before_the_inputs_are_released() -> None:
    """4.2: it sends the barrier on its outputs, and then unblocks its inputs: what it makes of
    later records comes after its own barrier, in every run."""
    scene = Scene(CHAIN, Mode.ALIGNED, {"a": 2})
    steps = Steps(scene)
    frontier, seen = [steps.first()], set()
    while frontier:
        world = frontier.pop()
        for following in steps.after(world):
            for who, status in enumerate(following.statuses):
                if status.unhanded is not None:
                    for log in steps.outgoing[who]:
                        assert following.logs[log][-1] == Barrier(0)
                    assert status.positions == world.statuses[who].positions
            if following not in seen:
                seen.add(following)
                frontier.append(following)
    assert len(seen) > 1000


def test_only_states_are_in_the_snapshot() -> None:
    """4.2: the global snapshot consists of the states of the tasks alone; no channel holds
    anything."""
    for flow in (CHAIN, JOIN):
        assert explore(Scene(flow, Mode.ALIGNED, {"a": 2})).on_channels == 0


def test_termination() -> None:
    """4.2, first part of the proof: with reliable channels and no cycle, every barrier comes to
    every task, and the snapshot ends."""
    assert explore(Scene(flow_of("a>b", "a>c", "b>c"), Mode.ALIGNED, {"a": 1})).snapshot_count > 0


def test_feasibility() -> None:
    """4.2, second part: the states reflect the records before the barriers and no other."""
    steps, world = first_ends(Scene(JOIN, Mode.ALIGNED, {"a": 2, "b": 2}))
    (published,) = world.published
    check_cut(steps, world, published)
    joined = published.parts[steps.names.index("c")]
    before = [
        token
        for log, barrier in zip(world.logs, joined.positions, strict=True)
        for item in log[:barrier]
        if isinstance(item, Tokens)
        for token in item.tokens
    ]
    assert sorted(before) == list(joined.read)


def test_feasibility_is_lost_without_blocking() -> None:
    """4.2: blocking is what keeps later records out of the state. Without it, our mode
    at-least-once, some state has them, and says which."""
    assert explore(Scene(JOIN, Mode.AT_LEAST_ONCE, {"a": 2})).doubled > 0


@pytest.mark.parametrize("mode", [Mode.ALIGNED, Mode.AT_LEAST_ONCE])
def test_a_cycle_would_wait_for_ever(mode: Mode) -> None:
    """4.3: on a cycle the algorithm above would not end, as each task waits for all its inputs.
    We refuse it before anything is asked."""
    with pytest.raises(UsageError, match="use mode unaligned"):
        CYCLE.check_mode(mode)
    waiting = {"back": Reading(0, None), "in": Reading(3, 3)}
    assert not may_record(mode, waiting, is_initiator=False)


def test_what_is_on_a_cycle_belongs_to_the_snapshot() -> None:
    """4.3: records that are under way in a cycle must be in the snapshot: a task copies its state
    and logs its back-edges until their barriers come. We do so on every input, the paper on
    back-edges alone; the log has those records, so that two positions say which they are."""
    scene = Scene(CYCLE, Mode.UNALIGNED, {"a": 1, "b": 1}, hop_count_max=2)
    explored = explore(scene)
    assert 0 < explored.on_channels < explored.snapshot_count


def test_recovery_replays_what_was_logged() -> None:
    """4.3 and 5: a task goes on from its state and first takes the records that were logged; the
    run ends as if nothing had happened. (``check_end`` restores from each snapshot.)"""
    steps, world = first_ends(
        Scene(CYCLE, Mode.UNALIGNED, {"a": 1, "b": 1}, (True, True), hop_count_max=2)
    )
    assert len(check_end(steps, world)) == 2
