"""Scripts: events by name, and which of them sends what to which."""

import pytest

from stillframe.errors import UsageError
from stillframe.model import Channel
from stillframe.process import Process
from stillframe.sim.checker import check_run
from stillframe.sim.choices import parse_choice
from stillframe.sim.network import Network
from stillframe.sim.scripted_process import (
    ScriptedMessage,
    ScriptedProcess,
    message_name,
    parse_script,
    scripted_topology,
)
from stillframe.sim.systems import Payment
from stillframe.sim.world import World
from tests.sim.reading import LECTURE_SCRIPT


def test_the_lecture_script_is_read() -> None:
    """Events in their order, messages in theirs, and a channel from each process to each other."""
    script = parse_script(LECTURE_SCRIPT)
    assert script.events == {
        "P1": ("A", "B", "C", "D", "E"),
        "P2": ("F", "G", "H"),
        "P3": ("I", "J", "K"),
    }
    assert script.messages == (("B", "F"), ("I", "G"), ("H", "D"), ("E", "K"))
    assert len(script.channels) == 6
    assert script.process_of("H") == "P2"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("channels: mesh", ["A->B", "A->C", "B->A", "B->C", "C->A", "C->B"]),
        ("channels: ring", ["A->B", "B->C", "C->A"]),
        ("channels: C->A A->B", ["A->B", "C->A"]),
        ("channels:", []),
    ],
)
def test_channels_are_a_shape_or_a_list(line: str, expected: list[str]) -> None:
    """Sorted; a mesh if nothing is said."""
    processes = ["A: x", "B: y", "C:"]
    assert [
        str(channel) for channel in parse_script("\n".join([*processes, line])).channels
    ] == expected
    assert len(parse_script("\n".join(processes)).channels) == 6


def test_only_events_without_messages_are_actions() -> None:
    """A process cannot do by itself what a message makes it do."""
    topology = scripted_topology(parse_script(LECTURE_SCRIPT))
    actions = {
        name: {action.name for action in process.actions}
        for name, process in topology.processes.items()
        if isinstance(process, Process)
    }
    assert actions == {"P1": {"A", "B", "C", "E"}, "P2": {"H"}, "P3": {"I", "J"}}
    assert topology.description.states["ScriptedProcess"][0].name == "done"


def test_two_systems_of_scripts_share_nothing() -> None:
    """What one world did is not in the next."""
    topology = scripted_topology(parse_script("P1: A"))
    first, second = World(topology), World(topology)
    first.take(parse_choice("P1 does A"))
    assert isinstance(process := first.runners["P1"].process, ScriptedProcess)
    assert process.done == ["A"]
    assert isinstance(process := second.runners["P1"].process, ScriptedProcess)
    assert process.done == []


def test_events_happen_in_the_order_of_the_script() -> None:
    """Another order is refused, with what was done and what comes next."""
    world = World(scripted_topology(parse_script("P1: A B\nP2: C\nmessages: B>C")))
    with pytest.raises(UsageError, match="did nothing so far, and A comes next"):
        world.take(parse_choice("P1 does B"))
    for text in ("P1 does A", "P1 does B", "deliver P1->P2"):
        world.take(parse_choice(text))
    with pytest.raises(UsageError, match="cannot do A now: it did A B so far, and that was all"):
        world.take(parse_choice("P1 does A"))


def test_a_message_has_the_name_of_its_events() -> None:
    """Any other message prints itself."""
    assert message_name(ScriptedMessage("B", "F")) == "B>F"
    assert message_name(Payment(3)) == "Payment(amount=3)"


@pytest.mark.parametrize(
    "name",
    [
        *("done", "id", "incoming", "outgoing", "actions", "send", "receive", "start", "snapshot"),
        *("on_published", "mro", "__class__", "__init__", "_do", "_sends", "1A", "A-B", "A>B"),
        *("A" * 33, "\u00c9", "A\x1b"),
    ],
)
def test_an_event_cannot_have_a_name_that_means_something_else(name: str) -> None:
    """Neither what a process has anyway, nor what is no name."""
    with pytest.raises(UsageError, match=r"process P1: .* cannot name an event: use letters"):
        parse_script(f"P1: {name}")


