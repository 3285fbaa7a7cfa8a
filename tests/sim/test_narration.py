"""What happened, in words: each step once, with the rule that was followed."""

import pytest

from stillframe.examples.bank import bank
from stillframe.model import Channel, SnapshotId
from stillframe.process import Message, Process, every
from stillframe.protocol.lai_yang import LaiYangRecorder
from stillframe.sim import choices
from stillframe.sim.choices import parse_choice
from stillframe.sim.narration import Narrator, shown_state, unrecorded_news
from stillframe.sim.network import Lossy, Reordering
from stillframe.sim.scripted_process import parse_script, scripted_topology
from stillframe.sim.systems import Account, pair
from stillframe.sim.world import World
from stillframe.topology import Topology
from tests.sim.reading import snapshot_of

SMALL = scripted_topology(parse_script("P1: A B\nP2: C\nmessages: B>C"))


def told(world: World, narrator: Narrator, *texts: str) -> list[str]:
    """Let things happen one by one, and return what is told of all of them."""
    lines = []
    for text in texts:
        choice = parse_choice(text)
        world.take(choice)
        lines += [*unrecorded_news(world, choice), *narrator.news()]
    return lines


def test_news_are_told_once() -> None:
    """What was told is not told again; what happened since is told together."""
    world = World(SMALL)
    narrator = Narrator(world)
    assert narrator.news() == []
    assert told(world, narrator, "P1 does A") == ["P1 does A"]
    assert narrator.news() == []
    for text in ("P1 does B", "P1 initiates P1-1", "deliver P1->P2"):
        world.take(parse_choice(text))
    assert narrator.news() == [
        "P1 does B; sends B>C to P2",
        (
            "P1 initiates P1-1: records its state {A, B}; sends a marker to P2; records P2->P1 "
            "from now on"
        ),
        "P2 accepts B>C from P1: does C",
    ]
    assert narrator.news() == []


def test_a_narrator_that_comes_late_tells_from_the_beginning() -> None:
    """Also of epochs that are over, and how each of the next begins."""
    world = World(SMALL)
    for text in ("P1 does A", "P1 crashes", "restart", "P1 does A"):
        world.take(parse_choice(text))
    assert Narrator(world).news() == [
        "P1 does A",
        "epoch 2 begins from the initial states",
        "P1 does A",
    ]


def test_the_bank_is_told_in_its_own_words() -> None:
    """Messages as they print themselves, states field by field, handlers by name."""
    world = World(bank)
    assert told(
        world,
        Narrator(world),
        "P1 does audit",
        "P2 initiates P2-7",
        "deliver P2->P1",
        "deliver P1->P2",
        "deliver P2->P1",
    ) == [
        "P1 does audit; sends Ask() to P2",
        (
            "P2 initiates P2-7: records its state balance=1000000, paid_count=0; sends a marker to "
            "P1, P3, P4, P5; records P1->P2, P3->P2, P4->P2, P5->P2 from now on"
        ),
        (
            "P1 gets the marker of P2-7 from P2: records its state balance=1000000, paid_count=0, "
            "asked_count=0, sum_so_far=1000000, naive_totals=[]; P2->P1 is empty; sends a marker "
            "to P2, P3, P4, P5; records P3->P1, P4->P1, P5->P1 from now on"
        ),
        (
            "P2 accepts Ask() from P1; sends Answer(asked_balance=1000000) to P1; P1->P2 keeps "
            "Ask() for P2-7"
        ),
        "P1 accepts Answer(asked_balance=1000000) from P2; sends Ask() to P3",
    ]


def test_a_complete_snapshot_of_the_bank_is_shown_whole() -> None:
    """Every process, every channel that held something, how many did not, and when it was."""
    world = World(bank)
    narrator = Narrator(world)
    told(world, narrator, "P2 does pay", "P1 initiates P1-1")
    while world.pending:
        for channel, memory in world.channels.items():
            if len(memory):
                told(world, narrator, f"deliver {channel}")
    lines = narrator.contents(snapshot_of(world, "P1-1"))
    assert lines[0].startswith("  P1 balance=1000000, paid_count=0, asked_count=0")
    assert lines[1] == "  P2 balance=999999, paid_count=1"
    assert [line.split()[0] for line in lines[:5]] == ["P1", "P2", "P3", "P4", "P5"]
    assert lines[5:] == [
        "  P2->P3 held Transfer(amount=1)",
        "  19 channels are empty",
        "  so it was after 1 event",
    ]


