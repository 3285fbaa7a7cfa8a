"""A world does what it is told: what goes wrong, how it goes on, and what handlers are called."""

import asyncio
import re
from collections.abc import Awaitable
from dataclasses import field

import msgspec
import pytest

from stillframe import ExternalProcess, Process, every
from stillframe.errors import ApplicationError, NotConsistent, UsageError
from stillframe.model import Abandoned, Channel, Marker, Reason, Snapshot, SnapshotId
from stillframe.process import Message
from stillframe.protocol.assembler import assemble
from stillframe.protocol.lai_yang import LaiYangRecorder
from stillframe.sim.checker import check_run
from stillframe.sim.choices import parse_choice
from stillframe.sim.network import Fifo, Lossy, Network, Reordering
from stillframe.sim.systems import Account, Payment, pair
from stillframe.sim.world import LABEL_CHARACTER_MAX, World, message_label
from stillframe.topology import Topology
from stillframe.trace import Event, MarkerStep, MessageId

S = SnapshotId("P1", 1)
TAKEN = ("P1 initiates P1-1", "deliver P1->P2", "deliver P2->P1")
"""A snapshot of a pair on which nothing is on its way, from the beginning to the end."""


class Diary(Process):
    """Writes down which of its handlers were called; says hello at the start."""

    lines: list[str] = field(default_factory=list)

    def start(self) -> None:
        """Say hello to everybody."""
        self.lines = [*self.lines, "start"]
        for target in self.outgoing:
            self.send(target, Payment(1))

    def receive(self, channel: Channel, message: Payment) -> Awaitable[None] | None:
        """Write down from whom it came."""
        self.lines = [*self.lines, f"{message.amount} from {channel.source}"]
        return None

    @every(ms=0)
    def pay(self) -> None:
        """Pay everybody 2."""
        for target in self.outgoing:
            self.send(target, Payment(2))

    def on_published(self, snapshot: SnapshotId) -> None:
        """Write down that it happened."""
        self.lines = [*self.lines, f"published {snapshot}"]


def diaries() -> Topology:
    """Return two processes that keep diaries and can send each other messages."""
    return Topology.mesh({"P1": Diary(), "P2": Diary()})


def do(world: World, *lines: str) -> World:
    """Let `lines` happen in `world`."""
    for line in lines:
        world.take(parse_choice(line))
    return world


def test_what_travels_and_what_can_happen_is_known() -> None:
    """Messages and markers in the order of sending; and every choice that is named can be taken."""
    lines = ["P1 does pay", "P1 initiates P1-1", "P1 does pay", "P2 does pay"]
    world = do(World(pair()), *lines)
    there, back = Channel("P1", "P2"), Channel("P2", "P1")
    assert world.in_transit(there) == (Payment(1), Marker(S), Payment(1))
    assert world.in_transit(back) == (Payment(1),)
    with pytest.raises(UsageError, match="no channel P1->P9; there are P1->P2, P2->P1"):
        world.in_transit(Channel("P1", "P9"))
    enabled = [str(choice) for choice in world.enabled()]
    assert "P2 initiates P1-1" in enabled
    assert "P2 initiates P2-2" in enabled
    for choice in enabled:
        do(World(pair()), *lines, choice)
    forms = {re.sub(r"P\d(->P\d|-\d)?", "P", line) for line in enabled}
    assert forms == {
        *("P does pay", "P initiates P", "deliver P", "double P", "break P", "expire"),
        *("P crashes", "restart"),
    }


def test_fragments_form_a_snapshot_if_they_are_consistent() -> None:
    """The one that the world has published; whatever else they are is refused by name."""
    system = pair()
    world = do(World(system), "P2 does pay", *TAKEN[:2], "deliver P2->P1", "deliver P2->P1")
    (published,) = world.epoch.published
    first, second = (world.fragments("P1-1")[name] for name in ("P1", "P2"))
    formed = assemble(system, [second, first])
    assert (formed.id, formed.state) == (S, published.state)
    (incoming,) = first.incoming
    late = msgspec.structs.replace(incoming, received_count=2, batches=())
    with pytest.raises(NotConsistent, match="P2->P1"):
        assemble(system, [msgspec.structs.replace(first, incoming=(late,)), second])
    other = msgspec.structs.replace(second, snapshot=SnapshotId("P1", 2))
    for wrong, why in (
        ([], "no fragment of P1, P2"),
        ([first], "no fragment of P2"),
        ([first, first], "it arrived twice"),
        ([first, second, second], "it comes after one of each process"),
        ([first, other], "P1-2 from process 'P2': it comes with P1-1"),
    ):
        with pytest.raises(UsageError, match=why):
            assemble(system, wrong)
    with pytest.raises(UsageError, match="not those agreed on"):
        assemble(diaries(), [first, second])


