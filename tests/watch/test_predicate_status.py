"""Snapshots are judged as ``stillframe detect`` judges them, and what cannot be judged says why."""

import contextlib
from pathlib import Path

import pytest

from stillframe.model import SnapshotId
from stillframe.store.writer import local
from stillframe.watch import predicate_status
from stillframe.watch.predicate_status import DEFAULT_PREDICATES, PredicateMonitor
from tests.watch.published import REFERENCE, new_store, publish


def test_a_loss_is_found_in_the_snapshot_that_has_it(tmp_path: Path) -> None:
    """Against the oldest; totals are told for each."""
    with contextlib.closing(new_store(tmp_path)) as store:
        publish(store, 1)
        publish(store, 2, lost=5)
        monitor = PredicateMonitor(
            store, (*DEFAULT_PREDICATES, "select sum(balance) < 1998 from processes"), None
        )
        first, second = (monitor.evaluate(SnapshotId("A", number)) for number in (1, 2))
        assert first is not None
        assert second is not None
        assert (first.totals, second.totals) == ({"money": 2000}, {"money": 1995})
        assert first.in_channels == {"money": 0}
        assert [verdict.holds for verdict in first.verdicts.values()] == [False] * 4
        assert {name for name, verdict in second.verdicts.items() if verdict.holds} == {
            "loss",
            "select sum(balance) < 1998 from processes",
        }
        assert second.verdicts["loss"].sentence.startswith("5 money lost")


def test_what_cannot_be_judged_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No classes, too large, or damaged; one that is gone is nothing."""
    with contextlib.closing(new_store(tmp_path)) as store:
        publish(store, 1)
        snapshot = SnapshotId("A", 1)
        missing = PredicateMonitor(store, DEFAULT_PREDICATES, "no.such:module").evaluate(snapshot)
        assert missing is not None
        assert "no.such" in missing.error
        assert missing.verdicts == {}
        monkeypatch.setattr(predicate_status, "BYTES_MAX", 10)
        large = PredicateMonitor(store, DEFAULT_PREDICATES, REFERENCE).evaluate(snapshot)
        assert large is not None
        assert "too large" in large.error
        monkeypatch.undo()
        assert (
            PredicateMonitor(store, DEFAULT_PREDICATES, REFERENCE).evaluate(SnapshotId("A", 2))
            is None
        )
        table = local(store.entry(snapshot).directory) / "processes.parquet"
        table.write_bytes(table.read_bytes()[:-1] + b"x")
        damaged = PredicateMonitor(store, DEFAULT_PREDICATES, REFERENCE).evaluate(snapshot)
        assert damaged is not None
        assert "processes.parquet" in damaged.error
