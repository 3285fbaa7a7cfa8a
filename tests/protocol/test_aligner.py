"""The barrier rules: one by one, in every run of small dataflows, and in random runs of others."""

import dataclasses
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillframe.errors import NotConsistent, UsageError
from stillframe.protocol.aligner import Mode, Reading, may_record, read_end
from tests.protocol.dataflow_oracle import Explored, check_end, explore, run
from tests.protocol.dataflow_world import Rules, Scene, Steps, flow_of

UNSEEN, AHEAD, AT, PAST = Reading(3, None), Reading(3, 5), Reading(5, 5), Reading(6, 5)

CHAIN = flow_of("a>b", "b>c")
JOIN = flow_of("a>c", "b>c")
DIAMOND = flow_of("a>b", "a>c", "b>d", "c>d")
CYCLE = flow_of("a>b", "b>a")
HOPS = 2


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([], True),
        ([UNSEEN], False),
        ([AHEAD], False),
        ([AT], True),
        ([AT, UNSEEN], False),
        ([AT, AHEAD], False),
        ([AT, AT], True),
    ],
)
def test_aligned_records_when_every_channel_stands_at_its_barrier(
    readings: list[Reading], expected: bool
) -> None:
    """Aligned: at the barrier of each channel, not before, and at once without channels."""
    assert may_record(Mode.ALIGNED, named(readings), is_initiator=not readings) is expected


def test_aligned_refuses_a_barrier_that_was_overrun() -> None:
    """A state with records from behind the barrier is never recorded as aligned."""
    with pytest.raises(NotConsistent, match=r"channel c1 was read up to 6, past the barrier at 5"):
        may_record(Mode.ALIGNED, named([AT, PAST]), is_initiator=False)


@pytest.mark.parametrize(
    ("readings", "is_initiator", "expected"),
    [
        ([], True, True),
        ([], False, True),
        ([UNSEEN], False, False),
        ([UNSEEN], True, True),
        ([AHEAD], False, True),
        ([UNSEEN, AHEAD], False, True),
        ([UNSEEN, AT], False, True),
    ],
)
def test_unaligned_records_when_any_barrier_is_in_sight(
    readings: list[Reading], is_initiator: bool, expected: bool
) -> None:
    """Unaligned: one barrier anywhere ahead is enough, and whoever initiates waits for none."""
    assert may_record(Mode.UNALIGNED, named(readings), is_initiator=is_initiator) is expected


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([], True),
        ([UNSEEN], False),
        ([AHEAD], False),
        ([AT], True),
        ([PAST], True),
        ([PAST, UNSEEN], False),
        ([PAST, AHEAD], False),
        ([PAST, AT], True),
    ],
)
def test_at_least_once_records_when_every_barrier_was_reached(
    readings: list[Reading], expected: bool
) -> None:
    """At-least-once: every barrier is at hand or behind."""
    assert may_record(Mode.AT_LEAST_ONCE, named(readings), is_initiator=not readings) is expected


def test_only_aligned_holds_a_channel() -> None:
    """An action stops at the barrier in mode aligned, and nowhere otherwise."""
    assert read_end(Mode.ALIGNED, AHEAD) == 5
    assert read_end(Mode.ALIGNED, AT) == 5
    assert read_end(Mode.ALIGNED, UNSEEN) is None
    for mode in (Mode.UNALIGNED, Mode.AT_LEAST_ONCE):
        assert read_end(mode, AHEAD) is None


def test_a_mode_is_called_as_on_the_command_line() -> None:
    """A mode prints as the word that people type."""
    assert [str(mode) for mode in Mode] == ["aligned", "unaligned", "at-least-once", "retained"]
    assert Mode("at-least-once") is Mode.AT_LEAST_ONCE


def named(readings: list[Reading]) -> dict[str, Reading]:
    """Return readings under names, in order: c0, c1."""
    return {f"c{number}": reading for number, reading in enumerate(readings)}


