"""A Python program as a service of a pipeline, reading and writing topics of Kafka.

One iteration of its loop is one atomic action. Actions are committed together, at most every
`COMMIT_S`, and only between two of them: one transaction holds the records that they wrote, and an
entry in the service's ledger with its state and positions (``ledger``). A program that crashed is
simply started again, and continues after the last transaction.
"""

import contextlib
import functools
import hashlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from stillframe.errors import NotConsistent, StillframeError, UsageError
from stillframe.pipeline.checkpoint import START
from stillframe.pipeline.dataflow import Topic
from stillframe.pipeline.joined import Joined, Left, codec_of, encoded_state, holding_place
from stillframe.pipeline.kafka import Broker, KafkaRecord, is_counted, record_of
from stillframe.pipeline.known_topics import KnownTopics, held_topic, start_positions
from stillframe.pipeline.ledger import Entry, Ledger, Version, needs_trim, open_ledger
from stillframe.pipeline.metadata import Metadata, read_metadata
from stillframe.pipeline.outages import Outages
from stillframe.pipeline.pending_snapshot import ServiceState
from stillframe.pipeline.stopped import ServiceRecord, beginning_of, write_service_record
from stillframe.pipeline.topics import (
    HEADER,
    Counting,
    TopicPositions,
    counting,
    has_joined,
    join_topic,
    joined_record,
    rejoin_topic,
)
from stillframe.pipeline.transactions import (
    VALUE_BYTES_MAX,
    Output,
    TopicReader,
    TransactionWriter,
    superseded,
)
from stillframe.protocol.topic_positions import starts
from stillframe.state_codec import StateCodec
from stillframe.storage.location import Location, locate

COMMIT_S = 0.1
"""Minimum interval between two commits."""
FULL_COUNT = 10_000
FULL_BYTES = 2**23
"""So much output is committed at the next boundary, whatever the time."""
_COST_FACTOR = 9
"""Minimum interval between two commits, as a multiple of the time for which the state was
encoded."""
_POLL_S = 0.1
_LOOK_S = 1.0
"""How often it is asked whether the writer of a topic has joined."""
_PARTITIONS_S = 30.0
"""How often it is asked whether a topic has new partitions."""

_log = logging.getLogger("stillframe.pipeline")

Value = bytes | str
Headers = Iterable[tuple[str, bytes | str | None]]


class JoinedTopicService(Joined[list[KafkaRecord]]):
    """A service's view of a pipeline with topics of Kafka: ``for`` to receive, ``append`` to send.

    What it receives are the records of a topic that count, without the header that Stillframe adds.
    Actions are committed at most every 100 ms, several together, and their records are read after
    that. So wait with ``receive(timeout_s)`` and do not sleep, or else the last actions are
    committed only at the next boundary.

    ``boundary``, ``receive``, ``for`` and the end of the body raise these errors. Then the service
    must be started again. It continues after its last transaction, and nothing is lost:

    - Unavailable: Kafka does not answer for longer than ``STILLFRAME_KAFKA_OUTAGE_S``; or another
      program has taken the place of this service.
    - NotConsistent: a topic has a record that its writer has not written; or it was created again,
      or the next record to be read was deleted, and then a new start fails as well.
    - UsageError: a field of the state cannot be recorded, or a record is too long for its topic.
    - StoreError: the disk is full or failed.
    """

    def __init__(
        self,
        name: str,
        topics: "_ServiceTopics",
        codec: StateCodec,
        state: object,
        check: Callable[[], None],
        *,
        encoded: bytes,
    ) -> None:
        super().__init__(name, codec, state)
        self._topics = topics
        self._check = check
        self._failure: StillframeError | None = None
        self._has_acted = False
        self._due_at = time.monotonic()
        self._digest = hashlib.sha256(encoded).digest()

    def append(
        self,
        channel: str,
        value: Value,
        key: Value | None = None,
        headers: Headers = (),
        partition: int | None = None,
    ) -> None:
        """Append a record to a channel. It is part of the current action.

        Args:
            channel: its name.
            value: bytes, or text, which is written as UTF-8.
            key: selects the partition, in the same way as in Spark and Java.
            headers: names and values; Stillframe adds one more.
            partition: the partition; None to let the key select it, or else any.

        Raises:
            UsageError: this service writes no such channel, it has no such partition, or the record
                is too long, or is not bytes or text.
        """
        self._topics.append(channel, value, key, headers, partition)

    @property
    def positions(self) -> TopicPositions:
        """The position of this service on each partition of the topics that it reads."""
        return {channel: dict(at) for channel, at in self._topics.positions.items()}

    def finish(self) -> None:
        """Commit what is left, at the end of the body."""
        self._commit()

    def _end_action(self) -> None:
        self._has_acted = True
        self._between_actions()

    def _between_actions(self) -> None:
        self._check_leaving()
        self._check()
        if self._has_acted and (self._topics.is_full or time.monotonic() >= self._due_at):
            self._commit()

    def _commit(self) -> None:
        if self._failure is not None:
            raise self._failure
        began = time.monotonic()
        try:
            state = self.state()
            digest = hashlib.sha256(state.encoded).digest()
            cost_s = time.monotonic() - began
            if self._topics.has_news or digest != self._digest:
                self._topics.commit(state)
        except StillframeError as error:
            self._failure = error
            raise
        self._digest, self._has_acted = digest, False
        self._due_at = time.monotonic() + max(COMMIT_S, _COST_FACTOR * cost_s)

    def _take(self) -> tuple[str, list[KafkaRecord]] | None:
        return self._topics.take()

    def _wait(self) -> None:
        until_due = self._due_at - time.monotonic() if self._has_acted else _POLL_S
        self._topics.wait(min(_POLL_S, max(0.0, until_due)))


