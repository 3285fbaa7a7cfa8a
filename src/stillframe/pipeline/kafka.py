"""The broker: where topics begin and end, the labels of their records, and how they are set up.

Outside Spark only this module and ``transactions`` use Kafka. Neither is a member of a consumer
group.
"""

import contextlib
import functools
import importlib
import time
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, Self, TypeVar

import msgspec

from stillframe.errors import NotConsistent, Unavailable, UsageError
from stillframe.pipeline.dataflow import Topic
from stillframe.pipeline.topics import HEADER, Counting, Label, decode_label

TIMEOUT_S = 15.0
"""How long a broker may take to answer."""
RETENTION_S_MIN = 24 * 3600
"""How long a topic must keep its records: a snapshot cannot be restored after that time."""
_WINDOW_MAX = 4096
_POLL_S = 0.1
_CREATED_POLL_S = 0.02
_CONSUMED_COUNT = 1000
_QUICK = {
    # A few records at a time are wanted, at once.
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 1,
    "fetch.message.max.bytes": 2**16,
    "queued.min.messages": 1,
    "queued.max.messages.kbytes": 2**10,
}
_KEEPS = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
_INSTALL = "install Stillframe with its extra 'kafka': pip install 'stillframe[kafka]'"

_Answer = TypeVar("_Answer")


