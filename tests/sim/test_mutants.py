"""Tests of the tests: with one rule wrong, the checker, the seeds and the search must find it."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from stillframe.errors import UsageError
from stillframe.model import SnapshotId
from stillframe.protocol.lai_yang import LaiYangRecorder
from stillframe.protocol.recorder import Recorder
from stillframe.sim import choices
from stillframe.sim.campaign import Run, RunConfig, replay, run_seed, shrink
from stillframe.sim.checker import Invariant, check_end
from stillframe.sim.exploration import (
    Explored,
    Property,
    SmallSystem,
    cuts_are_consistent,
    explore,
    invariants_hold,
    snapshots_are_published,
)
from stillframe.sim.network import Network
from stillframe.sim.systems import Account, Payer, pair
from stillframe.topology import Topology
from tests.nightly import Figure, by_night, seeds
from tests.sim import mutant_hosts, mutant_worlds, mutants

SEED_OF = {
    "AbandonIgnored": 7,
    "ActsAtCut": 2,
    "ActsBetween": 14,
    "ActsFrozen": 2,
    "ActsTwice": 2,
    "AfterMarker": 4,
    "AllFrozen": 6,
    "BatchAsOne": 6,
    "ColourAtMarker": 6,
    "ColourRedRecorded": 6,
    "ColourShort": 6,
    "ColourStateLate": 3,
    "ColourUnchecked": 2,
    "ColourUnsent": 7,
    "CountsShifted": 2,
    "DeliversNothing": 3,
    "DroppedAtCut": 6,
    "EndsForgotten": 7,
    "ExpiresAll": 20,
    "FirstRecorded": 4,
    "GoesBackTooFar": 14,
    "HalfDeadline": 20,
    "HearsIdle": 7,
    "MarkerBehind": 6,
    "MarkerForgotten": 4,
    "MarkerLate": 2,
    "MarkerLost": 2,
    "MessagesExchanged": 2,
    "MessagesForgotten": 2,
    "NamesAll": 3,
    "NamesNobody": 2,
    "NeverExpires": 20,
    "NeverTold": 2,
    "NoRelay": 2,
    "PastAccepted": 2,
    "ReasonsExchanged": 3,
    "RecordedTwice": 6,
    "StateAtTheEnd": 6,
    "StateLate": 2,
    "StateOfAnother": 2,
    "StateShared": 6,
    "StopsAtFirst": 4,
    "StopsLate": 4,
    "ToldAtOnce": 8,
    "WithoutOne": 2,
}
"""The seed that shows a mutant soonest, with the shortest search for a short schedule; else 1."""
NIGHT_SEED_COUNT = 300
"""So many fresh seeds may it take at night until one shows a mutant: one snapshot expires while
another is under way, or cannot be completed at all because its second initiator came after a
restore, or shows what was told of another."""
CHOICE_MAX = 25
S = SnapshotId("P1", 1)

RECORDERS: dict[type[Recorder], Invariant] = {
    mutants.NoRelay: Invariant.ATOMIC,
    mutants.MarkerTwice: Invariant.ATOMIC,
    mutants.MarkerForgotten: Invariant.ATOMIC,
    mutants.MarkerLate: Invariant.ATOMIC,
    mutants.StateLate: Invariant.EXACT,
    mutants.StateAtTheEnd: Invariant.EXACT,
    mutants.StateShared: Invariant.EXACT,
    mutants.StopsAtFirst: Invariant.BOOKS,
    mutants.FirstRecorded: Invariant.BOOKS,
    mutants.StopsLate: Invariant.BOOKS,
    mutants.InitiatorBlind: Invariant.WHOLE,
    mutants.RecordedTwice: Invariant.BOOKS,
    mutants.AfterMarker: Invariant.BOOKS,
    mutants.OldestOnly: Invariant.BOOKS,
    mutants.EndsForgotten: Invariant.HEARD,
    mutants.CountsShifted: Invariant.BOOKS,
    mutants.MessagesForgotten: Invariant.EXACT,
    mutants.MessagesExchanged: Invariant.EXACT,
    mutants.NeverDone: Invariant.WHOLE,
}
"""Each mutant of Chandy and Lamport's rules, and the promise that it is found to break."""
WORLDS = {
    mutant_worlds.MarkerBehind: Invariant.BOOKS,
    mutant_worlds.MarkerLost: Invariant.LIVE,
    mutant_worlds.ActsBetween: Invariant.TAKEN,
    mutant_worlds.ActsAtCut: Invariant.UNCHANGED,
    mutant_worlds.DroppedAtCut: Invariant.UNCHANGED,
    mutant_worlds.ChannelsForgotten: Invariant.RESTORED,
    mutant_worlds.ChannelsDoubled: Invariant.ONCE,
    mutant_worlds.ChannelsLast: Invariant.ONCE,
    mutant_worlds.ChannelsTurned: Invariant.ONCE,
    mutant_worlds.EpochKept: Invariant.EPOCHS,
    mutant_worlds.PastAccepted: Invariant.EPOCHS,
    mutant_worlds.BeginsAfresh: Invariant.RESTORED,
    mutant_worlds.GoesBackTooFar: Invariant.RESTORED,
    mutant_worlds.StatesOfTheStart: Invariant.UNCHANGED,
    mutant_worlds.DoubledAccepted: Invariant.ONCE,
    mutant_worlds.RestLost: Invariant.ORDERED_WORLD,
}
ASSEMBLERS = {
    mutant_worlds.WithoutOne: Invariant.WHOLE,
    mutant_worlds.NamesNobody: Invariant.WHOLE,
    mutant_worlds.NamesAll: Invariant.WHOLE,
    mutant_worlds.NeverExpires: Invariant.WHOLE,
    mutant_worlds.AlwaysLate: Invariant.REASON,
    mutant_worlds.StateOfAnother: Invariant.EXACT,
}
HOSTS: dict[str, tuple[dict[str, Any], Invariant]] = {
    "BatchAsOne": (
        {"world": mutant_hosts.Batching, "recorder": mutant_hosts.BatchAsOne},
        Invariant.ORDERED_WORLD,
    ),
    "ActsFrozen": ({"world": mutant_hosts.ActsFrozen}, Invariant.TAKEN),
    "AllFrozen": ({"world": mutant_hosts.AllFrozen}, Invariant.TAKEN),
    "ActsTwice": ({"world": mutant_hosts.ActsTwice}, Invariant.TAKEN),
    "DeliversNothing": ({"world": mutant_hosts.DeliversNothing}, Invariant.TAKEN),
    "DeliversForSnapshots": ({"world": mutant_hosts.DeliversForSnapshots}, Invariant.TAKEN),
    "NeverTold": ({"world": mutant_hosts.NeverTold}, Invariant.TOLD),
    "ToldTwice": ({"world": mutant_hosts.ToldTwice}, Invariant.TOLD),
    "ToldOfAll": ({"world": mutant_hosts.ToldOfAll}, Invariant.TOLD),
    "ToldAtOnce": ({"world": mutant_hosts.ToldAtOnce}, Invariant.CAUSED),
    "NewestPoint": ({"world": mutant_hosts.NewestPoint}, Invariant.RESTORED),
    "WrongTimes": ({"assembler": mutant_hosts.WrongTimes}, Invariant.TIMES),
    "WrongEpoch": ({"assembler": mutant_hosts.WrongEpoch}, Invariant.TIMES),
    "ReasonsExchanged": ({"assembler": mutant_hosts.ReasonsExchanged}, Invariant.REASON),
    "ExpiresAll": ({"assembler": mutant_hosts.ExpiresAll}, Invariant.REASON),
    "HalfDeadline": ({"assembler": mutant_hosts.HalfDeadline}, Invariant.REASON),
    "HearsIdle": ({"recorder": mutant_hosts.HearsIdle}, Invariant.HEARD),
    "AbandonIgnored": ({"recorder": mutant_hosts.AbandonIgnored}, Invariant.HEARD),
}
"""What does something else than it is told to, or says something else than it did."""
COLOURS: dict[type[LaiYangRecorder], Invariant] = {
    mutants.ColourUnmet: Invariant.WHOLE,
    mutants.ColourUnchecked: Invariant.BOOKS,
    mutants.ColourUnsent: Invariant.WHOLE,
    mutants.ColourAtMarker: Invariant.BOOKS,
    mutants.ColourShort: Invariant.WHOLE,
    mutants.ColourRedRecorded: Invariant.BOOKS,
    mutants.ColourStateLate: Invariant.EXACT,
}
"""Each mutant of Lai and Yang's rules, over channels without order."""
PLAIN = RunConfig()
COLOURED = RunConfig(recorder=LaiYangRecorder, network=Network.REORDERING)
MUTANTS: dict[str, tuple[RunConfig, RunConfig, Invariant]] = {
    **{r.__name__: (replace(PLAIN, recorder=r), PLAIN, p) for r, p in RECORDERS.items()},
    **{w.__name__: (replace(PLAIN, world=w), PLAIN, p) for w, p in WORLDS.items()},
    **{a.__name__: (replace(PLAIN, assembler=a), PLAIN, p) for a, p in ASSEMBLERS.items()},
    **{c.__name__: (replace(COLOURED, recorder=c), COLOURED, p) for c, p in COLOURS.items()},
    **{name: (replace(PLAIN, **parts), PLAIN, p) for name, (parts, p) in HOSTS.items()},
}
LIVENESS = {"MarkerLost", "NeverExpires", "NeverTold"}
"""What these break is seen at the end of a whole run, not in a piece of its schedule."""
SHRUNK = by_night(
    sorted(MUTANTS.keys() - LIVENESS),
    check=sorted({p: name for name, (_, _, p) in MUTANTS.items() if name not in LIVENESS}.values()),
)
"""Those whose schedules are cut down: in the short form the last that breaks each promise."""


