"""Queries that topics of Kafka join: states at cuts are exact, and cycles can start."""

import contextlib
import functools
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

from stillframe.errors import NotConsistent, Unavailable, UsageError
from stillframe.pipeline import Pipeline, channel, kafka_channel, locks, outages
from stillframe.pipeline.dataflow import Topic
from stillframe.pipeline.metadata import checkpoint_path, read_metadata
from stillframe.pipeline.outages import Outages
from stillframe.pipeline.retained import RETAIN
from stillframe.pipeline.topics import Counting, Label, counting, has_joined, join_topic
from stillframe.spark import queries, to_channel, topics
from tests import nightly
from tests.pipeline.topics_shop import Records, Shop
from tests.s3_servers import S3Server, use
from tests.spark.outside import jars
from tests.spark.topic_exactness import NIGHT_CASES, SHORT_CASES, Case

ROOT = Path(__file__).parent.parent.parent


def make_cycle(root: Path) -> Pipeline:
    """Make a pipeline of two queries that feed each other, and one behind them."""
    servers = "127.0.0.1:9"
    return Pipeline.create(
        root,
        queries=["ping", "pong", "umpire"],
        channels=[
            kafka_channel("forth", topic="f", servers=servers, source="ping", targets=["pong"]),
            kafka_channel(
                "back", topic="b", servers=servers, source="pong", targets=["ping", "umpire"]
            ),
            kafka_channel("calls", topic="c", servers=servers, source="umpire"),
        ],
    )


@pytest.fixture
def silent_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker each of whose topics has a partition with five records."""
    monkeypatch.setattr(Records, "check", lambda *topic, **how: None)
    broker = Records()
    for topic in "fbcspt":
        for _ in range(5):
            broker.add(topic, 0)

    @contextlib.contextmanager
    def brokers() -> Iterator[object]:
        yield lambda topic: broker

    monkeypatch.setattr(topics, "brokers", brokers)


@pytest.mark.usefixtures("silent_broker")
def test_a_query_lets_those_on_its_cycle_join(tmp_path: Path) -> None:
    """One of them is started first, and would wait for the other one for ever; a query behind the
    cycle waits for it."""
    pipeline = make_cycle(tmp_path / "cycle")
    flow = pipeline.dataflow
    topics.join_topics(pipeline.path, flow, "umpire")
    joined = {topic.name: has_joined(pipeline.path, topic) for topic in flow.topics}
    assert joined == {"forth": False, "back": False, "calls": True}
    topics.join_topics(pipeline.path, flow, "ping")
    assert all(has_joined(pipeline.path, topic) for topic in flow.topics)


def test_of_two_that_record_a_writer_the_first_one_has(tmp_path: Path) -> None:
    """Its labels may be in the topic already."""
    pipeline = make_cycle(tmp_path / "cycle")
    topic = pipeline.dataflow.topic("back")
    join_topic(pipeline.path, topic, {0: 1})
    first = counting(pipeline.path, read_metadata(pipeline.path), topic).record
    with pytest.MonkeyPatch.context() as late:
        late.setattr("stillframe.pipeline.topics.has_joined", lambda *place: False)
        join_topic(pipeline.path, topic, {0: 2})
    assert counting(pipeline.path, read_metadata(pipeline.path), topic).record == first
    assert [path.name for path in (tmp_path / "cycle" / "topics").iterdir()] == ["back.json"]


@pytest.mark.usefixtures("silent_broker")
def test_a_log_and_then_a_topic_of_one_query_are_lent(tmp_path: Path) -> None:
    """The query joins the pipeline with all its topics, whichever channel comes first."""
    pipeline = Pipeline.create(
        tmp_path / "both",
        queries=["first"],
        channels=[
            channel("log", pa.schema([("n", pa.int64())]), source="first"),
            kafka_channel("topic", topic="t", servers="127.0.0.1:9", source="first"),
        ],
    )
    to_channel(pipeline, "log", adopt=False)
    try:
        to_channel(pipeline, "topic", adopt=False)
    finally:
        take_back(pipeline, "first")


def take_back(pipeline: Pipeline, query: str) -> None:
    """Release what ``to_channel`` holds until the program ends."""
    queries._lent.pop((pipeline.path, query))[0].release()


def batch_of(**settings: str) -> DataFrame:
    """Return what stands for a micro-batch of a session with these settings; _ stands for a dot."""
    conf = {name.replace("_", "."): value for name, value in settings.items()}
    context = SimpleNamespace(master="local[2]", getConf=lambda: conf)
    return cast(
        "DataFrame", SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=context, conf=conf))
    )


@pytest.mark.usefixtures("silent_broker")
@pytest.mark.parametrize(
    ("query", "settings", "message"),
    [
        ("pong", {}, r"use counted\(frame, pipeline, 'pong', 'forth'\)"),
        ("start", {"spark_speculation": "true"}, "two tasks write the same records"),
        ("start", {RETAIN.replace(".", "_"): "1"}, "are hardly ever in a consistent cut"),
    ],
    ids=["not counted", "speculation", "retained"],
)
def test_a_micro_batch_is_not_written_where_its_query_would_not_start(
    tmp_path: Path,
    query: str,
    settings: dict[str, str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What ``to_channel`` returned refuses the first micro-batch as ``start_query`` the query."""
    monkeypatch.setattr(queries, "running_query", lambda *where: SimpleNamespace(runId=uuid.uuid4))
    pipeline = Pipeline.create(
        tmp_path / "own",
        queries=["start", "pong"],
        channels=[
            kafka_channel("forth", topic="f", servers="127.0.0.1:9", targets=["pong"]),
            kafka_channel("start", topic="s", servers="127.0.0.1:9", source="start"),
            kafka_channel("pong", topic="p", servers="127.0.0.1:9", source="pong"),
        ],
    )
    append = to_channel(pipeline, query, adopt=False)
    try:
        with pytest.raises(UsageError, match=message):
            append(batch_of(**settings), 0)
    finally:
        take_back(pipeline, query)


