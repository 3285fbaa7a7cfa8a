"""What is read from topics outside Spark: a real broker, and topics that are filled at random.

Each topic is filled step by step, and every record is also kept in a plain list, with whether it
counts at the end. What the broker's functions return is compared with that list.
"""

import contextlib
import random
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from stillframe.errors import NotConsistent, StillframeError, Unavailable, UsageError
from stillframe.pipeline import kafka as kafka_module
from stillframe.pipeline.dataflow import Topic
from stillframe.pipeline.kafka import Broker, settings_of
from stillframe.pipeline.known_topics import present_id
from stillframe.pipeline.metadata import Segment
from stillframe.pipeline.topics import HEADER, Counting, Label, TopicRecord
from tests.nightly import by_night, seeds
from tests.ports import free_port
from tests.spark.flows import wait_until
from tests.spark.outside import KafkaServer

WRITER = bytes(range(8))
STRANGER = bytes(8)
STEP_COUNT = 14
LOOK_COUNT = 12
SEEDS = seeds("topics at random", *range(by_night(8, check=5)), night=40)

Headers = list[tuple[str, str | bytes | None]]
TRACE: Headers = [("trace", b"1")]

pytestmark = pytest.mark.slow


@dataclass
class Written:
    """A record that a reader can see: where it is, its label, and whether it counts. One without a
    label counts if it was there first, and else is foreign."""

    partition: int
    offset: int
    label: Label | None
    counts: bool

    @property
    def is_foreign(self) -> bool:
        """Return whether the writer has not written it."""
        return (self.label is None or self.label.writer != WRITER) and not self.counts


