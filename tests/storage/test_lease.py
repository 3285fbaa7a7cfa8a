"""Leases: who holds one, when it lapses, and who notices."""

import fcntl
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import pytest

from stillframe.errors import Unavailable
from stillframe.storage import lease
from stillframe.storage.lease import LEASE_S, Lease
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.opened import object_store_of, storage_of
from stillframe.watch.pipeline_target import POLL_IDLE_S
from tests.storage.faulty import Fault, Request, faulty


@pytest.fixture
def place() -> ObjectPath:
    """A new place in memory."""
    return ObjectPath(f"memory://test-{secrets.token_hex(8)}", "till.lease")


class Clock:
    """A clock that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        fake = mock.Mock(wraps=time, monotonic=lambda: self.now_s)
        monkeypatch.setattr(lease, "time", fake)


def held(place: Location) -> Lease:
    """Return a lease that a program holds which does not renew it."""
    frozen = Lease(place, lost=lambda: None)
    assert frozen.try_acquire()
    frozen._closing.set()  # its thread ends
    assert frozen._thread is not None
    frozen._thread.join()
    return frozen


def test_one_of_two_holds_it(place: Location) -> None:
    """Until it releases it."""
    first, second = (Lease(place, lost=lambda: None) for _ in range(2))
    assert second.is_free()
    assert first.try_acquire()
    assert not second.is_free()
    assert not second.try_acquire()
    first.close()
    assert second.try_acquire()
    second.close()


def test_a_silent_holder_loses_it(place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the same program has looked for as long as it lasts."""
    clock, _ = Clock(monkeypatch), held(place)
    other = Lease(place, lost=lambda: None)
    while clock.now_s <= LEASE_S:
        assert not other.try_acquire()
        clock.now_s += 2.0
    assert other.try_acquire()
    other.close()