class Attempts:
    """What a writer of a topic does with micro-batches: each is written, or compared first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[tuple[str, int]] = []
        self.failure: Exception | None = None
        self.spans: dict[int, tuple[int, int]] = {}
        self._label: Label | None = None
        broker = SimpleNamespace(span_of=self._span_of)
        monkeypatch.setattr(topics, "Broker", lambda servers: contextlib.nullcontext(broker))
        monkeypatch.setattr(topics, "_records", self._records)
        monkeypatch.setattr(topics, "_write", self._write)
        monkeypatch.setattr(topics, "_write_missing", self._write_missing)

    def _span_of(self, one: Counting, label: Label) -> dict[int, tuple[int, int]]:
        self.done.append(("compared", label.batch))
        return self.spans

    def _records(self, batch: DataFrame, topic: Topic, label: Label | None = None) -> DataFrame:
        self._label = label
        return batch

    def _write(self, labelled: DataFrame, sink: dict[str, str]) -> None:
        assert self._label is not None
        self.done.append(("written", self._label.batch))
        if self.failure is not None:
            raise self.failure

    def _write_missing(
        self,
        records: DataFrame,
        one: Counting,
        label: Label,
        spans: dict[int, tuple[int, int]],
        sink: dict[str, str],
    ) -> None:
        self.done.append(("completed", label.batch))


class Clock:
    """A clock that goes on only while something sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.slept: list[float] = []
        monkeypatch.setattr(topics, "time", self)

    def monotonic(self) -> float:
        """Return the seconds that were slept."""
        return sum(self.slept)

    def sleep(self, seconds: float) -> None:
        """Let time go by."""
        self.slept.append(seconds)


def appender(
    root: Path, *, planned: int | None = None, settled: float = 0.0
) -> tuple[Callable[[DataFrame, int], None], list[str]]:
    """Return what writes the topic of a query that has joined a new pipeline, and its reports."""
    pipeline = make_cycle(root)
    topic = pipeline.dataflow.topic("calls")
    join_topic(pipeline.path, topic, {})
    said: list[str] = []
    head = read_metadata(pipeline.path)
    append = topics.topic_appender(
        pipeline.path,
        head,
        topic,
        planned=planned,
        settled=settled,
        report=said.append,
        outages=Outages("query umpire", said.append, lambda: None),
        check=lambda: None,
        options={},
    )
    return append, said