def lines_of(world: World, process: str) -> list[str]:
    """Return what is in the diary of `process`."""
    diary = world.runners[process].process
    assert isinstance(diary, Diary)
    return diary.lines


def balances(world: World) -> list[int]:
    """Return what is on the accounts."""
    accounts = [runner.process for runner in world.runners.values()]
    return [account.balance for account in accounts if isinstance(account, Account)]


def outcome_of(world: World, snapshot: SnapshotId = S) -> Snapshot | Abandoned:
    """Return how `snapshot` ended."""
    return world.epoch.outcomes[snapshot]


# --- what a system does


def test_what_happens_is_kept_as_a_trace() -> None:
    """Actions, arrivals and steps of recording are noted in their order, with their messages."""
    world = do(World(pair()), "P1 does pay", "P1 initiates P1-1", "deliver P1->P2")
    message = MessageId(Channel("P1", "P2"), 1)
    assert world.steps == [
        Event("P1", "pay", "pay", sent=(message,), at=0.0),
        MarkerStep("P1", S, None, is_cut=True, targets=("P2",), at=0.0),
        Event("P2", "Payment(amount=1)", "receive", accepted=(message,), at=0.0),
    ]
    assert balances(world) == [99, 101]


class Payer(Account):
    """Pays as much as it is told."""

    @every(ms=0)
    def pay(self, amount: int = 1) -> None:
        """Pay every neighbour `amount`."""
        for target in self.outgoing:
            self.balance -= amount
            self.send(target, Payment(amount))


def test_an_action_takes_arguments() -> None:
    """They are in the trace, so that the action can be performed again with them."""
    world = World(Topology.mesh({"P1": Payer(), "P2": Payer()}))
    for text in ("P1 does pay", "P1 does pay(7)", "P1 initiates P1-1"):
        world.take(parse_choice(text))
    events = [step for step in world.steps if isinstance(step, Event)]
    assert [(event.label, event.handler, event.fields) for event in events] == [
        ("pay", "pay", None),
        ("pay(7)", "pay", {"arguments": [7]}),
    ]
    assert isinstance(process := world.runners["P1"].process, Payer)
    assert process.balance == 92
    assert check_run(world) is None
    with pytest.raises(
        ApplicationError, match=r"process P1: pay\(\) raised TypeError: .* argument"
    ):
        world.take(parse_choice("P1 does pay(1, 2)"))


class Splitter(Account):
    """Pays several amounts."""

    @every(ms=0)
    def pay(self, amounts: frozenset[int] = frozenset(), *rest: int) -> None:
        """Pay the sum of different `amounts`, and the `rest`."""
        for target in self.outgoing:
            self.send(target, Payment(sum(amounts | {*rest})))


def test_the_arguments_of_an_action_have_the_types_of_its_annotations() -> None:
    """JSON is converted, also when the action is replayed; what does not fit is refused."""
    world = World(Topology.mesh({"P1": Splitter(), "P2": Splitter()}))
    do(world, "P1 does pay([2, 2, 3], 4)", "P1 initiates P1-1")
    assert world.state().channels[Channel("P1", "P2")] == (Payment(9),)
    assert check_run(world) is None
    with pytest.raises(UsageError, match=r"process P1: pay\(\) does not take \['5'\]: Expected"):
        do(world, 'P1 does pay("5")')


