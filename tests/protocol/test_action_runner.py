"""The runner: one real process, stepped through without a loop."""

import asyncio
import re
from dataclasses import field
from typing import Any

import msgspec
import pytest

from stillframe.errors import ApplicationError, ProtocolViolation, UsageError
from stillframe.model import Channel, SnapshotId
from stillframe.outbox import Outbox
from stillframe.process import Message, Process, every
from stillframe.protocol.action_runner import ActionRunner
from stillframe.topology import ExternalProcess, Topology

FROM_P2, FROM_P3 = Channel("P2", "P1"), Channel("P3", "P1")


class Word(Message):
    """Something said."""

    text: str


class Unwanted(Message):
    """Nobody accepts this."""


class Opaque(Message):
    """Its field may hold what cannot be encoded."""

    content: Any


class Speaker(Process):
    """Does one of everything that a handler can do."""

    words: list[str] = field(default_factory=list)
    published: str = ""

    def start(self) -> None:
        """Send on every channel, in one action."""
        for target in self.outgoing:
            self.send(target, Word("hello"))

    def receive(self, channel: Channel, message: Word | Opaque) -> None:
        """Answer, or fail."""
        assert isinstance(message, Word)
        if message.text == "fail":
            raise ValueError("no such word")
        self.words.append(message.text)
        self.send(channel.source, Word(message.text.upper()))

    def on_published(self, snapshot: SnapshotId) -> None:
        """Remember it."""
        self.published = str(snapshot)

    @every(ms=0)
    def ask(self) -> None:
        """Ask for a snapshot."""
        self.snapshot()

    @every(ms=0)
    def send_to_nobody(self) -> None:
        """Send where there is no channel."""
        self.send("P9", Word("lost"))

    @every(ms=0)
    def send_unwanted(self) -> None:
        """Send what is not accepted."""
        self.send("P2", Unwanted())

    @every(ms=0)
    def send_opaque(self) -> None:
        """Send what cannot be encoded."""
        self.send("P2", Opaque(object()))

    @every(ms=0)
    def give_back(self) -> Any:
        """Return something, which nobody asked for."""
        return 7

    @every(ms=0)
    def leave(self) -> None:
        """Try to end everything."""
        raise SystemExit(3)

    @every(ms=0)
    async def speak(self) -> None:
        """Call another coroutine that does not wait, before and after sending."""
        await self.note("before")
        self.send("P2", Word("now"))
        await self.note("after")

    async def note(self, text: str) -> None:
        """Remember it."""
        self.words.append(text)

    @every(ms=0)
    async def wait(self) -> None:
        """Wait for something outside."""
        await asyncio.sleep(0)
        self.words.append("never")

    @every(ms=0)
    async def wait_longer(self) -> None:
        """Wait for a timer."""
        await asyncio.sleep(0.001)
        self.words.append("never")

    @every(ms=0)
    async def fail_later(self) -> None:
        """Raise in a coroutine."""
        await self.note("before")
        raise KeyError("gone")


class Silent(Process):
    """Accepts no message."""


def topology() -> Topology:
    """Return three speakers, each with a channel to each, and one that accepts nothing."""
    speakers = {"P1": Speaker(), "P2": Speaker(), "P3": Speaker()}
    pairs = [(a, b) for a in speakers for b in speakers if a != b]
    return Topology({**speakers, "P4": Silent()}, [*pairs, ("P1", "P4")])


def fields(runner: ActionRunner) -> dict[str, Any]:
    """Return the recorded fields of a process."""
    decoded: dict[str, Any] = msgspec.msgpack.decode(runner.capture().encoded)
    return decoded


def word(text: str) -> bytes:
    """Return a word, encoded."""
    return msgspec.msgpack.encode(Word(text))


def test_what_is_sent_is_returned_in_order_and_once() -> None:
    """One action sends on several channels; the next action begins with nothing sent."""
    runner = ActionRunner("P2", topology())
    assert runner.perform("start") == [("P1", word("hello")), ("P3", word("hello"))]
    assert runner.perform("ask") == []


