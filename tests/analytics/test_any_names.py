"""Spark, too, tells fields of any name from the columns of the store."""

import dataclasses
from dataclasses import field
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from stillframe.analytics.audit import audit
from stillframe.analytics.compaction import compact_store, compacted_tables
from stillframe.analytics.predicate_history import detect
from stillframe.analytics.store_diff import diff_store
from stillframe.keyed import Keyed
from stillframe.model import (
    Batch,
    Channel,
    ChannelState,
    GlobalState,
    ProcessState,
    Snapshot,
    SnapshotId,
)
from stillframe.process import Message
from stillframe.store.store import Store
from stillframe.store.writer import local
from stillframe.topology import ExternalProcess, Topology
from tests.store.any_names import make_store


def test_fields_may_have_any_name(spark: SparkSession, tmp_path: Path) -> None:
    """Of chains of changes as well; in audits, differences, questions and compacted tables."""
    store = make_store(tmp_path / "store")
    audited = audit(spark, store, states_sql="sum(kind)", messages_sql="sum(number)")
    assert audited.ok, audited.verdict
    assert {row.total for row in audited.snapshots} == {2 * 3 + 77}
    sql = "select _snapshot, sum(key) = 14 and max(process) = 'y' from Named_parts group by 1"
    answers = detect(spark, store, sql).collect()
    assert [row["holds"] for row in answers] == [True, True]
    found = diff_store(spark, store, "A-1", "A-2")
    fields = {(row["process"], row["field"], row["after"]) for row in found.fields.collect()}
    assert fields == {("A", "number", "2"), ("B", "number", "2")}
    assert not found.keys.collect()
    assert [row["number"] for row in found.messages.orderBy("number").collect()] == [2, 3]
    compact_store(spark, store, tmp_path / "tables")
    tables = compacted_tables(spark, tmp_path / "tables")
    rows = tables["Named_parts"].where("_snapshot = 'A-2' and _process = 'B'").collect()
    assert {row["_key"]: (row["key"], row["is_removed"]) for row in rows} == {
        "a": (3, True),
        "b": (4, False),
    }


@dataclasses.dataclass
class Before:
    """The state of a process."""

    count: int = 1
    parts: Keyed[str, int] = field(default_factory=Keyed)


@dataclasses.dataclass
class After:
    """The same after a change of code."""

    Count: int = 2
    Parts: Keyed[str, int] = field(default_factory=Keyed)


class Sent(Message):
    """A message."""

    amount: int


class SentAfter(Message, tag="Sent"):
    """The same after a change of code."""

    Amount: int


def topology_of(kind: type, message: type[Message]) -> Topology:
    """Return a system of two processes of this class, which accept this message."""
    kind = dataclasses.dataclass(type("Holder", (kind,), {}))
    processes = {name: ExternalProcess(state=kind, accepts=message) for name in "AB"}
    return Topology(processes, [("A", "B")])


def test_code_that_changed_may_rename_a_field_by_case_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    """In the tables of all snapshots it is one column, spelled as it is now; so is a table."""
    former, current = topology_of(Before, Sent), topology_of(After, SentAfter)
    store = Store.create(tmp_path / "store", description=former.description)
    for number, topology in enumerate((former, current), 1):
        store.raise_epoch(None, topology.description)
        count, parts = ("count", "parts") if topology is former else ("Count", "Parts")
        encoded = msgspec.msgpack.encode({count: number, parts: {"k": number}})
        states = tuple(ProcessState(name, "Holder", encoded) for name in "AB")
        message = Sent(number) if topology is former else SentAfter(number)
        batch = Batch.of(1, [msgspec.msgpack.encode(message)])
        channels = (ChannelState(Channel("A", "B"), 1, 0, (batch,)),)
        state = GlobalState(states, channels)
        store.publish(Snapshot(SnapshotId("A", number), number, number, number, state))
    store.close()
    sql = "select _snapshot, sum(count) = 2 * max(substr(_snapshot, 3)) from processes group by 1"
    assert [row["holds"] for row in detect(spark, local(store.path), sql).collect()] == [True, True]
    found = diff_store(spark, local(store.path), "A-1", "A-2")
    named = {(row["field"], row["before"], row["after"]) for row in found.fields.collect()}
    assert named == {("count", "1", None), ("Count", None, "2")}
    assert {row["message"] for row in found.messages.collect()} == {'{"amount":1}', '{"Amount":2}'}
    for snapshot in ("A-1", None):
        compact_store(spark, local(store.path), tmp_path / "out", of=snapshot)
    tables = compacted_tables(spark, tmp_path / "out")
    for table, column, spelled in (
        ("processes", "count", "Count"),
        ("messages", "amount", "Amount"),
        ("Holder_parts", "value", "value"),
    ):
        rows = tables[table].orderBy("_snapshot", F.col(column))
        assert spelled in rows.columns
        assert {(row["_snapshot"], row[spelled]) for row in rows.collect()} == {
            ("A-1", 1),
            ("A-2", 2),
        }