@cache
def checked(seed: int, config: RunConfig) -> Run | None:
    """Return the run of a seed with what the checker finds, at its end too; None if it is refused,
    as the restore of a snapshot that lacks a process is."""
    try:
        run = run_seed(seed, config)
    except UsageError:
        return None
    return replace(run, violation=run.violation or check_end(run.world))


def shown(name: str) -> Run:
    """Return the run that shows a mutant."""
    run = checked(SEED_OF.get(name, 1), MUTANTS[name][0])
    assert run is not None
    return run


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_every_mutant_is_caught_by_the_promise_that_it_breaks(name: str) -> None:
    """Its seed shows the mutant, and does not accuse the rules as they are."""
    _, original, promise = MUTANTS[name]
    run = shown(name)
    assert run.violation is not None
    assert run.violation.invariant is promise, run.violation
    right = checked(run.seed, replace(original, world=mutant_hosts.Batching))
    assert right is not None
    assert right.violation is None


@pytest.mark.nightly(part="simulator", only=True)
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_every_mutant_is_caught_by_fresh_seeds(name: str, figure: Figure) -> None:
    """One of the seeds of a night shows what a mutant breaks, and its schedule can be cut down; up
    to there none accuses the rules as they are."""
    mutant, original, promise = MUTANTS[name]
    original = replace(original, world=mutant_hosts.Batching)
    for count, seed in enumerate(seeds(f"mutant {name}", night=NIGHT_SEED_COUNT), 1):
        right = run_seed(seed, original)
        assert (right.violation or check_end(right.world)) is None, f"SEED={seed}"
        run = checked(seed, mutant)
        if run is None or run.violation is None or run.violation.invariant is not promise:
            continue
        if name not in LIVENESS:
            short = shrink(run, mutant)
            assert short.violation is not None, f"SEED={seed}"
            assert short.violation.invariant is promise, f"SEED={seed}"
            figure("choices", len(short.schedule))
        figure("seeds", count)
        return
    pytest.fail(f"none of {NIGHT_SEED_COUNT} seeds shows it")


