"""The condition in SQL that a record of a topic counts is the one in Python."""

import itertools
from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from stillframe.errors import NotConsistent
from stillframe.pipeline.dataflow import Topic
from stillframe.pipeline.kafka import KafkaRecord, is_counted
from stillframe.pipeline.metadata import Segment
from stillframe.pipeline.topics import HEADER, Counting, Label, TopicRecord

pytestmark = [pytest.mark.slow, pytest.mark.spark]

OWN, FOREIGN = bytes.fromhex("0123456789abcdef"), b"stranger"
TOPIC = Topic(name="unique", topic="t", servers="a:1", source="dedup", targets=("sums",))
COLUMNS = "topic string, partition int, offset long, headers array<struct<key:string,value:binary>>"
FIRST_OFFSETS = {0: 5, 1: 0, 3: 7}
DECIDING = [
    Counting(TOPIC, TopicRecord(writer=OWN.hex(), first_offsets=first), timeline, end)
    for first in ({}, FIRST_OFFSETS)
    for timeline in ((Segment(1, 0),), (Segment(1, 0), Segment(3, 4)))
    for end in (None, 5)
]


def header_lists() -> Iterator[list[tuple[str, bytes | None]]]:
    """Yield headers with every mistake that another program could make."""
    numbers = itertools.product(range(5), (0, 3, 4, 5, 2**63))
    values: list[bytes | None] = [
        Label(writer, *one).encoded for one in numbers for writer in (OWN, FOREIGN)
    ]
    good = Label(OWN, 3, 4).encoded
    values += [None, b"", OWN, good[:12], good[:19], good + b"\0", b"\xff" * 20]
    yield []
    for value in values:
        yield [(HEADER, value)]
        yield [("other", value)]
        yield [("trace", b"1"), (HEADER, value)]
        yield [(HEADER, good), ("other", value)]


RECORDS = [
    KafkaRecord(partition, offset, None, None, tuple(headers), 0)
    for headers in header_lists()
    for partition, offset in ((0, 4), (0, 5), (1, 0), (2, 9), (3, 6), (4, 0))
]


def by_python(one: Counting, record: KafkaRecord) -> bool | None:
    """Return whether a record counts; None if it is an error."""
    try:
        return is_counted(one, record)
    except NotConsistent:
        return None


def frame_of(spark: SparkSession, records: list[KafkaRecord]) -> DataFrame:
    """Return records as the source of Spark does."""
    rows = [("t", one.partition, one.offset, list(one.headers)) for one in records]
    return spark.createDataFrame(rows, COLUMNS).coalesce(1)


def test_sql_and_python_agree_on_all_headers(spark: SparkSession) -> None:
    """On every timeline, in partitions with and without records from before the writer joined."""
    conditions = [
        f"{one.condition().rpartition(' ELSE ')[0]} ELSE NULL END AS c{number}"
        for number, one in enumerate(DECIDING)
    ]
    rows = frame_of(spark, RECORDS).selectExpr(*conditions).collect()
    found = list(zip(rows, RECORDS, strict=True))
    for number, one in enumerate(DECIDING):
        differ = [record for row, record in found if row[number] != by_python(one, record)]
        assert differ == [], one
    answers = {by_python(one, record) for one in DECIDING for record in RECORDS}
    assert answers == {True, False, None}


def test_sql_raises_for_a_record_of_another_writer(spark: SparkSession) -> None:
    """With its place; one from before the writer joined counts."""
    stranger = ((HEADER, Label(FOREIGN, 1, 0).encoded),)
    before, after = (KafkaRecord(0, at, None, None, stranger, 0) for at in (4, 5))
    one = DECIDING[4]
    assert frame_of(spark, [before]).where(one.condition()).count() == 1
    with pytest.raises(PySparkException, match="offset 5 in partition 0 of topic t"):
        frame_of(spark, [after]).where(one.condition()).collect()


def test_a_condition_for_many_partitions_is_no_longer_than_for_one(spark: SparkSession) -> None:
    """Spark folds where their records begin into one constant: so a plan can be made of it."""
    count = 10_000
    first_offsets = dict.fromkeys(range(count), 5)
    one = Counting(
        TOPIC, TopicRecord(writer=OWN.hex(), first_offsets=first_offsets), (Segment(1, 0),)
    )
    places = [(0, 4), (count - 1, 4), (count - 1, 5), (count, 0)]
    records = [KafkaRecord(*place, None, None, (), 0) for place in places]
    condition = f"{one.condition().rpartition(' ELSE ')[0]} ELSE NULL END AS counts"
    frame = frame_of(spark, records).selectExpr(condition)
    plan = frame._jdf.queryExecution().optimizedPlan().toString()
    assert "split(" not in plan
    assert [row.counts for row in frame.collect()] == [by_python(one, record) for record in records]
