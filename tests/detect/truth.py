"""Detection against the truth: simulated executions in which it is known at every moment.

``python -m tests.detect.truth --seeds 1..10000`` prints how many snapshots were judged, before and
after the onset. Of a predicate that holds, nothing is missed by a snapshot that is initiated after
the onset, and no snapshot that ends before it says that it holds.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from stillframe import Channel, Message, Process, Topology
from stillframe.detect.predicate import StablePredicate, deadlock, loss_against, termination
from stillframe.detect.view import view_of
from stillframe.examples import token_ring
from stillframe.examples.philosophers import Philosopher, dinner
from stillframe.model import Snapshot, SnapshotId
from stillframe.sim import choices
from stillframe.sim.network import Fifo
from stillframe.sim.scheduler import Load, RandomScheduler, draw_faults
from stillframe.sim.world import World


class Page(Message):
    """A page to look at, so many links from the first."""

    depth: int


class Crawler(Process):
    """Looks at pages, and hands on the links that it finds: a diffusing computation."""

    depth_max: int = 3
    seen_count: int = 0
    sent_count: int = 0
    is_first: bool = False

    def start(self) -> None:
        """Begin with one page, at one process."""
        if self.is_first:
            self._hand_on(0)

    def receive(self, channel: Channel, message: Page) -> None:
        """Look at a page."""
        self.seen_count += 1
        if message.depth < self.depth_max:
            self._hand_on(message.depth)

    def _hand_on(self, depth: int) -> None:
        for link in range(1 + (self.seen_count + depth) % 2):
            target = self.outgoing[(self.seen_count + link) % len(self.outgoing)]
            self.sent_count += 1
            self.send(target, Page(depth + 1))


@dataclass(frozen=True)
class Kind:
    """A system, the predicate that is asked, and what somebody who sees everything at once says."""

    draw: Callable[[Random], Topology]
    predicate: StablePredicate
    is_true: Callable[[Iterable[Any]], bool]


def _draw_table(chance: Random) -> Topology:
    return dinner(seat_count=chance.randint(2, 4), is_polite=chance.random() < 0.2)


def _draw_crawlers(chance: Random) -> Topology:
    names = [f"C{number}" for number in range(1, chance.randint(2, 4) + 1)]
    depth_max = chance.randint(2, 9)
    return Topology.mesh(
        {name: Crawler(depth_max=depth_max, is_first=name == names[0]) for name in names}
    )


def _draw_ring(chance: Random) -> Topology:
    count = chance.randint(2, 4)
    return token_ring.ring(
        process_count=count, faulty=chance.randint(1, count), drops_at=chance.choice((0, 2, 3, 5))
    )


def _is_locked(processes: Iterable[Any]) -> bool:
    guests = [process for process in processes if isinstance(process, Philosopher)]
    return all(len(guest.held) == 1 and guest.asked == guest.second for guest in guests)


def _is_crawled(processes: Iterable[Any]) -> bool:
    waiting_count: int = sum(crawler.sent_count - crawler.seen_count for crawler in processes)
    return waiting_count == 0


def _is_dropped(processes: Iterable[Any]) -> bool:
    return any(process.has_dropped for process in processes)


KINDS = {
    "deadlock": Kind(_draw_table, deadlock, _is_locked),
    "termination": Kind(_draw_crawlers, termination, _is_crawled),
    "loss": Kind(_draw_ring, loss_against({"token": {"R1": 1}}), _is_dropped),
}


@dataclass
class Known:
    """What is known of one epoch: after how many choices it became true, and how many had been
    taken when each snapshot was initiated."""

    onset: int | None = None
    initiated: dict[SnapshotId, int] = field(default_factory=dict)


class Watched(World):
    """A world that is seen all at once after each choice."""

    def __init__(self, kind: Kind, topology: Topology, **options: Any) -> None:
        self.known: dict[int, Known] = {}
        self._kind = kind
        super().__init__(topology, **options)
        self._look()

    def take(self, choice: choices.Choice | str) -> None:
        """Let it happen, and look."""
        if isinstance(choice, choices.Initiate):
            initiated = self.known[self.epoch.number].initiated
            initiated.setdefault(choice.snapshot, len(self.epoch.taken))
        super().take(choice)
        self._look()

    def _look(self) -> None:
        known = self.known.setdefault(self.epoch.number, Known())
        is_true = self._kind.is_true([one.process for one in self.runners.values()])
        if known.onset is None and is_true:
            known.onset = len(self.epoch.taken)
        assert is_true or known.onset is None, "what is asked for is not stable"


def judge(name: str, seed: int) -> Counter[str]:
    """Run one execution, and compare the verdict on each of its snapshots with the truth.

    Returns:
        how many snapshots began after the onset, ended before it, or lay around it.

    Raises:
        AssertionError: a verdict was wrong.
    """
    kind, chance = KINDS[name], Random(seed)
    topology = kind.draw(chance)
    world = Watched(kind, topology, timeout_s=0.5, batch_count_max=2)
    RandomScheduler(world, chance, draw_faults(chance, Fifo), Load(safety_ms=150.0)).run()
    assert not world.refusal, world.refusal
    counts: Counter[str] = Counter()
    for epoch in world.epochs:
        known = world.known[epoch.number]
        for snapshot, outcome in epoch.outcomes.items():
            if not isinstance(outcome, Snapshot):
                continue
            verdict = kind.predicate(view_of(outcome, topology))
            where = f"{name}, seed {seed}, snapshot {snapshot} of epoch {epoch.number}: {verdict}"
            if known.onset is None or epoch.ended_in[snapshot] + 1 < known.onset:
                assert not verdict.holds, f"a false alarm in {where}"
                counts["before"] += 1
            elif known.initiated[snapshot] >= known.onset:
                assert verdict.holds, f"missed in {where}"
                counts["after"] += 1
            else:
                counts["around, and held" if verdict.holds else "around"] += 1
    return counts


def main() -> None:
    """Judge so many executions of each kind."""
    parser = argparse.ArgumentParser(prog="python -m tests.detect.truth", description=__doc__)
    parser.add_argument("--seeds", default="1..10000", help="A..B")
    first, last = map(int, parser.parse_args().seeds.split(".."))
    for name in KINDS:
        counts: Counter[str] = Counter()
        for seed in range(first, last + 1):
            counts += judge(name, seed)
        words = ", ".join(f"{what}: {count:,}" for what, count in sorted(counts.items()))
        sys.stdout.write(f"{name}, seeds {first}..{last}: snapshots by their onset: {words}\n")


if __name__ == "__main__":
    main()
