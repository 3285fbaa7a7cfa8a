"""The queries of ``flows`` and a cycle of two, joined by topics of Kafka.

    left, right, idle -> counts (three sources)     left + right -> pairs -> paired -> recent
    left -> distinct      left -> windows           right -> totals
    balls, back -> ping -> forth -> pong -> back

`left`, `right`, `idle` and `balls` are written by a program outside the pipeline. `idle` gets no
record. A ball goes round until it has no hops left; one was in `back` before the pipeline was made.
"""

import datetime
import functools
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal

import confluent_kafka
import pyarrow as pa
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from stillframe.pipeline import Pipeline, channel, kafka_channel
from stillframe.pipeline.dataflow import Topic
from stillframe.pipeline.kafka import Broker, KafkaRecord
from stillframe.spark import counted, queries, read_channels
from stillframe.storage.location import Location
from tests.spark import flows

BALL = pa.schema([("ball", pa.int64()), ("hops", pa.int64())])
HOPS = 3
FIRST_BALL = 0
"""The ball that was in `back` before the pipeline was made, if that is a topic."""
CHANNELS: dict[str, tuple[str | None, tuple[str, ...], pa.Schema]] = {
    "left": (None, ("counts", "pairs", "distinct", "windows"), flows.EVENT),
    "right": (None, ("counts", "pairs", "totals"), flows.EVENT),
    "idle": (None, ("counts",), flows.EVENT),
    "balls": (None, ("ping",), BALL),
    "paired": ("pairs", ("recent",), flows.PAIR),
    "forth": ("ping", ("pong",), BALL),
    "back": ("pong", ("ping",), BALL),
    "counted": ("counts", (), flows.COUNTED),
    "seen": ("distinct", (), flows.KEYS),
    "seen-pairs": ("recent", (), flows.KEYS),
    "windowed": ("windows", (), flows.WINDOW),
    "totalled": ("totals", (), flows.COUNTED),
}
"""name -> the query that writes it, those that read it, and its columns."""
Ends = Mapping[str, Mapping[int, int]]
"""channel -> partition -> offset of the next record."""
HAS_UNIQUE_KEYS = ("counted", "totalled")