def test_what_is_sent_between_actions_belongs_to_the_next() -> None:
    """A program may hold the process and call it; no message is lost, nor sent twice."""
    runner = ActionRunner("P1", topology())
    before = runner.perform("ask")
    runner.process.send("P2", Word("between"))
    assert before == []
    assert runner.perform("ask") == [("P2", word("between"))]
    assert runner.perform("ask") == []


def test_several_messages_are_accepted_in_one_action() -> None:
    """EWD 864a: an atomic action may accept from several channels; what it sends comes together."""
    runner = ActionRunner("P1", topology())
    sent = runner.receive([(FROM_P3, Word("a")), (FROM_P2, Word("b"))])
    assert sent == [("P3", word("A")), ("P2", word("B"))]
    assert fields(runner)["words"] == ["a", "b"]
    assert runner.receive([]) == []


def test_a_snapshot_is_asked_for_and_taken_notice_of() -> None:
    """What a process asks for is left to the host; what was published is told to it."""
    runner = ActionRunner("P1", topology())
    assert not runner.wants_snapshot
    runner.perform("ask")
    assert runner.wants_snapshot
    runner.perform("on_published", SnapshotId("P2", 7))
    assert fields(runner)["published"] == "P2-7"


def test_the_process_knows_who_it_is() -> None:
    """Name, channels and actions are those of the topology and of the class."""
    runner = ActionRunner("P1", topology())
    assert runner.process.id == runner.id == "P1"
    assert runner.process.incoming == ("P2", "P3")
    assert runner.process.outgoing == ("P2", "P3", "P4")
    assert set(runner.actions) == {action.name for action in Speaker.actions}
    assert runner.capture().process == "P1"
    assert runner.capture().kind == "Speaker"


@pytest.mark.parametrize(
    ("action", "named"),
    [
        ("send_to_nobody", "process P1 has no channel to 'P9'; outgoing: P2, P3, P4"),
        ("send_unwanted", "channel P1->P2: P2 accepts Opaque, Word, not Unwanted; add it to the"),
        ("send_opaque", "channel P1->P2: Opaque(content=<object"),
    ],
)
def test_what_cannot_be_sent_is_refused(action: str, named: str) -> None:
    """No channel, a class that is not accepted, a content that cannot be encoded: nothing is
    sent, and the channel is named."""
    runner = ActionRunner("P1", topology())
    with pytest.raises(UsageError, match=re.escape(named)):
        runner.perform(action)
    assert runner.perform("ask") == []


def test_a_process_that_accepts_nothing_is_sent_nothing() -> None:
    """Neither end lets such a message through."""
    with pytest.raises(UsageError, match="channel P1->P4: P4 accepts no message, not Word"):
        ActionRunner("P1", topology()).perform("start")
    with pytest.raises(ProtocolViolation, match="process P4 accepts no message"):
        ActionRunner("P4", topology()).decode(word("a"))


@pytest.mark.parametrize(
    "encoded",
    [msgspec.msgpack.encode(Unwanted()), msgspec.msgpack.encode(["Word", 7]), b"\xc1", b""],
)
def test_a_message_that_does_not_fit_is_refused(encoded: bytes) -> None:
    """Messages are decoded by type: another class, another type of field, and rubbish."""
    with pytest.raises(ProtocolViolation, match="process P1: a message does not fit: "):
        ActionRunner("P1", topology()).decode(encoded)


class Egg(Message):
    """Cannot be made."""

    def __post_init__(self) -> None:
        """Fail."""
        raise KeyError(self)


class Basket(Process):
    """Accepts what cannot be made."""

    def receive(self, channel: Channel, message: Egg) -> None:
        """Take it."""


def test_a_message_that_raises_when_it_is_decoded_is_refused() -> None:
    """Its class may raise anything."""
    runner = ActionRunner("P1", Topology.ring({"P1": Basket(), "P2": Basket()}))
    with pytest.raises(ProtocolViolation, match=r"P1: a message does not fit: .* KeyError"):
        runner.decode(msgspec.msgpack.encode(["Egg"]))


