"""Leases: who holds one, when it lapses, and who notices."""

import os
import secrets
import threading
import time
from unittest import mock

import pytest

from stillframe.storage import lease
from stillframe.storage.lease import LEASE_S, Lease
from stillframe.storage.location import Location, locate
from stillframe.storage.opened import storage_of


@pytest.fixture
def place() -> Location:
    """A new place in memory."""
    return locate(f"memory://test-{secrets.token_hex(8)}/till.lease")


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


def test_who_lost_it_is_told(place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its next renewal."""
    monkeypatch.setattr(lease, "LEASE_S", 0.01)
    lost = threading.Event()
    first = Lease(place, lost=lost.set)
    assert first.try_acquire()
    storage_of(place).put(place, b"{}")
    assert lost.wait(30)
    first.close()
    assert storage_of(place).read(place, bytes_max=9)[0] == b"{}"


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