class _ServiceTopics:
    """The topics of a service: what it has read and written there since its last version."""

    def __init__(
        self,
        place: "_Place",
        ledger: Ledger,
        writer: TransactionWriter,
        versions: list[Version],
        outages: Outages,
    ) -> None:
        root, metadata, broker = place.root, place.metadata, place.broker
        self._root = root
        self._metadata = metadata
        self._name = place.name
        self._broker = broker
        self._known = place.known
        self._outages = outages
        self._ledger = ledger
        self._writer = writer
        self._versions = versions
        self._version = versions[-1].version
        at = versions[-1].positions
        self.positions = {one.name: dict(at.get(one.name, {})) for one in place.incoming}
        self._incoming = {one.topic: one for one in place.incoming}
        self._outgoing = {one.name: one for one in place.outgoing}
        self._countings = {one.name: counting(root, metadata, one) for one in place.outgoing}
        self._partition_counts = {
            one.name: len(broker.first_offsets(one.topic)) for one in place.outgoing
        }
        self._sources: dict[str, Counting | None] = {}
        self._reader = TopicReader(broker.servers) if self._incoming else None
        self._waiting: deque[tuple[str, list[Any]]] = deque()
        self._outputs: list[Output] = []
        self._output_bytes = 0
        self._has_read = False
        self._look_at = self._partitions_at = 0.0

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    @property
    def is_full(self) -> bool:
        return len(self._outputs) >= FULL_COUNT or self._output_bytes >= FULL_BYTES

    @property
    def has_news(self) -> bool:
        """Whether anything was read or written since the last version."""
        return self._has_read or bool(self._outputs)

    def append(
        self,
        channel: str,
        value: Value,
        key: Value | None,
        headers: Headers,
        partition: int | None,
    ) -> None:
        if channel not in self._outgoing:
            names = ", ".join(self._outgoing) or "none"
            raise UsageError(
                f"service {self._name} writes no channel {channel!r}; it writes: {names}"
            )
        label = self._countings[channel].label(self._metadata.epoch, self._version + 1)
        what = f"channel {channel}: the"
        own = tuple((name, _optional(v, f"{what} header {name!r}")) for name, v in headers)
        record = Output(
            topic=self._outgoing[channel].topic,
            value=_encoded(value, f"{what} value"),
            key=_optional(key, f"{what} key"),
            headers=(*own, (HEADER, label.encoded)),
            partition=-1 if partition is None else self._checked(channel, partition),
        )
        if record.byte_count > VALUE_BYTES_MAX:
            raise UsageError(
                f"channel {channel}: a record has {record.byte_count} bytes, more than the limit "
                f"of {VALUE_BYTES_MAX}: append several smaller ones"
            )
        self._outputs.append(record)
        self._output_bytes += record.byte_count

    def _checked(self, channel: str, partition: int) -> int:
        if partition >= self._partition_counts[channel]:
            topic = self._outgoing[channel].topic
            found = self._outages.through(functools.partial(self._broker.partitions, topic))
            self._partition_counts[channel] = len(found)
        if not 0 <= partition < self._partition_counts[channel]:
            raise UsageError(
                f"channel {channel} has no partition {partition}: it has "
                f"{self._partition_counts[channel]}, from 0 on"
            )
        return partition

    def commit(self, state: ServiceState) -> None:
        """Commit all that was read and written, with the state after it, as the next version."""
        number = self._version + 1
        state = msgspec.structs.replace(state, version=number)
        entry = self._ledger.entry(state, self.positions, time.time())
        commit = functools.partial(
            _committed, self._ledger, self._writer, entry, self._outputs, self._known.compare
        )
        version = self._outages.through(commit)
        self._version = number
        self._outputs, self._output_bytes, self._has_read = [], 0, False
        self._versions.append(version)
        if needs_trim(self._versions):
            self._versions = self._ledger.trim(self._versions)

    def take(self) -> tuple[str, list[KafkaRecord]] | None:
        """Return the next records that count, of one channel; None if there are none now."""
        if not self._waiting:
            self.wait(0.0)
        while self._waiting:
            name, messages = self._waiting.popleft()
            topic = self._incoming[name]
            with self._compared():
                found = [self._read(topic, message) for message in messages]
            if records := [record for record in found if record is not None]:
                return topic.name, records
        return None

    def wait(self, wait_s: float) -> None:
        """Wait for records."""
        if self._reader is None:
            time.sleep(wait_s)
            return
        now = time.monotonic()
        if len(self._sources) < len(self._incoming) and now >= self._look_at:
            self._look_at = now + _LOOK_S
            self._open_sources()
        if now >= self._partitions_at:
            self._partitions_at = now + _PARTITIONS_S
            self._outages.through(self._add_partitions)
        by_topic: dict[str, list[Any]] = {}
        with self._compared():
            messages = self._reader.read(wait_s)
        for message in messages:
            by_topic.setdefault(message.topic(), []).append(message)
        self._waiting.extend(by_topic.items())

    def _open_sources(self) -> None:
        """Begin to read the topics whose writers have joined: then it is known what counts."""
        for topic in self._incoming.values():
            if topic.name not in self._sources and (
                topic.source is None or has_joined(self._root, topic)
            ):
                one = None if topic.source is None else counting(self._root, self._metadata, topic)
                self._sources[topic.name] = one
                self._partitions_at = 0.0

    @contextlib.contextmanager
    def _compared(self) -> Iterator[None]:
        """If the body finds a topic not as it must be, report first that it was created again."""
        try:
            yield
        except NotConsistent:
            self._outages.through(self._known.compare)
            raise

    def _add_partitions(self) -> None:
        assert self._reader is not None
        self._known.compare()
        for topic in (one for one in self._incoming.values() if one.name in self._sources):
            read = self._reader.partitions(topic.topic)
            if not read.issuperset(self._broker.partitions(topic.topic)):
                topic_id = self._known.id_of(topic)
                held = held_topic(self._broker, topic.topic, topic_id).without(read)
                at = {p: at for p, at in self.positions[topic.name].items() if p not in read}
                self._reader.add(topic.topic, starts(held, at))

    def _read(self, topic: Topic, message: Any) -> KafkaRecord | None:
        """Return a record without its label; None if it does not count."""
        record = record_of(message)
        one = self._sources[topic.name]
        counts = is_counted(one, record)
        self.positions[topic.name][record.partition] = record.offset + 1
        self._has_read = True
        if not counts:
            return None
        # A label of another pipeline is a header like others.
        if one is not None and one.is_own(record.label):
            return msgspec.structs.replace(record, headers=record.headers[:-1])
        return record


