"""Runs by chance: what is drawn, how a run ends, and what it never does."""

from collections import Counter
from random import Random

import pytest

from stillframe import Process
from stillframe.model import Channel, Snapshot
from stillframe.process import Message
from stillframe.sim import choices
from stillframe.sim.checker import check_run
from stillframe.sim.network import Fifo, Lossy, Network, Reordering
from stillframe.sim.scheduler import (
    FULL_COUNT,
    REST_COUNT_MAX,
    Faults,
    Load,
    RandomScheduler,
    Step,
    draw_faults,
)
from stillframe.sim.systems import Account, pair, random_system
from stillframe.sim.world import World
from stillframe.topology import Topology

ALL = Faults(crash_per_s=10.0, break_per_s=40.0, partition_per_s=10.0, double_per_s=40.0)


class Ball(Message):
    """Goes to and fro for ever."""


class Player(Process):
    """Sends back what comes, and asks for a snapshot each time."""

    hit_count: int = 0

    def start(self) -> None:
        """Serve."""
        self.send(self.outgoing[0], Ball())

    def receive(self, channel: Channel, message: Ball) -> None:
        """Hit the ball."""
        self.hit_count += 1
        self.snapshot()
        self.send(channel.source, Ball())


def scheduled(
    faults: Faults, load: Load, seed: int = 1, world: World | None = None
) -> RandomScheduler:
    """Return a scheduler that has come to its end."""
    scheduler = RandomScheduler(world or World(pair()), Random(seed), faults, load)
    scheduler.run()
    return scheduler


def kinds(scheduler: RandomScheduler) -> Counter[str]:
    """Return how often each kind of choice was taken."""
    return Counter(type(step.choice).__name__ for step in scheduler.schedule)


def test_a_line_of_a_schedule_says_when_and_what() -> None:
    """Times stand in a column, so that a schedule can be read."""
    assert str(Step(1.5, choices.Act("P1", "pay"))) == "    1.500 ms  P1 does pay"


def test_without_faults_nothing_goes_wrong() -> None:
    """Every snapshot of such a run is published, and no fault is in its schedule, but the mending
    of what was never broken."""
    scheduler = scheduled(Faults(), Load())
    assert set(kinds(scheduler)) == {"Act", "Deliver", "Initiate", "DeliverNotice", "Heal"}
    outcomes = scheduler.world.epoch.outcomes
    assert len(outcomes) > 1
    assert all(isinstance(outcome, Snapshot) for outcome in outcomes.values())


def test_everything_that_may_go_wrong_does_and_is_mended() -> None:
    """Over some seeds each fault is there; at the end nothing is, and nothing is on its way."""
    seen: Counter[str] = Counter()
    for seed in range(1, 6):
        scheduler = scheduled(ALL, Load(safety_ms=200.0), seed)
        seen += kinds(scheduler)
        world = scheduler.world
        assert (world.down, world.parted, world.pending) == (set(), frozenset(), ())
        assert all(len(m) == 0 and m.is_connected for m in world.channels.values())
        assert scheduler.last is not None
        assert isinstance(world.epoch.outcomes[scheduler.last], Snapshot)
    assert {"Crash", "Restart", "Break", "Connect", "Partition", "Heal", "Duplicate"} <= set(seen)


def test_a_run_does_not_end_before_everybody_has_heard() -> None:
    """In the last epoch every process that is up hears of every snapshot that is over."""
    for seed in range(1, 4):
        world = scheduled(ALL, Load(), seed).world
        heard = {t.choice for t in world.epoch.taken if isinstance(t.choice, choices.DeliverNotice)}
        assert heard == {
            choices.DeliverNotice(process, snapshot)
            for snapshot in world.epoch.outcomes
            for process in world.runners
        }


def test_sometimes_one_action_accepts_messages_of_two_channels() -> None:
    """Where messages wait on several channels of a process, they may arrive together."""
    topology = Topology.mesh({name: Account() for name in ("P1", "P2", "P3")})
    schedule = scheduled(Faults(), Load(), world=World(topology)).schedule
    arrivals = [s.choice for s in schedule if isinstance(s.choice, choices.Deliver)]
    assert {len(arrival.channels) for arrival in arrivals} == {1, 2}
    assert all(len({c.target for c in arrival.channels}) == 1 for arrival in arrivals)


