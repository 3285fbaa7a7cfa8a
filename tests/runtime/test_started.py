"""Operating-system processes that were started here: how they begin, and how their end is told."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine

import pytest
import uvloop

from stillframe.runtime.started import Started

LISTENS = "import sys; sys.exit(int(sys.stdin.readline()))"
FORKED = """
import asyncio, os, sys, uvloop
from stillframe.runtime.started import Started

# What a library's lock does that another thread holds when we fork.
read, write = os.pipe()
os.register_at_fork(after_in_child=lambda: os.read(read, 1))

async def start() -> None:
    child = await Started.start([sys.executable, "-c", "pass"])
    print(await child.wait())

uvloop.run(start())
"""


def each_loop(act: Callable[[], Coroutine[None, None, None]]) -> None:
    """Do `act` in each of the event loops that a process may run."""
    asyncio.run(act())
    uvloop.run(act())


@pytest.mark.slow
def test_a_lock_that_is_held_while_a_process_is_started_holds_up_nobody() -> None:
    """A supervisor that forked would wait here for ever, without a word."""
    run = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout == "0\n"


@pytest.mark.slow
def test_a_process_hears_what_it_is_told_and_its_exit_code_is_known() -> None:
    """Its end is told to who waits and to who asked to be called; signals come too late then."""

    async def act() -> None:
        child = await Started.start([sys.executable, "-c", LISTENS])
        seen = asyncio.Event()
        child.when_ended(seen.set)
        assert child.returncode is None
        child.tell(b"7")
        assert await child.wait() == 7
        await seen.wait()
        assert child.returncode == 7
        child.terminate()
        child.kill()
        assert await child.wait() == 7

    each_loop(act)


@pytest.mark.slow
def test_a_line_that_no_pipe_can_hold_arrives_whole_and_holds_up_nobody() -> None:
    """A long search path makes a long line."""
    command = [sys.executable, "-c", "import sys; sys.exit(len(sys.stdin.readline()) == 1_000_001)"]

    async def act() -> None:
        child = await Started.start(command)
        child.tell(b"x" * 1_000_000)
        assert await child.wait() == 1

    each_loop(act)


@pytest.mark.slow
def test_who_gives_up_waiting_takes_the_end_from_nobody_else() -> None:
    """A wait that is called off ends nothing but itself."""

    async def act() -> None:
        child = await Started.start([sys.executable, "-c", LISTENS])
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
            await Started.start(["/nowhere/at/all"])

    each_loop(act)