def _encoded(value: Value, what: str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes):
        raise UsageError(
            f"{what} is of type {type(value).__name__}: give bytes or text, such as that of "
            "json.dumps"
        )
    return value


def _optional(value: Value | None, what: str) -> bytes | None:
    return None if value is None else _encoded(value, what)


class _Place(msgspec.Struct, frozen=True):
    """The place of a service in its pipeline, which this program has taken."""

    root: Location
    metadata: Metadata
    name: str
    broker: Broker
    known: KnownTopics

    @property
    def incoming(self) -> tuple[Topic, ...]:
        """The topics that it reads."""
        return self.metadata.dataflow.incoming_topics(self.name)

    @property
    def outgoing(self) -> tuple[Topic, ...]:
        """The topics that it writes."""
        return self.metadata.dataflow.outgoing_topics(self.name)


@contextlib.contextmanager
def join(name: str, *, pipeline: str | Location, state: object) -> Iterator[JoinedTopicService]:
    """Take the place of a service: see ``Pipeline.join_service``."""
    root = locate(pipeline)
    codec = codec_of(read_metadata(root), name, state)
    with holding_place(root, name) as lock, contextlib.ExitStack() as stack:
        check = functools.partial(lock.check_held, "service", name, remedy="start it again")
        outages = Outages(f"service {name}", _log.warning, check)
        metadata = read_metadata(root)
        topics_of_it = metadata.dataflow.topics_of(name)
        broker = stack.enter_context(Broker(topics_of_it[0].servers))
        known = KnownTopics(root, topics_of_it, lambda _: broker)
        place = _Place(root, metadata, name, broker, known)
        _join_topics(place)
        ledger = open_ledger(root, metadata.name, name, metadata.epoch, broker)
        # From here on no other program of this service can commit.
        writer = TransactionWriter(broker.servers, ledger.topic, name)
        first = functools.partial(encoded_state, codec, state)
        versions, encoded = _begun(place, ledger, writer, first)
        topics = _ServiceTopics(place, ledger, writer, versions, outages)
        stack.callback(topics.close)
        codec.restore(state, encoded)
        ledger.remove_files(versions)
        me = JoinedTopicService(name, topics, codec, state, check, encoded=encoded)
        with contextlib.suppress(Left):
            yield me
        me.finish()