def test_time_without_a_look_does_not_count(
    place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage may have been away, for the holder too."""
    clock, _ = Clock(monkeypatch), held(place)
    other = Lease(place, lost=lambda: None)
    for _ in range(5):
        assert not other.try_acquire()
        clock.now_s += LEASE_S


def test_a_program_that_only_looks_may_look_less_often(
    place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``watch`` polls a pipeline every 5 s while no page is open, and its metrics must say which
    participants have ended on other machines."""
    clock, _ = Clock(monkeypatch), held(place)
    other = Lease(place, lost=lambda: None)
    while clock.now_s <= LEASE_S:
        assert not other.is_free()
        clock.now_s += POLL_IDLE_S
    assert other.is_free()
    assert not other.try_acquire()
    clock.now_s += LEASE_S + 1
    assert not other.is_free()


def test_a_holder_that_ended_on_this_machine_loses_it_at_once(
    place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process does not exist, or its number is that of another one."""
    real, other = lease._process_name, Lease(place, lost=lambda: None)
    own = real(os.getpid())
    assert own is not None
    for name in (f"{own}0", own):
        monkeypatch.setattr(lease, "_process_name", lambda pid, name=name: name)
        frozen = held(place)
        monkeypatch.setattr(lease, "_process_name", real)
        assert other.is_free() == (name != own)
        frozen.close()


@pytest.mark.parametrize("content", [b"{}", b'{"token":"\xff"}'])
def test_who_lost_it_is_told(
    place: Location, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    """At its next renewal, whatever has taken the place of the lease."""
    monkeypatch.setattr(lease, "LEASE_S", 0.01)
    lost = threading.Event()
    first = Lease(place, lost=lost.set)
    assert first.try_acquire()
    storage_of(place).put(place, content)
    assert lost.wait(30)
    first.close()
    assert storage_of(place).read(place, bytes_max=99)[0] == content
    with pytest.raises(OSError, match="is not a lease"):
        first.is_free()


def test_a_forked_process_does_not_release_it(
    place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is its parent's."""
    first, second = (Lease(place, lost=lambda: None) for _ in range(2))
    assert first.try_acquire()
    monkeypatch.setattr(first, "_pid", os.getpid() + 1)
    first.close()
    assert not second.is_free()
    monkeypatch.undo()
    first.close()
    assert second.is_free()


def test_a_renewal_waits_for_no_other_request(
    place: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many slow uploads as may run at a time do not end the lease; nor do they keep a program
    from finding out who holds it."""
    monkeypatch.setattr(lease, "LEASE_S", 0.01)
    monkeypatch.setattr(object_store_of(place), "_free", threading.BoundedSemaphore(1))
    renewed = threading.Event()
    first, second = (Lease(place, lost=lambda: None) for _ in range(2))
    assert first.try_acquire()
    with object_store_of(place)._free, faulty(place, lambda request: renewed.set()):
        assert renewed.wait(30)
        looking = threading.Thread(target=second.is_free)
        looking.start()
        looking.join(30)
        assert not looking.is_alive()
    first.close()


def test_a_renewal_without_an_answer_is_ours(
    place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took effect and was reported as failed: the next one does not take it for another's."""
    monkeypatch.setattr(lease, "LEASE_S", 0.01)
    lost: list[bool] = []
    renewed = threading.Event()

    def plan(request: Request) -> Fault | None:
        if len(requests.sent) > 20:
            renewed.set()
        return Fault.FAILED if 4 < request.number <= 6 else None

    first = Lease(place, lost=lambda: lost.append(True))
    with faulty(place, plan, repeat_s=0.0) as requests:
        assert first.try_acquire()
        assert renewed.wait(30)
        first.close()
    assert lost == []
    assert Lease(place, lost=lambda: None).is_free()


def test_closing_does_not_wait_for_a_storage_that_is_away(
    place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease lapses in time."""
    monkeypatch.setattr(lease, "CLOSE_S", 0.01)
    before = {*threading.enumerate()}  # other tests leave leases that are never closed
    first = Lease(place, lost=lambda: None)
    assert first.try_acquire()
    away = threading.Event()

    def plan(request: Request) -> None:
        assert away.wait(30)

    with faulty(place, plan):
        first.close()
        assert not away.is_set()
        away.set()
        for thread in {*threading.enumerate()} - before:
            thread.join()


def test_the_loser_may_close_it(place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the call that tells it."""
    monkeypatch.setattr(lease, "LEASE_S", 0.01)
    closed = threading.Event()

    def lost() -> None:
        first.close()
        closed.set()

    first = Lease(place, lost=lost)
    assert first.try_acquire()
    storage_of(place).put(place, b"{}")
    assert closed.wait(30)


HOLD = """
import sys
from stillframe.storage.lease import Lease
from stillframe.storage.location import locate
Lease(locate(sys.argv[1]), lost=lambda: print("lost", flush=True)).acquire(AssertionError)
print("held", flush=True)
sys.stdin.read()
"""


def refuse(holder: str) -> Unavailable:
    """Return the error of a lease that another program holds."""
    return Unavailable(f"held by {holder}")


@pytest.mark.parametrize("is_reaped", [False, True])
def test_a_killed_holder_is_followed_at_once(tmp_path: Path, is_reaped: bool) -> None:
    """Although nobody has asked for its exit code."""
    place = tmp_path / "lease"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        other = Lease(place, lost=lambda: None)
        assert not other.is_free()
        holder.kill()
        if is_reaped:
            holder.wait()
        else:
            os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)
        other.acquire(refuse)
    other.close()


def test_a_frozen_holder_finds_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it wakes, another program has the lease."""
    place = tmp_path / "lease"
    program = "from stillframe.storage import lease; lease.LEASE_S = 2.0\n" + HOLD
    with subprocess.Popen(
        [sys.executable, "-c", program, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        other = Lease(place, lost=lambda: None)
        with pytest.raises(Unavailable, match=f"held by process {holder.pid}"):
            other.acquire(refuse)
        # A program that is stopped while it replaces a local file keeps the directory locked.
        directory = os.open(tmp_path, os.O_RDONLY)
        fcntl.flock(directory, fcntl.LOCK_EX)
        holder.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED)
        os.close(directory)
        other.acquire(refuse)
        holder.send_signal(signal.SIGCONT)
        assert holder.stdout.readline() == b"lost\n"
        other.close()
        holder.kill()


def test_one_of_two_takes_over(place: Location) -> None:
    """The other is refused, and says why."""
    first, second = (Lease(place, lost=lambda: None) for _ in range(2))

    def first_is_faster(request: Request) -> None:
        if request.method == "put" and first._version is None:
            requests.plan = lambda request: None
            first.acquire(refuse)

    same_time = pytest.raises(Unavailable, match="a program that started at the same time")
    with faulty(place, first_is_faster) as requests, same_time:
        second.acquire(refuse)
    first.close()
