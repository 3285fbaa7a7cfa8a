"""The replay: events of a trace performed again, checked against what the trace says."""

import re
from dataclasses import field

import msgspec
import pytest
from msgspec.structs import replace

from stillframe.errors import ApplicationError, NotConsistent, UsageError
from stillframe.model import Batch, Channel, ChannelState, GlobalState, ProcessState, SnapshotId
from stillframe.process import Message, Process, every
from stillframe.protocol.replay import RESTORED, Replay, compare
from stillframe.topology import ExternalProcess, Topology
from stillframe.trace import Event, MessageId

P1_P3, P2_P1, P2_P3 = Channel("P1", "P3"), Channel("P2", "P1"), Channel("P2", "P3")


class Note(Message):
    """Something to remember."""

    text: str


class Writer(Process):
    """Writes down what it hears, and sends notes to everybody."""

    heard: list[str] = field(default_factory=list)
    wrote_count: int = 0

    def start(self) -> None:
        """Begin the list."""
        self.heard.append("started")

    def receive(self, channel: Channel, message: Note) -> None:
        """Remember it."""
        if message.text == "poison":
            raise ValueError("not that")
        self.heard.append(f"{channel.source} {message.text}")

    def on_published(self, snapshot: SnapshotId) -> None:
        """Remember that, too."""
        self.heard.append(f"published {snapshot}")

    @every(ms=0)
    def write(self) -> None:
        """Send something new on every channel, in one action."""
        self.wrote_count += 1
        for target in self.outgoing:
            self.send(target, Note(str(self.wrote_count)))


def writers() -> Topology:
    """Return P1 -> P3, P2 -> P1 and P2 -> P3, all writers."""
    names = ["P1", "P2", "P3"]
    return Topology({name: Writer() for name in names}, [("P1", "P3"), ("P2", "P1"), ("P2", "P3")])


def ids(*messages: tuple[Channel, int]) -> tuple[MessageId, ...]:
    """Return message ids."""
    return tuple(MessageId(*message) for message in messages)


def note(text: str) -> bytes:
    """Return a note, encoded."""
    return msgspec.msgpack.encode(Note(text))


def heard(state: GlobalState, process: str) -> list[str]:
    """Return what a process wrote down."""
    (encoded,) = (s.encoded for s in state.processes if s.process == process)
    texts: list[str] = msgspec.msgpack.decode(encoded)["heard"]
    return texts


P1_WRITES = Event("P1", "", "write", sent=ids((P1_P3, 1)))
P2_WRITES = Event("P2", "", "write", sent=ids((P2_P3, 1), (P2_P1, 1)))
P3_ACCEPTS = Event("P3", "both", "receive", accepted=ids((P2_P3, 1), (P1_P3, 1)))


def replayed(*events: Event, start: GlobalState | None = None) -> Replay:
    """Return a replay in which `events` were performed."""
    replay = Replay(writers(), start)
    for event in events:
        replay.perform(event)
    return replay


def caught() -> GlobalState:
    """Return a state with a message on each channel, after P3 accepted one from P1."""
    again = Event("P1", "", "write", sent=ids((P1_P3, 2)))
    accept = Event("P3", "", "receive", accepted=ids((P1_P3, 1)))
    return replayed(P1_WRITES, P2_WRITES, again, accept).state()


def test_one_action_accepts_and_sends_on_several_channels() -> None:
    """EWD 864a: an atomic action may accept a message on each input and send one on each output."""
    state = replayed(P1_WRITES, P2_WRITES, P3_ACCEPTS).state()
    assert heard(state, "P3") == ["P2 1", "P1 1"]
    assert [(s.channel, s.sent_count, s.received_count, s.batches) for s in state.channels] == [
        (P1_P3, 1, 1, ()),
        (P2_P1, 1, 0, (Batch.of(1, [note("1")]),)),
        (P2_P3, 1, 1, ()),
    ]


def test_every_handler_of_a_process_is_replayed() -> None:
    """start, on_published with its snapshot, and actions are called as they were in the system."""
    published = Event("P1", "", "on_published", fields={"snapshot": "P2-7"})
    state = replayed(Event("P1", "", "start"), published, P1_WRITES).state()
    assert heard(state, "P1") == ["started", "published P2-7"]


def test_the_topology_is_not_changed() -> None:
    """Two replays of one topology begin alike."""
    topology = writers()
    for _ in range(2):
        replay = Replay(topology)
        replay.perform(Event("P1", "", "start"))
        assert heard(replay.state(), "P1") == ["started"]


