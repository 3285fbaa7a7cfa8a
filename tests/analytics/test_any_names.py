"""Spark, too, tells fields of any name from the columns of the store."""

from pathlib import Path

from pyspark.sql import SparkSession

from stillframe.analytics.audit import audit
from stillframe.analytics.compaction import compact_store, compacted_tables
from stillframe.analytics.predicate_history import detect
from stillframe.analytics.store_diff import diff_store
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
