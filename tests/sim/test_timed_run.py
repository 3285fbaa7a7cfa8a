"""Executions by the clock, driven from Python: topology, actions, and delays."""

from itertools import count, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillframe.errors import ApplicationError, UsageError
from stillframe.model import Channel, SnapshotId
from stillframe.process import Message, Process, every
from stillframe.protocol.lai_yang import LaiYangRecorder
from stillframe.sim import choices, timed_run
from stillframe.sim.network import Network
from stillframe.sim.scripted_process import parse_script, scripted_topology
from stillframe.sim.systems import Account, Payment, pair
from stillframe.sim.world import World
from stillframe.topology import Topology
from stillframe.trace import Event, MarkerStep
from tests.sim.reading import LECTURE_SCRIPT, holds, snapshot_of

LECTURE = scripted_topology(parse_script(LECTURE_SCRIPT))
SNAPSHOT = SnapshotId("P1", 1)


class Ball(Message):
    """What is thrown."""


class Player(Process):
    """Throws a ball, and throws back every ball that comes."""

    caught_count: int = 0

    def receive(self, channel: Channel, message: Ball) -> None:
        """Throw it back."""
        self.caught_count += 1
        self.send(channel.source, Ball())

    @every(ms=0)
    def throw(self) -> None:
        """Throw one to everybody."""
        for target in self.outgoing:
            self.send(target, Ball())


class Early(Account):
    """Pays before anything else happens."""

    def start(self) -> None:
        """Pay at once."""
        self.pay()


def act(tick: int, process: str, action: str) -> tuple[int, choices.Act]:
    """Return an action at a tick."""
    return tick, choices.Act(process, action)


def initiate(tick: int, process: str = "P1") -> tuple[int, choices.Initiate]:
    """Return the initiation of the one snapshot at a tick."""
    return tick, choices.Initiate(process, SNAPSHOT)


def story(world: World) -> list[str]:
    """Return the steps, each as its process and what it accepted or did."""
    return [
        f"{step.process} {step.label or 'accepts'}"
        if isinstance(step, Event)
        else f"{step.process} marker from {step.source}"
        for step in world.steps
    ]


def test_the_lecture_example_from_python_gives_the_lecture_result() -> None:
    """P1: A B C D E, P2: F G H, P3: I J K; the marker to P3 is fast, the one to P2 slow."""
    actions: list[tuple[int, timed_run.TickAction]] = [
        act(0, "P1", "A"),
        act(1, "P3", "I"),
        act(1, "P1", "B"),
        initiate(2),
        act(4, "P1", "C"),
        act(5, "P2", "H"),
        act(10, "P3", "J"),
        act(11, "P1", "E"),
    ]
    in_order = {
        "I>G": 3,
        "B>F": 2,
        "marker P1->P2": 4,
        "marker P1->P3": 1,
        "marker P3->P1": 1,
        "marker P3->P2": 4,
        "H>D": 4,
    }
    world = timed_run.play(LECTURE, actions, in_order.values())
    done, channels = holds(world, "P1-1")
    assert done == {"P1": ["A", "B"], "P2": ["F", "G", "H"], "P3": ["I"]}
    assert {name for name, messages in channels.items() if not messages} == {
        *("P1->P2", "P1->P3", "P2->P3", "P3->P1", "P3->P2")
    }
    assert channels["P2->P1"] == ["H>D"]
    assert len(channels) == 6
    assert story(world)[-1] == "P3 K"


def test_delays_may_have_names() -> None:
    """Those of a script; the number of a message on its channel, or its marker, in any system."""
    script = parse_script(LECTURE_SCRIPT)
    actions = ["P1 does A", "P3 does I", "P1 does B", "P1 initiates P1-1", "P1 does C", "P2 does H"]
    ticks = [0, 1, 1, 2, 4, 5]
    delays = {"I>G": 3, "P1->P2 #1": 2, "marker P1->P2": 4, "marker P3->P2": 4, "H>D": 4}
    world = timed_run.play(script, zip(ticks, actions, strict=True), delays)
    done, channels = holds(world, "P1-1")
    assert done == {"P1": ["A", "B"], "P2": ["F", "G", "H"], "P3": ["I"]}
    assert channels["P2->P1"] == ["H>D"]
    with pytest.raises(UsageError, match="delays: no message called 'P1->P2 #2' can arrive"):
        timed_run.play(pair(), [(0, "P1 does pay")], {"P1->P2 #2": 1})