def test_messages_may_overtake_each_other() -> None:
    """On a channel without order a number in the state says how many, not which: what is left is
    numbered from received_count + 1 on, in the order of sending."""
    writes = [Event("P1", "", "write", sent=ids((P1_P3, number))) for number in (1, 2, 3)]
    replay = replayed(*writes, Event("P3", "", "receive", accepted=ids((P1_P3, 2))))
    assert replay.in_transit(P1_P3) == ids((P1_P3, 1), (P1_P3, 3))
    state = replay.state()
    state.check_books()
    (channel,) = (s for s in state.channels if s.channel == P1_P3)
    assert channel.batches == (Batch.of(2, [note("1"), note("3")]),)


def test_an_epoch_goes_on_from_a_recorded_state() -> None:
    """States, counts and messages in transit are those recorded; numbers go on behind them."""
    start = caught()
    replay = replayed(
        Event("P1", "", RESTORED, sent=ids((P1_P3, 2))),
        Event("P1", "", "write", sent=ids((P1_P3, 3))),
        Event("P3", "", "receive", accepted=ids((P1_P3, 2), (P2_P3, 1))),
        start=start,
    )
    assert heard(replay.state(), "P3") == ["P1 1", "P1 2", "P2 1"]
    assert replay.contents[MessageId(P1_P3, 3)] == note("3")
    compare(start, Replay(writers(), start).state())


@pytest.mark.parametrize(
    ("event", "named"),
    [
        (
            Event("P3", "late", "receive", accepted=ids((P1_P3, 2))),
            "event P3#1 (late) accepts message P1->P3 #2, but on that channel P1->P3 #1 is in",
        ),
        (
            Event("P3", "", "receive", accepted=ids((Channel("P3", "P3"), 1))),
            "event P3#1 accepts message P3->P3 #1, but on that channel nothing is in transit",
        ),
        (
            Event("P3", "", "write", accepted=ids((P1_P3, 1))),
            "event P3#1 accepts messages in write: only receive does",
        ),
        (
            Event("P1", "", "write", sent=ids((P1_P3, 3))),
            "event P1#2: the replay sends P1->P3 #2, but the trace has P1->P3 #3: process P1",
        ),
        (
            Event("P1", "", "write"),
            "event P1#2: the replay sends P1->P3 #2, but the trace has nothing: process P1",
        ),
        (
            Event("P1", "", RESTORED, sent=ids((P1_P3, 2))),
            "event P1#2 restores P1->P3 #2, but the initial state has nothing on the",
        ),
    ],
)
def test_what_the_processes_do_not_do_is_named(event: Event, named: str) -> None:
    """An event that the real process does not perform like that is named, with both versions."""
    replay = replayed(P1_WRITES)
    with pytest.raises(NotConsistent, match=re.escape(named)):
        replay.perform(event)


@pytest.mark.parametrize(
    ("event", "named"),
    [
        (Event("P9", "", "write"), "the trace has a process 'P9', but the topology has P1, P2"),
        (Event("P1", "A"), "event P1#1 (A) is a call of '', but process P1 has start, receive,"),
        (Event("P1", "", "__init__"), "event P1#1 is a call of '__init__'"),
        (Event("P1", "", "snapshot"), "event P1#1 is a call of 'snapshot'"),
        (Event("P1", "", "write", fields={"arguments": 1}), "its field 'arguments' must be a list"),
        (Event("P1", "", "on_published"), "on_published needs its field 'snapshot': 'None' is no"),
    ],
)
def test_only_handlers_of_these_processes_are_called(event: Event, named: str) -> None:
    """A trace may come from a file: no other method is called by a name that stands there."""
    with pytest.raises(UsageError, match=re.escape(named)):
        Replay(writers()).perform(event)


def test_a_handler_that_raises_is_named_with_its_event() -> None:
    """The error says in which event of the trace it happened."""
    start = with_note(caught(), "poison")
    accept = Event("P1", "drink", "receive", accepted=ids((P2_P1, 1)))
    named = "event P1#1 (drink), replayed: process P1: receive() raised ValueError: not that"
    with pytest.raises(ApplicationError, match=re.escape(named)):
        replayed(accept, start=start)


def with_note(state: GlobalState, text: str | int) -> GlobalState:
    """Return `state` with another note on P2->P1; an int is no text."""
    encoded = msgspec.msgpack.encode(["Note", text])
    channels = tuple(
        replace(s, batches=(Batch.of(1, [encoded]),)) if s.channel == P2_P1 else s
        for s in state.channels
    )
    return replace(state, channels=channels)