def test_a_marker_behind_its_place_is_seen_though_the_snapshot_is_right() -> None:
    """Where colours make up for a marker that comes late, the marker is still out of its place."""
    config = RunConfig(recorder=LaiYangRecorder, world=mutant_worlds.MarkerBehind)
    run = checked(1, config)
    assert run is not None
    assert run.violation is not None
    assert run.violation.invariant is Invariant.MARKERS


@pytest.mark.slow
@pytest.mark.nightly(part="simulator")
@pytest.mark.parametrize(
    "recorder",
    [mutants.ColourUnmet, mutants.ColourUnsent, mutants.ColourAtMarker, mutants.ColourRedRecorded],
)
def test_where_order_is_kept_colours_are_not_needed(recorder: type[LaiYangRecorder]) -> None:
    """These mutants are equivalent on channels that keep order: the marker comes before anything
    red, and behind everything white, so it alone says what the colours do."""
    config = RunConfig(recorder=recorder)
    count = by_night(100, check=6)
    assert [s for s in range(1, count + 1) if run_seed(s, config).violation] == []


# --- schedules that are cut down


@pytest.mark.slow
@pytest.mark.nightly(part="simulator")
@pytest.mark.parametrize("name", SHRUNK)
def test_what_a_mutant_does_shrinks_to_a_few_choices(name: str) -> None:
    """The schedule of a mutant becomes short, breaks the same promise, and does so every time."""
    mutant, _, promise = MUTANTS[name]
    run = shown(name)
    short = shrink(run, mutant)
    again = [replay(run.seed, mutant, short.schedule).violation for _ in range(2)]
    assert short.violation is not None
    assert short.violation.invariant is promise
    assert len(short.schedule) <= CHOICE_MAX, [str(step) for step in short.schedule]
    assert list(map(str, again)) == [str(short.violation)] * 2


