"""The broker: where topics begin and end, the labels of their records, and how they are set up.

Outside Spark only this module and ``transactions`` use Kafka. Neither is a member of a consumer
group.
"""

import contextlib
import functools
import importlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import ModuleType
from typing import Any, Self, TypeVar

import msgspec

from stillframe.errors import NotConsistent, StillframeError, Unavailable, UsageError, text_of
from stillframe.pipeline.dataflow import Topic
from stillframe.pipeline.kafka_login import VARIABLE, client_settings, identity, where
from stillframe.pipeline.topics import HEADER, Counting, Label, TopicRecord, decode_label
from stillframe.protocol.topic_positions import record_lost

TIMEOUT_S = 15.0
"""How long a broker may take to answer."""
RETENTION_S_MIN = 24 * 3600
"""How long a topic must keep its records: a snapshot cannot be restored after that time."""
_WINDOW_MAX = 4096
_POLL_S = 0.1
_CREATED_POLL_S = 0.02
_CONSUMED_COUNT = 1000
_AT_ONCE_MAX = 16
_PARTITIONS_S = 5.0
"""How often a reader that follows a topic looks for new partitions."""
_PASSING = (
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
    "FENCED_LEADER_EPOCH",
    "UNKNOWN_LEADER_EPOCH",
    "OFFSET_NOT_AVAILABLE",
)
"""Errors that end when all have heard which broker has a partition now."""
_ABSENT = "UNKNOWN_TOPIC_OR_PART"
"""There is no such topic, or the broker that was asked has not heard of it yet."""
_NO_RECORD = "_AUTO_OFFSET_RESET"
"""A partition begins after an offset, or ends before it."""
_QUICK: dict[str, Any] = {
    # A few records at a time are wanted, at once. A broker answers in order: the next request
    # would wait as long as one that has reached the end of its partition.
    "fetch.wait.max.ms": 1,
    "fetch.queue.backoff.ms": 1,
    "fetch.message.max.bytes": 2**16,
    "queued.min.messages": 1,
    "queued.max.messages.kbytes": 2**10,
}
_MANY: dict[str, Any] = {"queued.max.messages.kbytes": 2**14}
"""Records of a whole topic are wanted: up to so much waits in memory."""
_HARMLESS = ("_PARTITION_EOF", "GROUP_AUTHORIZATION_FAILED")
"""Errors among messages that are none: a partition has ended, and it takes part in no group."""
_UNANSWERED = ("Local: ", "Disconnected")
"""In an error of librdkafka about a login, they mean that no broker answered it: the connection
ended, or it took too long. To log in again helps."""
_ALERT = "tls alert"
"""In an error of librdkafka, it means that a broker did not accept our certificate."""
_KEEPS = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
_INSTALL = "install Stillframe with its extra 'kafka': pip install 'stillframe[kafka]'"

_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


class NoTopic(UsageError):
    """There is no such topic."""


class BrokerAway(Unavailable):
    """No broker answers as it should. A participant that runs waits for that (``outages``).

    Attributes:
        servers: the brokers.
        why: what was asked, and what came instead of an answer.
        since: since when, of ``time.monotonic``; None if since the call that raised this.
    """

    def __init__(
        self, servers: str, why: str, text: str, *, remedy: str, since: float | None = None
    ) -> None:
        super().__init__(text, remedy=remedy)
        self.servers = servers
        self.why = why
        self.since = since


class KafkaRecord(msgspec.Struct, frozen=True):
    """A record of a topic of Kafka.

    Attributes:
        partition: its partition.
        offset: its offset there.
        key: its key; None if it has none.
        value: its value; None if it has none.
        headers: the key and value of each header. The last one is the label, if there is one.
        timestamp_ms: its time, in milliseconds since 1970.
    """

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int

    @property
    def label(self) -> Label | None:
        """Its label, the last header: who wrote it, in which epoch and micro-batch. None if it has
        none."""
        if not self.headers or self.headers[-1][0] != HEADER:
            return None
        return decode_label(self.headers[-1][1] or b"")


def settings_of(servers: str) -> dict[str, Any]:
    """Return the settings of a client of these brokers, with how it logs in."""
    return {
        **client_settings(),
        "bootstrap.servers": servers,
        "client.id": "stillframe",
        "socket.timeout.ms": int(TIMEOUT_S * 1000),
        # What goes wrong is raised where it is asked for.
        "log_level": 0,
    }


