"""The audit: a sound store passes, and whatever is wrong is named."""

import functools
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from stillframe.analytics.audit import Audit, audit
from stillframe.errors import Damaged, StoreError, UsageError
from stillframe.store.history import NEWER, SnapshotPublished
from stillframe.store.store import Store
from tests.analytics import bank
from tests.nightly import by_night

pytestmark = pytest.mark.spark

MANY = by_night(1_000, check=60)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A sound store of three snapshots."""
    return bank.make_store(tmp_path / "store", snapshot_count=3)


def audit_money(spark: SparkSession, store: Path) -> Audit:
    """Audit a store of the bank."""
    return audit(spark, store, states_sql="sum(balance)", messages_sql="sum(amount)")


def second(store: Path) -> Path:
    """The directory of snapshot P1-2."""
    return store / "snapshots" / "P1-2"


def test_a_sound_store_passes(spark: SparkSession, store: Path) -> None:
    """Bytes, books and money are right, and every snapshot's row says so."""
    (store / "snapshots" / ".P1-4.partial").mkdir()
    (store / "snapshots" / ".P1-4.partial" / "messages.parquet").write_bytes(b"half")
    found = audit_money(spark, store)
    assert found.ok, found.verdict
    assert found.verdict == (
        "3 snapshots with 15 messages: no byte changed, the books balance, and the total is 300 in "
        "all of them"
    )
    assert [(str(row.id), row.sequence) for row in found.snapshots] == [
        ("P1-1", 1),
        ("P1-2", 2),
        ("P1-3", 3),
    ]
    for row in found.snapshots:
        assert (row.message_count, row.states_amount, row.messages_amount) == (5, 290, 10)
        assert (row.total, row.difference, row.is_valid) == (bank.TOTAL, 0, True)


def test_without_sql_bytes_and_books_are_checked(spark: SparkSession, store: Path) -> None:
    """The conserved quantity is for those who have one."""
    found = audit(spark, store)
    assert found.ok
    assert [row.total for row in found.snapshots] == [None, None, None]


WRONG: tuple[tuple[str, int, str, Any, str], ...] = (
    ("channels.parquet", 0, "sent_count", 8, "8 sent - 2 received = 6, but 5 messages were"),
    ("channels.parquet", 0, "sent_count", 1, "the target had received 3 messages at its cut"),
    ("channels.parquet", 0, "target", "P3", "channel P1->P2 is recorded 0 times"),
    ("channels.parquet", 0, "encoded", [], "10 sent - 5 received = 5, but its batches hold 0"),
    ("messages.parquet", 1, "_number", 7, "7 to 11, but messages.parquet holds 4 different ones"),
    ("messages.parquet", 4, "_number", 13, "5 different ones, from 8 to 13"),
    ("messages.parquet", 0, "_target", "P9", "channel P1->P2: 13 sent - 8 received = 5, but"),
    ("processes.parquet", 0, "_process", "P2", "states of the processes P2, P2, P3 are"),
)
"""A value that was written wrong into a file of snapshot P1-2, one of P1-3 and so on, and what is
named of it."""


def test_wrong_books_are_named(spark: SparkSession, tmp_path: Path) -> None:
    """A value that was written wrong is found by the books, with channel and figures; the first
    snapshot that is wrong is in the verdict, and those that are right are right."""
    store = bank.make_store(tmp_path / "store", snapshot_count=len(WRONG) + 3)
    snapshots = store / "snapshots"
    for number, (file, row, column, value, _) in enumerate(WRONG, 2):
        changed = functools.partial(bank.with_value, column=column, row=row, value=value)
        bank.spoil(snapshots / f"P1-{number}", file, changed)
    doubled, last = len(WRONG) + 2, len(WRONG) + 3
    bank.spoil(
        snapshots / f"P1-{doubled}",
        "messages.parquet",
        lambda table: pa.concat_tables([table, table.slice(4)]),
    )
    found = audit(spark, store)
    assert found.verdict.startswith("snapshot P1-2: ")
    assert WRONG[0][-1] in found.verdict
    assert found.verdict.endswith(f"({len(WRONG)} more of {last} snapshots are wrong)")
    assert [row.is_valid for row in found.snapshots] == [True, *[False] * (len(WRONG) + 1), True]
    for wrong, evaluation in zip(WRONG, found.snapshots[1:], strict=False):
        assert wrong[-1] in (evaluation.contradiction or ""), evaluation
    said = found.snapshots[-2].contradiction or ""
    assert said.endswith("= 5, but messages.parquet holds 6")