def test_a_broken_promise_of_the_liveness_phase_is_not_cut_down() -> None:
    """That nothing is published in the end is shown by the whole run alone: it stays as it is."""
    run = shown("MarkerLost")
    assert shrink(run, MUTANTS["MarkerLost"][0]) is run


# --- every interleaving

PAIR = SmallSystem(
    topology=pair(), acts={"P1": ("pay",), "P2": ("pay",)}, initiations=(choices.Initiate("P1", S),)
)
TRIANGLE = SmallSystem(
    topology=Topology(
        {name: Account() for name in ("P1", "P2", "P3")},
        [("P1", "P2"), ("P1", "P3"), ("P2", "P1"), ("P3", "P2")],
    ),
    acts={"P1": ("pay",), "P3": ("pay",)},
    initiations=(choices.Initiate("P1", S),),
)
"""Two markers come to P2, so that it matters which is the first."""
GOSSIPS = SmallSystem(
    topology=Topology.mesh({"P1": Payer(draw=7), "P2": Payer(draw=8)}),
    acts={"P2": ("pay",)},
    initiations=(choices.Initiate("P1", S),),
)
"""Messages that differ follow each other on one channel."""
TWICE = replace(
    PAIR,
    acts={"P2": ("pay",)},
    initiations=(choices.Initiate("P1", S), choices.Initiate("P1", SnapshotId("P1", 2))),
)
"""Two snapshots of one initiator, which records both at once if the second follows soon."""
KEPT, CONSISTENT, PUBLISHED = properties = (
    invariants_hold,
    cuts_are_consistent,
    snapshots_are_published,
)
SEARCHED: dict[type[Recorder | LaiYangRecorder], tuple[SmallSystem, dict[Property, int]]] = {
    mutants.NoRelay: (PAIR, {KEPT: 2, PUBLISHED: 2}),
    mutants.MarkerTwice: (PAIR, {KEPT: 1, PUBLISHED: 3}),
    mutants.MarkerForgotten: (TRIANGLE, {KEPT: 1, PUBLISHED: 3}),
    mutants.MarkerLate: (PAIR, {KEPT: 1, PUBLISHED: 1}),
    mutants.StateLate: (PAIR, {KEPT: 5}),
    mutants.StateAtTheEnd: (PAIR, {KEPT: 4}),
    mutants.StateShared: (PAIR, {KEPT: 5}),
    mutants.StopsAtFirst: (TRIANGLE, {KEPT: 4, PUBLISHED: 7}),
    mutants.FirstRecorded: (TRIANGLE, {KEPT: 7, PUBLISHED: 7}),
    mutants.StopsLate: (TRIANGLE, {KEPT: 7, PUBLISHED: 7}),
    mutants.InitiatorBlind: (PAIR, {KEPT: 2, PUBLISHED: 5}),
    mutants.RecordedTwice: (PAIR, {KEPT: 5, PUBLISHED: 5}),
    mutants.AfterMarker: (TRIANGLE, {KEPT: 7, PUBLISHED: 7}),
    mutants.OldestOnly: (TWICE, {KEPT: 8, PUBLISHED: 8}),
    mutants.CountsShifted: (PAIR, {KEPT: 3}),
    mutants.MessagesForgotten: (PAIR, {KEPT: 5}),
    mutants.MessagesExchanged: (GOSSIPS, {KEPT: 6}),
    mutants.NeverDone: (PAIR, {PUBLISHED: 3}),
    mutants.ColourUnmet: (PAIR, {KEPT: 4, CONSISTENT: 4, PUBLISHED: 5}),
    mutants.ColourUnchecked: (PAIR, {KEPT: 5, CONSISTENT: 4, PUBLISHED: 5}),
    mutants.ColourUnsent: (PAIR, {KEPT: 4, CONSISTENT: 4, PUBLISHED: 5}),
    mutants.ColourAtMarker: (PAIR, {KEPT: 4, PUBLISHED: 5}),
    mutants.ColourShort: (PAIR, {KEPT: 4, PUBLISHED: 5}),
    mutants.ColourRedRecorded: (PAIR, {KEPT: 5, PUBLISHED: 5}),
    mutants.ColourStateLate: (PAIR, {KEPT: 5}),
}
"""Each mutant, where it is looked for, and how long a shortest run is to each broken property. One
is not among them: no deadline passes in a search, so nothing is given up there."""


