"""What it costs an existing query to join a pipeline over Kafka, and how long a retained cut takes.

The broker is on this machine and shares its cores with Spark: no network is between. Joining is
measured with the query's own source and sink (plain), with those and the settings of Kafka's
clients that a pipeline chooses (tuned), and in a pipeline (joined), in turn, on the same records;
what is compared is the time that Spark reports for the micro-batches. Cuts are those of a chain of
queries that have stopped. Of each there is what Spark leaves: 100 micro-batches.
"""

import contextlib
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from rich.console import Console
from rich.table import Table

from bench.flows import directory
from stillframe.model import Abandoned
from stillframe.pipeline import Pipeline, checkpoint, kafka_channel
from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.query_runs import first_checkpoint
from stillframe.pipeline.topics import HEADER, TopicRecord, counting, join_topic
from stillframe.spark import counted, kafka_options, start_query
from stillframe.spark.topics import COLLECTED, POLLED
from stillframe.storage.files import below, replace
from stillframe.storage.location import Location, locate
from stillframe.storage.opened import requests_to
from stillframe.store.sealed_json import seal
from tests.kafka_topics import create_topics
from tests.s3_servers import environment, versitygw
from tests.spark.outside import jars, kafka

RECORD_COUNT = 1_000_000
BATCH_RECORD_COUNT = 250_000
ROUND_COUNT = 5
CHAINS = (2, 5, 10)
RETAINED_COUNT = 100
AHEAD_MAX = 3
CUT_COUNT = 5
WRITER = "5717ba6e5717ba6e"
_SCHEMA = "k long, v long, pad string"
KINDS = ("filtered", "aggregated", "in Python")

console = Console(stderr=True)