def test_a_lost_message_is_named(spark: SparkSession, store: Path) -> None:
    """A row that is missing from messages.parquet is a difference in its channel's books."""
    bank.spoil(second(store), "messages.parquet", lambda table: table.slice(1))
    assert audit(spark, store).verdict == (
        "snapshot P1-2: channel P1->P2: 7 sent - 2 received = 5, but messages.parquet holds 4"
    )


def test_missing_money_is_named(spark: SparkSession, store: Path) -> None:
    """The first snapshot with another total is named, with the figures."""
    bank.spoil(second(store), "processes.parquet", lambda t: bank.with_value(t, "balance", 0, 83))
    found = audit_money(spark, store)
    assert found.verdict == (
        "snapshot P1-2: the total is 293 (states 283, messages 10), and in P1-1 it is 300: "
        "a difference of -7"
    )
    assert [row.difference for row in found.snapshots] == [0, -7, 0]


def test_a_changed_byte_is_named(spark: SparkSession, tmp_path: Path) -> None:
    """The file is named, and the other snapshots are audited all the same."""
    store = bank.make_store(tmp_path / "store", snapshot_count=5)
    files = {2: "messages.parquet", 3: "processes.parquet", 4: "manifest.json"}
    for number, file in files.items():
        path = store / "snapshots" / f"P1-{number}" / file
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    found = audit_money(spark, store)
    assert not found.ok
    rows = {str(row.id): row for row in found.snapshots}
    for number, file in files.items():
        assert f"{file} was changed since it was written" in (rows[f"P1-{number}"].damage or "")
    assert {name: row.total for name, row in rows.items()} == {
        **dict.fromkeys(("P1-1", "P1-5"), 300),
        **dict.fromkeys(("P1-2", "P1-3", "P1-4"), None),
    }


def test_missing_and_shortened_files_are_named(spark: SparkSession, store: Path) -> None:
    """A file that is not there or too short is damage, also when no snapshot is left whole."""
    for directory in (store / "snapshots").iterdir():
        (directory / "channels.parquet").unlink()
    path = second(store) / "processes.parquet"
    path.write_bytes(path.read_bytes()[:10])
    found = audit_money(spark, store)
    assert "snapshot P1-1: channels.parquet is missing" in found.verdict
    assert "(2 more of 3 snapshots are wrong)" in found.verdict
    assert "processes.parquet has 10 bytes" in (found.snapshots[1].damage or "")


def test_a_snapshot_that_is_gone_is_named(spark: SparkSession, store: Path) -> None:
    """The history has it as published, and not as removed; the others are audited all the same.
    With a damaged history that is not known, and the audit is no success."""
    writer = Store.open_writer(store)
    for entry in writer.entries():
        writer.history.append(SnapshotPublished(entry.id, is_removal_noted=True))
    writer.close()
    assert audit_money(spark, store).ok
    shutil.rmtree(second(store))
    found = audit_money(spark, store)
    assert not found.ok
    assert f"snapshot P1-2: {second(store)} is missing" in found.verdict
    assert [(str(row.id), row.is_valid) for row in found.snapshots] == [
        ("P1-1", True),
        ("P1-3", True),
        ("P1-2", False),
    ]
    content = (store / NEWER).read_bytes()
    (store / NEWER).write_bytes(content.replace(b"Published", b"Pablished", 1))
    found = audit_money(spark, store)
    assert not found.ok
    assert "history.ndjson was changed" in found.verdict
    assert found.history_damage == found.verdict
    assert all(row.is_valid for row in found.snapshots)


