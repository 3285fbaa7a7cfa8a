"""A command says which object store keeps it waiting, and is silent else."""

import secrets
import threading
from collections.abc import Callable
from typing import Any

import pytest

from stillframe.storage import remote
from stillframe.storage.location import ObjectPath
from stillframe.storage.opened import object_store_of
from stillframe.storage.remote import noticing
from tests.storage.faulty import Fault, Request, faulty


@pytest.fixture
def place() -> ObjectPath:
    """A place in a new object store."""
    return ObjectPath(f"memory://{secrets.token_hex(8)}", "x")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say it sooner."""
    monkeypatch.setattr(remote, "NOTICE_S", 0.05)


class Said:
    """The notices so far."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.is_any = threading.Event()

    def __call__(self, words: str) -> None:
        """Say it."""
        self.words.append(words)
        self.is_any.set()


def during_head(
    place: ObjectPath, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]
) -> None:
    """Let `act` happen before the answer to each request of this kind."""
    real = object_store_of(place)._api

    class Slow:
        """Passes everything on."""

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def head(self, *arguments: object) -> object:
            """Answer later."""
            act()
            return real.head(*arguments)

    monkeypatch.setattr(object_store_of(place), "_api", Slow())


def test_a_first_answer_that_does_not_come(
    place: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows why; it is said once."""
    said = Said()
    during_head(place, monkeypatch, lambda: said.is_any.wait(10))
    with noticing(said):
        for _ in range(2):
            assert not object_store_of(place).exists(place)
    assert said.words == [
        f"waiting for {place.root}: it has not answered yet; Ctrl-C ends this command"
    ]


def test_errors_that_are_repeated(place: ObjectPath) -> None:
    """The last one is said, as soon as it lasts."""
    said, store = Said(), object_store_of(place)

    def plan(_: Request) -> Fault | None:
        return None if said.is_any.wait(0.001) else Fault.REFUSED

    with noticing(said), faulty(place, plan, repeat_s=60.0):
        assert not store.exists(place)
    (words,) = said.words
    assert words.startswith(f"waiting for {place.root}: the object store answered with status 503")


def test_a_long_answer_is_no_trouble(place: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the object store has answered before; nor is an error that has passed."""
    monkeypatch.setattr(remote, "NOTICE_S", 0.0)
    store, found = object_store_of(place), []
    with faulty(place, lambda request: Fault.REFUSED if request.number == 1 else None):
        assert not store.exists(place)
    during_head(place, monkeypatch, lambda: found.append(store.why_waiting()))
    assert not store.exists(place)
    assert found == [""]