class Connection:
    """The clients of some brokers, with one login, and what their errors mean."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.kafka = _imported("confluent_kafka")
        self._trouble: Any = None

    def client(self, kind: Callable[[dict[str, Any]], Any], own: dict[str, Any]) -> Any:
        """Return a client of this kind with these settings."""
        try:
            return kind(settings_of(self.servers) | own | {"error_cb": self._note})
        except self.kafka.KafkaException as error:
            raise UsageError(
                f"Kafka's client rejects its settings: {error.args[0].str()}: check {where()}"
            ) from None

    def _note(self, error: Any) -> None:
        """Keep what went wrong with a connection: the answer that never comes does not say it."""
        if self._trouble is None or error.name() != "_ALL_BROKERS_DOWN":
            self._trouble = error

    def check_login(self) -> None:
        """Raise Unavailable if the broker, or TLS, has rejected this program: to try it again, as
        clients do, would not help."""
        if (trouble := self._trouble) is None:
            return
        said = trouble.str()
        if trouble.name() == "_AUTHENTICATION" and not any(word in said for word in _UNANSWERED):
            raise Unavailable(
                f"Kafka at {self.servers} rejects the login of {identity()} ({said})",
                remedy=f"check it in {where()}",
            )
        if trouble.name() == "_SSL" or _ALERT in said:
            raise Unavailable(
                f"no connection with TLS to Kafka at {self.servers}: {said}",
                remedy=f"check the certificates in {where()}",
            )

    def is_record(self, message: Any, topic: str) -> bool:
        """Return whether a message is a record; it may be news that is no error. NotConsistent says
        that the partition does not have the next record."""
        if (error := message.error()) is not None and error.name() not in _HARMLESS:
            if error.name() == _NO_RECORD:
                raise record_lost(topic, message.partition(), None)
            raise self.failed(error, topic, "READ")
        return error is None

    def failed(
        self, error: Any, topic: str, *operations: str, is_seen: bool = True
    ) -> StillframeError:
        """Return the error to raise about one of Kafka."""
        if error.name() == _ABSENT:
            return NoTopic(f"there is no topic {topic} at {self.servers}: create it first")
        if error.name() == "TOPIC_AUTHORIZATION_FAILED":
            return _not_allowed(topic, *operations, is_seen=is_seen)
        return self.does_not_answer(f"topic {topic}: {error.str()}")

    def does_not_answer(self, why: str) -> BrokerAway:
        """Return the error that no broker answers."""
        trouble = "" if self._trouble is None else f" ({self._trouble.str()})"
        login = "" if client_settings() else f"; if they need a login, set {VARIABLE}"
        return BrokerAway(
            self.servers,
            f"{why}{trouble}",
            f"Kafka at {self.servers} does not answer as it should: {why}{trouble}",
            remedy=f"check that the brokers run and can be reached from here{login}",
        )


class Broker(Connection):
    """A connection to the brokers of some topics. Close it, or use it as a context manager. With
    `is_bulk` it fetches many records at a time, and else a few at once.

    Every method raises Unavailable if no broker answers, the login fails or an ACL is missing, and
    UsageError if there is no such topic.
    """

    def __init__(self, servers: str, *, is_bulk: bool = False) -> None:
        super().__init__(servers)
        self._fetching = _MANY if is_bulk else _QUICK
        self._admin_module = _imported("confluent_kafka.admin")
        # Now: several threads that ask first would each make one, and lose what the other asked.
        self._admin = self.client(self._admin_module.AdminClient, {})
        self._consumer: Any = None
        self._first: dict[str, dict[int, int]] = {}
        self._known: set[str] = set()
        self._existing: set[str] = set()

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

    def end_offsets(self, topic: str, *, partitions: Sequence[int] | None = None) -> dict[int, int]:
        """Return the offset that the next record of each partition will have. A caller that knows
        the `partitions` saves the request for their numbers."""
        return self._offsets(topic, self._admin_module.OffsetSpec.latest(), partitions)

    def committed_offsets(self, topic: str) -> dict[int, int]:
        """Return the offset in each partition at which the first open transaction begins, or else
        ``end_offsets``: of the records before it nothing can change."""
        return self._offsets(topic, self._admin_module.OffsetSpec.latest(), is_committed=True)

    def look_at(self, topics: Sequence[str]) -> None:
        """Ask about several topics at once, before ``newest_batch_before`` looks at each: one
        after the other they take longer than all the rest of a search."""
        consumer = self._opened()

        def look(topic: str) -> None:
            self._first[topic] = self.first_offsets(topic)
            self._learn(consumer, topic)

        at_once(look, [topic for topic in topics if topic not in self._known])

    def newest_batch_before(
        self,
        counting: Counting,
        positions: Mapping[int, int],
        newest: int,
        *,
        check: Callable[[], None] = lambda: None,
    ) -> int | None:
        """Return the newest micro-batch of the writer of a topic with a record that counts before
        these positions; None if there is none.

        If Kafka has deleted the records before a position, they are of the micro-batch of the next
        record at most, or of the `newest` one if there is no next record. There may
        be many reads: `check` is called between them, and may raise an error to end them.

        Raises:
            NotConsistent: a record is not from the writer, or has no label.
        """
        topic = counting.topic.topic
        # Many positions are looked at in one search, which takes no time in which this matters.
        if topic not in self._first:
            self._first[topic] = self.first_offsets(topic)
        first = self._first[topic]
        found: list[int] = []
        pending = {p: end for p, end in positions.items() if end > 0}
        window = 1
        while pending:
            check()
            ranges = {p: (max(first.get(p, 0), end - window), end) for p, end in pending.items()}
            newest_of = self._newest_in(counting, ranges)
            for partition, (start, _) in ranges.items():
                if partition in newest_of:
                    found += [b for b in [newest_of[partition]] if b is not None]
                    del pending[partition]
                elif start <= first.get(partition, 0):
                    if start > 0:
                        after = max(positions[partition], first[partition])
                        found.append(self._batch_after(counting, partition, after, newest, check))
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
            if is_counted(counting, record):
                last[record.partition] = _batch_of(counting, record)
        return last

    def _batch_after(
        self,
        counting: Counting,
        partition: int,
        start: int,
        newest: int,
        check: Callable[[], None],
    ) -> int:
        """Return the micro-batch of the first record that counts from an offset on."""
        end = self.end_offsets(counting.topic.topic).get(partition, 0)
        for record in self.records(counting.topic.topic, {partition: (start, end)}):
            check()
            if is_counted(counting, record):
                batch = _batch_of(counting, record)
                if batch is not None:
                    return batch
        return newest

    def has_written(self, record: TopicRecord, topic: str, ends: Mapping[int, int]) -> bool:
        """Return whether a topic has a record of its writer up to these ends; all since it joined
        are read."""
        first = self.first_offsets(topic)
        ranges = {
            partition: (max(first.get(partition, 0), record.first_offsets.get(partition, 0)), end)
            for partition, end in ends.items()
        }
        return any(
            one.label is not None and one.label.writer == record.writer_id
            for one in self.records(topic, ranges)
        )

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
                if self._is_before(counting, record, label):
                    reached.add(partition)
                elif record.label == label:
                    spans[partition] = (ranges[partition][0], ends[partition])
            pending = {p: start for p, (start, _) in ranges.items() if p not in reached}
            window = min(_WINDOW_MAX, window * 8)
        return spans

    def _is_before(self, counting: Counting, record: KafkaRecord, label: Label) -> bool:
        """Return whether a record is of a micro-batch before that of `label`, of this timeline."""
        if not is_counted(counting, record):
            return False
        batch = _batch_of(counting, record)
        if batch is not None and batch > label.batch:
            raise NotConsistent(
                f"topic {counting.topic.topic} has records of micro-batch {batch} of query "
                f"{counting.topic.source}, and its checkpoint ends before micro-batch "
                f"{label.batch}: the checkpoint was edited or deleted",
                remedy="restore the pipeline from a snapshot",
            )
        return batch is None or batch < label.batch

    def records(
        self,
        topic: str,
        ranges: Mapping[int, tuple[int, int]],
        *,
        check: Callable[[], object] = lambda: None,
    ) -> Iterator[KafkaRecord]:
        """Yield the records of each partition from a first offset up to, and without, a last one;
        those of one partition in their order. `check` is called after some were read, before they
        are yielded."""
        left = {p: end for p, (start, end) in ranges.items() if start < end}
        if not left:
            return
        consumer = self._opened()
        if topic not in self._known:
            # It exists: asked for its metadata in another way, a broker may create it.
            self.partitions(topic)
            self._learn(consumer, topic)
        consumer.assign([self.kafka.TopicPartition(topic, p, ranges[p][0]) for p in left])
        try:
            yield from self._read(consumer, topic, left, check)
        finally:
            # It would go on to ask the broker for what comes next.
            if consumer is self._consumer:
                consumer.unassign()

    def _read(
        self, consumer: Any, topic: str, left: dict[int, int], check: Callable[[], object]
    ) -> Iterator[KafkaRecord]:
        """Yield the records of the partitions that a consumer was assigned, up to their ends."""
        until = time.monotonic() + TIMEOUT_S
        while left:
            messages = consumed(consumer, _POLL_S)
            self.check_login()
            if not messages and time.monotonic() > until:
                raise self._sends_nothing(topic, left)
            if messages:
                check()
            for message in messages:
                partition = message.partition()
                if not self.is_record(message, topic):
                    if message.error().name() == "_PARTITION_EOF":
                        left.pop(partition, None)
                elif partition in left:
                    if message.offset() < left[partition]:
                        yield record_of(message)
                    if message.offset() >= left[partition] - 1:
                        del left[partition]
            if messages:
                # Only now: the caller may take its time with each record.
                until = time.monotonic() + TIMEOUT_S

    def _sends_nothing(self, topic: str, left: Mapping[int, int]) -> StillframeError:
        """Return the error that no record has come, although some are `left` to be read."""
        ends = self.end_offsets(topic)
        if short := [partition for partition, end in left.items() if ends.get(partition, 0) < end]:
            return record_lost(topic, short[0], None)
        return self.does_not_answer(f"topic {topic} sends no record")

    def follow(
        self,
        topic: str,
        starts: Callable[[Mapping[int, int] | None], Mapping[int, int]],
        *,
        check: Callable[[], None],
    ) -> Iterator[list[KafkaRecord]]:
        """Yield the records of a topic as they come, some at a time, and never end. `starts`
        returns the offset to start at in each partition; it is called again when partitions were
        added, with the positions reached. `check` is called after some records were read, before
        they are yielded. A list is empty if none has come for a while."""
        consumer = self._opened()
        positions: dict[int, int] = {}
        look_at = 0.0
        while True:
            if time.monotonic() >= look_at:
                check()
                if positions.keys() != set(self.partitions(topic)):
                    positions = dict(starts(positions or None))
                    consumer.assign(
                        [self.kafka.TopicPartition(topic, *one) for one in positions.items()]
                    )
                look_at = time.monotonic() + _PARTITIONS_S
            found = []
            self.check_login()
            if messages := consumed(consumer, _POLL_S):
                check()
            for message in messages:
                if self.is_record(message, topic):
                    positions[message.partition()] = message.offset() + 1
                    found.append(record_of(message))
            yield found

    def check(self, topic: Topic, *, is_written: bool = False) -> None:
        """Raise UsageError if a topic deletes or replaces records that a restore would need, and
        Unavailable unless this program may read it, and write it if it has to."""
        used = ("READ", "WRITE") if is_written else ("READ",)
        allowed = self._described(topic.topic, *used).authorized_operations
        # A broker that does not know what is allowed names nothing.
        needed = {"DESCRIBE_CONFIGS", *used}
        if allowed and (missing := needed - {one.name for one in allowed}):
            raise _not_allowed(topic.topic, *sorted(missing))
        resource = self._admin_module.ConfigResource("topic", topic.topic)
        answer = self._answer(
            lambda: _called(self._admin.describe_configs, [resource])[resource],
            topic.topic,
            "DESCRIBE_CONFIGS",
        )
        found = {name: entry.value for name, entry in answer.items()}
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
            _called(self._admin.create_topics, [new])[topic].result()
        except self.kafka.KafkaException as error:
            if error.args[0].code() != self.kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise Unavailable(
                    f"Kafka at {self.servers} does not create the topic {topic}: "
                    f"{error.args[0].str()}",
                    remedy="let this user create topics whose names begin with "
                    f"{topic.rpartition('-')[0]}",
                ) from None
        # The controller has it; the brokers learn of it a moment later.
        until = time.monotonic() + TIMEOUT_S
        while True:
            try:
                self.partitions(topic)
            except UsageError:
                if time.monotonic() > until:
                    raise
                time.sleep(_CREATED_POLL_S)
            else:
                return

    def delete_before(self, topic: str, offset: int) -> None:
        """Delete the records of partition 0 of a topic that have a lower offset."""
        place = self.kafka.TopicPartition(topic, 0, offset)
        self._answer(lambda: _called(self._admin.delete_records, [place])[place], topic, "DELETE")

    def _offsets(
        self,
        topic: str,
        spec: Any,
        numbers: Sequence[int] | None = None,
        *,
        is_committed: bool = False,
    ) -> dict[int, int]:
        levels = self.kafka.IsolationLevel
        level = levels.READ_COMMITTED if is_committed else levels.READ_UNCOMMITTED
        numbers = self.partitions(topic) if numbers is None else numbers
        partitions = [self.kafka.TopicPartition(topic, number) for number in numbers]

        def ask(*some: Any) -> "dict[Any, Future[Any]]":
            asked: dict[Any, Future[Any]] = _called(
                self._admin.list_offsets, dict.fromkeys(some, spec), isolation_level=level
            )
            return asked

        futures = ask(*partitions)

        def offset_in(partition: Any) -> int:
            again = functools.partial(lambda one: ask(one)[one], partition)
            return int(self._answer(again, topic, "DESCRIBE", asked=futures[partition]).offset)

        return {one.partition: offset_in(one) for one in partitions}

    def partitions(self, topic: str) -> list[int]:
        """Return the numbers of its partitions."""
        return sorted(one.id for one in self._described(topic).partitions)

    def topic_ids(
        self, topics: Sequence[str], *, known: Iterable[str] = (), operation: str = "DESCRIBE"
    ) -> dict[str, str | None]:
        """Return the ids that Kafka gave some topics when it created them: one that is deleted and
        created again has another. It is None if there is no such topic, and empty if the brokers
        are too old to give any. A `known` topic has existed: for a while it is asked for again, as
        a broker that starts may not have heard of it. `operation` would have allowed this."""
        until = time.monotonic() + TIMEOUT_S
        self._existing.update(known)

        def ask(some: Sequence[str]) -> "dict[str, Future[Any]]":
            asked: dict[str, Future[Any]] = _called(
                self._admin.describe_topics, self.kafka.TopicCollection(list(some))
            )
            return asked

        found: dict[str, str | None] = dict.fromkeys(topics)
        for topic, future in ask(topics).items():
            again = functools.partial(lambda one: ask([one])[one], topic)
            with contextlib.suppress(NoTopic):
                one = self._answer(
                    again,
                    topic,
                    operation,
                    asked=future,
                    is_seen=False,
                    until=until,
                ).topic_id
                has_id = one is not None and str(one) != str(self.kafka.Uuid(0, 0))
                found[topic] = str(one) if has_id else ""
        return found

    def _described(self, topic: str, *operations: str) -> Any:
        """Return what the broker says of a topic; each of `operations` would have allowed it."""
        asked = self.kafka.TopicCollection([topic])
        # Asked for its metadata in another way, a broker may create the topic.
        describe = functools.partial(
            _called, self._admin.describe_topics, asked, include_authorized_operations=True
        )
        allowing = operations or ("DESCRIBE",)
        return self._answer(lambda: describe()[topic], topic, *allowing, is_seen=False)

    def _opened(self) -> Any:
        if self._consumer is None:
            own = {
                "group.id": "stillframe",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
            }
            self._consumer = self.client(self.kafka.Consumer, own | self._fetching)
        return self._consumer

    def _learn(self, consumer: Any, topic: str) -> None:
        """Let a consumer hear of a topic that exists: else it would do so only after a second."""
        try:
            consumer.list_topics(topic=topic, timeout=TIMEOUT_S)
        except self.kafka.KafkaException as error:
            raise self.failed(error.args[0], topic, "DESCRIBE") from None
        self._known.add(topic)

    def _answer(
        self,
        ask: "Callable[[], Future[_Answer]]",
        topic: str,
        *operations: str,
        asked: "Future[_Answer] | None" = None,
        is_seen: bool = True,
        until: float | None = None,
    ) -> _Answer:
        """Return what a broker answers about a topic to a client that needs some operations, and
        that may have `asked` already. It asks again after errors that may pass: `until` a moment,
        or else for ``TIMEOUT_S``. One of them is that a broker does not know a topic that has
        existed."""
        until = time.monotonic() + TIMEOUT_S if until is None else until
        passing = (*_PASSING, _ABSENT) if topic in self._existing else _PASSING
        future = ask() if asked is None else asked
        while True:
            while not wait([future], _POLL_S).done:
                self._admin.poll(0)
                self.check_login()
            try:
                answer = future.result()
            except self.kafka.KafkaException as error:
                if error.args[0].name() not in passing or time.monotonic() >= until:
                    raise self.failed(error.args[0], topic, *operations, is_seen=is_seen) from None
            else:
                self._existing.add(topic)
                return answer
            time.sleep(_POLL_S)
            future = ask()


def is_counted(counting: Counting | None, record: KafkaRecord) -> bool:
    """Return whether a record counts; all do if there is no writer in the pipeline, and None.
    ``Counting.condition`` is the same in SQL.

    Raises:
        NotConsistent: the record is not from the writer, or has no label.
    """
    if counting is None or counting.is_adopted(record.partition, record.offset):
        return True
    label = record.label
    if label is not None and counting.is_own(label):
        return counting.counts(label)
    raise _strange(counting, record)


def _batch_of(counting: Counting, record: KafkaRecord) -> int | None:
    """Return the micro-batch of a record that counts; None if it was there before the writer
    joined."""
    if counting.is_adopted(record.partition, record.offset):
        return None
    label = record.label
    assert label is not None
    return label.batch


def _not_allowed(topic: str, *operations: str, is_seen: bool = True) -> Unavailable:
    """Return the error that Kafka does not allow this program some operations on a topic. Unless
    `is_seen`, Kafka has not shown whether there is such a topic."""
    exists = "" if is_seen else ", and check that there is such a topic"
    return Unavailable(
        f"Kafka does not allow {identity()} the operation {' and '.join(operations)} on topic "
        f"{topic}",
        remedy=f"add an ACL for it{exists}",
    )


def _strange(counting: Counting, record: KafkaRecord) -> NotConsistent:
    """Return the error about a record that the writer of a topic has not written."""
    what = "has no label" if record.label is None else "has the label of another writer"
    return NotConsistent(
        f"channel {counting.topic.name}: the record with offset {record.offset} in partition "
        f"{record.partition} of topic {counting.topic.topic} {what}, and only "
        f"{counting.topic.source} may write that topic",
        remedy="start this again; if that does not help, stop the other writer",
    )


def at_once(ask: Callable[[_Asked], _Answer], topics: Sequence[_Asked]) -> list[_Answer]:
    """Return what `ask` returns for each topic; it asks about several at the same time."""
    with ThreadPoolExecutor(_AT_ONCE_MAX) as pool:
        return list(pool.map(ask, topics))


@contextlib.contextmanager
def brokers() -> Iterator[Callable[[Topic], Broker]]:
    """Give what returns the broker of a topic; all are closed at the end."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def broker(servers: str) -> Broker:
            return stack.enter_context(Broker(servers))

        yield lambda topic: broker(topic.servers)


def consumed(consumer: Any, wait_s: float) -> list[Any]:
    """Return the messages of a consumer that have arrived; it waits for the first one only."""
    first = consumer.consume(1, wait_s)
    return [*first, *consumer.consume(_CONSUMED_COUNT, 0)] if first else []


def record_of(message: Any) -> KafkaRecord:
    """Return the record that a message of ``confluent_kafka`` is."""
    headers = tuple((key, value) for key, value in message.headers() or ())
    return KafkaRecord(
        partition=message.partition(),
        offset=message.offset(),
        key=message.key(),
        value=message.value(),
        headers=headers,
        timestamp_ms=message.timestamp()[1],
    )


def _called(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a function of Kafka's client. It says SystemError if Ctrl-C comes meanwhile."""
    try:
        return function(*arguments, **named)
    except SystemError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise


def _imported(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"confluent-kafka is not installed ({text_of(error)})", remedy=_INSTALL
        ) from None
