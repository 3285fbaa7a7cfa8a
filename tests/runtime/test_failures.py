"""What an application does wrong is named: process, message, channel, and what to do."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stillframe import Channel, Message, Process, SnapshotEntry, Topology, every
from stillframe.errors import ApplicationError, StillframeError, UsageError
from stillframe.model import Abandoned, Reason
from stillframe.runtime import control
from stillframe.runtime.process import process_runtime
from stillframe.runtime.process.host import Host
from stillframe.runtime.process.process_main import is_of_library
from tests.runtime.local import LocalSystem
from tests.runtime.programs import Sink, Source, Tick

LARGE_BYTES = 17 * 2**20
FOREIGN: Any = object()


class Other(Message):
    """Nobody accepts it."""

    content: int


class Blob(Message):
    """Whatever its fields hold."""

    content: bytes
    parts: list[Any]


class Taker(Process):
    """Takes both kinds of message."""

    taken_count: int = 0

    def receive(self, channel: Channel, message: Tick | Blob) -> None:
        """Count."""
        self.taken_count += 1


def fail(topology: Topology, directory: Path) -> StillframeError:
    """Run a system of which one process must fail, and return its error."""

    async def main() -> StillframeError:
        async with asyncio.timeout(30), LocalSystem(topology, directory, may_fail=True) as system:
            await system.until(lambda: bool(system.failures))
            return system.failures[0]

    return asyncio.run(main())


def acting(action: Callable[[Process], None]) -> Topology:
    """Return a process A that does `action`, with a channel to B."""

    class Odd(Process):
        def receive(self, channel: Channel, message: Tick) -> None:
            raise AssertionError("nobody sends to it")

        @every(ms=1)
        def act(self) -> None:
            action(self)

    return Topology({"A": Odd(), "B": Taker()}, [("A", "B")])


def divide(process: Process) -> None:
    """Raise what Python raises."""
    _ = 1 // int(process.id == "?")


@pytest.mark.parametrize(
    ("action", "words"),
    [
        pytest.param(divide, ["process A: act() raised ZeroDivisionError"], id="raises"),
        pytest.param(
            lambda self: self.send("C", Tick(1)),
            ["act() raised UsageError: process A has no channel to 'C'; outgoing: B"],
            id="no channel",
        ),
        pytest.param(
            lambda self: self.send(7, Tick(1)),
            ["process A has no channel to 7; outgoing: B"],
            id="no name",
        ),
        pytest.param(
            lambda self: self.send("B", Other(1)),
            [
                "channel A->B: B accepts Blob, Tick, not Other",
                "add it to the annotation of its receive()",
            ],
            id="not accepted",
        ),
        pytest.param(
            lambda self: self.send("B", "text"),
            ["channel A->B: B accepts Blob, Tick, not str"],
            id="no message",
        ),
        pytest.param(
            lambda self: self.send("B", Tick(FOREIGN)),
            ["channel A->B: Tick(serial=<object", "cannot be encoded", "give its fields values"],
            id="field of a foreign type",
        ),
        pytest.param(
            lambda self: self.send("B", Blob(b"", [object()])),
            ["process A: act() raised UsageError: channel A->B: Blob(", "cannot be encoded"],
            id="foreign type in a list",
        ),
        pytest.param(
            lambda self: self.send("B", Blob(bytes(LARGE_BYTES), [])),
            [
                "channel A->B: message 1 has 17,825,8",
                "more than the limit of 16,777,216: send it in parts",
            ],
            id="too large",
        ),
    ],
)
def test_an_action_that_goes_wrong_is_named(
    tmp_path: Path, action: Callable[[Process], None], words: list[str]
) -> None:
    """The error says which process, which channel, what was wrong and what to do."""
    error = fail(acting(action), tmp_path)
    assert isinstance(error, UsageError)
    for word in words:
        assert word in str(error)


def test_start_that_raises_is_named(tmp_path: Path) -> None:
    """The error says which process could not begin, and why."""

    class Odd(Process):
        def start(self) -> None:
            raise LookupError("nowhere")

    error = fail(Topology({"A": Odd(), "B": Sink()}, [("A", "B")]), tmp_path)
    assert isinstance(error, ApplicationError)
    assert str(error) == "process A: start() raised LookupError: nowhere"
    assert isinstance(error.__cause__, LookupError)


@pytest.mark.parametrize("serial", [1, 64, 1000])
def test_receive_that_raises_is_named_with_the_message(tmp_path: Path, serial: int) -> None:
    """The error says which message of which channel, wherever in a batch it stood."""

    class Odd(Process):
        def receive(self, channel: Channel, message: Tick) -> None:
            if message.serial == serial:
                raise ValueError("too much")

    error = fail(Topology({"A": Source(), "B": Odd()}, [("A", "B")]), tmp_path)
    assert isinstance(error, ApplicationError)
    assert str(error) == (
        f"process B: receive() raised on message {serial} of channel A->B, "
        f"Tick(serial={serial}): ValueError: too much"
    )


def test_async_receive_that_raises_is_named_with_the_message(tmp_path: Path) -> None:
    """The same for a coroutine."""

    class Odd(Process):
        async def receive(self, channel: Channel, message: Tick) -> None:
            await asyncio.sleep(0)
            if message.serial == 70:
                raise ValueError("too much")

    error = fail(Topology({"A": Source(limit=100), "B": Odd()}, [("A", "B")]), tmp_path)
    assert isinstance(error, ApplicationError)
    for words in ("process B: receive()", "channel A->B, Tick(serial=70)", "ValueError: too much"):
        assert words in str(error)


def test_on_published_that_raises_is_named(tmp_path: Path) -> None:
    """The error says which process could not take the news."""

    class Odd(Process):
        def on_published(self, snapshot: object) -> None:
            raise OSError("no printer")

    async def main() -> None:
        topology = Topology({"A": Source(limit=5), "B": Odd()}, [])
        async with asyncio.timeout(30), LocalSystem(topology, tmp_path, may_fail=True) as system:
            await system.take()
            await system.until(lambda: bool(system.failures))
            assert str(system.failures[0]) == "process B: on_published() raised OSError: no printer"

    asyncio.run(main())


class NoText(Exception):
    """Like an exception of an application that formats what was never set."""

    def __str__(self) -> str:
        raise AttributeError("code")

    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        raise AttributeError("of these neither")


class Strange(Message):
    """A message that cannot be shown, and may not be made again."""

    serial: int = 0

    def __repr__(self) -> str:
        raise NoText

    def __post_init__(self) -> None:
        if self.serial:
            raise NoText


PLACES = ("start", "receive", "act", "on_published")


class Raiser(Process):
    """Raises in the middle of an action, or cancels the task in which it runs."""

    place: str = ""
    count: int = 0
    _error: BaseException | None = None

    def start(self) -> None:
        """Act."""
        self.visit("start")

    def receive(self, channel: Channel, message: Strange) -> None:
        """Act."""
        self.visit("receive")

    @every(ms=1)
    def act(self) -> None:
        """Act."""
        self.visit("act")

    def on_published(self, snapshot: object) -> None:
        """Act."""
        self.visit("on_published")

    def visit(self, place: str) -> None:
        """Do half of it."""
        if place == self.place:
            self.count += 1
            if self._error is not None:
                raise self._error
            task = asyncio.current_task()
            assert task is not None
            task.cancel()


class Waiter(Raiser):
    """Does the same in coroutines, between two waits."""

    async def start(self) -> None:  # type: ignore[override]
        """Act."""
        await self.wait("start")

    async def receive(  # type: ignore[override]
        self, channel: Channel, message: Strange
    ) -> None:
        """Act."""
        await self.wait("receive")

    @every(ms=1)
    async def act(self) -> None:  # type: ignore[override]
        """Act."""
        await self.wait("act")

    async def on_published(self, snapshot: object) -> None:  # type: ignore[override]
        """Act."""
        await self.wait("on_published")

    async def wait(self, place: str) -> None:
        """Do half of it."""
        await asyncio.sleep(0)
        self.visit(place)
        await asyncio.sleep(0)


class Sender(Process):
    """Sends what cannot be shown, or cannot be made again."""

    serial: int = 0

    @every(ms=1)
    def act(self) -> None:
        """Send one."""
        message = Strange()
        msgspec.structs.force_setattr(message, "serial", self.serial)
        self.send("A", message)


@pytest.mark.parametrize(
    ("error", "name", "place", "is_async"),
    [
        *((NoText(), "NoText (its", place, one) for place in PLACES for one in (False, True)),
        *((None, "CancelledError", place, True) for place in PLACES),
        (None, "its code cancelled a task of Stillframe", "on_published", False),
        *((ValueError("c\udce9"), "ValueError: c\\udce9", "act", one) for one in (False, True)),
        *((SystemExit(3), "SystemExit: 3", "act", one) for one in (False, True)),
        (asyncio.CancelledError(), "CancelledError", "act", True),
    ],
)
def test_the_end_of_a_process_is_named_by_the_class_of_the_error(
    tmp_path: Path, error: BaseException | None, name: str, place: str, is_async: bool
) -> None:
    """Also if the error has no text, or one that is not UTF-8: the coordinator gets it, nothing
    that was half done is in a snapshot, and no action is taken any more."""

    async def main() -> None:
        process = (Waiter if is_async else Raiser)(place=place)
        process._error = error
        topology = Topology({"A": process, "B": Sender()}, [("B", "A")])
        async with asyncio.timeout(30), LocalSystem(topology, tmp_path, may_fail=True) as system:
            if place == "on_published":
                await system.take()
            await system.until(lambda: bool(system.failures))
            result = system.coordinator.begin("B")
            await system.members["A"].leave()
            await system.until(lambda: bool(system.departed))
            [(departed, failure)] = system.departed
            assert departed == "A"
            assert failure is not None
            assert failure.detail.startswith("process A: ")
            assert name in failure.detail
            assert isinstance(system.failures[0], StillframeError)
            assert process.count == 1
            assert not (result.done() and isinstance(result.result(), SnapshotEntry))

    asyncio.run(main())


def test_a_message_that_cannot_be_made_ends_the_process(tmp_path: Path) -> None:
    """Its class raises when it is decoded: the other end did nothing wrong."""
    topology = Topology({"A": Raiser(), "B": Sender(serial=1)}, [("B", "A")])
    error = fail(topology, tmp_path)
    assert isinstance(error, ApplicationError)
    assert "channel B->A: messages 1 to 1 cannot be made: NoText (its" in str(error)


def undeclared(process: Process) -> None:
    """Set an attribute that no snapshot would record."""
    process.hidden = 1  # type: ignore[attr-defined]


def declared(process: Process) -> None:
    """Take it back."""
    del process.hidden  # type: ignore[attr-defined]


def setter(value: object) -> Callable[[Process], None]:
    """Return what sets the field ``content``."""

    def change(process: Process) -> None:
        process.content = value  # type: ignore[attr-defined]

    return change


class Egg(msgspec.Struct):
    """Cannot be made again once it is broken."""

    is_broken: bool = False

    def __post_init__(self) -> None:
        """Fail, without a text."""
        if self.is_broken:
            raise NoText


def breaker(*, is_broken: bool) -> Callable[[Process], None]:
    """Return what breaks the egg of a process, or mends it."""

    def set_it(process: Process) -> None:
        process.egg.is_broken = is_broken  # type: ignore[attr-defined]

    return set_it


def endless() -> list[Any]:
    """Return a list that holds itself."""
    inner: list[Any] = []
    inner.append(inner)
    return inner


@pytest.mark.parametrize(
    ("spoil", "mend", "reason", "words"),
    [
        pytest.param(
            undeclared,
            declared,
            Reason.NOT_RECORDED,
            ["A: Holder.hidden was set but is not declared", "Declare it", "'_hidden'"],
            id="undeclared",
        ),
        pytest.param(
            setter(object()),
            setter([]),
            Reason.NOT_RECORDED,
            ["A: Holder.content cannot be recorded", "object"],
            id="foreign type",
        ),
        pytest.param(
            setter(2**64),
            setter([]),
            Reason.NOT_RECORDED,
            ["A: Holder.content cannot be recorded"],
            id="large number",
        ),
        pytest.param(
            setter(endless()),
            setter([]),
            Reason.NOT_RECORDED,
            ["A: Holder.content[0] cannot be recorded"],
            id="endless",
        ),
        pytest.param(
            breaker(is_broken=True),
            breaker(is_broken=False),
            Reason.NOT_RECORDED,
            ["A: a field of Holder does not hold", "its class raised NoText", "at `$.egg`"],
            id="cannot be made again",
        ),
    ],
)
def test_a_state_that_cannot_be_recorded_abandons_the_snapshot_only(
    tmp_path: Path,
    spoil: Callable[[Process], None],
    mend: Callable[[Process], None],
    reason: Reason,
    words: list[str],
) -> None:
    """The snapshot is abandoned and says which field of which process; the system goes on, and
    the next snapshot is published when the field is right again."""

    class Holder(Source):
        content: Any = None
        egg: Egg = field(default_factory=Egg)

    holder, sink = Holder(), Sink()

    async def main() -> None:
        topology = Topology({"A": holder, "B": sink}, [("A", "B")])
        async with asyncio.timeout(30), LocalSystem(topology, tmp_path) as system:
            spoil(holder)
            for initiator in ("A", "B"):
                outcome = await system.try_to_take(initiator)
                assert isinstance(outcome, Abandoned)
                assert outcome.reason is reason
                for word in words:
                    assert word in outcome.detail
            mend(holder)
            count = sink.received["A"]
            await system.take("A")
            await system.until(lambda: sink.received["A"] > count)

    asyncio.run(main())


def test_a_value_that_no_column_holds_abandons_the_snapshot_only(tmp_path: Path) -> None:
    """What can be recorded but not be stored is named as well, and the system goes on."""

    class Counter(Source):
        content: int = 0

    counter = Counter()

    async def main() -> None:
        topology = Topology({"A": counter, "B": Sink()}, [("A", "B")])
        async with asyncio.timeout(30), LocalSystem(topology, tmp_path) as system:
            counter.content = 2**63
            outcome = await system.try_to_take()
            assert isinstance(outcome, Abandoned)
            assert outcome.reason is Reason.NOT_PUBLISHED
            assert "content" in outcome.detail
            counter.content = 2**63 - 1
            await system.take()

    asyncio.run(main())


def test_a_bug_in_what_listens_to_the_coordinator_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that hears nothing any more would hold every snapshot up, and not be named."""

    def status(host: Host, snapshots: object) -> None:
        raise LookupError("what nobody foresaw")

    monkeypatch.setattr(process_runtime, "process_status", status)
    topology = Topology({"A": Taker(), "B": Taker()}, [])

    async def main() -> None:
        async with asyncio.timeout(30), LocalSystem(topology, tmp_path, may_fail=True) as system:
            system.coordinator.membership.send("A", control.StatusRequest(1, ()))
            await system.until(lambda: bool(system.failures))
            [failure] = system.failures
            assert str(failure) == (
                "process A: a bug in stillframe: LookupError: what nobody foresaw"
            )
            assert "in status" in process_runtime.traceback_of(failure)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        (["uvloop.loop", "grpc.aio", "json"], True),
        (["uvloop.loop", "grpc.aio", "bank"], False),
        (["uvloop.loop", "grpc.aio", "stillframe.runtime"], False),
        (["uvloop.loop", "installed_bank.topology"], False),
        # A function in C that the user may have given to the loop.
        (["uvloop.loop"], False),
        (["uvloop.loop", "json"], False),
        ([], True),
    ],
)
def test_errors_in_callbacks_of_libraries_are_told_apart(
    modules: list[str], *, expected: bool
) -> None:
    """By the modules in the traceback, of which only `bank` is not installed."""
    error = BlockingIOError()
    step: Any = None
    for name in reversed(modules):
        place = "home" if name == "bank" else "lib/site-packages"
        module: dict[str, Any] = {
            "__name__": name,
            "__file__": f"/{place}/m.py",
            "step": step,
            "error": error,
        }
        exec("def call():\n    if step is None:\n        raise error\n    step()", module)
        step = module["call"]
    if step is not None:
        with contextlib.suppress(BlockingIOError):
            step()
        assert error.__traceback__ is not None
        error.__traceback__ = error.__traceback__.tb_next  # without this test
    assert is_of_library(error, ("stillframe", "__main__", "installed_bank")) is expected
