"""What a restore requires of the topics of a snapshot: they are the same, and hold its records."""

from pathlib import Path

import pytest

from stillframe.errors import NotConsistent
from stillframe.pipeline import Manifest
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