def test_a_micro_batch_of_an_earlier_run_is_compared_when_its_records_have_arrived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer may deliver them after its task has ended. A later micro-batch waits for none."""
    attempts, clock = Attempts(monkeypatch), Clock(monkeypatch)
    append, said = appender(tmp_path / "planned", planned=4, settled=5.0)
    append(batch_of(), 4)
    append(batch_of(), 5)
    assert clock.slept == [5.0]
    assert attempts.done == [("compared", 4), ("written", 4), ("written", 5)]
    assert len(said) == 1
    assert said[0].startswith("waiting 5 s before micro-batch 4 of query umpire is repeated: ")
    assert said[0].endswith("of the attempt that was interrupted may still reach topic c")
    append, said = appender(tmp_path / "committed", planned=3, settled=50.0)
    append(batch_of(), 4)
    assert (clock.slept, said) == ([5.0], [])


def test_a_producer_gives_up_before_a_comparison(tmp_path: Path) -> None:
    """Else a record would come after it. A request ends before the delivery does."""
    topic = make_cycle(tmp_path / "options").dataflow.topic("calls")
    options = topics.sink_options(topic, {})
    delivery_ms = int(options["kafka.delivery.timeout.ms"])
    assert int(options["kafka.request.timeout.ms"]) < delivery_ms < topics.SETTLING_S * 1000


def test_settings_of_the_producer_are_the_users_if_they_are_about_speed(tmp_path: Path) -> None:
    """An existing query keeps its own; what decides whether a record is written once it cannot
    set, in capitals neither."""
    topic = make_cycle(tmp_path / "options").dataflow.topic("calls")
    own = {"KAFKA.Linger.ms": "7", "kafka.compression.type": "lz4"}
    topics.check_sink_options(own, "start", [topic])
    options = topics.sink_options(topic, own)
    without = topics.sink_options(topic, {})
    changed = {"kafka.linger.ms": "7", "kafka.compression.type": "lz4"}
    assert options == {**without, **changed}
    assert without["kafka.linger.ms"] != "7"


REFUSED = {
    "kafka.acks": "cannot be set for a topic of a pipeline",
    "Kafka.Bootstrap.Servers": "cannot be set",
    "kafka.delivery.timeout.ms": "cannot be set",
    "kafka.enable.idempotence": "cannot be set",
    "kafka.interceptor.classes": "cannot be set",
    "kafka.key.serializer": "cannot be set",
    "kafka.max.in.flight.requests.per.connection": "cannot be set",
    "kafka.request.timeout.ms": "cannot be set",
    "kafka.retries": "cannot be set",
    "kafka.transactional.id": "cannot be set",
    "kafka.value.serializer": "cannot be set",
    "topic": "cannot be set .*: leave it out",
    "kafka.sasl.jaas.config": "is part of a login: put it into the file that STILLFRAME_KAFKA",
    "kafka.security.protocol": "is part of a login",
    "KAFKA.SSL.keystore.key": "is part of a login",
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.usefixtures("silent_broker")
def test_settings_that_decide_more_than_speed_are_refused(tmp_path: Path, name: str) -> None:
    """They could lose records or write them twice, or others, or elsewhere; no value is shown."""
    pipeline = make_cycle(tmp_path / "options")
    with pytest.raises(UsageError, match=f"the option {name} {REFUSED[name]}") as refused:
        to_channel(pipeline, "calls", adopt=False, options={name: "hush"})
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize("value", ["-1", "", "soon", str(topics.LINGER_MS_MAX + 1)])
def test_records_are_not_collected_for_longer_than_they_may_take(
    tmp_path: Path, value: str
) -> None:
    """Kafka's producer would refuse it in the first micro-batch, and name settings of ours."""
    written = [make_cycle(tmp_path / "options").dataflow.topic("calls")]
    topics.check_sink_options({"kafka.linger.ms": str(topics.LINGER_MS_MAX)}, "start", written)
    with pytest.raises(UsageError, match=f"is '{value}': set it to a number of .* up to 10000,"):
        topics.check_sink_options({"kafka.linger.ms": value}, "start", written)


