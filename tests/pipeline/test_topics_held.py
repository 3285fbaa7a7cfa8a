"""What a snapshot and a restore require of topics: they are the same, and hold the records."""

from pathlib import Path

import pytest

from stillframe.errors import NotConsistent
from stillframe.model import Abandoned
from stillframe.pipeline import Manifest
from stillframe.pipeline.known_topics import KnownTopics, known_id
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


def test_of_two_topics_with_one_name_the_first_one_is_known(shop: Shop) -> None:
    """A participant that saw the later one refuses it, even if it asked before the id was known."""
    unique = shop.pipeline.dataflow.topic("unique")
    early = KnownTopics(shop.path, [unique], lambda _: shop.brokers)
    early.compare()
    shop.brokers.ids["shop-unique"] = "another id"
    with pytest.raises(NotConsistent, match="created again"):
        early.compare()