def test_several_messages_arrive_in_one_atomic_action() -> None:
    """One message of each of several channels is one event, and one call of receive for each."""
    topology = Topology({n: Diary() for n in ("P1", "P2", "P3")}, [("P1", "P3"), ("P2", "P3")])
    world = do(World(topology), "deliver P1->P3, P2->P3")
    assert lines_of(world, "P3") == ["start", "1 from P1", "1 from P2"]
    accepted = tuple(MessageId(Channel(source, "P3"), 1) for source in ("P1", "P2"))
    last = world.steps[-1]
    assert isinstance(last, Event)
    assert last.accepted == accepted
    assert check_run(world) is None


def test_what_one_action_sends_to_one_target_can_travel_together() -> None:
    """It arrives at once, each message as an action of its own, and is recorded one by one."""

    class Generous(Account):
        @every(ms=0)
        def pay(self) -> None:
            """Pay twice."""
            super().pay()
            super().pay()

    topology = Topology.mesh({"P1": Generous(), "P2": Account()})
    world = do(World(topology, batch_count_max=3), "P2 initiates P2-1", "P1 does pay")
    [frame] = world.channels[Channel("P1", "P2")].contents
    assert frame.batch is not None
    assert frame.batch.count == 2
    do(world, "deliver P1->P2", "deliver P2->P1", "deliver P1->P2")
    accepted = [step.accepted for step in world.steps if isinstance(step, Event)][1:]
    assert accepted == [(MessageId(Channel("P1", "P2"), number),) for number in (1, 2)]
    outcome = outcome_of(world, SnapshotId("P2", 1))
    assert isinstance(outcome, Snapshot)
    assert outcome.state.message_count == 2
    assert check_run(world) is None


def test_a_topology_is_not_changed_by_what_happens_in_a_world() -> None:
    """Two worlds of one topology begin with the same states."""
    topology = pair()
    do(World(topology), "P1 does pay")
    assert balances(World(topology)) == [100, 100]


def test_what_is_not_possible_is_refused_and_changes_nothing() -> None:
    """An impossible choice is a mistake of the caller: it is named with the reason."""
    world = World(pair())
    with pytest.raises(UsageError, match="deliver P1->P2: 0 messages and markers are on P1->P2"):
        do(world, "deliver P1->P2")
    assert (world.refusal, world.steps) == ("", [])


def test_a_long_message_is_shortened_in_a_label() -> None:
    """A label stays readable, and shows that it was cut."""

    class Long(Message):
        text: str

    label = message_label(Long("x" * 100))
    assert len(label) == LABEL_CHARACTER_MAX
    assert label.endswith("…")


# --- snapshots


def test_a_snapshot_is_published_when_the_last_part_is_in() -> None:
    """The markers go around once, and the outcome has all states."""
    world = do(World(pair()), *TAKEN[:-1])
    before = world.pending
    outcome = outcome_of(do(world, TAKEN[-1]))
    assert isinstance(outcome, Snapshot)
    assert world.restore_point is outcome
    assert (before, world.pending) == ((S,), ())


def test_deadlines_are_acted_on_when_that_is_chosen() -> None:
    """Before its deadline a snapshot stays; after it those that are missing are named."""
    world = do(World(pair(), timeout_s=0.5), "P1 initiates P1-1")
    world.now = 0.4
    do(world, "expire")
    assert world.pending == (S,)
    world.now = 0.5
    do(world, "expire")
    assert outcome_of(world) == Abandoned(S, Reason.DEADLINE, ("P1", "P2"))


def test_a_process_that_hears_of_the_end_stops_recording() -> None:
    """What an abandoned snapshot leaves behind is given up, and its late markers are let pass."""
    world = do(World(pair(), timeout_s=0.0), "P1 initiates P1-1", "expire")
    assert world.recorders["P1"].progress(S) is not None
    do(world, "P1 hears that P1-1 is over")
    assert world.recorders["P1"].progress(S) is None
    do(world, "deliver P1->P2", "deliver P2->P1")
    assert (world.refusal, check_run(world)) == ("", None)