def test_a_message_that_fits_is_decoded() -> None:
    """What one process sends another reads."""
    assert ActionRunner("P1", topology()).decode(word("a")) == Word("a")


def test_a_handler_that_raises_is_named_with_the_message() -> None:
    """Process, handler, message and channel stand in the error, and the cause is kept."""
    runner = ActionRunner("P1", topology())
    named = "process P1: receive() raised ValueError: no such word on Word(text='fail') of channel "
    with pytest.raises(ApplicationError, match=re.escape(named + "P2->P1")) as caught:
        runner.receive([(FROM_P2, Word("fail"))])
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize(
    ("action", "named"),
    [
        ("give_back", "give_back() raised TypeError: it returned a value"),
        ("leave", "leave() raised SystemExit: 3"),
        ("fail_later", "fail_later() raised KeyError: 'gone'"),
    ],
)
def test_an_action_that_fails_is_named(action: str, named: str) -> None:
    """Whatever a handler does to fail, plain or async, it does not end the host."""
    with pytest.raises(ApplicationError, match=re.escape(f"process P1: {named}")):
        ActionRunner("P1", topology()).perform(action)


def test_an_async_handler_that_does_not_wait_is_one_action() -> None:
    """It runs from its start to its end."""
    runner = ActionRunner("P1", topology())
    assert runner.perform("speak") == [("P2", word("now"))]
    assert fields(runner)["words"] == ["before", "after"]


@pytest.mark.parametrize("action", ["wait", "wait_longer"])
def test_an_async_handler_that_waits_cannot_be_stepped_through(action: str) -> None:
    """There is no loop to wait in: it is closed, and the error says so."""
    runner = ActionRunner("P1", topology())
    with pytest.raises(UsageError, match="an async handler waited: there is no event loop here"):
        runner.perform(action)
    assert fields(runner)["words"] == []


def test_a_recorded_state_is_restored() -> None:
    """A process begins with recorded fields, and shares nothing with what was recorded."""
    first = ActionRunner("P1", topology())
    first.receive([(FROM_P2, Word("a"))])
    second = ActionRunner("P1", topology(), first.capture().encoded)
    second.receive([(FROM_P2, Word("b"))])
    assert fields(first)["words"] == ["a"]
    assert fields(second)["words"] == ["a", "b"]


def test_a_recorded_state_of_another_class_is_refused() -> None:
    """The recorded fields must fit those declared."""
    with pytest.raises(UsageError, match="class Speaker does not fit the recorded state"):
        ActionRunner("P1", topology(), msgspec.msgpack.encode({"words": 7}))


def test_the_start_state_is_never_touched() -> None:
    """Performers work on deep copies: one topology can be run again and again."""
    system = topology()
    for _ in range(2):
        runner = ActionRunner("P1", system)
        runner.receive([(FROM_P2, Word("a"))])
        assert fields(runner)["words"] == ["a"]
    start = system.processes["P1"]
    assert isinstance(start, Speaker)
    assert start.words == []


def test_a_process_with_its_own_loop_is_refused() -> None:
    """Nobody can step through a program that has its own loop."""
    system = Topology({"P1": ExternalProcess(state=Speaker, accepts=Word)}, [])
    with pytest.raises(UsageError, match=r"process P1 runs its own event loop \(stillframe.join\)"):
        ActionRunner("P1", system)


class Recounts(Process):
    """Puts an effect after its state was recorded."""

    effects: Outbox[int] = field(default_factory=lambda: Outbox(lambda due: None))

    def on_cut(self, snapshot: SnapshotId) -> None:
        """Put the number of the snapshot."""
        self.effects.put(snapshot.number)


def test_what_is_put_after_the_state_was_recorded_is_not_before_the_cut() -> None:
    """It waits for the next snapshot, as in a real process."""
    runner = ActionRunner("P1", Topology({"P1": Recounts()}, []))
    for number in (1, 2):
        runner.cut(SnapshotId("P1", number))
        runner.perform("on_published", SnapshotId("P1", number))
    assert [due.items for due in runner.committed] == [[1]]