def test_a_recorded_message_that_does_not_fit_is_named() -> None:
    """What was recorded on a channel is decoded by type, as in the runtime."""
    accept = Event("P1", "", "receive", accepted=ids((P2_P1, 1)))
    with pytest.raises(NotConsistent, match="event P1#1: process P1: a message does not fit: Exp"):
        replayed(accept, start=with_note(caught(), 7))


def test_what_is_known_to_be_in_a_message_is_compared() -> None:
    """A process that sends something else than it did is no function of what it accepts."""
    replay = Replay(writers(), contents={MessageId(P1_P3, 1): note("other")})
    named = (
        "event P1#1: the replay sends ['Note', '1'] as message P1->P3 #1, but ['Note', 'other'] "
        "was sent: process P1 is not a function of the messages that it accepts"
    )
    with pytest.raises(NotConsistent, match=re.escape(named)):
        replay.perform(P1_WRITES)


def test_a_start_of_another_topology_is_refused() -> None:
    """The recorded state must have the same processes, classes and channels, and sound books."""
    start = caught()
    for wrong in (
        replace(start, processes=start.processes[1:]),
        replace(start, channels=start.channels[1:]),
        replace(start, processes=(replace(start.processes[0], kind="X"), *start.processes[1:])),
    ):
        with pytest.raises(UsageError, match="the initial state has a different topology"):
            Replay(writers(), wrong)
    unsound = replace(start.channels[0], batches=())
    with pytest.raises(NotConsistent, match="channel P1->P3: 2 sent - 1 received"):
        Replay(writers(), replace(start, channels=(unsound, *start.channels[1:])))


def test_a_process_with_its_own_loop_cannot_be_replayed() -> None:
    """Its program is not ours to call."""
    with pytest.raises(UsageError, match="process P1 runs its own event loop"):
        Replay(Topology({"P1": ExternalProcess(state=Writer)}, []))


def on_one_channel(*batches: Batch, sent_count: int = 2) -> GlobalState:
    """Return a state of one process and one channel."""
    state = ProcessState("P1", "Writer", msgspec.msgpack.encode({"a": 1, "b": [2]}))
    return GlobalState((state,), (ChannelState(P1_P3, sent_count, 0, batches),))


TWO = (Batch.of(1, [note("x"), note("y")]),)


def test_batches_may_be_cut_differently() -> None:
    """Messages are compared one by one."""
    compare(on_one_channel(*TWO), on_one_channel(*TWO[0].singles()))


@pytest.mark.parametrize(
    ("recorded", "named"),
    [
        (on_one_channel(*TWO[0].singles()[:1]), "2 sent - 0 received = 2, but 1 messages"),
        (
            on_one_channel(*TWO[0].singles()[:1], sent_count=1),
            "channel P1->P3: recorded as 1 sent and 0 received, replayed as 2 sent and 0",
        ),
        (
            on_one_channel(Batch.of(1, [note("x"), note("z")])),
            "channel P1->P3, message 2: recorded as ['Note', 'z'], replayed as ['Note', 'y']",
        ),
        (
            on_one_channel(Batch(1, 2, b"\xdd\x00\x00\x00\x02\xc1")),
            "channel P1->P3: a batch cannot be read",
        ),
        (GlobalState((), ()), "the recorded state has nothing, the replayed one P1"),
        (
            GlobalState(on_one_channel(*TWO).processes, ()),
            "the recorded state has nothing, the replayed one P1->P3",
        ),
        (
            GlobalState((ProcessState("P1", "Writer", b"\x82\xa1a\x01\xa1b\x91\x03"),), ()),
            "process P1: recorded as Writer {'b': [3]}, replayed as Writer {'b': [2]}",
        ),
        (
            GlobalState((ProcessState("P1", "Writer", b"\x82\xa1b\x91\x02\xa1a\x01"),), ()),
            "process P1: recorded as Writer 82a1629102a16101, replayed as Writer 82a16101a16291",
        ),
        (
            GlobalState((ProcessState("P1", "Writer", b"\xc1"),), ()),
            "process P1: recorded as Writer unreadable c1, replayed as Writer {'a': 1, 'b': [2]",
        ),
        (
            GlobalState((ProcessState("P1", "Writer", msgspec.msgpack.encode("x" * 10**6)),), ()),
            f"process P1: recorded as Writer '{'x' * 198}…, replayed",
        ),
    ],
)
def test_the_first_difference_is_named(recorded: GlobalState, named: str) -> None:
    """A difference is named with what both states have, decoded, and cut where it is long."""
    with pytest.raises(NotConsistent, match=re.escape(named)):
        compare(recorded, on_one_channel(*TWO))


def test_equal_states_are_equal() -> None:
    """A state is the same as itself."""
    compare(caught(), caught())
