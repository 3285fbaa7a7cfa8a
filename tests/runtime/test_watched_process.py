"""Operating-system processes that were started here: how they begin, and how their end is told."""

import asyncio
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from stillframe.runtime.supervisor.fork_client import WatchedProcess

LISTENS = "import sys; sys.exit(int(sys.stdin.readline()))"
FORKED = """
import asyncio, os, sys, uvloop
from stillframe.runtime.supervisor.fork_client import WatchedProcess

# What a library's lock does that another thread holds when we fork.
read, write = os.pipe()
os.register_at_fork(after_in_child=lambda: os.read(read, 1))

async def start() -> None:
    child = WatchedProcess.start([sys.executable, "-c", "pass"])
    print(await child.wait())

uvloop.run(start())
"""


def each_loop(act: Callable[[], Coroutine[None, None, None]]) -> None:
    """Do `act` in each of the event loops that a process may run."""
    asyncio.run(act())
    uvloop.run(act())


def noted(monkeypatch: pytest.MonkeyPatch) -> list["subprocess.Popen[bytes]"]:
    """Return a list to which every process is added that is started from now on."""
    begun: list[subprocess.Popen[bytes]] = []

    class Noted(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            begun.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    return begun


@pytest.mark.slow
def test_a_lock_that_is_held_while_a_process_is_started_holds_up_nobody() -> None:
    """An event loop that forked by itself would wait here for ever, without a word; and what
    ``subprocess`` does here runs nothing in a copy of our memory."""
    assert subprocess._USE_VFORK
    run = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout == "0\n"


@pytest.mark.slow
def test_a_process_hears_what_it_is_told_and_its_exit_code_is_known() -> None:
    """Its end is told to who waits and to who asked to be called; signals come too late then."""

    async def act() -> None:
        child = WatchedProcess.start([sys.executable, "-c", LISTENS])
        seen = asyncio.Event()
        child.on_terminated(seen.set)
        assert child.returncode is None
        child.write_line(b"7")
        assert await child.wait() == 7
        await seen.wait()
        assert child.returncode == 7
        child.terminate()
        child.kill()
        assert await child.wait() == 7

    each_loop(act)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["sys.exit(1)", "os.close(0); time.sleep(100)"])
def test_what_is_told_to_one_that_does_not_hear_is_lost(end: str) -> None:
    """Because it has ended, or has closed its standard input; nothing fails."""

    async def act() -> None:
        child = WatchedProcess.start([sys.executable, "-c", f"import os, sys, time; {end}"])
        child.write_line(b"x" * 100_000)
        while child._unwritten and not child.has_terminated:
            child.write_line(b"x")
            await asyncio.sleep(0.01)
        child.write_line(b"more")
        child.kill()
        await child.wait()
        child.write_line(b"more")

    each_loop(act)


@pytest.mark.slow
def test_one_that_cannot_be_watched_over_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """When no descriptor is left, for example. It is killed before its input ends: it would act on
    that."""
    begun, inputs = noted(monkeypatch), list[bool]()
    kill = subprocess.Popen.kill

    def look_and_kill(child: "subprocess.Popen[bytes]") -> None:
        assert child.stdin is not None
        inputs.append(not child.stdin.closed)
        kill(child)

    monkeypatch.setattr(subprocess.Popen, "kill", look_and_kill)

    def refuse(pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", refuse)

    async def act() -> None:
        with pytest.raises(OSError, match="Too many open files"):
            WatchedProcess.start([sys.executable, "-c", LISTENS])

    each_loop(act)
    assert inputs == [True] * 2
    assert [child.returncode for child in begun] == [-signal.SIGKILL] * 2


@pytest.mark.slow
def test_a_line_that_no_pipe_can_hold_arrives_whole_and_holds_up_nobody() -> None:
    """A long search path makes a long line."""
    command = [sys.executable, "-c", "import sys; sys.exit(len(sys.stdin.readline()) == 1_000_001)"]

    async def act() -> None:
        child = WatchedProcess.start(command)
        child.write_line(b"x" * 1_000_000)
        assert await child.wait() == 1

    each_loop(act)


@pytest.mark.slow
def test_who_gives_up_waiting_takes_the_end_from_nobody_else() -> None:
    """A wait that is called off ends nothing but itself."""

    async def act() -> None:
        child = WatchedProcess.start([sys.executable, "-c", LISTENS])
        impatient = asyncio.ensure_future(child.wait())
        await asyncio.sleep(0)
        impatient.cancel()
        os.kill(child.pid, signal.SIGKILL)
        assert await child.wait() == -signal.SIGKILL

    each_loop(act)


def test_a_command_that_cannot_be_started_is_an_error() -> None:
    """It is the error of the operating system, with the name of the program."""

    async def act() -> None:
        with pytest.raises(FileNotFoundError):
            WatchedProcess.start(["/nowhere/at/all"])

    each_loop(act)