def _join_topics(place: _Place) -> None:
    """Let the service join as the writer of its topics, and check all that it uses."""
    place.known.adopt()
    for topic in place.metadata.dataflow.topics_of(place.name):
        place.broker.check(topic, is_written=topic in place.outgoing)
    # A start that failed before it began its state has written nothing.
    has_begun = beginning_of(place.root, place.metadata, place.name) is not None
    for topic in place.outgoing:
        if not has_joined(place.root, topic):
            join_topic(place.root, topic, place.broker.end_offsets(topic.topic))
        elif not has_begun:
            ends = place.broker.end_offsets(topic.topic)
            if joined_record(place.root, topic).has_other_ends(ends):
                rejoin_topic(place.root, topic, ends)


def _begun(
    place: _Place, ledger: Ledger, writer: TransactionWriter, first: Callable[[], ServiceState]
) -> tuple[list[Version], bytes]:
    """Return the versions of a service in this epoch, at least one, and the state of the last. The
    first is that with which it begins there. `first` returns the state with which it starts for the
    first time."""
    beginning = beginning_of(place.root, place.metadata, place.name)
    if beginning is None:
        beginning = ServiceRecord(
            epoch=place.metadata.epoch,
            positions={},
            state=msgspec.structs.replace(first(), version=START),
            topic_positions={one.name: _first_positions(place, one) for one in place.incoming},
        )
        write_service_record(place.root, place.name, beginning)
    if not ledger.has_begun():
        if not ledger.versions():
            assert beginning.state is not None
            positions = beginning.topic_positions or {}
            entry = ledger.entry(beginning.state, positions, time.time())
            version = _committed(ledger, writer, entry)
            ledger.begin()
            return [version], beginning.state.encoded
        ledger.begin()
    versions = ledger.some_versions()
    return versions, ledger.state(versions[-1]).encoded


def _first_positions(place: _Place, topic: Topic) -> dict[int, int]:
    """Return where a service starts on a topic that it has never read."""
    held = held_topic(place.broker, topic.topic, place.known.id_of(topic))
    return start_positions(f"service {place.name}", held, None)


def _committed(
    ledger: Ledger,
    writer: TransactionWriter,
    entry: Entry,
    outputs: Iterable[Output] = (),
    check: Callable[[], None] = lambda: None,
) -> Version:
    """Commit an entry and return it as a version, unless `check` raises an error. It is not read
    back: Kafka confirms a commit before it writes the marker without which consumers do not see
    it. If the writer's latest commit was cut short, it was of the same entry: what became of it
    comes first."""
    last = Output(ledger.topic, msgspec.msgpack.encode(entry), None, (), 0)
    offset = _taken_effect(ledger, writer, entry.version) if writer.is_cut_short else None
    if offset is None:
        offset = writer.commit([*outputs, last], check)
    # A later commit changes the positions in place.
    version = msgspec.msgpack.decode(last.value, type=Version)
    return msgspec.structs.replace(version, offset=offset)


def _taken_effect(ledger: Ledger, writer: TransactionWriter, number: int) -> int | None:
    """Return the offset of a version whose commit was cut short; None if it has not taken effect,
    and never will. Unavailable if another program has written to the ledger since."""
    offset = writer.offset
    writer.reopen()
    newest = ledger.versions(1)
    if newest and (newest[0].version, newest[0].offset) == (number, offset):
        return offset
    if not newest or newest[0].version != number - 1:
        raise superseded(writer.service)
    return None