class Kafka:
    """The topics of a pipeline, and the program that writes those from outside."""

    def __init__(self, servers: str, prefix: str, partition_count: int) -> None:
        self.servers = servers
        self.partition_count = partition_count
        self.turn_count = 0
        self._prefix = prefix
        self._client = AdminClient({"bootstrap.servers": servers})
        self._producer = confluent_kafka.Producer({"bootstrap.servers": servers})

    def topic(self, name: str) -> str:
        """Return the name of the topic of a channel."""
        return f"{self._prefix}-{name}"

    def make(self, names: list[str]) -> None:
        """Make the topics of channels."""
        topics = [NewTopic(self.topic(name), self.partition_count, 1) for name in names]
        for future in self._client.create_topics(topics).values():
            future.result()

    def add_partition(self, names: list[str]) -> None:
        """Add a partition to the topics of channels."""
        self.partition_count += 1
        wanted = [NewPartitions(self.topic(name), self.partition_count) for name in names]
        for future in self._client.create_partitions(wanted).values():
            future.result()
        self._producer = confluent_kafka.Producer({"bootstrap.servers": self.servers})

    def send(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Write records into the topic of a channel, into each partition in turn."""
        for number, row in enumerate(rows):
            value = json.dumps(row, default=datetime.datetime.isoformat)
            partition = (self.turn_count + number) % self.partition_count
            self._producer.produce(self.topic(name), value=value, partition=partition)
        assert self._producer.flush(60) == 0

    def take_turn(self, names: list[str]) -> None:
        """Write the records of the next turn into those of these channels that have any."""
        turn = self.turn_count
        for side in {"left", "right"} & {*names}:
            self.send(side, flows.events(side, turn).to_pylist())
        if "balls" in names and turn > 0:
            self.send("balls", [{"ball": turn, "hops": HOPS}])
        self.turn_count += 1

    def feed(self, names: list[str], first: StreamingQuery, ended: threading.Event) -> None:
        """Take turns, each when a query has ended another micro-batch, until `ended`; and one."""
        while not ended.is_set():
            before = first.lastProgress
            self.take_turn(names)
            flows.wait_until(
                lambda before=before: ended.is_set() or first.lastProgress != before  # type: ignore[misc]
            )
        self.take_turn(names)


def make_pipeline(
    root: Location, kafka: Kafka, queries: tuple[str, ...], logs: tuple[str, ...]
) -> Pipeline:
    """Make the topics and the pipeline of these queries, in which some channels are `logs`."""
    channels: list[Any] = []
    for name, (source, targets, schema) in CHANNELS.items():
        readers = [target for target in targets if target in queries]
        if source not in queries and not (source is None and readers):
            continue
        if name in logs:
            assert source is not None
            channels.append(channel(name, schema, source=source, targets=readers))
            continue
        channels.append(
            kafka_channel(
                name,
                topic=kafka.topic(name),
                servers=kafka.servers,
                source=source,
                targets=readers,
                has_unique_keys=name in HAS_UNIQUE_KEYS,
            )
        )
    kafka.make([one.name for one in channels if isinstance(one, Topic)])
    if "pong" in queries and "back" not in logs:
        kafka.send("back", [{"ball": FIRST_BALL, "hops": HOPS}])
    return Pipeline.create(root, queries=queries, channels=channels, name="flows")


def start_query(
    spark: SparkSession,
    pipeline: Pipeline,
    query: str,
    store: str,
    partition_count: int,
    **arguments: Any,
) -> StreamingQuery:
    """Start a query, whose state is kept in `store`; further arguments as for ``start_query``."""
    read = functools.partial(_read, spark, pipeline)
    with flows.configured(spark, store):
        spark.conf.set("spark.sql.shuffle.partitions", "1")
        frame, mode = _computation(query, read)
        if pipeline.dataflow.outgoing_topics(query):
            frame = _encoded(frame, partition_count)
        # The first ball in the topic of `pong` is not its own.
        adopt: Literal[False] | None = False if query == "pong" else None
        return queries.start_query(
            frame, pipeline, query, output_mode=mode, adopt=adopt, **arguments
        )


def _computation(query: str, read: Callable[..., DataFrame]) -> tuple[DataFrame, str]:
    if query in ("ping", "pong"):
        balls = read(query, *(("balls", "back") if query == "ping" else ("forth",)))
        return balls.where("hops > 0").selectExpr("ball", "hops - 1 AS hops"), "append"
    return flows.computation(query, read)


def _read(spark: SparkSession, pipeline: Pipeline, query: str, *names: str) -> DataFrame:
    """Return the records of channels, each of which is a source of its own."""
    if query == "counts":
        names = (*names, "idle")
    frames = [_read_one(spark, pipeline, query, name) for name in names]
    return functools.reduce(DataFrame.union, frames)


def _read_one(spark: SparkSession, pipeline: Pipeline, query: str, name: str) -> DataFrame:
    if name in {log.name for log in pipeline.dataflow.logs}:
        return read_channels(spark, pipeline, query, name)
    topic = pipeline.dataflow.topic(name)
    options = {
        "kafka.bootstrap.servers": topic.servers,
        "subscribe": topic.topic,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
    }
    frame = spark.readStream.format("kafka").options(**options).load()
    schema = from_arrow_schema(CHANNELS[name][2])
    value = functions.from_json(functions.col("value").cast("string"), schema)
    return counted(frame, pipeline, query, name).select(value.alias("row")).select("row.*")


def _encoded(frame: DataFrame, partition_count: int) -> DataFrame:
    """Return records for Kafka, spread over the partitions by their first column."""
    first = functions.col(frame.columns[0])
    return frame.select(
        first.cast("string").alias("key"),
        functions.to_json(functions.struct("*")).alias("value"),
        functions.pmod(functions.hash(first), functions.lit(partition_count)).alias("partition"),
    )


def topic_records(pipeline: Pipeline) -> Mapping[str, list[KafkaRecord]]:
    """Return every record of each topic, whether it counts or not, in the order of the offsets of
    each partition."""
    found = {}
    for topic in pipeline.dataflow.topics:
        with Broker(topic.servers) as broker:
            ends = broker.end_offsets(topic.topic)
            ranges = {partition: (0, end) for partition, end in ends.items()}
            found[topic.name] = list(broker.records(topic.topic, ranges))
    return found


def topic_ends(pipeline: Pipeline) -> Ends:
    """Return where each partition of each topic ends."""
    found = {}
    for topic in pipeline.dataflow.topics:
        with Broker(topic.servers) as broker:
            found[topic.name] = broker.end_offsets(topic.topic)
    return found


def row_of(channel_name: str, record: KafkaRecord) -> dict[str, Any]:
    """Return the columns of a record."""
    assert record.value is not None
    row: dict[str, Any] = json.loads(record.value)
    for field in CHANNELS[channel_name][2]:
        if pa.types.is_timestamp(field.type):
            row[field.name] = datetime.datetime.fromisoformat(row[field.name])
    return row