def test_channels_and_rules_can_be_chosen() -> None:
    """Where order is not kept a message overtakes another; a script says that itself."""
    world = timed_run.play(
        pair(),
        [(0, "P1 does pay"), (0, "P1 initiates P1-1"), (1, "P1 does pay")],
        {"P1->P2 #1": 9},
        network=Network.REORDERING,
        recorder=LaiYangRecorder,
    )
    accepted = [s.accepted[0].number for s in world.steps if isinstance(s, Event) and s.accepted]
    assert accepted == [2, 1]
    assert snapshot_of(world, "P1-1").state.message_count == 1
    scripted = parse_script("P1: A B\nP2: Y X\nmessages: A>X B>Y\nnetwork: reordering")
    played = timed_run.play(scripted, [(0, "P1 does A"), (0, "P1 does B")], {"A>X": 9})
    assert story(played) == ["P1 A", "P1 B", "P2 Y", "P2 X"]


def test_what_a_script_never_receives_takes_no_delay() -> None:
    """It has none; the next delay is that of the next message."""
    script = parse_script("P1: A B\nP2: X\nP3:\nmessages: A->P3 B>X")
    world = timed_run.play(script, [(0, "P1 does A"), (0, "P1 does B")], [7])
    assert (story(world), world.now) == (["P1 A", "P1 B", "P2 X"], 7.0)
    with pytest.raises(UsageError, match="no message called 'A->P3' can arrive"):
        timed_run.play(script, [(0, "P1 does A")], {"A->P3": 7})


def test_a_channel_keeps_order_although_delays_would_reverse_it() -> None:
    """What is sent later with a short delay arrives right behind what was sent before."""
    ticks_of: dict[int, list[str]] = {}
    seen = 0

    def tick(number: int, world: World) -> None:
        nonlocal seen
        ticks_of[number] = story(world)[seen:]
        seen = len(story(world))

    script = "P1: A B C\nP2: X Y Z\nmessages: A>X B>Y C>Z"
    topology = scripted_topology(parse_script(script))
    actions = [act(0, "P1", "A"), act(1, "P1", "B"), act(2, "P1", "C")]
    timed_run.play(topology, actions, [9, 2, 8], tick=tick)
    assert ticks_of == {0: ["P1 A"], 1: ["P1 B"], 2: ["P1 C"], 9: ["P2 X", "P2 Y"], 10: ["P2 Z"]}


def test_what_never_arrives_holds_up_what_is_behind_it() -> None:
    """A channel that keeps order delivers nothing past it; the run ends all the same."""
    script = parse_script("P1: A B\nP2: X Y\nmessages: A>X B>Y")
    world = timed_run.play(
        scripted_topology(script), [act(0, "P1", "A"), act(1, "P1", "B")], [None, 1]
    )
    assert story(world) == ["P1 A", "P1 B"]
    assert len(world.channels[Channel("P1", "P2")]) == 2


def test_deliveries_come_before_actions_in_a_tick() -> None:
    """What is due at the tick of a snapshot is received before it, what is sent then after it."""
    world = timed_run.play(pair(), [act(0, "P1", "pay"), initiate(3, "P2")], [3, 1, 1])
    assert story(world) == [
        "P1 pay",
        "P2 Payment(amount=1)",
        "P2 marker from None",
        "P1 marker from P2",
        "P2 marker from P1",
    ]


def test_in_one_tick_what_was_sent_first_arrives_first() -> None:
    """Over different channels, whatever their names."""
    topology = Topology.mesh({"P1": Account(), "P2": Account(), "P3": Account()})
    actions = [act(0, "P3", "pay"), act(1, "P1", "pay")]
    world = timed_run.play(topology, actions, [3, 3, 2, 2])
    accepted = [s.accepted[0].channel for s in world.steps if isinstance(s, Event) and s.accepted]
    assert list(map(str, accepted)) == ["P3->P1", "P3->P2", "P1->P2", "P1->P3"]


def test_a_delay_of_0_arrives_in_the_same_tick_after_its_actions() -> None:
    """Both for what an action sends and for what an arrival does."""
    world = timed_run.play(pair(), [act(5, "P1", "pay"), initiate(5)], repeat(0))
    assert world.now == 5.0
    assert story(world) == [
        "P1 pay",
        "P1 marker from None",
        "P2 Payment(amount=1)",
        "P2 marker from P1",
        "P1 marker from P2",
    ]


def test_delays_are_1_beyond_the_end_and_may_go_on_for_ever() -> None:
    """As many are taken as are needed."""
    assert timed_run.play(pair(), [act(0, "P1", "pay")]).now == 1.0
    taken = count(7)
    world = timed_run.play(pair(), [act(0, "P1", "pay"), act(1, "P2", "pay")], taken)
    assert world.now == 9.0
    assert next(taken) == 9


def test_what_is_sent_at_the_start_takes_the_first_delays() -> None:
    """``start`` is before tick 0."""
    topology = Topology.mesh({"P1": Early(), "P2": Early()})
    world = timed_run.play(topology, [initiate(2)], [5, 1])
    assert story(world)[:4] == [
        "P1 start",
        "P2 start",
        "P1 Payment(amount=1)",
        "P1 marker from None",
    ]


