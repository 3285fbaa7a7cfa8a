"""A service that is told to stop leaves between two actions, and goes on where it was."""

import re
import signal
import threading
from pathlib import Path

import pytest

from stillframe.errors import UsageError
from stillframe.model import Abandoned, Reason
from stillframe.pipeline.service import JoinedService, join
from stillframe.pipeline.snapshot_manifest import Manifest
from tests.pipeline.money import Account, line, records


def till_of(manifest: Manifest) -> int:
    """Return how many entries the till had read at the cut."""
    return manifest.fragment("till").positions["coins"]


def test_a_signal_lets_the_current_action_be_the_last(tmp_path: Path) -> None:
    """The body ends after the action in which the signal came; a snapshot then holds the state
    after it, and the next program of the service goes on from there."""
    pipeline = line(tmp_path / "p.pipeline")
    before = signal.getsignal(signal.SIGTERM)
    with join("mint", pipeline=pipeline.path, state=Account()) as mint:
        for amount in (1, 2, 3):
            mint.append("coins", records(amount))
    try:
        with join("till", pipeline=pipeline.path, state=(till := Account())) as me:
            signal.signal(signal.SIGTERM, lambda *_: me.leave())
            for _, table in me:
                if till.received_count == 1:
                    signal.raise_signal(signal.SIGTERM)
                till.balance += table["amount"][0].as_py()
                till.received_count += 1
    finally:
        signal.signal(signal.SIGTERM, before)
    assert till == Account(balance=3, received_count=2)
    manifest = pipeline.snapshot("unaligned")
    assert isinstance(manifest, Manifest)
    assert till_of(manifest) == 2
    with join("till", pipeline=pipeline.path, state=(again := Account())) as me:
        assert again == till
        received = me.receive()
        assert received is not None
        assert received[1]["amount"].to_pylist() == [3]


@pytest.mark.parametrize("timeout_s", [None, 600.0])
def test_who_waits_for_records_can_be_told_to_leave(
    tmp_path: Path, timeout_s: float | None
) -> None:
    """``receive`` stops waiting, whatever it was to wait for, and the body ends there."""
    pipeline = line(tmp_path / "p.pipeline")
    ends: list[str] = []

    def take_part() -> None:
        with join("till", pipeline=pipeline.path, state=Account()) as me:
            joined.append(me)
            begun.set()
            try:
                me.receive(timeout_s)
            except Exception:  # noqa: BLE001 - a handler of errors must not keep it from leaving
                ends.append("error")
            ends.append("went on")
        ends.append("left")

    joined: list[JoinedService] = []
    begun = threading.Event()
    waiting = threading.Thread(target=take_part)
    waiting.start()
    begun.wait(30)
    joined[0].leave()
    waiting.join(30)
    assert ends == ["left"]


def test_a_loop_of_ones_own_ends_at_its_boundary(tmp_path: Path) -> None:
    """What the current action does is still done, and kept."""
    pipeline = line(tmp_path / "p.pipeline")
    with join("mint", pipeline=pipeline.path, state=(mint := Account(balance=9))) as me:
        while True:
            me.leave()
            mint.balance -= 1
            me.append("coins", records(1))
            me.boundary()
    assert mint.balance == 8
    with join("till", pipeline=pipeline.path, state=Account()) as till:
        assert till.receive(timeout_s=0) is not None


def test_a_state_that_could_not_be_read_back_is_not_published(tmp_path: Path) -> None:
    """The snapshot is given up and says which field it is, the service goes on, and it cannot leave
    with such a state."""
    pipeline = line(tmp_path / "p.pipeline")
    with join("mint", pipeline=pipeline.path, state=Account()):
        pass
    outcomes: list[object] = []
    taking = threading.Thread(target=lambda: outcomes.append(pipeline.snapshot("unaligned")))

    def take_part() -> None:
        with join("till", pipeline=pipeline.path, state=(till := Account())) as me:
            till.balance = "much"  # type: ignore[assignment]
            taking.start()
            while taking.is_alive():
                me.receive(timeout_s=0.01)

    wrong = r"Account\.balance cannot be recorded: it holds a str where int is declared"
    with pytest.raises(UsageError, match=wrong):
        take_part()
    (outcome,) = outcomes
    assert isinstance(outcome, Abandoned)
    assert (outcome.reason, outcome.missing) == (Reason.NOT_RECORDED, ("till",))
    assert re.search(wrong, str(outcome))