def searched(system: SmallSystem, recorder: type[Recorder | LaiYangRecorder]) -> Explored:
    """Visit everything that can happen; under Lai and Yang's rules without any order."""
    is_coloured = issubclass(recorder, LaiYangRecorder)
    network = Network.REORDERING if is_coloured else Network.FIFO
    return explore(
        replace(system, recorder=recorder, network=network),
        always={p.__name__: p for p in properties},
        sometimes={},
    )


@pytest.mark.slow
@pytest.mark.parametrize("recorder", SEARCHED)
def test_the_search_of_every_interleaving_finds_every_mutant(
    recorder: type[Recorder | LaiYangRecorder],
) -> None:
    """What breaks, and in how few steps it can, is what it was."""
    system, expected = SEARCHED[recorder]
    broken = searched(system, recorder).broken
    assert {name: len(run) for name, (_, run) in broken.items()} == {
        look.__name__: length for look, length in expected.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "recorder"),
    [
        (PAIR, Recorder),
        (TWICE, Recorder),
        (TRIANGLE, Recorder),
        (GOSSIPS, Recorder),
        (PAIR, LaiYangRecorder),
    ],
)
def test_the_search_finds_nothing_wrong_with_the_rules(
    system: SmallSystem, recorder: type[Recorder | LaiYangRecorder]
) -> None:
    """Where the mutants are found, the rules as they are break nothing in any order of steps."""
    assert searched(system, recorder).broken == {}


def test_every_mutant_of_a_recorder_is_tried_by_seeds_and_by_search() -> None:
    """A mutant that nobody tries would prove nothing."""
    written = {
        kind
        for name, kind in vars(mutants).items()
        if not name.startswith("_") and getattr(kind, "__module__", "") == mutants.__name__
    }
    assert written == {*RECORDERS, *COLOURS}
    assert written - {*SEARCHED} == {mutants.EndsForgotten}