def test_a_micro_batch_that_was_written_or_failed_is_compared_when_it_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query can be started again with the same function, and a program may try a micro-batch
    again. Only one after a complete one needs no look at the topic."""
    attempts, clock = Attempts(monkeypatch), Clock(monkeypatch)
    append, _ = appender(tmp_path / "again")
    append(batch_of(), 0)
    append(batch_of(), 1)
    attempts.spans = {0: (0, 1)}
    append(batch_of(), 1)
    attempts.failure = Unavailable("the broker is away")
    with pytest.raises(Unavailable):
        append(batch_of(), 2)
    attempts.failure = None
    append(batch_of(), 2)
    append(batch_of(), 3)
    assert attempts.done == [
        ("compared", 0),
        ("written", 0),
        ("written", 1),
        ("compared", 1),
        ("completed", 1),
        ("written", 2),
        ("compared", 2),
        ("completed", 2),
        ("written", 3),
    ]
    assert clock.slept == [topics.SETTLING_S]


EXPIRED = (
    "Lost task 0.0: org.apache.kafka.common.errors.TimeoutException: Expiring 3 record(s) for c-0"
)


def test_a_write_that_no_broker_answered_is_completed_in_its_micro_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is missing is written, when nothing of the first attempt can arrive any more. Other
    errors end the query, as before."""
    attempts, clock = Attempts(monkeypatch), Clock(monkeypatch)
    monkeypatch.setattr(outages, "time", clock)
    monkeypatch.setattr(outages, "_clock", str)
    append, said = appender(tmp_path / "away")
    append(batch_of(), 0)
    attempts.failure, attempts.spans = RuntimeError(EXPIRED), {0: (0, 1)}
    append(batch_of(), 1)
    assert attempts.done[2:] == [("written", 1), ("compared", 1), ("completed", 1)]
    assert sum(clock.slept) == pytest.approx(topics.SETTLING_S)
    begins, _settling, ends = said
    assert begins.startswith("query umpire is waiting for the broker at 127.0.0.1:9 since ")
    assert "fails after 60 s: topic c: org.apache.kafka.common.errors.Timeout" in begins
    assert ends.startswith("query umpire continues")
    attempts.failure = RuntimeError("the disk is full")
    with pytest.raises(RuntimeError, match="disk is full"):
        append(batch_of(), 2)


