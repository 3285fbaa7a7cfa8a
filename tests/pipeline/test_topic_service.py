"""Services that read and write topics of a real Kafka: exactly once, whatever happens."""

import contextlib
import functools
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from stillframe.errors import Damaged, NotConsistent, Unavailable, UsageError
from stillframe.model import Abandoned
from stillframe.pipeline import (
    JoinedTopicService,
    KafkaRecord,
    Pipeline,
    joined,
    kafka,
    kafka_channel,
    ledger,
    locks,
    outages,
    topic_service,
    transactions,
)
from stillframe.pipeline.kafka import Broker
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.pipeline.topic_service import join
from tests.kafka_topics import create_again
from tests.pipeline.topic_services import (
    ADMIN,
    KILLED_COMMIT,
    LIMIT,
    ORDER_COUNT,
    STAGES,
    Ledger,
    Till,
    chain,
    counting_records,
    counting_values,
    cycle,
    made_topics,
    numbers_of,
    run_ledger,
    run_player,
    run_till,
)
from tests.spark import outside

pytestmark = pytest.mark.slow

SENT = list(range(ORDER_COUNT))
SUMS = list(range(1, ORDER_COUNT + 1))
TOTAL = sum(SENT)


@pytest.fixture
def servers(kafka_server: outside.KafkaServer) -> str:
    """Return the address of the broker."""
    return kafka_server.address


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is refused because a program runs be refused at once."""
    monkeypatch.setattr(locks, "WAIT_S", 0.1)


def taken(pipeline: Pipeline) -> Manifest:
    """Take a snapshot, which must be published."""
    manifest = pipeline.snapshot()
    assert isinstance(manifest, Manifest), manifest
    return manifest


def state_of(manifest: Manifest, name: str) -> dict[str, Any]:
    """Return the recorded fields of a service."""
    service = manifest.fragment(name).service
    assert service is not None
    return service.fields()


@contextlib.contextmanager
def raising(kind: type[Exception], words: str | None) -> Iterator[None]:
    """Expect an error of a body of several lines: at which of them it is raised does not matter."""
    with pytest.raises(kind, match=words):
        yield


def in_thread(run: Any, *args: Any) -> threading.Thread:
    """Run a service beside the test."""
    thread = threading.Thread(target=run, args=args)
    thread.start()
    return thread


# --- exactly once


def killed(pipeline: Pipeline, name: str, stage: str) -> None:
    """Run a service in a program that ends by SIGKILL at a stage."""
    command = [sys.executable, "-m", "tests.pipeline.topic_services", pipeline.path, name, stage]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL


@pytest.mark.parametrize("stage", STAGES)
def test_a_service_that_was_killed_just_starts_again(
    tmp_path: Path, servers: str, stage: str
) -> None:
    """At whatever stage it was killed, it continues after its last transaction: every record is
    read once, and what it writes counts once."""
    pipeline = chain(tmp_path / "p.pipeline", servers)
    run_till(pipeline.path)
    killed(pipeline, "ledger", stage)
    state = run_ledger(pipeline.path)
    assert (state.count, state.total) == (ORDER_COUNT, TOTAL)
    assert counting_values(pipeline, "sums") == SUMS


@pytest.mark.parametrize("stage", ["records sent", "committed"])
def test_a_service_without_incoming_channels_continues_too(
    tmp_path: Path, servers: str, stage: str
) -> None:
    """What a source sends follows from its state, so nothing is missing or sent twice."""
    pipeline = chain(tmp_path / "p.pipeline", servers)
    killed(pipeline, "till", stage)
    assert run_till(pipeline.path).sent_count == ORDER_COUNT
    assert counting_values(pipeline, "orders") == SENT


@pytest.mark.nightly(part="soak", only=True)
def test_many_kills_in_one_run(tmp_path: Path, servers: str) -> None:
    """One service is killed at one stage after the other, and nothing is lost or doubled."""
    pipeline = chain(tmp_path / "p.pipeline", servers)
    run_till(pipeline.path, 20 * ORDER_COUNT)
    for _ in range(10):
        for stage in STAGES[-3:]:
            killed(pipeline, "ledger", stage)
            taken(pipeline)
    state = run_ledger(pipeline.path, 20 * ORDER_COUNT)
    assert counting_values(pipeline, "sums") == list(range(1, 20 * ORDER_COUNT + 1))
    assert state.total == sum(range(20 * ORDER_COUNT))


def test_an_action_that_fails_is_done_again(tmp_path: Path, servers: str) -> None:
    """An error in the body leaves nothing of the action that it ended."""
    pipeline = chain(tmp_path / "p.pipeline", servers)
    run_till(pipeline.path)
    state = Ledger()
    with (
        raising(ZeroDivisionError, None),
        pipeline.join_service("ledger", state=state) as me,
    ):
        me.receive()
        me.append("sums", "999")
        raise ZeroDivisionError
    assert counting_values(pipeline, "sums") == []
    assert run_ledger(pipeline.path).total == TOTAL
    assert counting_values(pipeline, "sums") == SUMS


def test_what_the_last_actions_did_is_committed_at_the_end(tmp_path: Path, servers: str) -> None:
    """The end of the body is the end of an action, and so is leaving."""
    pipeline = chain(tmp_path / "p.pipeline", servers)
    with pipeline.join_service("till", state=Till()) as till:
        till.append("orders", "1")
        till.boundary()
        till.append("orders", "2")
        till.boundary()
        till.append("orders", b"3")
    assert counting_values(pipeline, "orders") == [1, 2, 3]
    with pipeline.join_service("till", state=Till()) as till:
        till.append("orders", "4")
        till.leave()
        till.boundary()
        till.append("orders", "5")
    assert counting_values(pipeline, "orders") == [1, 2, 3, 4]


def test_a_service_that_waits_commits_in_time(tmp_path: Path, servers: str) -> None:
    """While it waits in ``receive``, what it did becomes visible to others."""
    pipeline = chain(tmp_path / "p.pipeline", servers)
    reading = in_thread(run_ledger, pipeline.path, 2)
    with pipeline.join_service("till", state=Till()) as till:
        for _ in range(2):
            # The second one comes too soon after the commit of the first.
            till.append("orders", "1")
            till.boundary()
        while reading.is_alive():
            assert till.receive(0.05) is None
    assert counting_values(pipeline, "sums") == [1, 2]


# --- what is received


def test_a_record_has_all_that_was_sent(tmp_path: Path, servers: str) -> None:
    """Key, value, headers, partition, offset and time arrive, and the label does not."""
    pipeline = chain(tmp_path / "p.pipeline", servers)
    with pipeline.join_service("till", state=Till(), kind=JoinedTopicService) as till:
        till.append("orders", "zwölf", key=b"k", headers=[("a", "1"), ("b", None)], partition=1)
    with pipeline.join_service("ledger", state=Ledger(), kind=JoinedTopicService) as me:
        channel, records = me.receive()
        assert me.receive(0) is None
        assert me.positions == {"orders": {0: 0, 1: 1}}
    assert channel == "orders"
    [record] = records
    assert record == KafkaRecord(
        partition=1,
        offset=0,
        key=b"k",
        value="zwölf".encode(),
        headers=(("a", b"1"), ("b", None)),
        timestamp_ms=record.timestamp_ms,
    )
    assert record.timestamp_ms > 0


def entering(path: Path, servers: str, *names: str) -> Pipeline:
    """Make a pipeline with one service, `sink`, that reads topics which other programs write."""
    channels = [
        kafka_channel(name, topic=topic, servers=servers, targets=["sink"])
        for name, topic in zip(names, made_topics(servers, *names), strict=True)
    ]
    return Pipeline.create(path, services={"sink": Ledger}, channels=channels)


def send(servers: str, topic: str, *values: str, partition: int = 0) -> None:
    """Write records as another program does."""
    producer = confluent_kafka.Producer({"bootstrap.servers": servers})
    for value in values:
        producer.produce(topic, value, partition=partition)
    producer.flush()


def test_a_first_start_reads_what_is_there(
    tmp_path: Path, servers: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It begins at the first offset that each partition still has, in every topic, and says which
    records it has missed."""
    pipeline = entering(tmp_path / "p.pipeline", servers, "one", "two")
    one, two = (topic.topic for topic in pipeline.dataflow.topics)
    send(servers, one, "1", "2", "3")
    send(servers, two, "4", partition=1)
    with Broker(servers) as broker:
        broker.delete_before(one, 2)
    found: dict[str, list[bytes]] = {}
    with pipeline.join_service("sink", state=Ledger()) as me:
        while sum(map(len, found.values())) < 2:
            channel, records = me.receive()
            found.setdefault(channel, []).extend(record.value for record in records)
    assert found == {"one": [b"3"], "two": [b"4"]}
    [said] = caplog.messages
    assert said.startswith(f"service sink starts at offset 2 in partition 0 of topic {one}, where")
    manifest = taken(pipeline)
    assert manifest.topic_positions("sink") == {"one": {0: 3, 1: 0}, "two": {0: 0, 1: 1}}


