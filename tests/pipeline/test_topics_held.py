"""What a snapshot and a restore require of topics: they are the same, and hold the records."""

from pathlib import Path

import pytest

from stillframe.errors import NotConsistent
from stillframe.model import Abandoned
from stillframe.pipeline import Manifest
from stillframe.pipeline.known_topics import KnownTopics, changed_topics, known_id
from tests.pipeline.topics_shop import Shop


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A shop that has run: sums has read up to offset 4 of partitions that end at 6."""
    made = Shop(tmp_path / "shop.pipeline", monkeypatch)
    made.run()
    return made


@pytest.mark.parametrize("channel", ["orders", "unique", "totals"])
def test_a_topic_that_was_created_again_is_refused(shop: Shop, channel: str) -> None:
    """Even if it has reached the same offsets, and also if nothing in the pipeline reads it."""
    manifest = shop.pipeline.snapshot()
    assert isinstance(manifest, Manifest)
    shop.brokers.ids[f"shop-{channel}"] = "another id"
    with pytest.raises(NotConsistent, match=f"shop-{channel} was deleted and created again"):
        shop.pipeline.restore(manifest.snapshot)
    assert shop.pipeline.epoch == 1


@pytest.mark.parametrize("channel", ["unique", "totals"])
def test_a_topic_that_lost_records_of_the_cut_is_refused(shop: Shop, channel: str) -> None:
    """Those in flight are among them, although the target's position is still there."""
    manifest = shop.pipeline.snapshot()
    assert isinstance(manifest, Manifest)
    for records in shop.brokers.topics[f"shop-{channel}"].values():
        records.pop()
    with pytest.raises(NotConsistent, match=f"topic shop-{channel} ended at offset"):
        shop.pipeline.restore(manifest.snapshot)
    assert shop.pipeline.epoch == 1


def test_positions_without_an_id_get_one_and_keep_it(shop: Shop) -> None:
    """As those that 0.2 wrote: the next start of a participant records the id, and from then on no
    snapshot is taken of another topic."""
    unique = shop.pipeline.dataflow.topic("unique")
    assert known_id(shop.path, unique) == ""
    KnownTopics(shop.path, [unique], lambda _: shop.brokers).adopt()
    assert known_id(shop.path, unique) == "the first id"
    shop.brokers.ids["shop-unique"] = "another id"
    refused = shop.pipeline.snapshot()
    assert isinstance(refused, Abandoned)
    assert "shop-unique was deleted and created again" in refused.detail
    with pytest.raises(NotConsistent, match="shop-unique was deleted and created again"):
        KnownTopics(shop.path, [unique], lambda _: shop.brokers).adopt()
    assert known_id(shop.path, unique) == "the first id"


def test_the_status_names_all_topics_that_are_others(shop: Shop) -> None:
    """Those that no participant has used yet are not among them; brokers may be away."""
    topics = shop.pipeline.dataflow.topics
    used = map(shop.pipeline.dataflow.topic, ("orders", "unique"))
    KnownTopics(shop.path, used, lambda _: shop.brokers).adopt()
    assert changed_topics(shop.path, topics) == []
    shop.brokers.ids |= dict.fromkeys((topic.topic for topic in topics), "another id")
    orders, unique = changed_topics(shop.path, topics)
    assert orders.startswith("topic shop-orders was deleted and created again")
    assert unique.startswith("topic shop-unique was deleted and created again")
    shop.brokers.why_away = "gone"
    (away,) = changed_topics(shop.path, topics)
    assert "not compared: Kafka at broker.example:9092 does not answer" in away


def test_a_topic_that_is_created_again_during_a_search_is_named(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is found in it then is explained by that."""
    KnownTopics(shop.path, shop.pipeline.dataflow.topics, lambda _: shop.brokers).adopt()

    def lost(*found: object, **how: object) -> None:
        shop.brokers.ids["shop-unique"] = "another id"
        raise NotConsistent("topic shop-unique does not have the next record")

    monkeypatch.setattr(shop.brokers, "records", lost)
    refused = shop.pipeline.snapshot()
    assert isinstance(refused, Abandoned)
    assert "shop-unique was deleted and created again" in refused.detail


def test_of_two_topics_with_one_name_the_first_one_is_known(shop: Shop) -> None:
    """A participant that saw the later one refuses it, even if it asked before the id was known."""
    unique = shop.pipeline.dataflow.topic("unique")
    early = KnownTopics(shop.path, [unique], lambda _: shop.brokers)
    early.compare()
    shop.brokers.ids["shop-unique"] = "another id"
    with pytest.raises(NotConsistent, match="created again"):
        early.compare()