@pytest.mark.parametrize(
    ("since", "failed", "back", "end"), [(0, 20, 20, 42), (0, 20, 60, 120), (5, 6, 6, 28)]
)
def test_records_may_arrive_for_as_long_as_the_outage_lasted(
    since: float, failed: float, back: float, end: float
) -> None:
    """TCP sends again at intervals that double, also what its sender has given up."""
    assert topics._arrival_end(since, failed, back) == end


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A pipeline whose sources have joined, and have written nothing."""
    monkeypatch.setattr(Records, "check", lambda *topic, **how: None)
    return Shop(tmp_path / "shop.pipeline", monkeypatch)


def joined_again(shop: Shop) -> Counting:
    """Start ``dedup``, and return which records of its topic count then."""
    flow = shop.pipeline.dataflow
    topics.join_topics(shop.path, flow, "dedup")
    return counting(shop.path, read_metadata(shop.path), flow.topic("unique"))


def test_a_start_after_one_that_failed_counts_what_the_old_program_wrote_meanwhile(
    shop: Shop,
) -> None:
    """The writer has another id then: labels of the first one, if any come, are strange."""
    first = joined_again(shop).record
    assert joined_again(shop).record == first
    shop.send("unique", 3)
    again = joined_again(shop)
    assert again.record.first_offsets == {0: 2, 1: 1}
    assert again.record.writer != first.writer
    assert joined_again(shop) == again


def test_once_a_query_has_started_its_first_offsets_stay(shop: Shop) -> None:
    """What another program writes then is an error for ever."""
    first = joined_again(shop)
    shop.commit("dedup", 0, {"shop-orders": {0: 0, 1: 0}})
    shop.send("unique", 3)
    assert joined_again(shop) == first


def test_a_query_that_has_run_before_is_not_started_without_its_checkpoint(
    shop: Shop, tmp_path: Path
) -> None:
    """It would write everything again: the error says so, and what to give. Its checkpoint, or the
    statement that the records are not its own, is enough. One that writes no topic is not asked."""
    shop.send("unique", 3)
    words = r"topic shop-unique has records .* give its old checkpoint as adopt, .* adopt=False"
    with pytest.raises(UsageError, match=words):
        queries.to_channel(shop.pipeline, "unique")
    topics.check_is_new(shop.path, shop.pipeline.dataflow, "sums")
    with pytest.raises(UsageError, match="is not the checkpoint of a query that has run"):
        queries.to_channel(shop.pipeline, "unique", adopt=str(tmp_path / "nothing"))
    queries.to_channel(shop.pipeline, "unique", adopt=False)


def test_a_query_continues_only_where_the_topic_has_its_next_record(shop: Shop) -> None:
    """In each topic that it reads; of a topic with another id it has no positions at all."""
    shop.commit("sums", 0, {"shop-unique": {0: 1, 1: 2}})
    shop.send("unique", 2)
    lost = r"topic shop-unique does not have the next record of partition 1 any more, offset 2"
    with pytest.raises(NotConsistent, match=lost):
        queries.to_channel(shop.pipeline, "totals")
    shop.send("unique", 2)
    queries.to_channel(shop.pipeline, "totals")
    shop.brokers.ids["shop-unique"] = "another id"
    with pytest.raises(NotConsistent, match="topic shop-unique was deleted and created again"):
        topics.join_topics(shop.path, shop.pipeline.dataflow, "sums")


def test_a_first_start_says_which_records_it_misses(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no positions yet. Later, a partition that was added since starts at 0, or fails."""
    first = {0: 2, 1: 0}
    monkeypatch.setattr(shop.brokers, "first_offsets", lambda topic: first)
    shop.send("unique", 5)
    queries.to_channel(shop.pipeline, "totals")
    [said] = caplog.messages
    assert said.startswith("query sums starts at offset 2 in partition 0 of topic shop-unique, wh")
    shop.commit("sums", 0, {"shop-unique": {0: 2}})
    again = functools.partial(
        topics.check_positions,
        shop.path,
        shop.pipeline.dataflow,
        "sums",
        checkpoint_path(shop.path, 1, "sums"),
    )
    again()
    assert len(caplog.messages) == 1
    first[1] = 1
    with pytest.raises(NotConsistent, match="next record of partition 1 any more, offset 0"):
        again()


def test_once_a_query_has_written_its_first_offsets_stay(shop: Shop) -> None:
    """It may have been restored to its start since."""
    first = joined_again(shop)
    shop.send("unique", 2)
    shop.send("unique", 1, batch=0)
    shop.send("unique", 2)
    assert joined_again(shop) == first


def test_the_first_offsets_stay_while_another_program_runs_the_query(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be about to write."""
    monkeypatch.setattr(locks, "WAIT_S", 0.0)
    first = joined_again(shop)
    shop.send("unique", 1)
    lock = locks.participant_lock(shop.path, "dedup")
    assert lock.acquire()
    try:
        assert joined_again(shop) == first
    finally:
        lock.release()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.nightly(part="exactness")
@pytest.mark.parametrize(
    "cases",
    [SHORT_CASES, *nightly.by_night([(case,) for case in NIGHT_CASES], check=[])],
    ids=lambda cases: cases[0].name,
)
def test_states_at_cuts_are_exact(
    cases: tuple[Case, ...],
    kafka_address: str,
    moto_server: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cuts that are found while records flow, in topics that get more partitions meanwhile, with
    queries that have just begun, and runs that go on from some of them, are exact. A cut that is
    wrong by one micro-batch or record is reported."""
    use(moto_server, monkeypatch)
    places = [
        f"{case}={f's3://{moto_server.new_bucket()}' if case.is_remote else tmp_path}"
        for case in cases
    ]
    packages = ",".join(map(str, [*jars("spark"), *jars("s3a")]))
    said = subprocess.run(
        [sys.executable, "-m", "tests.spark.topic_exactness", kafka_address, *places],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": f"--jars {packages} pyspark-shell"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.stdout.splitlines() == [f"{case}: exact" for case in cases], said.stderr[-3000:]