def test_what_is_no_step_is_told_of_the_choice() -> None:
    """Nothing of it is in the trace: connections, partitions, deaths, hearing of an end."""
    world = World(SMALL)
    narrator = Narrator(world)
    lines = told(
        world,
        narrator,
        "P1 does A",
        "P1 does B",
        "double P1->P2",
        "break P1->P2",
        "connect P1->P2",
        "partition P1",
        "heal",
        "P1 initiates P1-1",
        "P2 crashes",
        "P1 hears that P1-1 is over",
    )
    assert [line for line in lines if not line.startswith("P1 does")] == [
        "the next frame on P1->P2 is in transit twice",
        "the connection of P1->P2 is lost, with everything on it",
        "P1->P2 is connected again: frames that had not arrived are sent again",
        "a partition separates P1 from the others",
        "the partition ends",
        (
            "P1 initiates P1-1: records its state {A, B}; sends a marker to P2; records P2->P1 "
            "from now on"
        ),
        "P2 crashes: the connections of its channels are lost",
        (
            "snapshot P1-1 was abandoned: a process died before the snapshot was complete; "
            "missing: P1, P2"
        ),
        "P1 abandons P1-1",
    ]


def test_one_who_hears_that_a_snapshot_was_published_has_finished() -> None:
    """It gives nothing up."""
    world = World(SMALL)
    lines = told(
        world,
        Narrator(world),
        *("P1 initiates P1-1", "deliver P1->P2", "deliver P2->P1", "P2 hears that P1-1 is over"),
    )
    assert lines[-1] == "P2 has finished P1-1"


def test_a_choice_that_is_a_step_has_no_other_news() -> None:
    """The trace has it."""
    world = World(SMALL)
    assert unrecorded_news(world, choices.Act("P1", "A")) == []


def test_with_colours_nothing_is_said_of_markers_that_does_not_hold() -> None:
    """A message's colour makes its target record; a channel whose marker overtook a message goes on
    being recorded, and is not called empty."""
    world = World(pair(), network=Reordering, recorder=LaiYangRecorder)
    lines = told(
        world,
        Narrator(world),
        "P2 does pay",
        "P1 initiates P1-1",
        "P1 does pay",
        "deliver P1->P2 at 1",
        "deliver P1->P2",
        "deliver P2->P1 at 1",
        "deliver P2->P1",
    )
    assert lines[3:] == [
        (
            "P2 learns of P1-1 from the colour of the next message: records its state "
            "balance=99; sends a marker to P1; records P1->P2 from now on"
        ),
        "P2 accepts Payment(amount=1) from P1",
        "P2 gets the marker of P1-1 from P1: P1->P2 held nothing",
        (
            "P1 gets the marker of P1-1 from P2: keeps recording P2->P1, where more was sent "
            "before the cut"
        ),
        "P1 accepts Payment(amount=1) from P2",
        "snapshot P1-1 is complete:",
        "  P1 balance=100",
        "  P2 balance=99",
        "  P2->P1 held Payment(amount=1)",
        "  1 channel is empty",
        "  so it was after 1 event",
    ]


def test_with_colours_a_first_marker_ahead_of_a_message_leaves_its_channel_open() -> None:
    """It is among those that are recorded from now on."""
    world = World(pair(), network=Reordering, recorder=LaiYangRecorder)
    lines = told(world, Narrator(world), "P1 does pay", "P1 initiates P1-1", "deliver P1->P2 at 1")
    assert lines[-1] == (
        "P2 gets the marker of P1-1 from P1: records its state balance=100; sends a marker to P1; "
        "records P1->P2 from now on"
    )


def test_broken_rules_end_the_story() -> None:
    """With what was wrong."""
    world = World(pair(), network=Lossy)
    lines = told(
        world, Narrator(world), *("P1 does pay", "P1 does pay", "lose P1->P2", "deliver P1->P2")
    )
    assert lines[-1] == (
        "the rules are broken, and the run ends: channel P1->P2: message 1 should come next, but 2 "
        "came"
    )


class Novel(Message):
    """A long text."""

    text: str


class Writer(Process):
    """Writes very much."""

    text: str = "y" * 5000

    def receive(self, channel: Channel, message: Novel) -> None:
        """Read it."""

    @every(ms=0)
    def write(self) -> None:
        """Write to everybody."""
        for target in self.outgoing:
            self.send(target, Novel("x" * 5000))


def test_long_messages_and_states_are_cut_short() -> None:
    """200 characters of each are enough for people."""
    world = World(Topology.mesh({"P1": Writer(), "P2": Writer()}))
    narrator = Narrator(world)
    lines = told(world, narrator, "P1 does write", "P1 initiates P1-1", "deliver P1->P2")
    assert [len(line) < 700 for line in lines] == [True] * len(lines)
    assert len(shown_state(world.runners["P1"].capture())) == 200


@pytest.mark.parametrize("first", ["P1", "P2"])
def test_who_initiates_for_whom_no_marker_reaches_is_told_so(first: str) -> None:
    """On a chain both begin the same snapshot; neither learns of it from a message."""
    chain = Topology({"P1": Account(), "P2": Account()}, [("P1", "P2")])
    world = World(chain)
    name = SnapshotId(first, 1)
    lines = told(world, Narrator(world), f"P2 initiates {name}", f"P1 initiates {name}")
    heads = [line.partition(":")[0] for line in lines]
    assert heads[1] == f"P1 initiates {name}"
    if first == "P2":
        assert heads[0] == f"P2 initiates {name}"
