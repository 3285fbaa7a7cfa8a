"""A service that is told to stop leaves between two actions, and goes on where it was."""

import signal
import threading
from pathlib import Path

import pytest

from stillframe.pipeline import Participant, join
from stillframe.pipeline.published import Manifest
from tests.pipeline.money import Account, line, records


def till_of(manifest: Manifest) -> int:
    """Return how many items the till had read at the cut."""
    return manifest.part("till").positions["coins"]


def test_a_signal_lets_the_current_action_be_the_last(tmp_path: Path) -> None:
    """The loop ends after the action in which the signal came; a snapshot then holds the state
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
    """``receive`` stops waiting, whatever it was to wait for, and says that nothing came."""
    pipeline = line(tmp_path / "p.pipeline")
    with join("till", pipeline=pipeline.path, state=Account()) as me:
        received: list[object] = []
        waiting = threading.Thread(target=_receive, args=(me, timeout_s, received))
        waiting.start()
        me.leave()
        waiting.join(30)
        assert received == [None]


def _receive(me: Participant, timeout_s: float | None, received: list[object]) -> None:
    received.append(me.receive(timeout_s))
