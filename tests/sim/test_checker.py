"""The checker on runs that are right, on networks that are not, and on bad handlers."""

from itertools import count
from random import Random

import msgspec
import pytest

from stillframe import Process, every
from stillframe.model import Abandoned, Channel, Reason, Snapshot, SnapshotId
from stillframe.protocol.lai_yang import LaiYangRecorder
from stillframe.protocol.recorder import Recorder
from stillframe.sim.campaign import RunConfig, run_seed
from stillframe.sim.checker import Invariant, Violation, check_end, check_run, rules_fit
from stillframe.sim.choices import parse_choice
from stillframe.sim.network import Fifo, Lossy, Network, Reordering
from stillframe.sim.systems import Account, Payment, pair
from stillframe.sim.world import World
from stillframe.topology import Topology

S = SnapshotId("P1", 1)
TAKEN = ("P1 does pay", "P1 initiates P1-1", *["deliver P1->P2"] * 2, "deliver P2->P1")


def after(world: World, *lines: str) -> World:
    """Let `lines` happen in `world`."""
    for line in lines:
        world.take(parse_choice(line))
    return world


def broken(world: World) -> Violation:
    """Return what the checker finds: it must find something."""
    violation = check_run(world)
    assert violation is not None
    return violation


def published(world: World) -> Snapshot:
    """Return the snapshot that was published."""
    outcome = world.epoch.outcomes[S]
    assert isinstance(outcome, Snapshot)
    return outcome


def test_nothing_is_wrong_at_any_moment_of_a_right_run() -> None:
    """A run is checked after each choice, with snapshots that are still pending."""
    world = World(pair())
    assert check_run(world) is None
    for line in (*TAKEN, "P1 crashes", "restart", "P2 does pay"):
        after(world, line)
        assert check_run(world) is None


def test_a_violation_reads_as_a_sentence() -> None:
    """What was promised comes first, then how it shows that it was not kept."""
    assert str(Violation(Invariant.ONCE, "twice")) == (
        "not kept: every message is accepted at most once, after it was sent, and in order\n  twice"
    )


@pytest.mark.parametrize(
    ("network", "recorder", "fits"),
    [
        (Fifo, Recorder, True),
        (Fifo, LaiYangRecorder, True),
        (Reordering, Recorder, False),
        (Reordering, LaiYangRecorder, True),
        (Lossy, Recorder, False),
        (Lossy, LaiYangRecorder, False),
    ],
)
def test_rules_are_made_for_some_channels(
    network: Network, recorder: type[Recorder | LaiYangRecorder], fits: bool
) -> None:
    """Markers need order, colours do not, and both need channels that lose nothing."""
    assert rules_fit(World(pair(), network=network, recorder=recorder)) is fits


def test_rules_may_give_up_on_channels_that_they_are_not_made_for() -> None:
    """That a run was refused there breaks no promise: it would where order is kept."""
    world = after(World(pair(), network=Reordering), "P1 does pay", "P1 does pay")
    after(world, "deliver P1->P2 at 1")
    assert world.refusal
    assert check_run(world) is None


# --- snapshots that were forged after the fact


def test_a_forged_state_is_found() -> None:
    """What a process was is known from its own actions, not from what was recorded."""
    world = after(World(pair()), *TAKEN)
    snapshot = published(world)
    first, *rest = snapshot.state.processes
    forged = msgspec.structs.replace(first, encoded=msgspec.msgpack.encode({"balance": 1}))
    state = msgspec.structs.replace(snapshot.state, processes=(forged, *rest))
    world.epoch.outcomes[S] = msgspec.structs.replace(snapshot, state=state)
    violation = broken(world)
    assert violation.invariant is Invariant.EXACT
    assert violation.detail == (
        "snapshot P1-1: process P1 was {'balance': 99} at its cut, but {'balance': 1} was recorded"
    )


