"""Locks of participants."""

import errno
import fcntl
import os
import time
from pathlib import Path
from unittest import mock

import pytest

from stillframe.errors import StoreError, Unavailable
from stillframe.pipeline import locks
from stillframe.pipeline.locks import participant_lock


def test_a_participant_starts_although_a_coordinator_looks_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever starts waits for the moment in which a coordinator records what lies on the disk."""
    coordinators, mine = participant_lock(tmp_path, "sums"), participant_lock(tmp_path, "sums")
    assert coordinators.try_acquire()
    monkeypatch.setattr(
        locks, "time", mock.Mock(wraps=time, sleep=lambda _: coordinators.release())
    )
    assert mine.acquire()
    assert not coordinators.try_acquire()


def test_a_participant_does_not_start_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that stays taken is not waited for without end."""
    running, second = participant_lock(tmp_path, "sums"), participant_lock(tmp_path, "sums")
    assert running.try_acquire()
    monkeypatch.setattr(locks, "WAIT_S", 0.0)
    assert not second.acquire()


def test_who_restores_waits_a_moment_for_a_snapshot_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else periodic snapshots would keep a restore out; who takes a snapshot does not wait."""
    busy = locks.Lock(tmp_path / locks.COORDINATOR)
    assert busy.try_acquire()
    with (
        pytest.raises(Unavailable, match="a snapshot is not possible now"),
        locks.coordinating(tmp_path, "a snapshot", is_patient=False),
    ):
        pass
    monkeypatch.setattr(locks, "time", mock.Mock(wraps=time, sleep=lambda _: busy.release()))
    with locks.coordinating(tmp_path, "a restore"):
        assert not busy.try_acquire()


def test_a_file_system_without_locks_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptor is left open."""

    def refuse(descriptor: int, _: int) -> None:
        refused.append(descriptor)
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    refused: list[int] = []
    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        mock.patch.object(os, "close", wraps=os.close) as close,
        pytest.raises(StoreError, match="No locks available"),
    ):
        participant_lock(tmp_path, "till").try_acquire()
    # To ask for the descriptor itself would be a race: another thread may have its number by now.
    close.assert_any_call(refused[0])
