"""A verdict on each snapshot as it ends: each once, and the same as that of the audit."""

import contextlib
import copy
import datetime
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from stillframe.analytics.audit import audit
from stillframe.analytics.log_events import event_rows
from stillframe.analytics.log_verification import CrossCheck, log_pieces
from stillframe.analytics.verdict_stream import VerdictReader, follow
from stillframe.errors import Damaged, UsageError
from stillframe.model import SnapshotId
from stillframe.store.history import (
    NEWER,
    EpochBegan,
    History,
    SnapshotAbandoned,
    SnapshotBegan,
    SnapshotPublished,
    read_history,
)
from stillframe.store.store import Store
from tests import calm
from tests.analytics import bank

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parent.parent.parent
Fields = dict[str, Any]


class System:
    """What a system that runs does to its store: snapshots begin, and end."""

    def __init__(self, path: Path) -> None:
        bank.make_store(path, snapshot_count=0)
        self.path = path
        self.store = Store.open_writer(path)
        self.history = History(path)
        self.history.append(EpochBegan(1, None))

    def begin(self, number: int) -> None:
        """Begin snapshot P1-`number`."""
        self.history.append(SnapshotBegan(SnapshotId("P1", number)))

    def publish(self, number: int) -> None:
        """Begin and publish it."""
        self.begin(number)
        self.store.publish(bank.snapshot(number))
        self.history.append(SnapshotPublished(SnapshotId("P1", number)))

    def abandon(self, number: int, reason: str = "DEADLINE") -> None:
        """Begin it and give it up, for want of P2."""
        self.begin(number)
        self.history.append(SnapshotAbandoned(SnapshotId("P1", number), reason, ("P2",), "slow"))


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    """A system without a snapshot."""
    made = System(tmp_path / "store")
    yield made
    made.history.close()
    made.store.close()


class Follower:
    """A query that follows a store, and what it wrote, also before it was started again."""

    def __init__(self, spark: SparkSession, store: Path, place: Path) -> None:
        self._spark = spark
        self._store = store
        self._place = place

    def run(self, timeout_s: float | None = None) -> list[Row]:
        """Judge what has ended by now; return all verdicts so far, by snapshot."""
        query = (
            follow(self._spark, self._store, timeout_s=timeout_s)
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self._place / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(self._place / "verdicts"))
        )
        query.awaitTermination()
        return self._spark.read.parquet(str(self._place / "verdicts")).orderBy("snapshot").collect()


@pytest.fixture
def follower(spark: SparkSession, system: System, tmp_path: Path) -> Follower:
    """One that has not begun."""
    return Follower(spark, system.path, tmp_path)


