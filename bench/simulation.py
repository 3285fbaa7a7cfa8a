"""``python -m bench.simulation``: the same seeds again and again, on one core.

Processor time, because the machine may have other work.
"""

import time
from random import Random

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from bench.measure import median
from stillframe.model import SnapshotId
from stillframe.sim.checker import check_run
from stillframe.sim.choices import Initiate
from stillframe.sim.exploration import SmallSystem, explore, invariants_hold
from stillframe.sim.network import Fifo
from stillframe.sim.scheduler import Faults, Load, RandomScheduler, draw_faults
from stillframe.sim.systems import pair, random_system
from stillframe.sim.world import World

SEEDS = range(1, 61)
ROUND_COUNT = 5


def measure(progress: Progress) -> list[dict[str, float]]:
    """Return for each round the rates per second of everything that is measured."""
    task = progress.add_task("simulation", total=ROUND_COUNT)
    rounds = []
    for _ in range(ROUND_COUNT):
        rounds.append(_simulate(with_faults=False) | _simulate(with_faults=True) | _explore())
        progress.advance(task)
    return rounds


def main() -> None:
    """Print the medians of all rounds."""
    with Progress(console=Console(stderr=True), transient=True) as progress:
        rounds = measure(progress)
    table = Table(
        title=f"simulation, one core, median of {ROUND_COUNT} rounds",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("what")
    table.add_column("per second", justify="right")
    for name in rounds[0]:
        table.add_row(name, f"{median([turn[name] for turn in rounds]):,.0f}")
    Console(width=100).print(table)


def _simulate(*, with_faults: bool) -> dict[str, float]:
    """Run and check the same seeds; checking is measured apart."""
    driving_s = judging_s = 0.0
    message_count = 0
    for seed in SEEDS:
        chance = Random(seed)
        topology = random_system(chance)
        faults = draw_faults(chance, Fifo) if with_faults else Faults()
        began = time.process_time()
        world = World(topology)
        RandomScheduler(world, chance, faults, Load()).run()
        driven = time.process_time()
        violation = check_run(world)
        judging_s += time.process_time() - driven
        driving_s += driven - began
        assert violation is None, (seed, violation)
        message_count += sum(len(epoch.contents) for epoch in world.epochs)
    name = "with faults" if with_faults else "without faults"
    return {
        f"messages simulated, {name}": message_count / driving_s,
        f"messages simulated and judged, {name}": message_count / (driving_s + judging_s),
        f"seeds simulated and judged, {name}": len(SEEDS) / (driving_s + judging_s),
    }


def _explore() -> dict[str, float]:
    """Visit every interleaving of two accounts that pay, with and without looking at each."""
    system = SmallSystem(
        topology=pair(),
        acts={"P1": ("pay", "pay"), "P2": ("pay", "pay")},
        initiations=(Initiate("P1", SnapshotId("P1", 1)),),
    )
    began = time.process_time()
    found = explore(system, always={"kept": invariants_hold}, sometimes={})
    took_s = time.process_time() - began
    assert not found.broken, found.broken
    return {"histories visited and judged": found.history_count / took_s}


if __name__ == "__main__":
    main()