def test_a_topic_that_is_created_again_under_a_running_service(
    tmp_path: Path, servers: str
) -> None:
    """Nothing takes effect that was read from the new one at the positions of the old one, and
    nothing can be continued or read."""
    pipeline = entering(tmp_path / "p.pipeline", servers, "one")
    topic = pipeline.dataflow.topic("one").topic
    send(servers, topic, "1", "2", "3")
    following = pipeline.topic_records("one", follow=True)
    assert [next(following).value for _ in range(3)] == [b"1", b"2", b"3"]
    again = pytest.raises(NotConsistent, match=f"topic {topic} was deleted and created again")
    with again, pipeline.join_service("sink", state=Ledger(), kind=JoinedTopicService) as me:
        while me.positions["one"][0] < 3:
            me.receive()
        while (before := taken(pipeline)).topic_positions("sink")["one"][0] < 3:
            me.boundary()  # commits when it is due
        create_again(servers, topic)
        send(servers, topic, *"abcde")
        while True:
            me.receive(0.1)
    with Broker(servers) as broker:
        found = ledger.find_ledger(pipeline.path, "sink", 1, broker)
        assert found is not None
        assert {max(one.positions["one"].values()) for one in found.versions()} == {0, 3}
    refused = pipeline.snapshot()
    assert isinstance(refused, Abandoned)
    assert "created again" in refused.detail
    for use in (
        lambda: run_ledger_of(pipeline),
        lambda: next(following),
        lambda: pipeline.topic_records("one"),
        lambda: next(pipeline.topic_records("one", follow=True)),
        lambda: pipeline.topic_records("one", snapshot=before.snapshot),
        lambda: pipeline.restore(before.snapshot),
    ):
        with again:
            use()


