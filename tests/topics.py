"""A pipeline with topics of Kafka, of which Spark would have left this: labelled records in the
topics, and offsets and commits in the checkpoints. So all that needs no Spark is tested without.

    orders -> dedup -> unique -> sums -> totals

Other programs write ``orders``; nothing in the pipeline reads ``totals``.
"""

import json
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    NewPartitions,
)

from stillframe.pipeline import Manifest, Pipeline, kafka_channel
from stillframe.pipeline.kafka import Broker
from stillframe.pipeline.metadata import checkpoint_path, read_metadata
from stillframe.pipeline.query_batches import note_batch
from stillframe.pipeline.topics import HEADER, counting, join_topic
from tests.kafka_topics import create_topics, wait_for

if TYPE_CHECKING:
    from tests.spark.outside import KafkaServer

QUERIES = ("dedup", "sums")
Offsets = Mapping[int, int]


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator["KafkaServer"]:
    """A broker; each test has topics of its own in it, and lets it run again if it stops it."""
    from tests.spark.outside import KafkaServer  # noqa: PLC0415 - it imports PySpark

    server = KafkaServer(tmp_path_factory.mktemp("kafka"))
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="session")
def kafka_address(kafka_server: "KafkaServer") -> str:
    """Its address."""
    return kafka_server.address


class TopicShop:
    """The pipeline, and what its queries and other programs do."""

    def __init__(self, path: Path, address: str) -> None:
        names = ("orders", "unique", "totals")
        self.topics = {name: f"{name}-{secrets.token_hex(4)}" for name in names}
        self._settings: Any = {"bootstrap.servers": address, "log_level": 0}
        self._admin = AdminClient(self._settings)
        create_topics(address, *self.topics.values())
        self.pipeline = Pipeline.create(
            path,
            queries=QUERIES,
            channels=[
                kafka_channel(
                    "orders", topic=self.topics["orders"], targets=["dedup"], servers=address
                ),
                kafka_channel(
                    "unique",
                    topic=self.topics["unique"],
                    source="dedup",
                    targets=["sums"],
                    servers=address,
                ),
                kafka_channel(
                    "totals", topic=self.topics["totals"], source="sums", servers=address
                ),
            ],
        )
        self.broker = Broker(address)
        self._producer = Producer(self._settings)

    def join(self) -> None:
        """Let both queries join, as the writers of their topics."""
        for topic in self.pipeline.dataflow.topics:
            if topic.source is not None:
                ends = self.broker.end_offsets(topic.topic)
                join_topic(self.pipeline.path, topic, ends)

    def write(
        self, channel: str, *values: str, batch: int | None = None, epoch: int | None = None
    ) -> None:
        """Write records, to partition 0 and 1 in turn; with a label if a query writes them."""
        metadata = read_metadata(self.pipeline.path)
        headers: list[Any] = [("trace", b"1")]
        if batch is not None:
            one = counting(self.pipeline.path, metadata, metadata.dataflow.topic(channel))
            label = one.label(metadata.epoch if epoch is None else epoch, batch)
            headers.append((HEADER, label.encoded))
        for number, value in enumerate(values):
            self._producer.produce(
                self.topics[channel], value.encode(), partition=number % 2, headers=headers
            )
        self._producer.flush()

    def add_partition(self, channel: str, value: str) -> None:
        """Add a third partition to a topic, and write a record into it."""
        topic = self.topics[channel]
        self._admin.create_partitions([NewPartitions(topic, 3)])[topic].result()
        wait_for(self.broker, topic)
        # One that does not remember two partitions.
        producer = Producer(self._settings)
        producer.produce(topic, value.encode(), partition=2)
        producer.flush()

    def commit(self, query: str, batch: int, *, is_seen: bool = True, **read: Offsets) -> None:
        """Leave what Spark leaves of a micro-batch that read these channels up to these offsets,
        and the driver, unless it ran the query without Stillframe."""
        if is_seen:
            note_batch(self.pipeline.path, self.pipeline.epoch, query, batch)
        checkpoint = checkpoint_path(self.pipeline.path, self.pipeline.epoch, query)
        lines = [json.dumps({self.topics[name]: offsets}) for name, offsets in read.items()]
        plan = "\n".join(["v1", json.dumps({"batchTimestampMs": 1000 + batch}), *lines])
        for name, text in {
            "metadata": json.dumps({"id": query}),
            f"offsets/{batch}": plan,
            f"commits/{batch}": "v1\n{}",
        }.items():
            path = checkpoint / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def delete_records(self, channel: str, partition: int, before: int) -> None:
        """Delete the first records of a partition, as Kafka does with old ones."""
        place = TopicPartition(self.topics[channel], partition, before)
        self._admin.delete_records([place])[place].result()

    def snapshot(self) -> Manifest:
        """Take a snapshot, which is published."""
        taken = self.pipeline.snapshot()
        assert isinstance(taken, Manifest), taken
        return taken


def busy_shop(path: Path, address: str) -> TopicShop:
    """Make a shop at work: of 6 orders ``dedup`` has read 4 and written 3 unique ones in two
    micro-batches, ``sums`` has read 2 of these."""
    shop = TopicShop(path, address)
    shop.join()
    shop.write("orders", "a", "b", "c", "d", "e", "f")
    shop.write("unique", "a", "b", batch=0)
    shop.commit("dedup", 0, orders={0: 1, 1: 1})
    shop.write("unique", "c", batch=1)
    shop.commit("dedup", 1, orders={0: 2, 1: 2})
    shop.write("totals", "1", "2", batch=0)
    shop.commit("sums", 0, unique={0: 1, 1: 1})
    return shop


@pytest.fixture
def topic_shop(tmp_path: Path, kafka_address: str) -> Iterator[TopicShop]:
    """A shop at work."""
    shop = busy_shop(tmp_path / "shop.pipeline", kafka_address)
    yield shop
    shop.broker.close()
