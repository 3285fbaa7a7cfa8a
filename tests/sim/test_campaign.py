"""Many seeds: no promise is broken, everything rare is seen, and what fails is named."""

import gc
import os
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from stillframe import Topology, every
from stillframe.errors import UsageError
from stillframe.examples.bank import bank
from stillframe.model import Abandoned, Reason, Snapshot
from stillframe.protocol.lai_yang import LaiYangRecorder
from stillframe.sim.campaign import (
    CHUNK_COUNT,
    COVERAGE,
    RunConfig,
    Tally,
    covered,
    run_chunk,
    run_seed,
    run_seeds,
)
from stillframe.sim.network import Fifo, Network
from stillframe.sim.scheduler import Load
from stillframe.sim.systems import Account, pair
from tests.nightly import Figure, by_night, seeds
from tests.sim.mutants import RecordedTwice


def seeds_of(purpose: str, count: int) -> range:
    """Return so many seeds, from 1 on; at night a hundred times as many, from a fresh one on."""
    (first,) = seeds(purpose, night=1) or (1,)
    return range(first, first + by_night(100 * count, check=count))


PLAIN_SEEDS = seeds_of("plain", 60)
COLOUR_SEEDS = seeds_of("colours", 30)


class Failing(Account):
    """Raises when it has paid a little."""

    @every(ms=0)
    def pay(self) -> None:
        """Pay until the money is gone, which is soon."""
        if self.balance < 97:
            raise ValueError("overdrawn")
        super().pay()


def failing() -> RunConfig:
    """Return a system whose handler fails."""
    return RunConfig(topology=Topology.mesh({"P1": Failing(), "P2": Account()}))


def mutant() -> RunConfig:
    """Return rules that break a promise in nearly every seed."""
    return RunConfig(recorder=RecordedTwice)


def short() -> RunConfig:
    """Return runs that take no time."""
    return RunConfig(load=Load(safety_ms=10.0))


def coloured(network: Network) -> RunConfig:
    """Return Lai and Yang's rules on `network`."""
    return RunConfig(network=network, recorder=LaiYangRecorder)


def ignore(_: int) -> None:
    """Take no notice of progress."""


def note(tally: Tally, figure: Figure) -> None:
    """Report what was simulated."""
    figure("runs", f"{tally.seed_count:,}")
    figure("choices", f"{tally.choice_count:,}")
    figure("snapshots", f"{tally.snapshot_count:,}")


# --- many seeds


@pytest.mark.nightly(part="simulator")
@pytest.mark.slow
def test_many_seeds_keep_every_promise_and_show_everything(figure: Figure) -> None:
    """Chandy and Lamport's rules on channels that keep order: each sighting is seen in some."""
    tally = run_seeds(RunConfig, PLAIN_SEEDS, ignore)
    assert tally.broken == [], f"SEED={tally.broken[0]}: try stillframe sim run --steps --seeds"
    assert set(COVERAGE) - set(tally.seen) == set()
    assert tally.seed_count == len(PLAIN_SEEDS)
    note(tally, figure)


@pytest.mark.nightly(part="simulator")
@pytest.mark.slow
@pytest.mark.parametrize("network", [Fifo, Network.REORDERING])
def test_colours_keep_every_promise_with_and_without_order(
    network: Network, figure: Figure
) -> None:
    """Lai and Yang's rules on both networks; what has to do with connections is on one alone."""
    tally = run_seeds(partial(coloured, network), COLOUR_SEEDS, ignore)
    assert tally.broken == [], f"SEED={tally.broken[0]} under {network}"
    connections = {"a connection was lost and opened again", "a frame arrived twice"}
    missing = set(COVERAGE) - set(tally.seen)
    assert missing == (set() if network is Fifo else connections)
    note(tally, figure)


@pytest.mark.nightly(part="simulator")
@pytest.mark.slow
@pytest.mark.parametrize("network", [Network.REORDERING, Network.LOSSY])
def test_where_order_or_messages_are_lost_a_wrong_snapshot_is_never_published(
    network: Network,
) -> None:
    """Markers alone do not work there, and the books say so: what is published is right, and
    there are snapshots whose parts contradict each other, and runs that are refused."""
    ends: Counter[str] = Counter()
    for seed in seeds_of(f"plain rules, {network}", 80):
        run = run_seed(seed, RunConfig(network=network))
        assert run.violation is None, f"SEED={seed}: {run.violation}"
        ends["refused"] += bool(run.world.refusal)
        for epoch in run.world.epochs:
            for outcome in epoch.outcomes.values():
                if isinstance(outcome, Abandoned):
                    ends["contradictory"] += outcome.reason is Reason.NOT_CONSISTENT
                else:
                    ends["published"] += isinstance(outcome, Snapshot)
    assert ends["refused"] > 0
    assert ends["contradictory"] > 0
    assert ends["published"] > 0 or network is Network.REORDERING