def test_a_missing_process_is_found() -> None:
    """A snapshot has every process and every channel, or it is none."""
    world = after(World(pair()), *TAKEN)
    snapshot = published(world)
    state = msgspec.structs.replace(snapshot.state, processes=snapshot.state.processes[:1])
    world.epoch.outcomes[S] = msgspec.structs.replace(snapshot, state=state)
    assert broken(world).invariant is Invariant.WHOLE


def test_a_false_excuse_is_found() -> None:
    """A state that could have been recorded was not the reason."""
    world = after(World(pair()), "P1 initiates P1-1")
    world.epoch.outcomes[S] = Abandoned(S, Reason.NOT_RECORDED, ("P1", "P2"))
    world.epoch.ended_at[S] = len(world.steps)
    world.epoch.ended_in[S] = 0
    violation = broken(world)
    assert violation.invariant is Invariant.WHOLE
    assert violation.detail.endswith("but every process could")


def test_a_wrong_list_of_the_missing_is_found() -> None:
    """Who is named had markers to come; who is not named had none."""
    world = after(World(pair(), timeout_s=0.0), "P1 initiates P1-1", "deliver P1->P2", "expire")
    assert check_run(world) is None
    world.epoch.outcomes[S] = Abandoned(S, Reason.DEADLINE, ("P2",))
    violation = broken(world)
    assert violation.invariant is Invariant.WHOLE
    assert violation.detail.endswith("but the fragments of P1 were missing")


def test_a_restore_from_what_was_never_published_is_found() -> None:
    """An epoch begins with a snapshot that was published in one before."""
    world = after(World(pair()), *TAKEN, "restart")
    assert check_run(world) is None
    del world.epochs[0].outcomes[S]
    violation = broken(world)
    assert violation.invariant is Invariant.RESTORED
    assert violation.detail == "epoch 2 begins with P1-1, which was never published"


def test_what_never_comes_is_found_at_the_end() -> None:
    """A message may be on its way, but not be gone; the books of no snapshot need show it."""
    world = after(World(pair()), "P1 does pay")
    assert check_end(world) is None
    world.channels[Channel("P1", "P2")].lose(0)
    assert check_run(world) is None
    violation = check_end(world)
    assert violation is not None
    assert violation.invariant is Invariant.ARRIVED
    assert violation.detail == "message P1->P2 #1 was sent, and never arrived"


# --- handlers that are no functions of what they accept

_calls = count()


class Counting(Account):
    """Pays what a counter outside of its state says."""

    @every(ms=0)
    def pay(self) -> None:
        """Pay more every time."""
        for target in self.outgoing:
            self.send(target, Payment(next(_calls)))


class Dicing(Account):
    """Pays what chance says."""

    @every(ms=0)
    def pay(self) -> None:
        """Pay anything."""
        for target in self.outgoing:
            self.send(target, Payment(Random().randrange(10**9)))


class Hoarding(Process):
    """Remembers in a private attribute what it should have declared, and goes by it."""

    _seen = 0
    parity: int = 0

    def receive(self, channel: Channel, message: Payment) -> None:
        """Take no notice."""

    @every(ms=0)
    def look(self) -> None:
        """Keep what chance says."""
        self.parity = Random().randrange(10**9)


@pytest.mark.parametrize("kind", [Counting, Dicing, Hoarding])
def test_a_handler_that_depends_on_something_else_is_reported(kind: type[Process]) -> None:
    """Done again it does something else: the process is named, and what a handler may depend on."""
    topology = Topology.mesh({"P1": kind(), "P2": Account()})
    violation = run_seed(1, RunConfig(topology=topology)).violation
    assert violation is not None
    assert violation.invariant is Invariant.UNCHANGED
    assert "process P1" in violation.detail
    assert "take random numbers from a recorded field" in violation.detail


def test_where_the_rules_are_refused_nothing_is_promised_of_the_end() -> None:
    """The plain rules do not fit channels that do not keep order."""
    world = run_seed(1, RunConfig(network=Network.REORDERING)).world
    assert not rules_fit(world)
    assert check_end(world) is None