def test_a_cut_that_turns_out_useless_in_the_same_step_is_still_one() -> None:
    """A marker that contradicts what came before it makes its target record, relay it and give up
    at once: the trace says so, and the checker finds nothing wrong with it."""
    world = World(pair(), network=Reordering, recorder=LaiYangRecorder, timeout_s=0.0)
    do(world, "P1 initiates P1-1", "expire", "P1 hears that P1-1 is over", "P1 does pay")
    do(world, "deliver P1->P2 at 1", "deliver P1->P2")
    assert world.steps[-1] == MarkerStep("P2", S, "P1", is_cut=True, targets=("P1",), at=0.0)
    assert check_run(world) is None


def test_a_state_that_cannot_be_recorded_is_said_to_be_that() -> None:
    """A process with an undeclared attribute takes no part, and the checker accepts that."""

    class Careless(Process):
        def receive(self, channel: Channel, message: Payment) -> None:
            """Take no notice."""

        @every(ms=0)
        def forget(self) -> None:
            """Set what was never declared."""
            self.extra = 1

    world = World(Topology.mesh({"P1": Careless(), "P2": Account()}))
    do(world, "P1 does forget", "P2 initiates P2-1", "deliver P2->P1")
    outcome = outcome_of(world, SnapshotId("P2", 1))
    assert isinstance(outcome, Abandoned)
    assert outcome.reason is Reason.NOT_RECORDED
    assert "Careless.extra was set but is not declared" in outcome.detail


# --- handlers


def test_start_is_called_once_and_not_after_a_restore() -> None:
    """A fresh start calls it, also the one after a death without a snapshot; a restore does not."""
    world = World(diaries())
    assert lines_of(world, "P1") == ["start"]
    do(world, "restart")
    assert lines_of(world, "P1") == ["start"]
    do(world, "deliver P1->P2", "deliver P2->P1", *TAKEN, "restart")
    assert world.epoch.start is not None
    assert lines_of(world, "P1") == ["start", "1 from P2"]
    assert check_run(world) is None


def test_publication_is_told_to_those_that_are_up() -> None:
    """Every process hears of a restore point once, as an action of its own."""
    world = do(World(diaries()), "deliver P1->P2", "deliver P2->P1", *TAKEN)
    for process in ("P1", "P2"):
        assert lines_of(world, process)[2:] == ["published P1-1"]
    last = world.steps[-1]
    assert isinstance(last, Event)
    assert (last.handler, last.fields) == ("on_published", {"snapshot": "P1-1"})


def test_only_a_restore_point_is_told() -> None:
    """A snapshot that was begun before the last one was complete is no point to go back to."""
    world = do(World(diaries()), "deliver P1->P2", "deliver P2->P1")
    do(world, "P1 initiates P1-1", "P2 initiates P2-2")
    world.now = 1.0
    do(world, "deliver P1->P2", "deliver P2->P1", "deliver P2->P1", "deliver P1->P2")
    first, second = outcome_of(world, SnapshotId("P2", 2)), outcome_of(world, S)
    assert isinstance(first, Snapshot)
    assert isinstance(second, Snapshot)
    told = [line for line in lines_of(world, "P1") if line.startswith("published")]
    assert world.restore_point is not None
    assert told == [f"published {world.restore_point.id}"]


def test_an_async_handler_that_does_not_wait_is_one_atomic_action() -> None:
    """What needs no event loop can be stepped through."""

    class Quick(Diary):
        async def receive(self, channel: Channel, message: Payment) -> None:
            """Write it down without waiting for anything."""
            self.lines = [*self.lines, "quick"]

    world = do(World(Topology.mesh({"P1": Quick(), "P2": Diary()})), "deliver P2->P1")
    assert lines_of(world, "P1") == ["start", "quick"]


def test_an_async_handler_that_waits_is_refused() -> None:
    """There is no event loop: who waits for one is told so, by name."""

    class Slow(Diary):
        async def receive(self, channel: Channel, message: Payment) -> None:
            """Wait for the loop to come around."""
            await asyncio.sleep(0)

    world = World(Topology.mesh({"P1": Slow(), "P2": Diary()}))
    with pytest.raises(UsageError, match="process P1: an async handler waited:"):
        do(world, "deliver P2->P1")


def test_a_process_with_a_loop_of_its_own_is_refused() -> None:
    """Nobody can step through a program that joins."""

    class Books:
        """What the program records: nothing."""

    topology = Topology.mesh({"P1": Account(), "P2": ExternalProcess(state=Books, accepts=Payment)})
    with pytest.raises(UsageError, match=r"process P2 runs its own event loop \(stillframe.join\)"):
        World(topology)


