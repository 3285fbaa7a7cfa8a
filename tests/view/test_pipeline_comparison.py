"""What a page shows of two snapshots of a pipeline: what their manifests tell, and no more."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stillframe.pipeline import Pipeline
from stillframe.view.pipeline_comparison import pipeline_comparison
from tests.cli.pipelines import add_up, commit, resting_shop, sell


def compared(path: Path, between: Callable[[Pipeline], object]) -> tuple[Pipeline, dict[str, Any]]:
    """Return a shop with a snapshot before and one after something, and the two compared."""
    shop = resting_shop(path / "shop.pipeline")
    commit(shop, 3, 1)
    shop.snapshot()
    between(shop)
    shop.snapshot()
    return shop, pipeline_comparison(shop.find("shop-1"), shop.find("shop-2"))


def test_what_changed_is_there_and_nothing_else(tmp_path: Path) -> None:
    """The books read two sales more; the till and the audit stood still."""
    shop, document = compared(tmp_path, lambda shop: add_up(shop, 2))
    before, after = shop.find("shop-1"), shop.find("shop-2")
    assert not document["is_equal"]
    assert {field["process"] for field in document["fields"]} == {"till", "books"}
    changed = {(field["process"], field["field"]) for field in document["fields"]}
    assert ("books", "read sales up to") in changed
    assert [name for process, name in changed if process == "till"] == ["barrier in sales at"]
    cuts = [{(c.log, c.target): c for c in manifest.channels} for manifest in (before, after)]
    for channel in document["channels"]:
        log = channel["channel"].partition(":")[0]
        target = channel["channel"].rpartition("->")[2]
        for side, cut in zip(("before", "after"), cuts, strict=True):
            found = cut[log, target]
            assert channel[side] == [
                sum(found.sent_counts),
                sum(found.received_counts),
                found.record_count,
            ]


def test_a_snapshot_equals_itself(tmp_path: Path) -> None:
    """Then nothing is listed."""
    shop = resting_shop(tmp_path / "shop.pipeline")
    commit(shop, 3, 1)
    shop.snapshot()
    manifest = shop.find("shop-1")
    document = pipeline_comparison(manifest, manifest)
    assert document["is_equal"]
    assert (document["fields"], document["channels"]) == ([], [])


def test_more_sales_are_more_on_the_channel(tmp_path: Path) -> None:
    """Sent and held are one more, received is the same."""
    _, document = compared(tmp_path, lambda shop: sell(shop, 40))
    (sales,) = (c for c in document["channels"] if c["channel"].startswith("sales"))
    assert (sales["before"], sales["after"]) == ([3, 1, 2], [4, 1, 3])
    assert not sales["is_same_count"]
    sold = [f for f in document["fields"] if (f["process"], f["field"]) == ("till", "sold")]
    assert [(f["before"]["text"], f["after"]["text"]) for f in sold] == [("18", "58")]