class TopicRecordAt(msgspec.Struct, frozen=True):
    """A record of a topic: its place, its key and value, its headers, and the label among them."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int

    @property
    def label(self) -> Label | None:
        """Its label, the last header; None if it has none."""
        if not self.headers or self.headers[-1][0] != HEADER:
            return None
        return decode_label(self.headers[-1][1] or b"")


def settings_of(servers: str) -> dict[str, Any]:
    """Return the settings of a client of these brokers."""
    return {
        "bootstrap.servers": servers,
        "client.id": "stillframe",
        "socket.timeout.ms": int(TIMEOUT_S * 1000),
        # What goes wrong is raised where it is asked for.
        "log_level": 0,
    }


class Broker:
    """A connection to the brokers of some topics. Close it, or use it as a context manager.

    Every method raises Unavailable if no broker answers, and UsageError if there is no such topic.
    """

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._kafka = imported_kafka()
        self._admin_module = _imported("confluent_kafka.admin")
        self._consumer: Any = None
        self._first: dict[str, dict[int, int]] = {}
        self._known: set[str] = set()

    @property
    def servers(self) -> str:
        """The brokers."""
        return self._servers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def first_offsets(self, topic: str) -> dict[int, int]:
        """Return the offset of the first record that each partition still has."""
        return self._offsets(topic, self._admin_module.OffsetSpec.earliest())

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Return the offset that the next record of each partition will have."""
        return self._offsets(topic, self._admin_module.OffsetSpec.latest())

    def newest_batch_before(
        self, counting: Counting, positions: Mapping[int, int], newest: int
    ) -> int | None:
        """Return the newest micro-batch of the writer of a topic with a record that counts before
        these positions; None if there is none.

        If Kafka has deleted the records before a position, they are of the micro-batch of the next
        record at most, or of the `newest` one if there is no next record.

        Raises:
            NotConsistent: a record is not from the writer, or has no label.
        """
        topic = counting.topic.topic
        # Many positions are looked at in one search, which takes no time in which this matters.
        first = self._first.get(topic) or self._first.setdefault(topic, self.first_offsets(topic))
        found: list[int] = []
        pending = {p: end for p, end in positions.items() if end > 0}
        window = 1
        while pending:
            ranges = {p: (max(first.get(p, 0), end - window), end) for p, end in pending.items()}
            newest_of = self._newest_in(counting, ranges)
            for partition, (start, _) in ranges.items():
                if partition in newest_of:
                    found += [b for b in [newest_of[partition]] if b is not None]
                    del pending[partition]
                elif start <= first.get(partition, 0):
                    if start > 0:
                        found.append(self._batch_after(counting, partition, positions, newest))
                    del pending[partition]
                else:
                    pending[partition] = start
            window = min(_WINDOW_MAX, window * 8)
        return max(found, default=None)

    def _newest_in(
        self, counting: Counting, ranges: Mapping[int, tuple[int, int]]
    ) -> dict[int, int | None]:
        """Return for each partition with a record that counts the micro-batch of the last one; None
        if it was there before the writer joined."""
        last: dict[int, int | None] = {}
        for record in self.records(counting.topic.topic, ranges):
            label = record.label
            if label is not None and counting.is_own(label):
                if counting.counts(label):
                    last[record.partition] = label.batch
            elif label is None and counting.is_adopted(record.partition, record.offset):
                last[record.partition] = None
            else:
                raise strange(counting, record)
        return last

    def _batch_after(
        self, counting: Counting, partition: int, positions: Mapping[int, int], newest: int
    ) -> int:
        """Return the micro-batch of the first record that counts from a position on."""
        start = positions[partition]
        end = self.end_offsets(counting.topic.topic).get(partition, 0)
        for record in self.records(counting.topic.topic, {partition: (start, end)}):
            label = record.label
            if label is not None and counting.is_own(label) and counting.counts(label):
                return label.batch
        return newest

    def span_of(self, counting: Counting, label: Label) -> dict[int, tuple[int, int]]:
        """Return for each partition with records of this label a range of offsets that has them
        all: where an attempt at the newest micro-batch was cut short.

        Raises:
            NotConsistent: the topic has records of a later micro-batch, or of another writer.
        """
        topic = counting.topic.topic
        first, ends = self.first_offsets(topic), self.end_offsets(topic)
        spans: dict[int, tuple[int, int]] = {}
        pending = {p: end for p, end in ends.items() if end > first[p]}
        window = 1
        while pending:
            ranges = {p: (max(first[p], end - window), end) for p, end in pending.items()}
            reached = {p for p, (start, _) in ranges.items() if start == first[p]}
            for record in self.records(topic, ranges):
                partition = record.partition
                if record.label == label:
                    spans[partition] = (ranges[partition][0], ends[partition])
                elif self._is_before(counting, record, label):
                    reached.add(partition)
            pending = {p: start for p, (start, _) in ranges.items() if p not in reached}
            window = min(_WINDOW_MAX, window * 8)
        return spans

    def _is_before(self, counting: Counting, record: TopicRecordAt, label: Label) -> bool:
        """Return whether a record is of a micro-batch before that of `label`, of this timeline."""
        found = record.label
        if found is None and counting.is_adopted(record.partition, record.offset):
            return True
        if found is None or not counting.is_own(found):
            raise strange(counting, record)
        if not counting.counts(found):
            return False
        if found > label:
            raise NotConsistent(
                f"topic {counting.topic.topic} has records of micro-batch {found.batch} of query "
                f"{counting.topic.source}, and its checkpoint ends before micro-batch "
                f"{label.batch}: the checkpoint was edited or deleted",
                remedy="restore the pipeline from a snapshot",
            )
        return True

    def records(self, topic: str, ranges: Mapping[int, tuple[int, int]]) -> Iterator[TopicRecordAt]:
        """Yield the records of each partition from a first offset up to, and without, a last one;
        those of one partition in their order."""
        kafka = self._kafka
        left = {p: end for p, (start, end) in ranges.items() if start < end}
        if not left:
            return
        consumer = self._opened()
        if topic not in self._known:
            # Else it would take a second to hear of the topic.
            self._partitions(topic)
        consumer.assign([kafka.TopicPartition(topic, p, ranges[p][0]) for p in left])
        until = time.monotonic() + TIMEOUT_S
        while left:
            for message in consumed(consumer, _POLL_S):
                until = time.monotonic() + TIMEOUT_S
                partition = message.partition()
                if (error := message.error()) is not None:
                    if error.code() != kafka.KafkaError._PARTITION_EOF:  # noqa: SLF001 - its name
                        raise self._failed(f"topic {topic}, partition {partition}: {error.str()}")
                    left.pop(partition, None)
                elif partition in left:
                    if message.offset() < left[partition]:
                        yield record_of(message)
                    if message.offset() >= left[partition] - 1:
                        del left[partition]
            if time.monotonic() > until:
                raise self._failed(f"topic {topic} sends no record")

    def check(self, topic: Topic) -> None:
        """Raise UsageError if a topic deletes or replaces records that a restore would need."""
        resource = self._admin_module.ConfigResource("topic", topic.topic)
        self._partitions(topic.topic)
        future = self._admin.describe_configs([resource])[resource]
        found = {n: entry.value for n, entry in self._asked(future.result).items()}
        if "compact" in found.get("cleanup.policy", ""):
            raise UsageError(
                f"channel {topic.name}: the topic {topic.topic} is compacted, and a restore needs "
                "every record: set its cleanup.policy to delete, or use another topic"
            )
        if (size := found.get("retention.bytes", "-1")) != "-1":
            raise UsageError(
                f"channel {topic.name}: the topic {topic.topic} deletes records above "
                f"{size} bytes, however young they are: set its retention.bytes to -1"
            )
        kept_ms = int(found.get("retention.ms", "-1"))
        if 0 <= kept_ms < RETENTION_S_MIN * 1000:
            raise UsageError(
                f"channel {topic.name}: the topic {topic.topic} deletes records after "
                f"{kept_ms / 1000:g} s, and no snapshot older than that could be restored: set its "
                f"retention.ms to {RETENTION_S_MIN * 1000} (a day) or more, or to -1"
            )

    def create(self, topic: str) -> None:
        """Create a topic of one partition that keeps every record, unless it exists.

        Raises:
            Unavailable: Kafka refuses that.
        """
        new = self._admin_module.NewTopic(topic, 1, config=_KEEPS)
        try:
            self._admin.create_topics([new])[topic].result()
        except self._kafka.KafkaException as error:
            if error.args[0].code() != self._kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise Unavailable(
                    f"Kafka at {self._servers} does not create the topic {topic}: "
                    f"{error.args[0].str()}",
                    remedy="let this user create topics whose names begin with "
                    f"{topic.rpartition('-')[0]}",
                ) from None
        # The controller has it; the brokers learn of it a moment later.
        until = time.monotonic() + TIMEOUT_S
        while True:
            try:
                self._partitions(topic)
            except UsageError:
                if time.monotonic() > until:
                    raise
                time.sleep(_CREATED_POLL_S)
            else:
                return

    def delete_before(self, topic: str, offset: int) -> None:
        """Delete the records of partition 0 of a topic that have a lower offset."""
        place = self._kafka.TopicPartition(topic, 0, offset)
        self._asked(self._admin.delete_records([place])[place].result)

    def _offsets(self, topic: str, spec: Any) -> dict[int, int]:
        partitions = [
            self._kafka.TopicPartition(topic, number) for number in self._partitions(topic)
        ]
        futures = self._admin.list_offsets(dict.fromkeys(partitions, spec))
        return {one.partition: self._asked(futures[one].result).offset for one in partitions}

    def _partitions(self, topic: str) -> list[int]:
        described = self._asked(
            functools.partial(self._opened().list_topics, topic=topic, timeout=TIMEOUT_S)
        ).topics[topic]
        if described.error is not None:
            if described.error.code() == self._kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise UsageError(
                    f"there is no topic {topic} at {self._servers}: create it first",
                )
            raise self._failed(f"topic {topic}: {described.error.str()}")
        self._known.add(topic)
        return sorted(described.partitions)

    @functools.cached_property
    def _admin(self) -> Any:
        return self._admin_module.AdminClient(settings_of(self._servers))

    def _opened(self) -> Any:
        if self._consumer is None:
            own = {
                "group.id": "stillframe",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
            }
            self._consumer = self._kafka.Consumer(settings_of(self._servers) | own | _QUICK)
        return self._consumer

    def _asked(self, ask: Callable[[], _Answer]) -> _Answer:
        try:
            return ask()
        except self._kafka.KafkaException as error:
            raise self._failed(error.args[0].str()) from None

    def _failed(self, why: str) -> Unavailable:
        return Unavailable(
            f"Kafka at {self._servers} does not answer as it should: {why}",
            remedy="check that the brokers run and can be reached from here",
        )