def test_a_user_s_topology_keeps_every_promise() -> None:
    """The bank of the examples, whose auditor is wrong, has snapshots that are right."""
    for seed in range(1, 9):
        run = run_seed(seed, RunConfig(topology=bank, load=Load(safety_ms=30.0)))
        assert run.violation is None, f"SEED={seed}: {run.violation}"
        assert "a snapshot was published" in covered(run)


# --- counting


def test_a_chunk_counts_what_its_runs_did() -> None:
    """The figures of a tally are sums over the runs of its seeds."""
    runs = [run_seed(seed, short()) for seed in range(1, 6)]
    tally = run_chunk(short, range(1, 6))
    epochs = [epoch for run in runs for epoch in run.world.epochs]
    assert tally == Tally(
        seed_count=5,
        choice_count=sum(len(run.schedule) for run in runs),
        event_count=sum(len(epoch.steps) for epoch in epochs),
        message_count=sum(len(epoch.contents) for epoch in epochs),
        snapshot_count=sum(len(epoch.outcomes) for epoch in epochs),
        published_count=sum(
            isinstance(o, Snapshot) for epoch in epochs for o in epoch.outcomes.values()
        ),
        seen=dict(Counter(name for run in runs for name in covered(run))),
    )


def test_tallies_add_up() -> None:
    """Two halves are the whole, whichever comes first."""
    whole = run_chunk(short, range(1, 7))
    for halves in ((range(1, 4), range(4, 7)), (range(4, 7), range(1, 4))):
        total = Tally()
        for half in halves:
            total.add(run_chunk(short, half))
        assert total == whole


@pytest.mark.slow
@pytest.mark.parametrize("core_count", [1, 2])
def test_all_cores_come_to_the_same_as_one(
    core_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many take part changes no figure, and progress is told of every seed."""
    seeds, told = range(1, 2 * CHUNK_COUNT + 6), list[int]()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(core_count)))
    assert run_seeds(short, seeds, told.append) == run_chunk(short, seeds)
    assert sum(told) == len(seeds)


def test_a_seed_that_breaks_a_promise_is_named() -> None:
    """Each such seed is in the tally."""
    broken = [s for s in range(1, 4) if run_seed(s, mutant()).violation is not None]
    assert broken
    assert run_seeds(mutant, range(1, 4), ignore).broken == broken


@pytest.mark.slow
@pytest.mark.parametrize("core_count", [1, 2])
def test_many_seeds_end_soon_after_one_that_breaks_a_promise(
    core_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for the rest of a million once there is something to look at."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(core_count)))
    tally = run_seeds(mutant, range(1, 10_000), ignore)
    assert tally.broken
    assert tally.seed_count < 1000


class Handle:
    """A part of a cycle whose finalizer writes the number of the process that runs it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.itself = self

    def __del__(self) -> None:
        with self.path.open("a") as file:
            file.write(f"{os.getpid()}\n")


@pytest.mark.slow
def test_garbage_is_finalized_in_its_own_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes that run seeds do not finalize objects of their parent."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    for _ in range(1000):
        Handle(tmp_path / "finalized")
    run_seeds(short, range(1, 1 + 2 * CHUNK_COUNT), ignore)
    gc.collect()
    assert set((tmp_path / "finalized").read_text().split()) == {str(os.getpid())}


@pytest.mark.parametrize("seed_count", [1, pytest.param(50, marks=pytest.mark.slow)])
def test_a_handler_that_raises_is_named_with_its_seed(seed_count: int) -> None:
    """The error says which seed, which process and what it raised, from any number of cores."""
    named = r"seed \d+: process P1: pay\(\) raised ValueError: overdrawn"
    with pytest.raises(UsageError, match=named):
        run_seeds(failing, range(1, 1 + seed_count), ignore)


def test_nothing_is_sighted_in_a_run_in_which_nothing_happens() -> None:
    """Sightings are facts of a run: without a snapshot before the last there are few."""
    load = Load(safety_ms=0.0, snapshot_per_s=0.0)
    config = RunConfig(topology=pair(), load=load)
    assert covered(run_seed(1, config)) == ["a snapshot was published"]