@pytest.mark.parametrize("name", ["A", "M'", "a_1", "A" * 32, "deliver", "P1"])
def test_other_names_are_events(name: str) -> None:
    """Letters, digits, '_' and primes; also words that mean something elsewhere."""
    world = World(scripted_topology(parse_script(f"P1: {name}")))
    world.take(parse_choice(f"P1 does {name}"))
    assert world.steps[-1].process == "P1"


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (
            ["P1 A B"],
            "'P1 A B': write 'PROCESS: EVENT EVENT ...', 'messages: EVENT>EVENT ...', 'ch",
        ),
        (["1P: A"], "'1P: A': write 'PROCESS"),
        (["P1-: A"], "'P1-' cannot name a process: use 1 to 64 letters"),
        (["P1: A", "P1: B"], "process P1 has two lines: write all its events in one"),
        (["P1: A A"], "process P1 has event A twice: use each name once"),
        (["P1: A", "P2: A"], "P1 and P2 have an event A: use each name once"),
        (
            ["P1: A", "P2: B", "messages: A-B"],
            "'A-B' is not a message: write SENDING_EVENT>ACCEPTING",
        ),
        (
            ["P1: A", "P2: B", "messages: A>X"],
            "message A>X: no process has an event X; there are A",
        ),
        (["P1: A", "P2: B", "messages: X>B"], "message X>B: no process has an event X"),
        (
            ["P1: A B", "messages: A>B"],
            "message A>B: both events are of P1: a message goes from one",
        ),
        (
            ["P1: A", "P2: B", "messages: A>B A>B"],
            "message A>B: B accepts A>B already; one atomic action accepts at most one message fr",
        ),
        (
            ["P1: A X", "P2: B", "messages: A>B", "messages: X>B"],
            "message X>B: B accepts A>B already; one atomic action accepts at most one message fr",
        ),
        (
            ["P1: A", "P2: B", "channels: P2->P1", "messages: A>B"],
            "message A>B: there is no channel P1->P2: add it to 'channels:'",
        ),
        (
            ["P1: A", "P2: B", "channels: star"],
            "channels: 'star': write 'mesh', 'ring', or channels",
        ),
        (["P1: A", "P2: B", "channels: P1->P3"], "channels: 'P1->P3': write 'mesh', 'ring', or"),
        (["P1: A", "P2: B", "channels: P1->P1"], "channels: 'P1->P1': write 'mesh', 'ring', or"),
        (["P1: A", "channels: ring"], "channels: ring: a ring needs at least two processes"),
        (["P1: A", "channels: mesh", "channels: ring"], "'channels: ring': write all channels in"),
        ([f"P{i}:" for i in range(101)], "a script has at most 100 processes"),
        (
            [f"P1: {' '.join(f'E{i}' for i in range(10_001))}"],
            "a script has at most 10,000 events",
        ),
        (["P1: A", "network: slow"], "network: 'slow': write fifo, reordering, lossy"),
        (["P1: A", "rules: mine"], "rules: 'mine': write chandy-lamport, lai-yang"),
        (["P1: A", "rules: lai-yang", "rules: lai-yang"], "'rules: lai-yang': write all rules in"),
        (["P1: A", "messages: A->P2"], "message A->P2: there is no process P2; there are P1"),
        (["P1: A", "messages: A->P1"], "message A->P1: its sender is P1: a message goes from one"),
        (["P1: A", "messages: A->"], "'A->' is not a message: write SENDING_EVENT>ACCEPTING_EVENT"),
        (
            ["P1: A", "P2: B", "P3: C", "network: reordering", "messages: A>C B>C"],
            "event C accepts several messages: that needs channels that keep order",
        ),
        (["P1: pay(x)"], "(x) are not arguments (JSON is malformed"),
        (["P1: pay(1.50)"], "process P1: write event pay(1.50) as pay(1.5)"),
        (["P1: pay()"], "process P1: 'pay()' cannot name an event"),
    ],
)
def test_a_wrong_script_says_what_to_write(lines: list[str], sentence: str) -> None:
    """The line, what is wrong, by name, and what to do."""
    with pytest.raises(UsageError) as caught:
        parse_script("\n".join(["# a comment", "", *lines]), first_line=10)
    assert str(caught.value).startswith(f"line {11 + len(lines)}: {sentence}")


def test_the_wrong_line_need_not_be_the_last() -> None:
    """What a later line shows to be wrong is named where it stands."""
    with pytest.raises(UsageError, match="line 2: P1 and P2 have an event A"):
        parse_script("P1: A\nP2: A\nP3: B\nmessages: B>A")
    with pytest.raises(UsageError, match="line 2: message A>B: there is no channel P1->P2"):
        parse_script("P1: A\nmessages: A>B\nP2: B\nchannels: P2->P1")
    with pytest.raises(UsageError, match="line 1: a script has no process"):
        parse_script("")


def test_an_action_may_have_arguments() -> None:
    """The same action with other arguments is another event, and is chosen by its arguments."""
    script = parse_script('P1: pay(20) pay(5,"EUR")\nP2: gets\nmessages: pay(20)>gets')
    assert script.messages == (("pay(20)", "gets"),)
    world = World(scripted_topology(script))
    with pytest.raises(UsageError, match=r"cannot do pay\(5\) now: .* and pay\(20\) comes next"):
        world.take(parse_choice("P1 does pay(5)"))
    for text in ("P1 does pay(20)", "deliver P1->P2", 'P1 does pay(5, "EUR")'):
        world.take(parse_choice(text))
    assert isinstance(process := world.runners["P1"].process, ScriptedProcess)
    assert process.done == ["pay(20)", 'pay(5,"EUR")']
    assert check_run(world) is None


@pytest.mark.parametrize(
    ("lines", "network", "rules"),
    [
        ("", Network.FIFO, "chandy-lamport"),
        ("network: reordering", Network.REORDERING, "lai-yang"),
        ("network: reordering\nrules: chandy-lamport", Network.REORDERING, "chandy-lamport"),
        ("network: lossy", Network.LOSSY, "chandy-lamport"),
        ("rules: lai-yang", Network.FIFO, "lai-yang"),
    ],
)
def test_the_rules_fit_the_channels_by_default(lines: str, network: Network, rules: str) -> None:
    """A script that chooses other rules gets these."""
    script = parse_script(f"P1: A\n{lines}")
    assert (script.network, script.rules) == (network, rules)


def test_a_message_may_never_be_received() -> None:
    """It stays on its channel; to deliver it contradicts the script."""
    world = World(scripted_topology(parse_script("P1: A\nP2: B\nmessages: A->P2")))
    world.take(parse_choice("P1 does A"))
    with pytest.raises(UsageError, match="by the script, message A->P2 is never received"):
        world.take(parse_choice("deliver P1->P2"))


def test_the_largest_script_can_be_played() -> None:
    """A hundred processes, with a channel from each to each other."""
    script = parse_script("\n".join(f"P{i}: E{i}" for i in range(100)))
    topology = scripted_topology(script)
    assert len(topology.description.channels) == 9900
    assert topology.description.channels[0] == Channel("P0", "P1")
