"""What happened is told once, in sentences, also when the file of the history is put aside."""

import contextlib
import time
from pathlib import Path

import pytest

from stillframe.model import SnapshotId
from stillframe.store import history
from stillframe.store.history import History
from stillframe.store.writer import local
from stillframe.watch.event_feed import EventReader
from tests.watch.published import new_store


def test_each_happening_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of snapshots only those that were given up; and the same whenever one looks."""
    monkeypatch.setattr(history, "FILE_BYTES_MAX", 400)
    with (
        contextlib.closing(new_store(tmp_path)) as store,
        contextlib.closing(History(local(store.path))) as writer,
    ):
        often, seldom = EventReader(store.path), EventReader(store.path)
        told = often.poll()
        for number in range(1, 4):
            snapshot = SnapshotId("A", number)
            for what in (
                history.EpochBegan(number, SnapshotId("A", number - 1) if number > 1 else None),
                history.SnapshotBegan(snapshot),
                history.SnapshotAbandoned(snapshot, "PROCESS_DIED", ("B",), "so it is"),
                history.ProcessDied("B", "killed by signal 9"),
            ):
                writer.append(what)
                told += often.poll()
            assert often.dead == {"B"}
        writer.append(history.TakenOver(3))
        told += often.poll()
        assert [one["kind"] for one in told] == [
            *("start", "abandoned", "death"),
            *("restore", "abandoned", "death"),
            *("restore", "abandoned", "death"),
            "takeover",
        ]
        assert told[3]["sentence"] == "epoch 2 began from snapshot A-1"
        assert "process died" in told[4]["sentence"]
        assert told[5]["sentence"] == "process B died: killed by signal 9"
        assert often.poll() == []
        last = seldom.poll()
        assert last == told[-len(last) :]
        assert last


def test_a_line_that_was_taken_back_repeats_nothing(tmp_path: Path) -> None:
    """A disk had no room for it, or an object store did not answer: others are in its place."""
    with (
        contextlib.closing(new_store(tmp_path)) as store,
        contextlib.closing(History(local(store.path))) as writer,
    ):
        seen = EventReader(store.path)
        writer.append(history.EpochBegan(1, None))
        writer.append(history.ProcessDied("B", "killed by signal 9"))
        path = local(store.path) / history.NEWER
        whole = path.read_bytes()
        writer.append(history.SnapshotBegan(SnapshotId("A", 1)))
        assert [one["kind"] for one in seen.poll()] == ["start", "death"]
        taken = history.line_of(history.TakenOver(1), time.time())
        path.write_bytes(whole + taken)
        assert [one["kind"] for one in seen.poll()] == ["takeover"]
        assert seen.counts.deaths == {"B": 1}
        assert seen.poll() == []


def test_a_changed_line_is_told_once_and_hides_no_other(tmp_path: Path) -> None:
    """It is trouble, with its number; what comes before it and behind it is told."""
    with (
        contextlib.closing(new_store(tmp_path)) as store,
        contextlib.closing(History(local(store.path))) as writer,
    ):
        seen = EventReader(store.path)
        for number in (1, 2, 3):
            writer.append(history.EpochBegan(number, None))
        path = local(store.path) / history.NEWER
        path.write_bytes(path.read_bytes().replace(b'"epoch":2', b'"epoch":5'))
        told = seen.poll()
        assert [one["kind"] for one in told] == ["start", "error", "start"]
        assert told[1]["sentence"].startswith(f"line 3 of {path} was changed")
        assert told[1]["at"] == told[0]["at"]
        assert seen.counts.starts == 2
        assert seen.poll() == []


def test_the_dead_are_back_with_the_next_epoch(tmp_path: Path) -> None:
    """Nobody is dead in an epoch that has begun."""
    with (
        contextlib.closing(new_store(tmp_path)) as store,
        contextlib.closing(History(local(store.path))) as writer,
    ):
        seen = EventReader(store.path)
        assert seen.poll() == []
        writer.append(history.ProcessDied("A", "gone"))
        seen.poll()
        assert seen.dead == {"A"}
        writer.append(history.EpochBegan(2, None))
        seen.poll()
        assert seen.dead == frozenset()