def test_nothing_to_do_takes_no_time() -> None:
    """No action and nothing on its way: no tick."""
    numbers: list[int] = []
    world = timed_run.play(pair(), [], tick=lambda number, world: numbers.append(number))
    assert (numbers, world.now, world.steps) == ([], 0.0, [])


def test_only_ticks_in_which_something_happens_are_told() -> None:
    """A million ticks of silence cost nothing."""
    numbers: list[int] = []
    actions = [act(0, "P1", "pay"), act(1_000_000, "P1", "pay")]
    timed_run.play(pair(), actions, [400], tick=lambda number, world: numbers.append(number))
    assert numbers == [0, 400, 1_000_000, 1_000_001]


class Careless(Account):
    """Raises when it is paid."""

    def receive(self, channel: Channel, message: Payment) -> None:
        """Fail."""
        raise KeyError("lost")


def test_a_handler_that_raises_is_an_error_of_the_application() -> None:
    """With its tick, its process and its exception."""
    careless = Topology.mesh({"P1": Account(), "P2": Careless()})
    with pytest.raises(
        ApplicationError, match=r"^tick 1: process P2: receive\(\) raised"
    ) as caught:
        timed_run.play(careless, [(0, "P1 does pay")])
    assert caught.value.process == "P2"
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("actions", "delays", "sentence"),
    [
        ([act(2, "P1", "pay"), act(1, "P1", "pay")], [], "tick 1: P1 does pay: ticks are 0 to 1,0"),
        ([act(-1, "P1", "pay")], [], "tick -1: P1 does pay: ticks are 0 to 1,000,000 and must not"),
        ([act(1_000_001, "P1", "pay")], [], "tick 1000001: P1 does pay: ticks are 0 to 1,000,000"),
        ([act(0, "P1", "pay")], [-1], "tick 0: channel P1->P2: a delay of -1 ticks: give 0 to 1,0"),
        ([act(0, "P1", "pay")], [10**9], "tick 0: channel P1->P2: a delay of 1000000000 ticks"),
        ([act(4, "P9", "pay")], [], "tick 4: P9 does pay: there is no process 'P9'; there are P1"),
        ([act(4, "P1", "fly")], [], "tick 4: P1 does fly: P1 has no action 'fly'; it has pay"),
        (
            [(4, choices.Deliver((Channel("P1", "P2"),)))],
            [],
            "tick 4: deliver P1->P2: at a tick a process acts or initiates a snapshot; delays",
        ),
    ],
)
def test_what_is_not_possible_names_its_tick(
    actions: list[tuple[int, timed_run.TickAction]], delays: list[int], sentence: str
) -> None:
    """The tick, the action, and why."""
    with pytest.raises(UsageError) as caught:
        timed_run.play(pair(), actions, delays)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("delay", [0, 1])
def test_a_run_that_never_ends_is_ended(delay: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Players who throw back every ball, within one tick or for ever."""
    monkeypatch.setattr(timed_run, "ARRIVAL_COUNT_MAX", 500)
    topology = Topology.mesh({"P1": Player(), "P2": Player()})
    with pytest.raises(
        UsageError, match=r"the run does not end within 500 arrivals: its processes"
    ):
        timed_run.play(topology, [act(0, "P1", "throw")], repeat(delay))


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["P1", "P2"])), max_size=8),
    st.lists(st.integers(0, 9), max_size=30),
    st.integers(0, 9),
)
def test_whatever_the_delays_order_is_kept_and_no_money_is_lost(
    payments: list[tuple[int, str]], delays: list[int], at: int
) -> None:
    """Messages of a channel are accepted by number, one after the other; a snapshot has all the
    money; and its markers travel once on each channel."""
    actions: list[tuple[int, timed_run.TickAction]] = [act(n, name, "pay") for n, name in payments]
    actions = sorted([*actions, initiate(at)], key=lambda action: action[0])
    world = timed_run.play(pair(), actions, delays)
    for channel in world.channels:
        accepted = [
            message.number
            for step in world.steps
            if isinstance(step, Event)
            for message in step.accepted
            if message.channel == channel
        ]
        sent_count = sum(name == channel.source for _, name in payments)
        assert accepted == list(range(1, sent_count + 1))
    markers = [(s.source, s.process) for s in world.steps if isinstance(s, MarkerStep) and s.source]
    assert sorted(markers) == [("P1", "P2"), ("P2", "P1")]
    balances = [
        process.balance
        for runner in world.runners.values()
        if isinstance(process := runner.process, Account)
    ]
    assert sum(balances) == 200
