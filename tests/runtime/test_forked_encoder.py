"""Encoding in a forked process: what comes back, what is refused, what dies, what is left over."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stillframe.errors import UsageError
from stillframe.runtime.process.state_capture import ForkedEncoder
from tests.runtime.links import children, until

pytestmark = pytest.mark.slow


def open_descriptors() -> set[str]:
    """Return the descriptors that this process has open."""
    return {path.name for path in Path("/proc/self/fd").iterdir()}


@pytest.fixture(autouse=True)
def nothing_is_left_over() -> Iterator[None]:
    """No child, dead or alive, and no descriptor remains."""
    before, others = open_descriptors(), children()
    yield
    assert not children() - others
    assert open_descriptors() == before


class Outcome:
    """What came of a forked process."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.ended: list[tuple[str | None, float]] = []

    def note(self, error: str | None, took_s: float) -> None:
        """Take how it ended."""
        self.ended.append((error, took_s))


def run(
    encode: Callable[[], bytes], meanwhile: Callable[[ForkedEncoder], Any] | None = None
) -> Outcome:
    """Fork, let `meanwhile` do what it likes with it, and return what came of it."""
    outcome = Outcome()

    async def main() -> None:
        forked = ForkedEncoder(
            encode,
            loop=asyncio.get_running_loop(),
            take=outcome.pieces.append,
            done=outcome.note,
        )
        if meanwhile is not None:
            meanwhile(forked)
        async with asyncio.timeout(30):
            await until(lambda: bool(outcome.ended) or forked._pidfd < 0)

    asyncio.run(main())
    return outcome


@pytest.mark.parametrize("size", [0, 1, 3_000_000])
def test_what_it_encodes_comes_back_in_pieces(size: int) -> None:
    """All bytes in order, then how long it took."""
    content = os.urandom(size)
    outcome = run(lambda: content)
    assert b"".join(outcome.pieces) == content
    [(error, took_s)] = outcome.ended
    assert error is None
    assert took_s >= 0


def test_it_encodes_what_was_there_at_the_fork() -> None:
    """What the parent changes afterwards does not reach it."""
    balances = {"EUR": 7}
    outcome = run(
        lambda: str(balances).encode(), meanwhile=lambda forked: balances.update({"EUR": 8})
    )
    assert b"".join(outcome.pieces) == b"{'EUR': 7}"


def test_what_cannot_be_encoded_is_told_in_its_words() -> None:
    """The error of the codec arrives as the cause, and no piece."""

    def encode() -> bytes:
        raise UsageError("Purse.rate cannot be recorded")

    outcome = run(encode)
    assert outcome.pieces == []
    assert outcome.ended[0][0] == "Purse.rate cannot be recorded"


def test_one_that_is_killed_is_told() -> None:
    """The cause names the signal; the parent goes on."""
    outcome = run(
        lambda: b"x" * 10**9, meanwhile=lambda forked: os.kill(forked._pid, signal.SIGKILL)
    )
    assert "was killed by signal 9 (is there enough memory?)" in str(outcome.ended[0][0])


def test_one_that_fails_otherwise_is_told() -> None:
    """The message has the class of an unexpected error, or the exit code."""

    def encode() -> bytes:
        raise RuntimeError

    assert str(run(encode).ended[0][0]) == "RuntimeError"
    assert "exited with 3" in str(run(lambda: os._exit(3)).ended[0][0])


def test_one_that_is_cancelled_says_nothing_more() -> None:
    """It is killed and waited for; also one that hangs."""

    def encode() -> bytes:
        time.sleep(60)
        return b""

    outcome = run(encode, meanwhile=ForkedEncoder.cancel)
    assert (outcome.pieces, outcome.ended) == ([], [])


def test_who_waits_for_a_cancelled_one_needs_no_loop() -> None:
    """``wait`` returns when it is gone."""

    def end(forked: ForkedEncoder) -> None:
        forked.cancel()
        forked.wait()
        forked.wait()

    assert run(lambda: b"x" * 10**7, meanwhile=end).ended == []


def test_it_holds_no_descriptor_of_the_parent(tmp_path: Path) -> None:
    """A connection of a parent that dies ends at once: the forked one closed its copy."""
    seen = tmp_path / "descriptors"

    def encode() -> bytes:
        return "\n".join(open_descriptors()).encode()

    with seen.open("w"):
        outcome = run(encode)
    # The pipe, and what listdir itself opens.
    assert len(b"".join(outcome.pieces).splitlines()) == 2


def test_a_fork_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is raised, and the pipe is closed."""

    def refuse() -> int:
        raise BlockingIOError("no process to be had")

    monkeypatch.setattr(os, "fork", refuse)
    with pytest.raises(BlockingIOError):
        run(lambda: b"")


def test_a_fork_that_cannot_be_watched_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a descriptor for it the child is ended again."""

    def refuse(pid: int) -> int:
        raise OSError("too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(OSError, match="too many open files"):
        run(lambda: b"")


LIVE_GRPC = """
import asyncio, grpc.aio
from stillframe.model import SnapshotId
from tests.runtime.links import until
from tests.runtime.recordings import Note, Recording

async def main():
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await channel.channel_ready()
        recording = Recording(Note("x" * 10**6), asyncio.get_running_loop())
        for number in range(8):
            recording.captures._in_place_s = 1e9
            recording.cut(SnapshotId("P", number))
            await until(lambda: len(recording.parts) + len(recording.refused) > number)
    await server.stop(None)
    print(recording.captures._fork_s > 0, set(recording.refused.values()))

asyncio.run(asyncio.wait_for(main(), 60))
"""


@pytest.mark.parametrize("variable", ["0", ""])
def test_grpc_kills_none(variable: str) -> None:
    """It starts its threads again in a child, and they end it. Nothing is forked then."""
    ended = subprocess.run(
        [sys.executable, "-c", LIVE_GRPC],
        env=os.environ | {"GRPC_ENABLE_FORK_SUPPORT": variable},
        capture_output=True,
        check=True,
        text=True,
    )
    assert ended.stdout == f"{bool(variable)} set()\n"
