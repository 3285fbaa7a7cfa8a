"""Operating-system processes known by more than their number."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from stillframe.runtime.os_process import (
    current_process,
    identify,
    is_alive,
    is_stopped,
    kill,
    open_process,
    wait_for,
)

Sleeper = subprocess.Popen[bytes]


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    """A process that stays until it is ended."""
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_process_is_ended(sleeper: Sleeper) -> None:
    """It is gone when ``kill`` returns, though nobody has waited for it; again is no error."""
    known = identify(sleeper.pid)
    assert known is not None
    assert is_alive(known)
    kill(known)
    assert not is_alive(known)
    kill(known)
    wait_for(known)
    assert sleeper.wait() == -signal.SIGKILL


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "another"}, {"space": 1}])
def test_a_later_process_with_the_same_number_is_not_hit(
    sleeper: Sleeper, change: dict[str, object]
) -> None:
    """One that started at another time, or since another start of the machine, is a stranger."""
    known = identify(sleeper.pid)
    assert known is not None
    former = msgspec.structs.replace(known, **change)
    assert not is_alive(former)
    assert open_process(former) is None
    kill(former)
    assert is_alive(known)


@pytest.mark.parametrize("pid", [-1, 0, 2**22 + 1, 2**70])
def test_a_number_without_a_process_is_none(pid: int) -> None:
    """Whatever somebody wrote into a file: nothing is there, and nothing is ended."""
    assert identify(pid) is None
    stranger = msgspec.structs.replace(current_process(), pid=pid)
    assert not is_alive(stranger)
    kill(stranger)


def test_a_stopped_process_stands_still(sleeper: Sleeper) -> None:
    """It is there, and is known to be stopped until it goes on."""
    known = identify(sleeper.pid)
    assert known is not None
    assert not is_stopped(known)
    os.kill(sleeper.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED | os.WNOWAIT)
    assert is_stopped(known)
    assert is_alive(known)