def run_ledger_of(pipeline: Pipeline) -> None:
    """Start the service of ``entering``."""
    with pipeline.join_service("sink", state=Ledger()):
        pass


def test_records_from_before_the_writer_count(tmp_path: Path, servers: str) -> None:
    """What was in a topic when its writer joined belongs to it; there is no cut before it was
    read."""
    pipeline = chain(tmp_path / "p.pipeline", servers)
    send(servers, pipeline.dataflow.topic("orders").topic, "1000", "1001")
    with pipeline.join_service("ledger", state=Ledger()) as me:
        # Its writer has not joined, so it is not known yet which records are its own.
        assert me.receive(0) is None
    run_till(pipeline.path)
    refused = pipeline.snapshot()
    assert isinstance(refused, Abandoned)
    assert "ledger has not consumed the records yet that were in its topics" in refused.detail
    assert run_ledger(pipeline.path, ORDER_COUNT + 2).total == TOTAL + 2001
    assert state_of(taken(pipeline), "ledger")["total"] == TOTAL + 2001


def test_a_record_that_the_writer_has_not_written_is_an_error(tmp_path: Path, servers: str) -> None:
    """A second writer of a topic is noticed by who reads it."""
    pipeline = chain(tmp_path / "p.pipeline", servers)
    run_till(pipeline.path)
    send(servers, pipeline.dataflow.topic("orders").topic, "1")
    with pytest.raises(NotConsistent, match=r"orders-\S+ has no label, and only till may write"):
        run_ledger(pipeline.path, ORDER_COUNT + 1)


