"""The faults that tests of object stores inject, and what the storage makes of each."""

import contextlib
import secrets

import pytest

from stillframe.storage.location import ObjectPath
from stillframe.storage.opened import storage_of
from tests.storage.faulty import DEATHS, ONCE, Died, Fault, faulty, nth, since


@pytest.fixture
def place() -> ObjectPath:
    """A place in an empty object store."""
    return ObjectPath(f"memory://test-{secrets.token_hex(8)}", "a/b")


@pytest.mark.parametrize("fault", ONCE)
def test_what_fails_once_is_repeated(place: ObjectPath, fault: Fault) -> None:
    """And the write is reported as it was: it took effect once."""
    storage = storage_of(place)
    with faulty(place, nth(1, fault)) as requests:
        version = storage.put_if_absent(place, b"one")
    assert storage.read(place, bytes_max=9) == (b"one", version)
    assert {(r.method, r.key) for r in requests.sent} <= {("put", "a/b"), ("get", "a/b")}
    with faulty(place, nth(1, fault)):
        version = storage.replace_if_unchanged(place, b"two", version)
    assert storage.read(place, bytes_max=9) == (b"two", version)


def test_what_fails_for_good(place: ObjectPath) -> None:
    """It is an OSError: denied at once, else when it was repeated long enough."""
    storage = storage_of(place)
    with faulty(place, nth(1, Fault.DENIED)), pytest.raises(PermissionError):
        storage.put(place, b"one")
    assert not storage.exists(place)
    unavailable = faulty(place, since(1, Fault.REFUSED), repeat_s=0.01)
    with unavailable as requests, pytest.raises(OSError, match="503"):
        storage.put(place, b"one")
    assert len(requests.sent) > 1
    assert not storage.exists(place)


@pytest.mark.parametrize("fault", DEATHS)
def test_the_dead_send_nothing(place: ObjectPath, fault: Fault) -> None:
    """The request took effect or not; none after it does."""
    storage = storage_of(place)
    with faulty(place, nth(2, fault)) as requests:
        storage.put(place, b"one")
        with pytest.raises(Died):
            storage.put(place, b"two")
        with pytest.raises(Died):
            storage.delete([place])
    assert requests.is_dead
    expected = b"two" if fault is Fault.DEATH_AFTER else b"one"
    assert storage.read(place, bytes_max=9)[0] == expected


@pytest.mark.parametrize("fault", [*DEATHS, *ONCE])
def test_a_request_without_success_fails_too(place: ObjectPath, fault: Fault) -> None:
    """A test that lets each request fail in turn must not end at the first one that is refused."""
    storage = storage_of(place)
    with faulty(place, nth(1, fault)) as requests, contextlib.suppress(Died, FileNotFoundError):
        storage.read(place, bytes_max=9)
    assert requests.is_dead == (fault in DEATHS)
    assert len(requests.sent) == (1 if fault in DEATHS else 2)