@dataclass
class RandomTopic:
    """A topic, and a plain list of what a reader can see in it."""

    name: str
    servers: str
    chance: random.Random
    partition_count: int = 1
    records: list[Written] = field(default_factory=list)
    timeline: list[Segment] = field(default_factory=lambda: [Segment(0, 0)])
    first_offsets: dict[int, int] = field(default_factory=dict)
    deleted: dict[int, int] = field(default_factory=dict)
    epoch: int = 0
    batch: int = 0

    def __post_init__(self) -> None:
        self.admin = AdminClient(settings_of(self.servers))
        self.producer = Producer(settings_of(self.servers) | {"linger.ms": 0})
        made = self.admin.create_topics([NewTopic(self.name, self.partition_count, 1)])
        made[self.name].result()
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        """Wait until each partition can be asked for, and the producer knows all of them."""

        def is_ready() -> bool:
            known = self.producer.list_topics(self.name).topics[self.name].partitions
            with contextlib.suppress(Unavailable, UsageError):
                return len(known) == len(ends(self)) == self.partition_count
            return False

        wait_until(is_ready)

    # What it does.

    def write(self, producer: Producer, plan: list[tuple[int, Headers]]) -> list[tuple[int, int]]:
        """Write records into partitions; return their places, in that order."""
        places: list[tuple[int, int]] = []

        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            places.append((message.partition(), message.offset()))

        for partition, headers in plan:
            producer.produce(
                self.name, b"value", b"key", partition, on_delivery=delivered, headers=headers
            )
        assert producer.flush() == 0
        return places

    def add(self, headers: Headers, count: int, *, counts: bool) -> None:
        """Write records with these headers into random partitions, and keep them in the list."""
        plan = [(self.chance.randrange(self.partition_count), headers) for _ in range(count)]
        label = Label(*parts) if (parts := _parts(headers)) is not None else None
        self.records += [Written(*at, label, counts) for at in self.write(self.producer, plan)]

    def adopt(self) -> None:
        """Let there be records before the writer joins."""
        self.add(TRACE[: self.chance.randrange(2)], self.chance.choice((0, 3, 20)), counts=True)
        self.first_offsets = ends(self)

    def label(self, epoch: int, batch: int) -> Label:
        """Return a label of the writer."""
        return Label(WRITER, epoch, batch)

    def write_batch(self) -> None:
        """Write the next micro-batch, in a transaction or without; it may be empty."""
        label = self.label(self.epoch, self.batch)
        own = [*TRACE[: self.chance.randrange(2)], _header(label)]
        count = self.chance.choice((0, 1, 3, 10))
        if self.chance.random() < 0.3:
            self.in_transaction(own, count, is_committed=True)
        else:
            self.add(own, count, counts=True)
        self.batch += 1

    def in_transaction(self, headers: Headers, count: int, *, is_committed: bool) -> None:
        """Write records in a transaction: each partition gets a control record behind them."""
        settings = settings_of(self.servers) | {"transactional.id": self.name}
        producer = Producer(settings)
        producer.init_transactions()
        producer.begin_transaction()
        plain, self.producer, before = self.producer, producer, len(self.records)
        self.add(headers, count, counts=True)
        self.producer = plain
        written = {one.partition for one in self.records[before:]}
        self.end_transaction(producer, written, is_committed=is_committed)
        if not is_committed:
            del self.records[before:]

    def end_transaction(self, producer: Producer, written: set[int], *, is_committed: bool) -> None:
        """End a transaction that wrote these partitions; wait until each has its control record."""
        before = ends(self)
        if is_committed:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        wait_until(lambda: all(ends(self)[partition] > before[partition] for partition in written))

    def abort(self) -> None:
        """Write records of anybody in a transaction that is aborted: no reader sees them."""
        label = self.chance.choice((self.label(self.epoch, self.batch + 3), Label(STRANGER, 0, 0)))
        headers: Headers = [_header(label)][: self.chance.randrange(2)]
        self.in_transaction(headers, self.chance.randrange(1, 6), is_committed=False)

    def restore(self) -> None:
        """Go back to a micro-batch: what was written after it does not count any more."""
        self.batch = self.chance.randrange(max(0, self.batch - 4), self.batch + 1)
        self.epoch += 1
        kept = [segment for segment in self.timeline if segment.first < self.batch]
        self.timeline = [*kept, Segment(self.epoch, self.batch)]
        for record in self.records:
            if record.label is not None and record.label.batch >= self.batch:
                record.counts = False

    def write_as_zombie(self) -> None:
        """Repeat a micro-batch of an older epoch that does not count, or go on after it."""
        dead = [r.label for r in self.records if r.label is not None and not r.counts]
        if dead:
            label = self.chance.choice(dead)
            later = self.label(label.epoch, label.batch + self.chance.randrange(2))
            headers = [_header(later)]
            self.add(headers, self.chance.choice((1, 5, 30, 300)), counts=False)

    def add_partition(self) -> None:
        """Add a partition, for later records."""
        self.partition_count += 1
        wanted = NewPartitions(self.name, self.partition_count)
        self.admin.create_partitions([wanted])[self.name].result()
        self._wait_until_ready()

    def delete_records(self) -> None:
        """Let Kafka delete the first records of some partitions."""
        ended = ends(self)
        some = self.chance.sample(sorted(ended), k=self.chance.randrange(1, len(ended) + 1))
        firsts = {partition: self.chance.randint(0, ended[partition]) for partition in some}
        firsts = {p: at for p, at in firsts.items() if at > self.deleted.get(p, 0)}
        wanted = [TopicPartition(self.name, partition, at) for partition, at in firsts.items()]
        for done in self.admin.delete_records(wanted).values() if wanted else ():
            done.result()
        self.deleted |= firsts
        self.records = [r for r in self.records if r.offset >= self.deleted.get(r.partition, 0)]

    def fill(self) -> None:
        """Take steps at random."""
        self.adopt()
        steps = [self.write_batch] * 6 + [self.restore, self.write_as_zombie, self.abort]
        rare = self.chance.sample((self.add_partition, self.delete_records, self.delete_records), 2)
        plan: list[Callable[[], None]] = self.chance.choices(steps, k=STEP_COUNT)
        for step in rare:
            plan.insert(self.chance.randrange(len(plan) // 2, len(plan) + 1), step)
        for step in plan:
            step()

    # What it should say.

    @property
    def counting(self) -> Counting:
        """What decides which of its records count."""
        topic = Topic(
            name="channel", topic=self.name, servers=self.servers, source="source", targets=("t",)
        )
        record = TopicRecord(writer=WRITER.hex(), first_offsets=self.first_offsets)
        return Counting(topic, record, tuple(self.timeline))

    def of(self, partition: int) -> list[Written]:
        """Return the records of a partition, in their order."""
        return sorted((r for r in self.records if r.partition == partition), key=_offset)

    def newest_before(self, positions: Mapping[int, int], newest: int) -> int | None:
        """Return what ``newest_batch_before`` should."""
        found = []
        for partition, position in positions.items():
            counting = [record for record in self.of(partition) if record.counts]
            before = [record for record in counting if record.offset < position]
            if before:
                found += [] if before[-1].label is None else [before[-1].label.batch]
            elif position > 0 and self.deleted.get(partition, 0) > 0:
                after = [r.label.batch for r in counting if r.label and r.offset >= position]
                found.append(after[0] if after else newest)
        return max(found, default=None)

    def random_positions(self) -> dict[int, int]:
        """Return a position for each partition, or for some: at the start, within, at the end, or
        beside a record."""
        positions = {}
        for partition, end in ends(self).items():
            near = [record.offset + 1 for record in self.of(partition) if record.counts]
            positions[partition] = self.chance.choice(
                [0, end, self.chance.randint(0, end), *near[-1:], self.chance.choice(near or [0])]
            )
        if self.chance.random() < 0.2:
            positions.popitem()
        return positions


def _header(label: Label) -> tuple[str, str | bytes | None]:
    return HEADER, label.encoded


def _parts(headers: Headers) -> tuple[bytes, int, int] | None:
    value = headers[-1][1] if headers and headers[-1][0] == HEADER else None
    if not isinstance(value, bytes) or len(value) != len(Label(WRITER, 0, 0).encoded):
        return None
    return value[:8], int.from_bytes(value[8:12]), int.from_bytes(value[12:])


def _offset(record: Written) -> int:
    return record.offset


def ends(topic: RandomTopic) -> dict[int, int]:
    """Return the offset that the next record of each partition will have."""
    with Broker(topic.servers) as broker:
        return broker.end_offsets(topic.name)


@pytest.fixture
def broker(kafka_server: KafkaServer) -> Iterator[Broker]:
    """A connection to it."""
    with Broker(kafka_server.address) as connected:
        yield connected


@pytest.fixture
def topic(kafka_server: KafkaServer, request: pytest.FixtureRequest) -> RandomTopic:
    """A topic with one partition, and no record."""
    name = re.sub(r"\W", "-", request.node.name)
    return RandomTopic(name, kafka_server.address, random.Random(1))


@pytest.fixture(params=SEEDS)
def filled(kafka_server: KafkaServer, request: pytest.FixtureRequest) -> RandomTopic:
    """A topic that was filled at random."""
    chance = random.Random(request.param)
    made = RandomTopic(
        f"{request.node.originalname}-{request.param}",
        kafka_server.address,
        chance,
        chance.randint(1, 3),
    )
    made.fill()
    return made


def test_every_record_that_was_not_aborted_or_deleted_is_read(
    broker: Broker, filled: RandomTopic
) -> None:
    """Control records and aborted ones are left out, and all offsets are those of the producer."""
    assert broker.first_offsets(filled.name) == {
        partition: filled.deleted.get(partition, 0) for partition in range(filled.partition_count)
    }
    found: dict[int, list[tuple[int, Label | None]]] = {}
    ranges = {p: (filled.deleted.get(p, 0), end) for p, end in ends(filled).items()}
    for record in broker.records(filled.name, ranges):
        found.setdefault(record.partition, []).append((record.offset, record.label))
    wanted = {p: [(r.offset, r.label) for r in filled.of(p)] for p in ranges}
    assert found == {p: records for p, records in wanted.items() if records}


def test_the_newest_batch_before_random_positions_is_that_of_the_last_record_that_counts(
    broker: Broker, filled: RandomTopic
) -> None:
    """Whatever lies between: zombies, aborted and deleted records, and partitions without any."""
    newest = filled.batch + 1
    for _ in range(LOOK_COUNT):
        positions = filled.random_positions()
        found = broker.newest_batch_before(filled.counting, positions, newest)
        assert found == filled.newest_before(positions, newest), positions


def test_the_span_of_an_interrupted_batch_has_all_of_its_records(
    broker: Broker, filled: RandomTopic
) -> None:
    """Zombies may lie before, between and after them; partitions without one are left out."""
    for number in range(3):
        label = filled.label(filled.epoch, filled.batch)
        spans = broker.span_of(filled.counting, label)
        ended = ends(filled)
        assert spans.keys() == {r.partition for r in filled.records if r.label == label}
        for partition, (start, end) in spans.items():
            offsets = [r.offset for r in filled.of(partition) if r.label == label]
            assert filled.deleted.get(partition, 0) <= start <= offsets[0]
            assert end == ended[partition]
        # Now it is interrupted: with some records, and then with zombies behind them.
        filled.add([_header(label)], filled.chance.randrange(1, 90), counts=True)
        if number == 1:
            filled.write_as_zombie()


def test_a_batch_after_the_interrupted_one_means_that_the_checkpoint_was_edited(
    broker: Broker, filled: RandomTopic
) -> None:
    """The error names the topic, and both micro-batches."""
    filled.add([_header(filled.label(filled.epoch, filled.batch + 2))], 1, counts=True)
    filled.write_as_zombie()
    with pytest.raises(NotConsistent) as caught:
        broker.span_of(filled.counting, filled.label(filled.epoch, filled.batch))
    said = str(caught.value)
    assert f"topic {filled.name} has records of micro-batch {filled.batch + 2} of query" in said
    assert f"ends before micro-batch {filled.batch}" in said


def test_a_foreign_record_is_an_error_only_where_it_is_looked_at(
    broker: Broker, filled: RandomTopic
) -> None:
    """Behind the last record that counts it is, beyond the position it is not, and what is said
    of it is its place."""
    filled.add([_header(filled.label(filled.epoch, filled.batch))], 3, counts=True)
    own = _header(filled.label(filled.epoch, filled.batch))
    kinds: list[Headers] = [[], [(HEADER, b"short")], [_header(Label(STRANGER, 0, 0))]]
    kinds += [[own, *TRACE], [("other", own[1])]]
    strange = filled.chance.choice(kinds)
    filled.add(strange, 1, counts=False)
    foreign = filled.records[-1]
    where = f"the record with offset {foreign.offset} in partition {foreign.partition} of topic"
    before = {foreign.partition: foreign.offset}
    newest = filled.batch
    assert broker.newest_batch_before(filled.counting, before, newest) == filled.newest_before(
        before, newest
    )
    for look in (
        lambda: broker.newest_batch_before(filled.counting, ends(filled), newest),
        lambda: broker.span_of(filled.counting, filled.label(filled.epoch, filled.batch)),
    ):
        with pytest.raises(NotConsistent) as caught:
            look()
        assert where in str(caught.value)


def test_a_foreign_record_before_one_that_counts_is_not_looked_at(
    broker: Broker, topic: RandomTopic
) -> None:
    """Only the last record before the position is read."""
    topic.write_batch()
    topic.add([], 1, counts=False)
    topic.add([_header(topic.label(0, 7))], 1, counts=True)
    assert broker.newest_batch_before(topic.counting, ends(topic), 9) == 7
    assert broker.span_of(topic.counting, topic.label(0, 8)) == {}


def test_a_position_before_the_first_record_that_is_left_is_at_most_of_the_next_one(
    broker: Broker, topic: RandomTopic
) -> None:
    """Kafka has deleted the records around the position, too."""
    for batch in (1, 2, 3):
        topic.add([_header(topic.label(0, batch))], 4, counts=True)
    topic.admin.delete_records([TopicPartition(topic.name, 0, 6)])
    topic.deleted[0] = 6
    assert broker.newest_batch_before(topic.counting, {0: 2}, 3) == 2


def test_an_open_transaction_hides_what_is_behind_it_and_blocks_nobody(
    broker: Broker, topic: RandomTopic
) -> None:
    """A record that may yet be aborted is not there."""
    topic.add([_header(topic.label(0, 0))], 2, counts=True)
    producer = Producer(settings_of(topic.servers) | {"transactional.id": topic.name})
    producer.init_transactions()
    producer.begin_transaction()
    topic.write(producer, [(0, [_header(topic.label(0, 1))])])
    end = ends(topic)
    assert end == {0: 3}
    assert broker.newest_batch_before(topic.counting, end, 1) == 0
    topic.end_transaction(producer, {0}, is_committed=True)
    assert broker.newest_batch_before(topic.counting, end, 1) == 1


def test_random_topics_have_what_is_tested(kafka_server: KafkaServer) -> None:
    """Deleted records, partitions that were added or are empty, adopted records, and zombies."""
    seen = {"deleted": 0, "adopted": 0, "added": 0, "restored": 0, "zombie last": 0, "empty": 0}
    for seed in range(6):
        chance = random.Random(seed)
        one = RandomTopic(f"kinds-{seed}", kafka_server.address, chance, chance.randint(1, 3))
        one.fill()
        seen["deleted"] += any(one.deleted.values())
        seen["adopted"] += any(one.first_offsets.values())
        seen["added"] += one.partition_count > len(one.first_offsets)
        seen["restored"] += len(one.timeline) > 1
        seen["zombie last"] += any(
            records and not records[-1].counts
            for records in map(one.of, range(one.partition_count))
        )
        seen["empty"] += any(not one.of(partition) for partition in range(one.partition_count))
    assert all(count > 0 for count in seen.values()), seen


def test_without_a_broker_it_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says which brokers do not answer, and what to check."""
    monkeypatch.setattr(kafka_module, "TIMEOUT_S", 0.3)
    address = f"127.0.0.1:{free_port()}"
    with Broker(address) as away:
        asked: list[Callable[[], object]] = [
            lambda: away.first_offsets("orders"),
            lambda: away.end_offsets("orders"),
            lambda: list(away.records("orders", {0: (0, 5)})),
        ]
        for ask in asked:
            with pytest.raises(Unavailable, match=f"Kafka at {address} does not answer") as caught:
                ask()
            assert str(caught.value.remedy).startswith(
                "check that the brokers run and can be reached"
            )


@pytest.mark.parametrize(
    ("said", "is_rejected"),
    [
        ("SASL authentication error: Authentication failed (after 5ms in state AUTH_REQ)", True),
        ("SASL PLAIN mechanism handshake failed: Broker: Unsupported SASL mechanism", True),
        ("SASL PLAIN mechanism handshake failed: Local: Timed out: broker's supported", False),
        ("Disconnected: hung up from peer in state AUTH_LEGACY", False),
    ],
)
def test_a_login_without_an_answer_is_not_a_rejected_one(said: str, is_rejected: bool) -> None:
    """Librdkafka has the same code for both, and logs in again: that helps with the second."""
    connection = kafka_module.Connection("away:9092")
    settings = connection.client(dict, {})
    settings["error_cb"](KafkaError(KafkaError._AUTHENTICATION, said))
    rejection = pytest.raises(Unavailable, match=rf"rejects the login .*{re.escape(said)}")
    with rejection if is_rejected else contextlib.nullcontext():
        connection.check_login()


def test_a_broker_that_was_killed_is_unavailable_until_it_runs_again(
    kafka_server: KafkaServer, topic: RandomTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same connection is used before, meanwhile and after that."""
    topic.add([_header(topic.label(0, 4))], 3, counts=True)
    with Broker(kafka_server.address) as broker:
        assert broker.newest_batch_before(topic.counting, {0: 3}, 4) == 4
        kafka_server.kill()
        with monkeypatch.context() as patched:
            patched.setattr(kafka_module, "TIMEOUT_S", 0.3)
            with pytest.raises(Unavailable, match="does not answer as it should"):
                Broker(kafka_server.address).newest_batch_before(topic.counting, {0: 3}, 4)
            with pytest.raises(Unavailable, match=f"topic {topic.name}"):
                list(broker.records(topic.name, {0: (0, 3)}))
        kafka_server.start()
        assert broker.newest_batch_before(topic.counting, {0: 3}, 4) == 4


@pytest.mark.parametrize(
    ("question", "code"),
    [
        ("list_offsets", KafkaError.NOT_LEADER_FOR_PARTITION),
        ("list_offsets", KafkaError.UNKNOWN_LEADER_EPOCH),
        ("list_offsets", KafkaError.UNKNOWN_TOPIC_OR_PART),
        ("describe_topics", KafkaError.UNKNOWN_TOPIC_OR_PART),
        ("describe_configs", KafkaError.UNKNOWN_TOPIC_OR_PART),
        ("delete_records", KafkaError.UNKNOWN_TOPIC_OR_PART),
    ],
)
def test_what_a_broker_has_not_heard_yet_is_asked_for_again(
    broker: Broker, topic: RandomTopic, question: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All brokers know after a moment which one has a partition, and which topics there are: no
    query need fail for that. The topic was there before."""
    topic.write_batch()
    wanted = ends(topic)
    assert broker.end_offsets(topic.name) == wanted
    answers: list[dict[Any, Future[Any]]] = []
    ask = getattr(broker._admin, question)

    def asked(*what: Any, **how: Any) -> dict[Any, Future[Any]]:
        answers.append(ask(*what, **how))
        if len(answers) < 3:
            for one in answers[-1]:
                answers[-1][one] = Future()
                answers[-1][one].set_exception(KafkaException(KafkaError(code)))
        return answers[-1]

    monkeypatch.setattr(broker._admin, question, asked)
    broker.check(topic.counting.topic)
    broker.delete_before(topic.name, 0)
    assert broker.end_offsets(topic.name) == wanted
    assert len(answers) > 2


@pytest.mark.parametrize(
    ("known_id", "timeout_s", "asked", "words"),
    [
        ("A", 60.0, 3, None),
        ("A", 0.0, 1, "if it still exists, start this again"),
        ("", 60.0, 1, "there is no topic pay: create it first"),
    ],
)
def test_a_known_topic_that_a_broker_has_not_heard_of_is_asked_for_again(
    known_id: str, timeout_s: float, asked: int, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the start of a broker: only another id shows that it was deleted."""
    count = 0

    def describe(_: object) -> dict[str, Future[Any]]:
        nonlocal count
        count += 1
        answer: Future[Any] = Future()
        if count < 3:
            absent = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
            answer.set_exception(KafkaException(absent))
        else:
            answer.set_result(SimpleNamespace(topic_id="A"))
        return {"pay": answer}

    monkeypatch.setattr(kafka_module, "_POLL_S", 0.0)
    refused = pytest.raises(StillframeError, match=words)
    with Broker(f"127.0.0.1:{free_port()}") as away, refused if words else contextlib.nullcontext():
        monkeypatch.setattr(kafka_module, "TIMEOUT_S", timeout_s)
        monkeypatch.setattr(away, "_admin", SimpleNamespace(describe_topics=describe))
        present_id(away, "pay", known_id)
    assert count == asked


def test_a_topic_that_does_not_exist_is_named(broker: Broker) -> None:
    """It is not made by asking."""
    for _ in range(2):
        with pytest.raises(UsageError, match="there is no topic absent at"):
            broker.end_offsets("absent")


@pytest.mark.parametrize("partition", [0, 99])
def test_records_that_a_topic_does_not_have_are_no_fault_of_the_login(
    broker: Broker, topic: RandomTopic, partition: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor of the broker: the topic ends before, or has no such partition."""
    monkeypatch.setattr(kafka_module, "TIMEOUT_S", 0.3)
    start = ends(topic).get(partition, 0) + 3
    words = f"does not have the next record of partition {partition} any more"
    with pytest.raises(NotConsistent, match=words):
        list(broker.records(topic.name, {partition: (start, start + 2)}))


def test_labels_of_another_pipeline_count_if_they_were_there_before(
    broker: Broker, topic: RandomTopic
) -> None:
    """No micro-batch of the writer has them, and none that is interrupted is looked for in them."""
    topic.add([_header(Label(STRANGER, 1, 7))], 3, counts=True)
    topic.first_offsets = ends(topic)
    assert broker.newest_batch_before(topic.counting, {0: 3}, 5) is None
    assert broker.span_of(topic.counting, topic.label(0, 0)) == {}
    topic.add([_header(topic.label(0, 0))], 1, counts=True)
    assert broker.newest_batch_before(topic.counting, {0: 4}, 5) == 0
    assert broker.span_of(topic.counting, topic.label(0, 0)).keys() == {0}