class Reader:
    """Reads the verdicts as Spark does, without Spark: between two runs only the offset is left."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._offset: str | None = None
        self._rows: list[Fields] = []

    def run(self, timeout_s: float | None = None) -> list[Fields]:
        """Judge what has ended by now; return all verdicts so far, by snapshot."""
        options = {"store": str(self._store)}
        if timeout_s is not None:
            options["timeout"] = str(timeout_s)
        reader = VerdictReader(options)
        reader.prepareForTriggerAvailableNow()
        if self._offset is None:
            self._offset = json.dumps(reader.initialOffset())
        while (end := self._latest(reader)) != self._offset:
            for split in reader.partitions(json.loads(self._offset), json.loads(end)):
                for batch in copy.copy(reader).read(split):
                    self._rows += batch.to_pylist()
            self._offset = end
        return sorted(self._rows, key=lambda row: row["snapshot"] or "")

    def _latest(self, reader: VerdictReader) -> str:
        assert self._offset is not None
        start = json.loads(self._offset)
        return json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit()))


@pytest.fixture
def reader(system: System) -> Reader:
    """One that has not begun."""
    return Reader(system.path)


def comparable(row: Fields) -> Fields:
    """Return a verdict with its moments as seconds."""
    return {
        name: value.timestamp() if isinstance(value, datetime.datetime) else value
        for name, value in row.items()
    }


def told(rows: Sequence[Row | Fields]) -> list[tuple[str | None, str]]:
    """Return snapshot and verdict."""
    return [(row["snapshot"], row["verdict"]) for row in rows]


def test_each_snapshot_is_judged_once_also_by_one_that_is_started_again(
    follower: Follower, reader: Reader, system: System, tmp_path: Path
) -> None:
    """What was published and what was given up, before and after the query was away: one that was
    killed before its commit does the same again, whatever ended since."""
    system.publish(1)
    system.abandon(2)
    first = follower.run()
    assert told(first) == [("P1-1", "consistent"), ("P1-2", "incomplete")]
    published, abandoned = first
    assert (published["message_count"], published["epoch"], published["sequence"]) == (5, 1, 1)
    assert (abandoned["reason"], abandoned["missing"]) == ("DEADLINE", ["P2"])
    assert abandoned["why"].endswith("; missing: P2; slow")
    assert (abandoned["epoch"], abandoned["message_count"]) == (1, None)
    assert list(map(comparable, reader.run())) == [comparable(row.asDict()) for row in first]
    commits = tmp_path / "checkpoint" / "commits"
    newest = max((path for path in commits.iterdir() if path.name.isdigit()), key=_number_of)
    newest.unlink()
    (commits / f".{newest.name}.crc").unlink(missing_ok=True)
    system.publish(3)
    again = follower.run()
    assert told(again) == [*told(first), ("P1-3", "consistent")]
    assert again[:2] == first
    assert told(reader.run()) == told(again) == told(reader.run())


def test_the_verdicts_are_those_of_the_audit(
    reader: Reader, system: System, spark: SparkSession
) -> None:
    """Changed bytes, wrong books and a missing state are found in the same snapshots, and the
    books are wrong in the same words."""
    for number in range(1, 8):
        system.publish(number)
    snapshots = system.path / "snapshots"
    spoil, value = bank.spoil, bank.with_value
    spoil(snapshots / "P1-2", "channels.parquet", lambda t: value(t, "sent_count", 0, 8))
    spoil(snapshots / "P1-3", "messages.parquet", lambda t: t.slice(1))
    spoil(snapshots / "P1-4", "processes.parquet", lambda t: value(t, "_process", 0, "P2"))
    spoil(snapshots / "P1-5", "messages.parquet", lambda t: value(t, "_target", 0, "P9"))
    changed = snapshots / "P1-6" / "processes.parquet"
    changed.write_bytes(changed.read_bytes()[:-1] + b"x")
    sealed = snapshots / "P1-7" / "manifest.json"
    sealed.write_bytes(sealed.read_bytes() + b" ")
    found = {row["snapshot"]: row for row in reader.run()}
    for expected in audit(spark, system.path).snapshots:
        row = found[str(expected.id)]
        assert row["verdict"] == ("consistent" if expected.is_valid else "inconsistent")
        if expected.contradiction:
            assert row["why"] == expected.contradiction
        if not expected.damage:
            assert row["message_count"] == expected.message_count
    assert "processes.parquet was changed" in found["P1-6"]["why"]
    assert "manifest.json was changed" in found["P1-7"]["why"]


def test_a_damaged_line_of_the_history_is_a_verdict_of_its_own(
    reader: Reader, system: System
) -> None:
    """It is told once, without a snapshot, and the snapshots before and behind are judged."""
    system.publish(1)
    system.publish(2)
    path = system.path / NEWER
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b'"at"', b'"as"')
    path.write_bytes(b"".join(lines))
    rows = reader.run(timeout_s=1e-6)
    assert told(rows) == [(None, "inconsistent"), ("P1-1", "consistent"), ("P1-2", "consistent")]
    assert rows[0]["why"].startswith(f"line 4 of {path} was changed")
    assert reader.run(timeout_s=1e-6) == rows


def test_what_takes_too_long_is_told_and_not_told_again(reader: Reader, system: System) -> None:
    """A snapshot that is overdue is incomplete; when it is published after all, that is all."""
    system.begin(1)
    system.publish(2)
    assert told(reader.run()) == [("P1-2", "consistent")]
    rows = reader.run(timeout_s=1e-6)
    assert told(rows) == [("P1-1", "incomplete"), ("P1-2", "consistent")]
    assert rows[0]["why"] == "it did not end within 1e-06 s of its start"
    system.store.publish(bank.snapshot(1))
    system.history.append(SnapshotPublished(SnapshotId("P1", 1)))
    system.publish(3)
    assert told(reader.run(timeout_s=60)) == [*told(rows), ("P1-3", "consistent")]


def test_contradicting_parts_are_no_mere_gap(reader: Reader, system: System) -> None:
    """A snapshot that was given up because its parts contradict each other is inconsistent."""
    system.abandon(1, "NOT_CONSISTENT")
    assert told(reader.run()) == [("P1-1", "inconsistent")]


def test_a_dropped_snapshot_has_a_verdict(reader: Reader, system: System) -> None:
    """Nothing can be said of one that was removed before anybody looked."""
    for number in (1, 2, 3):
        system.publish(number)
    system.store.drop("P1-2")
    assert told(reader.run())[1] == ("P1-2", "incomplete")


def test_a_store_needs_no_history(tmp_path: Path) -> None:
    """Snapshots that no running system published are judged as well, and those after them."""
    path = bank.make_store(tmp_path / "store", snapshot_count=2)
    reader = Reader(path)
    assert told(reader.run()) == [("P1-1", "consistent"), ("P1-2", "consistent")]
    writer = Store.open_writer(path)
    writer.publish(bank.snapshot(3))
    writer.close()
    assert [row["snapshot"] for row in reader.run()] == ["P1-1", "P1-2", "P1-3"]


def test_there_must_be_a_store(spark: SparkSession, tmp_path: Path) -> None:
    """What is none is named before a query is started; one without its head as well."""
    with pytest.raises(UsageError, match="does not exist"):
        follow(spark, tmp_path / "nowhere")
    path = bank.make_store(tmp_path / "store", snapshot_count=1)
    (path / "store.json").unlink()
    with pytest.raises(Damaged, match=r"store\.json is missing"):
        follow(spark, path)


def _number_of(path: Path) -> int:
    return int(path.name)


@pytest.mark.slow
def test_a_system_that_runs_is_followed(spark: SparkSession, tmp_path: Path) -> None:
    """Of a bank, a process of which stops for a while, each snapshot is judged once while it runs,
    by followers one after the other, as the audit and the event log judge them all afterwards."""
    store, log = tmp_path / "store", tmp_path / "log"
    options = (
        *("--store", str(store), "--event-log", str(log)),
        *("--every", "200ms", "--timeout", "500ms"),
    )
    bank_run = subprocess.Popen(
        [sys.executable, "-m", "stillframe", "run", calm.BANK, *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        stderr=subprocess.PIPE,
        text=True,
    )
    children: list[int] = []
    try:
        follower = Follower(spark, store, tmp_path)
        _until_said(bank_run, "snapshot P1-1:")
        (fork_server,) = _children_of(bank_run.pid)
        children = _children_of(fork_server)
        os.kill(children[0], signal.SIGSTOP)
        _until_said(bank_run, "was abandoned")
        os.kill(children[0], signal.SIGCONT)
        meanwhile = follower.run()
        bank_run.send_signal(signal.SIGINT)
        bank_run.communicate()
    finally:
        bank_run.kill()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
    rows = follower.run()
    assert meanwhile
    assert all(row in rows for row in meanwhile)
    assert len(rows) == len({row["snapshot"] for row in rows})
    judged = {row["snapshot"]: row["verdict"] for row in rows}
    ended = {
        str(line.what.snapshot): isinstance(line.what, SnapshotPublished)
        for line in read_history(store)
        if isinstance(line.what, SnapshotPublished | SnapshotAbandoned)
    }
    assert judged == {
        name: "consistent" if is_published else "incomplete" for name, is_published in ended.items()
    }
    found = audit(spark, store)
    assert found.ok
    assert {str(row.id): row.message_count for row in found.snapshots} == {
        row["snapshot"]: row["message_count"] for row in rows if row["verdict"] == "consistent"
    }
    verdicts = spark.createDataFrame(rows, follow(spark, store).schema)
    both = CrossCheck(spark, log).rows(verdicts)
    assert {row["snapshot"]: row["verdict"] for row in both} == judged
    # An abandoned snapshot may end before any process has recorded a state for it.
    logged = event_rows(log_pieces(spark, log)).where("snapshot is not null")
    known = {row.snapshot for row in logged.select("snapshot").distinct().collect()}
    assert {row["snapshot"] for row in both if row["log"] is not None} == known
    assert known >= {name for name, is_published in ended.items() if is_published}


def _until_said(program: "subprocess.Popen[str]", words: str) -> None:
    assert program.stderr is not None
    for line in program.stderr:
        if words in line:
            return
    raise AssertionError(f"it ended without {words!r}")


def _children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(child) for child in text.split()]