def test_a_handler_that_raises_is_named() -> None:
    """A mistake of the application goes to the caller, with the process and what it raised."""

    class Broken(Account):
        @every(ms=0)
        def pay(self) -> None:
            """Fail."""
            raise ZeroDivisionError("nothing to divide")

    world = World(Topology.mesh({"P1": Broken(), "P2": Account()}))
    with pytest.raises(ApplicationError, match=r"process P1: pay\(\) raised ZeroDivisionError"):
        do(world, "P1 does pay")


# --- what goes wrong


def test_a_death_abandons_what_is_under_way_and_takes_its_connections() -> None:
    """What was not published is over, and nothing goes to or from a dead process."""
    world = do(World(pair()), "P1 does pay", "P1 initiates P1-1", "P2 crashes")
    assert outcome_of(world) == Abandoned(S, Reason.PROCESS_DIED, ("P1", "P2"))
    assert [memory.is_connected for memory in world.channels.values()] == [False, False]
    assert world.down == {"P2"}


def test_a_restart_goes_back_to_the_last_restore_point() -> None:
    """States are set, what was on the channels is received before anything new, and every
    connection of the epoch before is refused."""
    world = do(World(pair()), "P1 does pay", "P2 does pay", "P2 does pay")
    do(world, "P1 initiates P1-1", "deliver P2->P1", "deliver P1->P2", "deliver P1->P2")
    do(world, "deliver P2->P1", "deliver P2->P1", "P1 does pay", "P1 crashes", "restart")
    assert (world.epoch.number, world.epoch.refused_count, world.down) == (2, 2, set())
    start = world.epoch.start
    assert start is not None
    assert start.state.message_count == 2
    assert balances(world) == [101, 99]
    assert [memory.contents for memory in world.channels.values()] == [(), ()]
    handlers = [step.handler for step in world.steps if isinstance(step, Event)]
    assert handlers == ["restored", "restored", "receive", "receive"]
    assert check_run(world) is None


def test_a_restart_without_a_snapshot_begins_afresh() -> None:
    """Nothing was published: the states are those of the start, in a new epoch."""
    world = do(World(pair()), "P1 does pay", "P1 initiates P1-1", "restart")
    assert world.epochs[0].outcomes[S] == Abandoned(S, Reason.STOPPED, ("P1", "P2"))
    assert (world.epoch.number, world.epoch.start, balances(world)) == (2, None, [100, 100])


def test_a_partition_holds_back_what_crosses_it_until_it_heals() -> None:
    """Nothing arrives from the other side; afterwards everything does."""
    world = do(World(pair()), "P1 does pay", "partition P1")
    with pytest.raises(UsageError, match="a partition separates P1 and P2"):
        do(world, "deliver P1->P2")
    do(world, "heal", "deliver P1->P2")
    assert balances(world) == [99, 101]


def test_a_broken_connection_is_taken_up_again() -> None:
    """What was on it, and what was sent meanwhile, arrives once and in order; a snapshot too."""
    world = do(World(pair()), "P1 does pay", "P1 initiates P1-1", "break P1->P2", "P1 does pay")
    assert world.sendings.count(Channel("P1", "P2")) == 3
    do(world, "connect P1->P2", *["deliver P1->P2"] * 3, "deliver P2->P1")
    assert balances(world) == [98, 102]
    assert isinstance(outcome_of(world), Snapshot)
    assert check_run(world) is None


def test_what_is_on_its_way_twice_is_accepted_once() -> None:
    """Messages and markers alike."""
    world = do(World(pair()), "P1 does pay", "double P1->P2", *["deliver P1->P2"] * 2)
    assert balances(world) == [99, 101]
    do(world, "P1 initiates P1-1", "double P1->P2", *["deliver P1->P2"] * 2, "deliver P2->P1")
    assert isinstance(outcome_of(world), Snapshot)
    assert (world.refusal, check_run(world)) == ("", None)