def session() -> SparkSession:
    """Start Spark with its way to Kafka."""
    builder = SparkSession.builder.master("local[2]").appName("bench")
    for name, value in {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "3g",
        "spark.jars": ",".join(map(str, jars("spark"))),
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def fill(address: str, topic: str, label: bytes | None) -> None:
    """Send the records, each of some 100 bytes."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 50})
    headers: list[tuple[str, str | bytes | None]] | None
    headers = None if label is None else [(HEADER, label)]
    for number in range(RECORD_COUNT):
        value = json.dumps({"k": number % 5000, "v": number, "pad": "x" * 60})
        while True:
            try:
                producer.produce(topic, value, headers=headers, partition=number % 2)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    producer.flush()


class Joining:
    """The measurement of what joining costs."""

    def __init__(self, address: str, root: Path, spark: SparkSession) -> None:
        self._address = address
        self._root = root
        self._spark = spark
        self._count = 0

    def _source(self, options: Mapping[str, str]) -> DataFrame:
        source = self._spark.readStream.format("kafka").options(**options)
        source = source.option("startingOffsets", "earliest")
        return source.option("maxOffsetsPerTrigger", str(BATCH_RECORD_COUNT)).load()

    def _work(self, records: DataFrame, kind: str) -> tuple[DataFrame, str]:
        rows = records.select(F.from_json(F.col("value").cast("string"), _SCHEMA).alias("row"))
        rows = rows.select("row.*")
        if kind == "aggregated":
            sums = rows.groupBy("k").agg(F.count("*").alias("n"), F.sum("v").alias("s"))
            return sums.select(F.to_json(F.struct("*")).alias("value")), "update"
        if kind == "in Python":
            rows = rows.mapInPandas(lambda frames: frames, _SCHEMA)
        return rows.where("v % 10 < 9").select(
            F.to_json(F.struct("k", "v")).alias("value")
        ), "append"

    def plain(self, kind: str, *, is_tuned: bool) -> float:
        """Run the query with Spark's own source and sink; return the seconds that it took. With
        `is_tuned` Kafka's clients have the settings for speed that a pipeline gives them."""
        self._count += 1
        topic = f"out-{self._count}"
        create_topics(self._address, topic)
        broker = {"kafka.bootstrap.servers": self._address}
        polled, collected = (POLLED, COLLECTED) if is_tuned else ({}, {})
        frame, mode = self._work(self._source({**broker, **polled, "subscribe": "plain"}), kind)
        sink = frame.writeStream.format("kafka").outputMode(mode).trigger(availableNow=True)
        sink = sink.options(**broker, **collected).option("topic", topic)
        query = sink.option("checkpointLocation", str(self._root / topic)).start()
        return _seconds_of(query)

    def joined(self, kind: str) -> float:
        """Run it in a pipeline; return the seconds that it took."""
        self._count += 1
        topic = f"out-{self._count}"
        create_topics(self._address, topic)
        pipeline = Pipeline.create(
            self._root / f"{topic}.pipeline",
            queries=["feed", "work"],
            channels=[
                kafka_channel(
                    "in", topic="labelled", servers=self._address, source="feed", targets=["work"]
                ),
                kafka_channel("out", topic=topic, servers=self._address, source="work"),
            ],
        )
        (pipeline.path / "topics").mkdir()
        written = TopicRecord(writer=WRITER, first_offsets={0: 0, 1: 0})
        (pipeline.path / "topics" / "in.json").write_bytes(seal(written))
        records = counted(self._source(kafka_options(pipeline, "in")), pipeline, "work", "in")
        frame, mode = self._work(records, kind)
        trigger = {"availableNow": True}
        return _seconds_of(start_query(frame, pipeline, "work", output_mode=mode, trigger=trigger))


def _seconds_of(query: Any) -> float:
    query.awaitTermination()
    progress = [one for one in query.recentProgress if one["numInputRows"]]
    assert sum(one["numInputRows"] for one in progress) == RECORD_COUNT
    return sum(float(one["durationMs"]["triggerExecution"]) for one in progress) / 1000


def joining(address: str, root: Path, round_count: int) -> dict[str, dict[str, float]]:
    """Measure what joining costs each kind of query; the first round is not counted."""
    create_topics(address, "plain", "labelled")
    fill(address, "plain", None)
    fill(
        address, "labelled", bytes.fromhex(WRITER) + (1).to_bytes(4, "big") + (7).to_bytes(8, "big")
    )
    spark = session()
    measure = Joining(address, root, spark)
    found: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        rounds = [
            (
                measure.plain(kind, is_tuned=False),
                measure.plain(kind, is_tuned=True),
                measure.joined(kind),
            )
            for _ in range(1 + round_count)
        ][1:]
        plain, tuned, joined = (statistics.median(times) for times in zip(*rounds, strict=True))
        found[kind] = {
            "plain_s": plain,
            "tuned_s": tuned,
            "joined_s": joined,
            "ratio": statistics.median(joined / plain for plain, _, joined in rounds),
            "ratio_to_tuned": statistics.median(joined / tuned for _, tuned, joined in rounds),
        }
    spark.stop()
    return found


def chain(place: Location, address: str, length: int, seed: int) -> Pipeline:
    """Make a pipeline of stopped queries that each retain 100 micro-batches. Each has read up to
    three micro-batches less, or more, than the one before it has committed."""
    chance = random.Random(seed)
    prefix = f"{'s3' if str(place).startswith('s3') else 'local'}-{length}-{seed}"
    names = [f"q{number}" for number in range(length)]
    topics = [f"{prefix}-t{number}" for number in range(length + 1)]
    create_topics(address, *topics)
    channels = [
        kafka_channel(
            f"t{number}",
            topic=topics[number],
            servers=address,
            source=names[number - 1] if number else None,
            targets=names[number : number + 1],
        )
        for number in range(length + 1)
    ]
    pipeline = Pipeline.create(place, queries=names, channels=channels, name="chain")
    metadata = read_metadata(pipeline.path)
    producer = Producer({"bootstrap.servers": address})
    for number, name in enumerate(names):
        out = metadata.dataflow.topic(f"t{number + 1}")
        join_topic(pipeline.path, out, {0: 0, 1: 0})
        one = counting(pipeline.path, metadata, out)
        ahead = chance.randint(-AHEAD_MAX, AHEAD_MAX) if number else 0
        last = 10 * (RETAINED_COUNT + ahead) - chance.randint(0, 9)
        positions = [max(0, last - 10 * (RETAINED_COUNT - 1 - b)) for b in range(RETAINED_COUNT)]
        for batch in range(RETAINED_COUNT + AHEAD_MAX):
            label = one.label(1, batch).encoded
            for partition in [0, 1] * 10:
                producer.produce(out.topic, b"v", headers=[(HEADER, label)], partition=partition)
            producer.poll(0)
        _write_checkpoint(pipeline.path, name, topics[number], positions)
    producer.flush()
    return pipeline


def _write_checkpoint(root: Location, query: str, topic: str, positions: list[int]) -> None:
    place = first_checkpoint(root, 1, query)
    files = {"metadata": '{"id":"5f2c0c5e-6a6d-4a55-8f3a-6c8c7d6a1f10"}'}
    for batch, at in enumerate(positions):
        planned = json.dumps({"batchTimestampMs": int(1000 * (time.time() - 100 + batch))})
        offsets = json.dumps({topic: {"0": at, "1": at}}, separators=(",", ":"))
        files[f"offsets/{batch}"] = f"v1\n{planned}\n{offsets}"
        files[f"commits/{batch}"] = "v1\n{}"
        files[f"state/0/0/{batch + 1}.delta"] = "x" * 1000
    for name, text in files.items():
        file = below(place, *name.split("/"))
        if isinstance(file, Path):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        else:
            replace(file, text.encode())


def cuts(place: Location, address: str, length: int) -> dict[str, float]:
    """Return how long it took until the cut was found, until its checkpoints were linked or copied
    as well, and until the snapshot was published, in s; and what it asked for."""
    pipeline = chain(place, address, length, seed=length)
    found_s, pinned_s, took_s, counts, stale, size = [], [], [], [], [], 0
    for _ in range(CUT_COUNT):
        before, began = requests_to(place), time.perf_counter()
        with _pinning() as times:
            manifest = pipeline.snapshot()
        took_s.append(time.perf_counter() - began)
        after = requests_to(place)
        assert not isinstance(manifest, Abandoned), manifest
        counts.append(0 if before is None or after is None else after.requests - before.requests)
        stale.append(manifest.staleness_s or 0.0)
        found_s.append(times[0] - manifest.initiated_at)
        pinned_s.append(manifest.completed_at - manifest.initiated_at)
        size = manifest.bytes
    return {
        "found_s": statistics.median(found_s),
        "pinned_s": statistics.median(pinned_s),
        "published_s": statistics.median(took_s),
        "staleness_s": statistics.median(stale),
        "requests": statistics.median(counts),
        "bytes": size,
    }


@contextlib.contextmanager
def _pinning() -> Iterator[list[float]]:
    """Note when checkpoints are linked or copied in the body, in seconds since 1970."""
    times, pin = [], checkpoint.pin

    def noted(*arguments: Any) -> None:
        times.append(time.time())
        pin(*arguments)

    with mock.patch.object(checkpoint, "pin", noted):
        yield times


def main() -> None:
    """Measure, and print tables and, with --json, all figures."""
    figures: dict[str, Any] = {}
    with (
        directory() as root,
        _servers(root) as (address, bucket),
    ):
        times = ("found, s", "pinned, s", "published, s")
        table = Table("in", "queries", *times, "requests", "kB", "stale, s")
        for length in CHAINS:
            for where, place in (
                ("directory", locate(f"{root}/chain-{length}.pipeline")),
                ("S3", locate(f"{bucket}/chain-{length}")),
            ):
                one = figures[f"cut of {length} in {where}"] = cuts(place, address, length)
                table.add_row(
                    where,
                    str(length),
                    f"{one['found_s']:.3f}",
                    f"{one['pinned_s']:.3f}",
                    f"{one['published_s']:.3f}",
                    f"{one['requests']:.0f}",
                    f"{one['bytes'] / 1000:.0f}",
                    f"{one['staleness_s']:.1f}",
                )
        console.print(table)
        table = Table("query", "plain, s", "tuned, s", "joined, s", "to plain", "to tuned")
        for kind, one in joining(address, root, ROUND_COUNT).items():
            figures[kind] = one
            table.add_row(
                kind,
                f"{one['plain_s']:.2f}",
                f"{one['tuned_s']:.2f}",
                f"{one['joined_s']:.2f}",
                f"{one['ratio']:.3f}",
                f"{one['ratio_to_tuned']:.3f}",
            )
        console.print(table)
    if "--json" in sys.argv:
        print(json.dumps(figures))


@contextlib.contextmanager
def _servers(root: Path) -> Iterator[tuple[str, str]]:
    for name in ("kafka", "s3"):
        (root / name).mkdir()
    with kafka(root / "kafka") as address, versitygw(root / "s3") as server:
        os.environ.update(environment(server))
        yield address, f"s3://{server.new_bucket()}"


if __name__ == "__main__":
    main()
