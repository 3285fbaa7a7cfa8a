"""A pipeline with topics of Kafka as channels, without Kafka and without Spark.

Of a query there is only what Spark would have left in its checkpoint; the records of topics are in
memory.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from stillframe.errors import Unavailable, UsageError
from stillframe.pipeline import Pipeline, kafka, kafka_channel, topic_records
from stillframe.pipeline.dataflow import Topic
from stillframe.pipeline.kafka import Broker, KafkaRecord
from stillframe.pipeline.metadata import checkpoint_path, read_metadata
from stillframe.pipeline.query_batches import note_batch
from stillframe.pipeline.topics import HEADER, counting, join_topic

SERVERS = "broker.example:9092"


class Records(Broker):
    """Brokers whose topics are in memory: topic -> partition -> records. They answer no one while
    `why_away` says why. A record that arrives has the time `now_ms`."""

    def __init__(self) -> None:
        self._first = {}
        self.topics: dict[str, dict[int, list[KafkaRecord]]] = {}
        self.why_away = ""
        self.asked: list[str] = []
        self.ids: dict[str, str] = {}
        self.now_ms = 0

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def add(self, topic: str, partition: int, label: bytes | None = None) -> None:
        """Append a record."""
        records = self.topics.setdefault(topic, {0: [], 1: []})[partition]
        headers = () if label is None else ((HEADER, label),)
        records.append(KafkaRecord(partition, len(records), b"k", b"v", headers, self.now_ms))

    def look_at(self, topics: Sequence[str]) -> None:
        """Do nothing: asking takes no time here."""

    def first_offsets(self, topic: str) -> dict[int, int]:
        """See ``Broker``."""
        return dict.fromkeys(self._records(topic), 0)

    def end_offsets(self, topic: str, *, partitions: Sequence[int] | None = None) -> dict[int, int]:
        """See ``Broker``."""
        self.asked.append(topic)
        return {partition: len(records) for partition, records in self._records(topic).items()}

    def committed_offsets(self, topic: str) -> dict[int, int]:
        """See ``Broker``."""
        return self.end_offsets(topic)

    def topic_ids(
        self, topics: Sequence[str], *, known: Iterable[str] = (), operation: str = "DESCRIBE"
    ) -> dict[str, str | None]:
        """See ``Broker``."""
        for topic in topics:
            self._records(topic)
        return {topic: self.ids.get(topic, "the first id") for topic in topics}

    def partitions(self, topic: str) -> list[int]:
        """See ``Broker``."""
        return sorted(self._records(topic))

    def records(
        self,
        topic: str,
        ranges: Mapping[int, tuple[int, int]],
        *,
        check: Callable[[], object] = lambda: None,
    ) -> Iterator[KafkaRecord]:
        """See ``Broker``."""
        check()
        for partition, (start, end) in ranges.items():
            yield from self._records(topic)[partition][start:end]

    def _records(self, topic: str) -> dict[int, list[KafkaRecord]]:
        if self.why_away:
            raise Unavailable(f"Kafka at {SERVERS} does not answer as it should: {self.why_away}")
        if topic not in self.topics:
            raise UsageError(f"there is no topic {topic} at {SERVERS}: create it first")
        return self.topics[topic]


def make_shop(path: Path) -> Pipeline:
    """Make a pipeline: orders come in, dedup drops those that come twice, sums adds up the rest."""
    return Pipeline.create(
        path,
        queries=["dedup", "sums"],
        channels=[
            kafka_channel("orders", topic="shop-orders", servers=SERVERS, targets=["dedup"]),
            kafka_channel(
                "unique", topic="shop-unique", servers=SERVERS, source="dedup", targets=["sums"]
            ),
            kafka_channel("totals", topic="shop-totals", servers=SERVERS, source="sums"),
        ],
    )


class Shop:
    """The pipeline, its brokers, and what its programs would do."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pipeline = make_shop(path)
        self.path = path
        self.brokers = Records()
        self.began_at = time.time() - 60
        monkeypatch.setattr(kafka, "Broker", lambda servers: self.brokers)
        monkeypatch.setattr(topic_records, "Broker", lambda servers, **how: self.brokers)
        for topic in self.pipeline.dataflow.topics:
            self.brokers.topics[topic.topic] = {0: [], 1: []}
            if topic.source is not None:
                join_topic(path, topic, {0: 0, 1: 0})

    def send(self, channel: str, count: int, batch: int | None = None) -> None:
        """Append records to both partitions of a topic, those of its source with their label."""
        topic: Topic = self.pipeline.dataflow.topic(channel)
        label = None
        if batch is not None:
            decides = counting(self.path, read_metadata(self.path), topic)
            label = decides.label(self.pipeline.epoch, batch).encoded
        for number in range(count):
            self.brokers.add(topic.topic, number % 2, label)

    def commit(
        self,
        query: str,
        batch: int,
        read: Mapping[str, Mapping[int, int]],
        *,
        is_seen: bool = True,
    ) -> None:
        """Leave what Spark leaves of a micro-batch that ended at these offsets of topics, and the
        driver, unless it ran the query without Stillframe. It was planned a minute ago, or later by
        a second for each micro-batch before it."""
        if is_seen:
            note_batch(self.path, self.pipeline.epoch, query, batch)
        checkpoint = checkpoint_path(self.path, self.pipeline.epoch, query)
        offsets = json.dumps(
            {t: {str(p): at for p, at in ends.items()} for t, ends in read.items()}
        )
        planned = json.dumps({"batchTimestampMs": int(1000 * (self.began_at + batch))})
        for name, text in {
            "metadata": '{"id":"5f2c0c5e-6a6d-4a55-8f3a-6c8c7d6a1f10"}',
            f"offsets/{batch}": f"v1\n{planned}\n{offsets}",
            f"commits/{batch}": "v1\n{}",
        }.items():
            place = checkpoint / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")

    def run(self) -> None:
        """Let dedup do three micro-batches of four records, of which sums has read two, in two of
        its own; another four orders came afterwards."""
        for batch in range(3):
            self.send("orders", 4)
            end = 2 * (batch + 1)
            self.commit("dedup", batch, {"shop-orders": {0: end, 1: end}})
            self.send("unique", 4, batch)
        for batch in range(2):
            end = 2 * (batch + 1)
            self.commit("sums", batch, {"shop-unique": {0: end, 1: end}})
            self.send("totals", 2, batch)
        self.send("orders", 4)

    def lose(self, query: str) -> None:
        """Forget the newest micro-batch of a query, as if the disk had lost its commit."""
        checkpoint = checkpoint_path(self.path, self.pipeline.epoch, query)
        newest = max(int(path.name) for path in (checkpoint / "commits").iterdir())
        (checkpoint / "commits" / str(newest)).unlink()
        (checkpoint / "offsets" / str(newest)).unlink()