def test_what_is_lost_is_found_out_by_the_next_message() -> None:
    """Chandy and Lamport's rules need channels that lose nothing: they say what is missing."""
    world = do(World(pair(), network=Lossy), "P1 does pay", "P1 does pay", "lose P1->P2")
    do(world, "deliver P1->P2")
    assert world.refusal == "channel P1->P2: message 1 should come next, but 2 came"


@pytest.mark.parametrize("network", [Fifo, Reordering])
def test_colours_make_snapshots_on_either_network(network: Network) -> None:
    """A message that overtakes the marker turns its target red first, and is not in the cut."""
    world = World(pair(), network=network, recorder=LaiYangRecorder)
    do(world, "P1 initiates P1-1", "P1 does pay")
    do(world, "deliver P1->P2 at 1" if network is Reordering else "deliver P1->P2")
    do(world, "deliver P1->P2", "deliver P2->P1")
    outcome = outcome_of(world)
    assert isinstance(outcome, Snapshot)
    assert outcome.state.message_count == 0
    assert world.epoch.trace(world.description).cut_of(S) == (0, 0)
    assert check_run(world) is None


# --- views


def after(*lines: str, network: Network = Fifo) -> World:
    """Return two accounts after these choices."""
    world = World(pair(), network=network)
    for line in lines:
        world.take(parse_choice(line))
    return world


def test_the_global_state_is_seen_as_objects() -> None:
    """Processes with their fields, and the messages that were sent and not yet received."""
    world = after("P1 does pay", "P1 does pay", "P2 does pay", "deliver P1->P2")
    state = world.state()
    assert {name: one.balance for name, one in state.processes.items()} == {"P1": 98, "P2": 100}
    assert [*state.in_transit()] == [
        (Channel("P1", "P2"), Payment(1)),
        (Channel("P2", "P1"), Payment(1)),
    ]
    state.processes["P1"].balance = 0
    assert world.state().processes["P1"].balance == 98, "a view is a copy"


def test_what_was_lost_is_on_no_channel_and_what_waits_for_a_connection_is() -> None:
    """A lossy channel loses for ever; a lost connection sends again."""
    lost = after("P1 does pay", "P1 does pay", "lose P1->P2", network=Lossy)
    assert len([*lost.state().in_transit()]) == 1
    broken = after("P1 does pay", "break P1->P2", "P1 does pay")
    assert len([*broken.state().in_transit()]) == 2
    doubled = after("P1 does pay", "double P1->P2")
    assert len([*doubled.state().in_transit()]) == 1


def test_what_a_restart_delivers_again_is_in_the_state_until_then() -> None:
    """The recorded messages are received at once."""
    world = after("P1 initiates P1-1", "P2 does pay", "deliver P1->P2", "deliver P2->P1")
    world.take(parse_choice("deliver P2->P1"))
    world.take(parse_choice("P1 crashes"))
    world.take(parse_choice("restart"))
    state = world.state()
    assert {name: one.balance for name, one in state.processes.items()} == {"P1": 101, "P2": 99}
    assert [*state.in_transit()] == []


def test_a_snapshot_is_seen_while_it_is_recorded() -> None:
    """Who has recorded which state, what was recorded of which channel, and what still is."""
    lines = ["P2 does pay", "P1 initiates P1-1", "deliver P2->P1"]
    world = after(*lines)
    found = world.recorded(S)
    assert str(world.recorded(str(S))) == str(found)
    to_p1 = Channel("P2", "P1")
    assert {name: one.balance for name, one in found.processes.items()} == {"P1": 100}
    assert (found.channels, found.recording) == ({to_p1: (Payment(1),)}, (to_p1,))
    assert found.outcome is None
    for line in ("deliver P1->P2", "deliver P2->P1"):
        world.take(parse_choice(line))
    found = world.recorded(S)
    assert {name: one.balance for name, one in found.processes.items()} == {"P1": 100, "P2": 99}
    assert found.channels == {Channel("P1", "P2"): (), to_p1: (Payment(1),)}
    assert found.recording == ()
    assert isinstance(found.outcome, Snapshot)
    with pytest.raises(UsageError, match=r"there is no snapshot P1-9 .*; there are P1-1"):
        world.recorded(SnapshotId("P1", 9))
