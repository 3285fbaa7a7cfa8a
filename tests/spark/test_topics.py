"""Queries that topics of Kafka join."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from stillframe.pipeline import Pipeline, kafka_channel
from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.topics import counting, has_joined, join_topic
from stillframe.spark import topics


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
    broker = SimpleNamespace(check=lambda topic: None, end_offsets=lambda topic: {0: 5})

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