def strange(counting: Counting, record: TopicRecordAt) -> NotConsistent:
    """Return the error about a record that the writer of a topic has not written."""
    what = "has no label" if record.label is None else "has the label of another writer"
    return NotConsistent(
        f"channel {counting.topic.name}: the record with offset {record.offset} in partition "
        f"{record.partition} of topic {counting.topic.topic} {what}, and only "
        f"{counting.topic.source} may write that topic",
        remedy="stop the other writer",
    )


@contextlib.contextmanager
def brokers() -> Iterator[Callable[[Topic], Broker]]:
    """Give what returns the broker of a topic; all are closed at the end."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def broker(servers: str) -> Broker:
            return stack.enter_context(Broker(servers))

        yield lambda topic: broker(topic.servers)


def imported_kafka() -> Any:
    """Return the module ``confluent_kafka``; Unavailable if it is not installed."""
    return _imported("confluent_kafka")


def consumed(consumer: Any, wait_s: float) -> list[Any]:
    """Return the messages of a consumer that have arrived; it waits for the first one only."""
    first = consumer.consume(1, wait_s)
    return [*first, *consumer.consume(_CONSUMED_COUNT, 0)] if first else []


def record_of(message: Any) -> TopicRecordAt:
    """Return the record that a message of ``confluent_kafka`` is."""
    headers = tuple((key, value) for key, value in message.headers() or ())
    return TopicRecordAt(
        partition=message.partition(),
        offset=message.offset(),
        key=message.key(),
        value=message.value(),
        headers=headers,
        timestamp_ms=message.timestamp()[1],
    )


def _imported(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise Unavailable(f"confluent-kafka is not installed ({error})", remedy=_INSTALL) from None