def test_records_that_came_after_a_start_that_failed_count(
    tmp_path: Path, servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that wrote the topic before may have gone on writing it."""
    pipeline = chain(tmp_path / "p.pipeline", servers)

    def fail(*place: object) -> None:
        raise Unavailable("no ledger")

    with monkeypatch.context() as failing:
        failing.setattr(topic_service, "open_ledger", fail)
        with pytest.raises(Unavailable, match="no ledger"):
            run_till(pipeline.path)
    send(servers, pipeline.dataflow.topic("orders").topic, "1000")
    run_till(pipeline.path)
    assert run_ledger(pipeline.path, ORDER_COUNT + 1).total == TOTAL + 1000


def test_a_deleted_record_is_an_error(tmp_path: Path, servers: str) -> None:
    """A service does not skip records that it had to read."""
    pipeline = chain(tmp_path / "p.pipeline", servers)
    with pipeline.join_service("ledger", state=Ledger()):
        pass
    run_till(pipeline.path)
    topic = pipeline.dataflow.topic("orders").topic
    with Broker(servers) as broker:
        broker.delete_before(topic, 3)
    with pytest.raises(
        NotConsistent, match=f"topic {topic} does not have the next record .* offset 0"
    ):
        run_ledger(pipeline.path)


# --- one program at a time


class NoLock(locks.Lock):
    """A lock that two programs hold, as a lease after its holder was frozen."""

    def try_acquire(self) -> bool:
        """See the class."""
        return True


@pytest.fixture
def _locks_do_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined, "participant_lock", lambda root, name: NoLock(root / name))


@pytest.mark.usefixtures("_locks_do_not_help")
def test_a_second_program_ends_the_first(tmp_path: Path, servers: str) -> None:
    """Of two programs of one service, only the later one can commit."""
    pipeline = chain(tmp_path / "p.pipeline", servers)
    with (
        raising(Unavailable, "has taken the place of service till"),
        pipeline.join_service("till", state=Till()) as first,
    ):
        first.append("orders", "1")
        first.boundary()
        with pipeline.join_service("till", state=Till()) as second:
            second.append("orders", "2")
        first.append("orders", "3")
    assert counting_values(pipeline, "orders") == [1, 2]


def test_a_running_service_is_not_joined_or_restored(tmp_path: Path, servers: str) -> None:
    """While a program runs it, both are refused."""
    pipeline = chain(tmp_path / "p.pipeline", servers)
    run_till(pipeline.path)
    run_ledger(pipeline.path)
    manifest = taken(pipeline)
    with pipeline.join_service("till", state=Till()):
        with pytest.raises(Unavailable, match="another program runs service till"):
            run_till(pipeline.path)
        with pytest.raises(Unavailable, match="till is running"):
            pipeline.restore(manifest.snapshot)


@pytest.mark.usefixtures("_locks_do_not_help")
def test_what_a_program_of_an_old_epoch_writes_does_not_count(tmp_path: Path, servers: str) -> None:
    """A program that did not notice a restore commits, and neither its records nor its state are of
    the new epoch."""
    pipeline = chain(tmp_path / "p.pipeline", servers)
    run_till(pipeline.path, 20)
    run_ledger(pipeline.path, 20)
    manifest = taken(pipeline)
    with (
        contextlib.suppress(Unavailable),
        pipeline.join_service("till", state=(old := Till())) as zombie,
    ):
        pipeline.restore(manifest.snapshot)
        zombie.append("orders", "77")
        old.sent_count = 77
        zombie.boundary()
        assert run_till(pipeline.path).sent_count == ORDER_COUNT
    assert counting_values(pipeline, "orders") == SENT
    assert run_ledger(pipeline.path).total == TOTAL


# --- what can fail


def test_a_rejected_record_leaves_nothing_behind(tmp_path: Path, servers: str) -> None:
    """The transaction is aborted: no record of it counts, and the next start uses its number."""
    [topic] = made_topics(servers, "small", settings={"max.message.bytes": "2000"})
    pipeline = Pipeline.create(
        tmp_path / "p.pipeline",
        services={"till": Till},
        channels=[kafka_channel("orders", topic=topic, servers=servers, source="till")],
    )
    with (
        raising(UsageError, f"a record is larger than topic {topic} takes"),
        pipeline.join_service("till", state=Till(), kind=JoinedTopicService) as till,
    ):
        till.append("orders", "1", partition=0)
        till.append("orders", "2" * 5000, partition=1)
        with pytest.raises(UsageError):
            till.boundary()
        till.boundary()
    assert counting_values(pipeline, "orders") == []
    with pipeline.join_service("till", state=Till()) as till:
        till.append("orders", "3")
    [record] = counting_records(pipeline, "orders")
    assert (record.value, record.label.batch) == (b"3", 0)


def count_up(me: JoinedTopicService, state: Ledger) -> None:
    """Receive the next numbers, and send their count."""
    received = me.receive()
    assert received is not None
    for record in received[1]:
        state.count += 1
        state.total += int(record.value or b"")
        me.append("sums", str(state.count))


def test_without_kafka_nothing_is_lost(
    tmp_path: Path, kafka_server: outside.KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit is given up after a while, with advice; later the service does that work again."""
    monkeypatch.setenv(outages.VARIABLE, "1")
    servers = kafka_server.address
    pipeline = chain(tmp_path / "p.pipeline", servers)
    run_till(pipeline.path)
    words = (
        f"service ledger gave up: the broker at {servers} has not answered .*, more than 1 s "
        rf"\({outages.VARIABLE}\): .*: check that the brokers run.* start this again"
    )
    with (
        raising(Unavailable, words),
        pipeline.join_service("ledger", state=(state := Ledger()), kind=JoinedTopicService) as me,
    ):
        count_up(me, state)
        for module in (transactions, kafka):
            monkeypatch.setattr(module, "TIMEOUT_S", 0.5)
        with kafka_server.frozen():
            for _ in me:
                pass
    monkeypatch.undo()
    assert run_ledger(pipeline.path).total == TOTAL
    assert counting_values(pipeline, "sums") == SUMS


def no_answer(*_: object) -> None:
    """Fail as a commit to which no broker answers."""
    code = confluent_kafka.KafkaError._TIMED_OUT
    raise confluent_kafka.KafkaException(confluent_kafka.KafkaError(code))


class CutShort(confluent_kafka.Producer):
    """Its fourth commit ends without an answer."""

    commit_count = 0
    cut: Callable[[Callable[[], None]], object] = no_answer

    def commit_transaction(self, *args: Any) -> None:
        """See the class."""
        CutShort.commit_count += 1
        commit = functools.partial(super().commit_transaction, *args)
        if CutShort.commit_count == KILLED_COMMIT:
            CutShort.cut(commit)
        else:
            commit()


@pytest.fixture
def _cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small actions, each a transaction, and calls that are soon given up."""
    monkeypatch.setattr(topic_service, "COMMIT_S", 0.0)
    monkeypatch.setattr(topic_service, "_COST_FACTOR", 0)
    monkeypatch.setattr(kafka, "_CONSUMED_COUNT", 5)
    monkeypatch.setattr(CutShort, "commit_count", 0)


class Return(logging.Handler):
    """Brings a broker back when a service says that it waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.back = contextlib.ExitStack()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """See the class."""
        self.said.append(record.getMessage())
        self.back.close()


@pytest.mark.usefixtures("_cut_short")
@pytest.mark.parametrize("how", ["frozen", "killed", "not committed", "committed"])
def test_a_service_waits_for_a_broker_that_is_away(
    tmp_path: Path, kafka_server: outside.KafkaServer, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The outcome of the commit is unknown. When the broker is back the service finds out, and each
    record is read and written once."""
    returning = Return()

    def cut(commit: Callable[[], None]) -> None:
        # From here on, for what is asked at once.
        for module in (transactions, kafka):
            monkeypatch.setattr(module, "TIMEOUT_S", 0.5)
        if how == "frozen":
            returning.back.enter_context(kafka_server.frozen())
        elif how == "killed":
            kafka_server.kill()
            returning.back.callback(kafka_server.start)
        if how != "not committed":
            commit()
        no_answer()

    monkeypatch.setattr(CutShort, "cut", cut)
    pipeline = chain(tmp_path / "p.pipeline", kafka_server.address)
    run_till(pipeline.path)
    monkeypatch.setattr(confluent_kafka, "Producer", CutShort)
    logging.getLogger("stillframe.pipeline").addHandler(returning)
    try:
        assert run_ledger(pipeline.path).total == TOTAL
    finally:
        logging.getLogger("stillframe.pipeline").removeHandler(returning)
        returning.back.close()
    # On a busy machine short calls may fail once more.
    begins, *_, ends = returning.said
    where = f"service ledger is waiting for the broker at {kafka_server.address} since "
    assert begins.startswith(where)
    assert ends.startswith("service ledger continues: the broker answers after ")
    assert counting_values(pipeline, "sums") == SUMS


@pytest.mark.usefixtures("_cut_short", "_locks_do_not_help")
def test_a_service_that_waited_does_not_take_its_place_back(
    tmp_path: Path, servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its commit had no answer, another program took its place and committed."""
    pipeline = chain(tmp_path / "p.pipeline", servers)

    def cut(_commit: Callable[[], None]) -> None:
        assert run_till(pipeline.path).sent_count == ORDER_COUNT
        no_answer()

    monkeypatch.setattr(CutShort, "cut", cut)
    monkeypatch.setattr(confluent_kafka, "Producer", CutShort)
    with raising(Unavailable, "has taken the place of service till"):
        run_till(pipeline.path, 2 * ORDER_COUNT)
    assert counting_values(pipeline, "orders") == SENT


def test_wrong_calls_are_refused(tmp_path: Path, servers: str) -> None:
    """Each error names the channel and what it can be."""
    pipeline = chain(tmp_path / "p.pipeline", servers)
    wrong: Any = {"n": 1}
    with pipeline.join_service("till", state=Till(), kind=JoinedTopicService) as till:
        with pytest.raises(UsageError, match="writes no channel 'sums'; it writes: orders"):
            till.append("sums", "1")
        with pytest.raises(UsageError, match="the value is of type dict: give bytes or text"):
            till.append("orders", wrong)
        with pytest.raises(UsageError, match="the key is of type dict"):
            till.append("orders", "1", key=wrong)
        with pytest.raises(UsageError, match="the header 'a' is of type dict"):
            till.append("orders", "1", headers=[("a", wrong)])
        with pytest.raises(UsageError, match="has no partition 2: it has 2, from 0 on"):
            till.append("orders", "1", partition=2)
        with pytest.raises(UsageError, match="more than the limit of 1000000"):
            till.append("orders", "1" * 2_000_000)
    assert counting_values(pipeline, "orders") == []
    with (
        raising(UsageError, "has a state of type Till, not Ledger"),
        pipeline.join_service("till", state=Ledger()),
    ):
        pass
    with (
        raising(UsageError, r"Till.sent_count cannot be recorded|does not hold"),
        pipeline.join_service("till", state=(state := Till())) as till,
    ):
        state.sent_count = wrong


def test_a_topic_that_does_not_exist_is_named(tmp_path: Path, servers: str) -> None:
    """It is not created on the way."""
    pipeline = Pipeline.create(
        tmp_path / "p.pipeline",
        services={"sink": Ledger},
        channels=[kafka_channel("in", topic="nowhere", servers=servers, targets=["sink"])],
    )
    for _ in range(2):
        with (
            pytest.raises(UsageError, match="there is no topic nowhere"),
            pipeline.join_service("sink", state=Ledger()),
        ):
            pass


# --- the ledger


def ledger_of(pipeline: Pipeline, name: str) -> str:
    """Return the topic of a service's ledger."""
    with Broker(pipeline.dataflow.topics_of(name)[0].servers) as broker:
        found = ledger.find_ledger(pipeline.path, name, pipeline.epoch, broker)
        assert found is not None
        return found.topic


def test_a_long_state_is_in_a_file(
    tmp_path: Path, servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state that is too long for a record is beside the pipeline, and is verified when it is
    read."""
    monkeypatch.setattr(topic_service, "COMMIT_S", 0.0)
    pipeline = chain(tmp_path / "p.pipeline", servers)
    text = "x" * (ledger.STATE_BYTES_MAX + 1)
    with pipeline.join_service("ledger", state=(state := Ledger())) as me:
        for number in range(3):
            state.ballast = text + str(number)
            me.boundary()
    run_till(pipeline.path)
    with pipeline.join_service("ledger", state=(state := Ledger())):
        assert state.ballast == f"{text}2"
    assert state_of(taken(pipeline), "ledger")["ballast"] == f"{text}2"
    states = pipeline.path / ledger.STATES / "ledger" / "epoch-1"
    newest = max(states.iterdir(), key=lambda path: int(path.name.partition("-")[0]))
    newest.write_bytes(b"y" + newest.read_bytes()[1:])
    with (
        pytest.raises(Damaged, match=f"{newest.name} was changed"),
        join("ledger", pipeline=pipeline.path, state=Ledger()),
    ):
        pass


def test_old_versions_are_deleted(
    tmp_path: Path, servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger keeps the newest versions, and the files of long states with them."""
    monkeypatch.setattr(topic_service, "COMMIT_S", 0.0)
    monkeypatch.setattr(topic_service, "_COST_FACTOR", 0)
    monkeypatch.setattr(ledger, "STATE_BYTES_MAX", 20)
    monkeypatch.setattr(ledger, "KEPT_COUNT", 5)
    monkeypatch.setattr(ledger, "KEPT_COUNT_MAX", 8)
    pipeline = chain(tmp_path / "p.pipeline", servers)
    run_till(pipeline.path, 0)
    with pipeline.join_service("ledger", state=(state := Ledger(ballast="x" * 50))) as me:
        for number in range(30):
            state.count = number
            me.boundary()
    topic = ledger_of(pipeline, "ledger")
    with Broker(servers) as broker:
        first, end = broker.first_offsets(topic)[0], broker.end_offsets(topic)[0]
        kept = list(broker.records(topic, {0: (first, end)}))
    assert 5 <= len(kept) <= 9
    states = pipeline.path / ledger.STATES / "ledger" / "epoch-1"
    assert len(list(states.iterdir())) == len(kept)
    assert state_of(taken(pipeline), "ledger")["count"] == 29


def test_files_of_states_are_kept_up_to_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of long states fewer versions are kept, but always some."""
    monkeypatch.setattr(ledger, "KEPT_BYTES", 100)
    file = ledger.StateFile("f", 30, "")
    every = [
        ledger.Version(1, number, 0.0, {}, "Ledger", file, offset=number) for number in range(50)
    ]
    assert ledger.needs_trim(every)
    assert not ledger.needs_trim(every[: 2 * ledger.KEPT_FILE_COUNT])
    assert len(ledger.kept_of(every)) == ledger.KEPT_FILE_COUNT


def test_a_deleted_ledger_is_noticed(tmp_path: Path, servers: str) -> None:
    """Without it the service would begin again and write everything twice."""
    pipeline = chain(tmp_path / "p.pipeline", servers)
    run_till(pipeline.path)
    topic = ledger_of(pipeline, "till")
    with Broker(servers) as broker:
        broker.delete_before(topic, broker.end_offsets(topic)[0])
    with pytest.raises(NotConsistent, match=f"{topic}.*does not have the state any more"):
        run_till(pipeline.path)


def test_the_ledger_keeps_what_is_written(tmp_path: Path, servers: str) -> None:
    """Its topic has one partition, and Kafka deletes nothing of it by age or size."""
    pipeline = chain(tmp_path / "p.pipeline", servers)
    run_till(pipeline.path)
    topic = ledger_of(pipeline, "till")
    assert topic.startswith("stillframe-p-till-")
    resource = ADMIN.ConfigResource("topic", topic)
    client = ADMIN.AdminClient({"bootstrap.servers": servers})
    settings = client.describe_configs([resource])[resource].result()
    assert {name: settings[name].value for name in ("cleanup.policy", "retention.ms")} == {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
    }
    with Broker(servers) as broker:
        assert broker.first_offsets(topic) == {0: 0}


# --- snapshots and restores


def test_a_service_must_have_joined(tmp_path: Path, servers: str) -> None:
    """Before that a snapshot says whom to start."""
    pipeline = chain(tmp_path / "p.pipeline", servers)
    refused = pipeline.snapshot()
    assert isinstance(refused, Abandoned)
    assert refused.detail == "service till has not joined the pipeline: start it"
    run_till(pipeline.path)
    refused = pipeline.snapshot()
    assert isinstance(refused, Abandoned)
    assert refused.missing == ("ledger",)


def test_snapshots_of_running_services_balance(tmp_path: Path, servers: str) -> None:
    """In each one, what was sent is what was added up and what is on the way: no record is
    missing, or there twice."""
    pipeline = chain(tmp_path / "p.pipeline", servers)
    count = 40_000

    def send_all() -> None:
        till = Till()
        with join("till", pipeline=pipeline.path, state=till) as me:
            while till.sent_count < count:
                for _ in range(50):
                    me.append("orders", str(till.sent_count))
                    till.sent_count += 1
                me.receive(0)
                if till.sent_count == count // 2:
                    enough.wait(60)

    enough = threading.Event()
    with pipeline.join_service("ledger", state=Ledger()):
        pass
    threads = [in_thread(send_all), in_thread(run_ledger, pipeline.path, count)]
    manifests: list[Manifest] = []
    while len(manifests) < 5:
        outcome = pipeline.snapshot()
        if isinstance(outcome, Manifest):
            manifests.append(outcome)
        else:
            assert "till has not joined" in outcome.detail
    enough.set()
    for thread in threads:
        thread.join(120)
    manifests.append(taken(pipeline))
    for manifest in manifests:
        sent = state_of(manifest, "till")["sent_count"]
        flying = in_transit(pipeline, manifest, "orders", "ledger")
        total = state_of(manifest, "ledger")["total"]
        assert sum(flying) + total == sum(range(sent)), manifest.snapshot
    assert state_of(manifests[-1], "ledger") == {
        "count": count,
        "total": sum(range(count)),
        "ballast": "",
    }


def in_transit(pipeline: Pipeline, manifest: Manifest, channel: str, target: str) -> list[int]:
    """Return the numbers on a channel at a cut."""
    [cut] = [cut for cut in manifest.topics if cut.channel == channel]
    source = manifest.dataflow.topic(channel).source
    assert source is not None
    newest = manifest.fragment(source).version
    positions = cut.positions[target]
    return [
        int(record.value)
        for record in counting_records(pipeline, channel)
        if record.label.batch <= newest and record.offset >= positions.get(record.partition, 0)
    ]


def test_a_chain_is_restored_to_an_older_cut(tmp_path: Path, servers: str) -> None:
    """Both services continue from the cut, in a new epoch, and what was taken back does not count:
    in the end all is as if nothing had happened."""
    pipeline = chain(tmp_path / "p.pipeline", servers)
    run_till(pipeline.path, 20)
    run_ledger(pipeline.path, 10)
    older = taken(pipeline)
    assert pipeline.timeline("till") == {1: range(2**63 - 1)}
    run_till(pipeline.path, 40)
    run_ledger(pipeline.path, 40)
    newer = taken(pipeline)
    for manifest in (older, newer, older):
        pipeline.restore(manifest.snapshot)
        assert state_of(taken(pipeline), "ledger") == state_of(manifest, "ledger")
        assert pipeline.snapshots()[-1].staleness_s == 0
        run_till(pipeline.path)
        assert run_ledger(pipeline.path).total == TOTAL
        assert counting_values(pipeline, "orders") == SENT
        assert counting_values(pipeline, "sums") == SUMS
    begin = older.fragment("till").version + 1
    assert pipeline.timeline("till") == {1: range(begin), 4: range(begin, 2**63 - 1)}


def test_a_cycle_is_restored_to_an_older_cut(
    tmp_path: Path, servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers that are on the way at the cut go on from there, each once."""
    monkeypatch.setattr(topic_service, "COMMIT_S", 0.02)
    pipeline = cycle(tmp_path / "p.pipeline", servers)

    def play(limit: int) -> list[Manifest]:
        """Play up to a limit, and return the snapshots that were taken meanwhile."""
        threads = [in_thread(run_player, pipeline.path, name, limit) for name in ("left", "right")]
        outcomes = []
        while any(thread.is_alive() for thread in threads):
            outcomes.append(pipeline.snapshot())
        return [one for one in outcomes if isinstance(one, Manifest)]

    play(LIMIT // 2)
    at_rest = taken(pipeline)
    meanwhile = play(LIMIT)
    for older in (at_rest, meanwhile[len(meanwhile) // 2]):
        pipeline.restore(older.snapshot)
        play(LIMIT)
        manifest = taken(pipeline)
        assert sorted(state_of(manifest, "left")["seen"]) == numbers_of("left")
        assert sorted(state_of(manifest, "right")["seen"]) == numbers_of("right")
        assert counting_values(pipeline, "there") == numbers_of("right")
        assert counting_values(pipeline, "back") == numbers_of("left")


def test_a_service_begins_although_consumers_do_not_see_its_commit_yet(
    tmp_path: Path, servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since a broker that is busy writes the marker of a commit later than it confirms it."""
    pipeline = chain(tmp_path / "p.pipeline", servers)
    monkeypatch.setattr(ledger.Ledger, "versions", lambda _: [])
    with join("till", pipeline=pipeline.path, state=Till()) as me:
        me.leave()
    monkeypatch.undo()
    assert run_till(pipeline.path).sent_count == ORDER_COUNT


def test_a_restored_service_that_was_not_started_is_in_a_snapshot(
    tmp_path: Path, servers: str
) -> None:
    """Its state is the restored one, and its ledger has nothing of the epoch."""
    pipeline = chain(tmp_path / "p.pipeline", servers)
    run_till(pipeline.path)
    run_ledger(pipeline.path)
    manifest = taken(pipeline)
    pipeline.restore(manifest.snapshot)
    again = taken(pipeline)
    for name in ("till", "ledger"):
        assert again.fragment(name).service == manifest.fragment(name).service
    assert again.topics[0].positions == manifest.topics[0].positions