def test_time_never_runs_back() -> None:
    """The lines of a schedule are in the order of their times, from first to last."""
    times = [step.at_ms for step in scheduled(ALL, Load()).schedule]
    assert times == sorted(times)


def test_no_process_acts_by_itself_in_the_liveness_phase() -> None:
    """Actions end with the safety phase; arrivals may go on."""
    scheduler = scheduled(Faults(delay_ms_max=20.0), Load(safety_ms=50.0))
    last = max(s.at_ms for s in scheduler.schedule if isinstance(s.choice, choices.Act))
    assert last <= 50.0 < scheduler.schedule[-1].at_ms


def test_as_many_snapshots_are_taken_as_the_load_says() -> None:
    """None but the last one without a rate; more with a higher one."""
    counts = [
        len(scheduled(Faults(), Load(snapshot_per_s=rate)).world.epoch.initiated)
        for rate in (0.0, 20.0, 200.0)
    ]
    assert counts[0] == 1
    assert counts[0] < counts[1] < counts[2]


def test_a_full_channel_holds_its_source_back() -> None:
    """As with back-pressure: while much is on its way, no more is sent by an action."""
    world = World(pair())
    scheduled(Faults(delay_ms_max=1000.0), Load(safety_ms=100.0, snapshot_per_s=0.0), world=world)
    paid = Counter(step.process for step in world.steps if getattr(step, "handler", "") == "pay")
    assert paid["P1"] == FULL_COUNT
    assert paid["P2"] == FULL_COUNT


def test_a_system_that_never_comes_to_rest_is_left_at_last() -> None:
    """A message that goes to and fro for ever, and asks for snapshots for ever, ends no promise."""
    world = World(Topology.mesh({"P1": Player(), "P2": Player()}))
    scheduler = scheduled(Faults(), Load(safety_ms=20.0), world=world)
    assert check_run(world) is None
    assert len(world.epoch.initiated) > 10
    assert all(isinstance(outcome, Snapshot) for outcome in world.epoch.outcomes.values())
    assert REST_COUNT_MAX <= len(scheduler.schedule) < REST_COUNT_MAX + 1000


def test_a_system_of_one_way_channels_is_reached_by_several_initiators() -> None:
    """Where markers from one process do not reach all, as many initiate as it takes."""
    topology = Topology({n: Account() for n in ("P1", "P2", "P3")}, [("P1", "P2"), ("P3", "P2")])
    scheduler = scheduled(Faults(), Load(safety_ms=10.0, snapshot_per_s=0.0), world=World(topology))
    assert scheduler.last is not None
    assert {"P1", "P3"} <= {
        step.choice.process
        for step in scheduler.schedule
        if isinstance(step.choice, choices.Initiate) and step.choice.snapshot == scheduler.last
    }
    assert isinstance(scheduler.world.epoch.outcomes[scheduler.last], Snapshot)


@pytest.mark.parametrize("network", Network)
def test_faults_fit_the_network(network: Network) -> None:
    """Only connections can break, and only a lossy channel loses; each kind is there in some
    seeds and missing in others."""
    drawn = [draw_faults(Random(seed), network) for seed in range(50)]
    assert {faults.break_per_s > 0 for faults in drawn} == (
        {True, False} if network is Fifo else {False}
    )
    assert {faults.double_per_s > 0 for faults in drawn} == (
        {True, False} if network is Fifo else {False}
    )
    assert {faults.lose_per_s > 0 for faults in drawn} == (
        {True, False} if network is Lossy else {False}
    )
    assert {faults.crash_per_s > 0 for faults in drawn} == {True, False}


def test_what_arrives_without_order_is_drawn() -> None:
    """Where channels reorder, positions other than the first are chosen."""
    world = World(pair(), network=Reordering)
    scheduled(Faults(delay_ms_max=20.0), Load(), world=world)
    assert world.refusal


def test_systems_are_of_every_size_and_shape() -> None:
    """Over some seeds there are 2 to 5 processes, and graphs with few and with many channels."""
    drawn = [random_system(Random(seed)).description for seed in range(100)]
    assert {len(d.processes) for d in drawn} == {2, 3, 4, 5}
    assert {len(d.channels) for d in drawn} >= {1, 2, 4, 20}
