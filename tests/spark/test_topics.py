"""Queries that topics of Kafka join: states at cuts are exact, and cycles can start."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from stillframe.pipeline import Pipeline, kafka_channel, locks
from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.topics import Counting, counting, has_joined, join_topic
from stillframe.spark import topics
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
    broker = SimpleNamespace(check=lambda topic, **how: None, end_offsets=lambda topic: {0: 5})

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
    kafka_broker: str,
    moto_server: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cuts that are found while records flow, in topics that get more partitions meanwhile, with
    queries that have just begun, and runs that go on from some of them, are exact."""
    use(moto_server, monkeypatch)
    places = [
        f"{case}={f's3://{moto_server.new_bucket()}' if case.is_remote else tmp_path}"
        for case in cases
    ]
    packages = ",".join(map(str, [*jars("spark"), *jars("s3a")]))
    said = subprocess.run(
        [sys.executable, "-m", "tests.spark.topic_exactness", kafka_broker, *places],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": f"--jars {packages} pyspark-shell"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.stdout.splitlines() == [f"{case}: exact" for case in cases], said.stderr[-3000:]