SCENES: dict[str, Scene] = {}
for _mode in sorted(set(Mode) - {Mode.RETAINED}, key=str):
    for _is_batched in (True, False):
        _how = f"{_mode}, {'all at once' if _is_batched else 'one by one'}"
        SCENES |= {
            f"chain, {_how}": Scene(CHAIN, _mode, {"a": 2}, is_batched=_is_batched),
            f"join, {_how}": Scene(JOIN, _mode, {"a": 2, "b": 1}, is_batched=_is_batched),
        }
    SCENES |= {
        f"diamond, {_mode}": Scene(DIAMOND, _mode, {"a": 1}),
        f"two snapshots, {_mode}": Scene(CHAIN, _mode, {"a": 1}, (True, True)),
        f"given up, {_mode}": Scene(CHAIN, _mode, {"a": 1}, (False, True)),
        f"restart, {_mode}": Scene(flow_of("a>b"), _mode, {"a": 2}, restart_count_max=1),
    }
for _mode in (Mode.ALIGNED, Mode.AT_LEAST_ONCE):
    SCENES |= {
        f"impatient join, {_mode}": Scene(JOIN, _mode, {"a": 1, "b": 2}, impatient=frozenset("c")),
        f"restart in a join, {_mode}": Scene(JOIN, _mode, {"a": 1}, restart_count_max=1),
    }
for _is_batched in (True, False):
    SCENES[f"cycle, {'all at once' if _is_batched else 'one by one'}"] = Scene(
        CYCLE, Mode.UNALIGNED, {"a": 1, "b": 1}, is_batched=_is_batched, hop_count_max=HOPS
    )

EXPLORED = {
    "chain, aligned, all at once": Explored(2_626, 16_459_652_128_802, 5, 0, 0),
    "join, aligned, all at once": Explored(8_329, 16_929_311_837_063, 6, 0, 0),
    "chain, aligned, one by one": Explored(3_836, 364_926_384_253_616, 3, 0, 0),
    "join, aligned, one by one": Explored(11_699, 1_622_995_548_635_576, 6, 0, 0),
    "diamond, aligned": Explored(3_857, 53_016_323_038_124, 2, 0, 0),
    "two snapshots, aligned": Explored(1_008, 35_324_797_220_962, 4, 0, 0),
    "given up, aligned": Explored(3_330, 110_062_559_442_630, 6, 0, 0),
    "restart, aligned": Explored(2_178, 290_661_943, 6, 3, 0),
    "chain, unaligned, all at once": Explored(4_904, 14_113_516_744_247, 15, 10, 0),
    "join, unaligned, all at once": Explored(18_941, 17_771_402_438_380, 18, 12, 0),
    "chain, unaligned, one by one": Explored(8_825, 529_352_304_702_407, 10, 7, 0),
    "join, unaligned, one by one": Explored(32_047, 3_322_194_209_938_403, 18, 12, 0),
    "diamond, unaligned": Explored(8_407, 62_292_396_282_149, 4, 2, 0),
    "two snapshots, unaligned": Explored(2_413, 38_768_728_561_662, 14, 8, 0),
    "given up, unaligned": Explored(6_033, 111_236_500_600_724, 18, 11, 0),
    "restart, unaligned": Explored(2_790, 273_468_862, 6, 3, 0),
    "chain, at-least-once, all at once": Explored(2_696, 16_369_692_116_621, 7, 0, 2),
    "join, at-least-once, all at once": Explored(10_013, 17_129_512_798_676, 16, 0, 10),
    "chain, at-least-once, one by one": Explored(3_741, 363_752_251_816_278, 3, 0, 0),
    "join, at-least-once, one by one": Explored(25_589, 2_339_178_790_345_253, 42, 0, 18),
    "diamond, at-least-once": Explored(3_931, 52_709_191_056_556, 3, 0, 1),
    "two snapshots, at-least-once": Explored(988, 35_165_854_985_660, 4, 0, 0),
    "given up, at-least-once": Explored(3_222, 109_458_746_075_718, 6, 0, 0),
    "restart, at-least-once": Explored(2_205, 289_655_307, 7, 3, 1),
    "impatient join, aligned": Explored(18_941, 17_771_402_438_380, 18, 12, 0),
    "restart in a join, aligned": Explored(5_124, 33_895_783_168, 3, 1, 0),
    "impatient join, at-least-once": Explored(18_941, 17_771_402_438_380, 18, 12, 0),
    "restart in a join, at-least-once": Explored(5_464, 33_913_063_834, 4, 1, 1),
    "cycle, all at once": Explored(8_567, 95_009_953_061, 65, 51, 0),
    "cycle, one by one": Explored(13_429, 23_483_759_047_660, 36, 29, 0),
}
"""By scene: worlds, runs, snapshots, those with tokens on channels, those with doubles."""