@pytest.mark.parametrize(
    ("states_sql", "named"),
    [
        ("sum(balanc)", "'sum\\(balanc\\)'.*balanc.*balance"),
        ("sum(", "PARSE_SYNTAX_ERROR"),
        ("balance", "aggregate over one snapshot's rows, such as 'sum\\(balance\\)'"),
        ("max(_kind)", "gives 'Account', which is not a number"),
        ("sum(balance * 9223372036854775807)", "overflow"),
    ],
)
def test_wrong_sql_is_the_callers(
    spark: SparkSession, store: Path, states_sql: str, named: str
) -> None:
    """SQL that does not work is a UsageError with Spark's words, not its stack."""
    with pytest.raises(UsageError, match=f"(?s)over the states.*{named}") as caught:
        audit(spark, store, states_sql=states_sql)
    assert "\n" not in str(caught.value)


def test_fractions_are_compared_to_nine_digits(spark: SparkSession, store: Path) -> None:
    """The order of additions is no difference; a real one is, and so is one between integers."""
    assert audit(spark, store, states_sql="sum(rate)").ok
    close, far = 0.1 + 1e-13, 0.1 + 1e-7
    third = store / "snapshots" / "P1-3"
    bank.spoil(second(store), "processes.parquet", lambda t: bank.with_value(t, "rate", 0, close))
    bank.spoil(third, "processes.parquet", lambda t: bank.with_value(t, "rate", 0, far))
    found = audit(spark, store, states_sql="sum(rate)")
    assert [row.is_valid for row in found.snapshots] == [True, True, False]
    bank.spoil(second(store), "processes.parquet", lambda t: bank.with_value(t, "balance", 0, 91))
    big = audit(spark, store, states_sql="sum(balance) + double(1e12)")
    assert [row.difference for row in big.snapshots] == [0, 1, 0]


def test_there_must_be_something_to_audit(spark: SparkSession, tmp_path: Path) -> None:
    """No store, an empty one and a headless one are told apart."""
    with pytest.raises(UsageError, match="does not exist"):
        audit(spark, tmp_path / "nowhere")
    with pytest.raises(UsageError, match="holds no snapshot yet"):
        audit(spark, bank.make_store(tmp_path / "empty", snapshot_count=0))
    headless = bank.make_store(tmp_path / "headless", snapshot_count=1)
    (headless / "store.json").unlink()
    with pytest.raises(Damaged, match=r"store\.json is missing"):
        audit(spark, headless)


def test_what_is_no_snapshot_is_named(spark: SparkSession, store: Path) -> None:
    """A directory of yours among the snapshots is an error that says where it is."""
    (store / "snapshots" / "mine").mkdir()
    with pytest.raises(StoreError, match="snapshots/mine is not a snapshot"):
        audit(spark, store)


def test_odd_paths_are_paths(spark: SparkSession, tmp_path: Path) -> None:
    """Spaces and characters that mean something in Spark's patterns are taken as they are."""
    odd = bank.make_store(tmp_path / "a b{1} [x]*%41", snapshot_count=1)
    assert audit_money(spark, odd).ok


def test_a_relative_path_begins_here(
    spark: SparkSession, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where the session was started."""
    monkeypatch.chdir(store.parent)
    assert audit_money(spark, Path("store")).ok


@pytest.mark.slow
@pytest.mark.nightly(part="verdicts")
def test_the_number_of_jobs_does_not_grow_with_the_store(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Many snapshots, a damaged one among them, need no Spark job per snapshot."""
    store = bank.make_store(tmp_path / "store", snapshot_count=MANY)
    path = store / "snapshots" / "P1-40" / "messages.parquet"
    path.write_bytes(path.read_bytes() + b"x")
    spark.sparkContext.setJobGroup("audit", "an audit of many snapshots")
    found = audit_money(spark, store)
    job_count = len(spark.sparkContext.statusTracker().getJobIdsForGroup("audit"))
    assert 4 <= job_count <= 40
    assert [str(row.id) for row in found.snapshots if not row.is_valid] == ["P1-40"]
    assert len(found.snapshots) == MANY
