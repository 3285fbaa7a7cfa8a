"""Where topics end, as brokers answer: rarely asked, and never waited for."""

import threading
from pathlib import Path
from typing import Any

import pytest

from stillframe.pipeline import kafka_channel
from stillframe.pipeline.known_topics import KnownTopics
from stillframe.watch import topic_probe
from stillframe.watch.pipeline_probe import PipelineProbe, TopicReaderSample
from stillframe.watch.topic_probe import TopicProbe
from tests.pipeline.topics_shop import SERVERS, Records, Shop

WAIT_S = 60


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A shop that has run; what brokers answer at once is waited for."""
    monkeypatch.setattr(topic_probe, "WAIT_S", WAIT_S)
    made = Shop(tmp_path / "shop.pipeline", monkeypatch)
    made.run()
    return made


def test_how_far_each_reader_is_behind(shop: Shop) -> None:
    """The ends less the committed positions, summed over the partitions."""
    topics = PipelineProbe(shop.path).sample().topics
    assert {name: topic.end for name, topic in topics.items()} == {
        "orders": 16,
        "unique": 12,
        "totals": 4,
    }
    assert topics["orders"].readers == {"dedup": TopicReaderSample(position=12, behind=4)}
    assert topics["unique"].readers == {"sums": TopicReaderSample(position=8, behind=4)}
    assert topics["totals"].readers == {}


def test_a_query_that_has_not_begun_has_no_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How far it is behind is not known, as Spark has not chosen where it starts."""
    monkeypatch.setattr(topic_probe, "WAIT_S", WAIT_S)
    shop = Shop(tmp_path / "new.pipeline", monkeypatch)
    shop.send("orders", 2)
    orders = PipelineProbe(shop.path).sample().topics["orders"]
    assert (orders.end, orders.readers) == (2, {})


def test_a_partition_that_was_added_is_behind_from_its_start(shop: Shop) -> None:
    """The query has no position on it yet."""
    shop.brokers.topics["shop-orders"][2] = shop.brokers.topics["shop-orders"][0][:3]
    orders = PipelineProbe(shop.path).sample().topics["orders"]
    assert orders.readers["dedup"].behind == 4 + 3


def test_one_request_for_each_topic_and_sample(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of partitions are remembered for a while."""
    counted: list[str] = []
    partitions = shop.brokers.partitions

    def counting(topic: str) -> list[int]:
        counted.append(topic)
        return partitions(topic)

    monkeypatch.setattr(shop.brokers, "partitions", counting)
    probe = TopicProbe(shop.path, shop.pipeline.dataflow.topics)
    names = [topic.topic for topic in shop.pipeline.dataflow.topics]
    probe.sample()
    probe.sample()
    assert shop.brokers.asked == names * 2
    assert counted == names
    monkeypatch.setattr(topic_probe, "PARTITIONS_S", 0.0)
    probe.sample()
    assert counted == names * 2


def test_brokers_that_do_not_answer_are_named_and_not_asked_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample is taken without them. The last answer counts until they are overdue."""
    probe = TopicProbe(shop.path, shop.pipeline.dataflow.topics)
    before = probe.sample()
    may_answer, asked = threading.Event(), threading.Event()
    answer = shop.brokers.end_offsets
    count = len(shop.brokers.asked)

    def slow(topic: str, **how: Any) -> dict[int, int]:
        asked.set()
        assert may_answer.wait(WAIT_S)
        return answer(topic, **how)

    monkeypatch.setattr(shop.brokers, "end_offsets", slow)
    monkeypatch.setattr(topic_probe, "WAIT_S", 0.0)
    assert probe.sample() == before
    assert asked.wait(WAIT_S)
    assert probe.sample() == before
    monkeypatch.setattr(topic_probe, "SLOW_S", 0.0)
    overdue = probe.sample()
    assert overdue.offsets == {}
    assert overdue.errors == (f"Kafka at {SERVERS} has not answered for more than 0 s",)
    assert len(shop.brokers.asked) == count
    monkeypatch.setattr(topic_probe, "SLOW_S", WAIT_S)
    monkeypatch.setattr(topic_probe, "WAIT_S", WAIT_S)
    may_answer.set()
    for thread in threading.enumerate():
        if thread.name == "topic-ends":
            thread.join(WAIT_S)
    assert probe.sample() == before


def test_without_brokers_nothing_is_known_of_topics_and_the_rest_is_shown(shop: Shop) -> None:
    """The reason is said once for all topics of the same brokers; later they are back."""
    probe = PipelineProbe(shop.path)
    probe.sample()
    shop.brokers.why_away = "connection refused"
    sample = probe.sample()
    why = f"Kafka at {SERVERS} does not answer as it should: connection refused"
    assert (sample.topics, sample.errors) == ({}, (why,))
    assert sample.participants["dedup"].batch == 2
    shop.brokers.why_away = ""
    assert set(probe.sample().topics) == {"orders", "unique", "totals"}


def test_a_topic_that_is_missing_does_not_hide_the_others(shop: Shop) -> None:
    """It is named."""
    del shop.brokers.topics["shop-unique"]
    sample = PipelineProbe(shop.path).sample()
    assert set(sample.topics) == {"orders", "totals"}
    assert sample.errors == (
        f"channel unique: there is no topic shop-unique at {SERVERS}: create it first",
    )


def test_no_reader_is_behind_on_a_topic_that_was_created_again(shop: Shop) -> None:
    """Its positions are those of another topic."""
    unique = shop.pipeline.dataflow.topic("unique")
    KnownTopics(shop.path, [unique], lambda _: shop.brokers).adopt()
    shop.brokers.ids["shop-unique"] = "another id"
    sample = PipelineProbe(shop.path).sample()
    assert set(sample.topics) == {"orders", "totals"}
    assert "shop-unique was deleted and created again" in sample.errors[0]


def test_brokers_of_another_cluster_answer_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wrong with one cluster does not matter for the other."""
    monkeypatch.setattr(topic_probe, "WAIT_S", WAIT_S)
    clusters = {"one.example:9092": Records(), "two.example:9092": Records()}
    monkeypatch.setattr("stillframe.pipeline.kafka.Broker", clusters.__getitem__)
    for brokers in clusters.values():
        brokers.topics["t"] = {0: []}
    clusters["one.example:9092"].why_away = "gone"
    topics = [
        kafka_channel(name, topic="t", servers=f"{name}.example:9092", targets=["reader"])
        for name in ("one", "two")
    ]
    ends = TopicProbe(tmp_path, topics).sample()
    assert ends.offsets == {"two": {0: 0}}
    assert len(ends.errors) == 1