def test_every_scene_was_counted() -> None:
    """No scene is left out of the table."""
    assert EXPLORED.keys() == SCENES.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_every_run(name: str) -> None:
    """Whatever the order: states, barriers, books, and what a restore leads to are right, no
    snapshot waits for ever, and there are exactly so many runs."""
    assert explore(SCENES[name]) == EXPLORED[name]


@pytest.mark.parametrize("mode", [Mode.ALIGNED, Mode.AT_LEAST_ONCE])
def test_a_cycle_is_refused_where_it_would_wait_for_itself(mode: Mode) -> None:
    """Aligned and at-least-once on a cycle wait for ever: true, and so refused beforehand."""
    with pytest.raises(UsageError, match="a -> b -> a would wait for each other: use mode unalig"):
        CYCLE.check_mode(mode)
    with pytest.raises(AssertionError, match="a snapshot waits for ever"):
        explore(Scene(CYCLE, mode, {"a": 1}, hop_count_max=1))


def never_holds(mode: Mode, reading: Reading) -> int | None:
    """Let an action read past the barrier."""
    return None


def steps_over(mode: Mode, reading: Reading) -> int | None:
    """Read the barrier, too, as if it had been dealt with."""
    end = read_end(mode, reading)
    return None if end is None else end + 1


def stops_short(mode: Mode, reading: Reading) -> int | None:
    """Hold one item too early."""
    end = read_end(mode, reading)
    return None if end is None else max(reading.position, end - 1)


def holds_until_all_are_there(mode: Mode, reading: Reading) -> int | None:
    """Hold every channel as soon as there is a snapshot: also one whose barrier is not there."""
    return reading.position if mode is Mode.ALIGNED else None


def records_at_the_first(
    mode: Mode, channels: Mapping[str, Reading], *, is_initiator: bool
) -> bool:
    """Be content with one channel that stands at its barrier."""
    if mode is Mode.UNALIGNED or not channels:
        return may_record(mode, channels, is_initiator=is_initiator)
    return any(r.barrier is not None and r.position >= r.barrier for r in channels.values())


def overlooks_overruns(mode: Mode, channels: Mapping[str, Reading], *, is_initiator: bool) -> bool:
    """Take a position behind the barrier for the barrier."""
    every = {
        name: r if r.barrier is None else Reading(min(r.position, r.barrier), r.barrier)
        for name, r in channels.items()
    }
    return may_record(mode, every, is_initiator=is_initiator)


def takes_unseen_for_reached(
    mode: Mode, channels: Mapping[str, Reading], *, is_initiator: bool
) -> bool:
    """Do not wait for a barrier that is not there yet."""
    seen = {name: r for name, r in channels.items() if r.barrier is not None}
    return may_record(mode, seen, is_initiator=is_initiator)


def never_begins(mode: Mode, channels: Mapping[str, Reading], *, is_initiator: bool) -> bool:
    """Wait for a barrier on a cycle in which nobody has put one."""
    return may_record(mode, channels, is_initiator=False)


def waits_until_passed(mode: Mode, channels: Mapping[str, Reading], *, is_initiator: bool) -> bool:
    """Record unaligned when a barrier was read, not when it is in sight."""
    if mode is not Mode.UNALIGNED or is_initiator or not channels:
        return may_record(mode, channels, is_initiator=is_initiator)
    return any(r.barrier is not None and r.position > r.barrier for r in channels.values())


def waits_for_all(mode: Mode, channels: Mapping[str, Reading], *, is_initiator: bool) -> bool:
    """Record unaligned only when the barriers of all channels are in sight."""
    if mode is Mode.UNALIGNED:
        return all(r.barrier is not None for r in channels.values())
    return may_record(mode, channels, is_initiator=is_initiator)


def never_records(mode: Mode, channels: Mapping[str, Reading], *, is_initiator: bool) -> bool:
    """Wait although every barrier was reached."""
    return not channels


ALIGNED_JOIN = Scene(JOIN, Mode.ALIGNED, {"a": 2, "b": 1})
UNALIGNED_CYCLE = Scene(CYCLE, Mode.UNALIGNED, {"a": 1, "b": 1}, hop_count_max=HOPS)


@pytest.mark.parametrize(
    ("rules", "scene"),
    [
        (Rules(read_end=never_holds), ALIGNED_JOIN),
        (Rules(read_end=steps_over), dataclasses.replace(ALIGNED_JOIN, is_batched=False)),
        (Rules(read_end=stops_short), ALIGNED_JOIN),
        (Rules(read_end=holds_until_all_are_there), ALIGNED_JOIN),
        (Rules(records_at_the_first), ALIGNED_JOIN),
        (Rules(records_at_the_first), Scene(JOIN, Mode.AT_LEAST_ONCE, {"a": 2, "b": 1})),
        (Rules(overlooks_overruns, never_holds), ALIGNED_JOIN),
        (Rules(takes_unseen_for_reached), ALIGNED_JOIN),
        (Rules(never_records), ALIGNED_JOIN),
        (Rules(never_begins), UNALIGNED_CYCLE),
        (Rules(waits_for_all), UNALIGNED_CYCLE),
        (Rules(waits_until_passed), Scene(CHAIN, Mode.UNALIGNED, {"a": 2})),
    ],
)
def test_a_wrong_rule_is_found(rules: Rules, scene: Scene) -> None:
    """Every plausible wrong version of a rule fails in some run of a small dataflow."""
    with pytest.raises((AssertionError, NotConsistent)):
        explore(dataclasses.replace(scene, rules=rules))


def test_right_rules_come_through_where_wrong_ones_are_found() -> None:
    """The scenes that find the wrong rules find nothing in the right ones."""
    assert explore(ALIGNED_JOIN).on_channels == 0
    assert explore(UNALIGNED_CYCLE).on_channels > 0


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Return a random scene: up to five participants, logs with several targets, and cycles."""
    mode = draw(st.sampled_from(sorted(set(Mode) - {Mode.RETAINED}, key=str)))
    names = "abcde"[: draw(st.integers(2, 5))]
    logs = set()
    for place, name in enumerate(names[1:], 1):
        for source in draw(st.sets(st.sampled_from(names[:place]), min_size=1, max_size=3)):
            logs.add(f"{source}>{name}")
    for place, name in enumerate(names[:-2]):
        if draw(st.integers(0, 3)) == 0:
            logs.add(f"{name}>{','.join(names[place + 1 : place + 3])}")
    if mode is Mode.UNALIGNED and draw(st.booleans()):
        source = draw(st.sampled_from(names[1:]))
        logs.add(f"{source}>{draw(st.sampled_from(names[: names.index(source)]))}")
    return Scene(
        flow_of(*sorted(logs)),
        mode,
        {name: draw(st.integers(0, 2)) for name in names} | {"a": 2},
        tuple(draw(st.lists(st.booleans(), min_size=1, max_size=3))),
        is_batched=draw(st.booleans()),
        impatient=frozenset(draw(st.sets(st.sampled_from(names), max_size=2))),
        restart_count_max=draw(st.integers(0, 2)),
        hop_count_max=3,
    )


@pytest.mark.slow
@given(scenes(), st.randoms(use_true_random=False))
def test_random_runs(scene: Scene, chance: Random) -> None:
    """In any dataflow and any order: the snapshots are right, and a run that goes on from one ends
    as the unbroken one, with the announced doubles in mode at-least-once and none in the others."""
    steps = Steps(scene)
    check_end(steps, run(steps, steps.first(), chance))
