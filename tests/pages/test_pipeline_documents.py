"""What a page shows of two snapshots of a pipeline: what their manifests tell, and no more."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from stillframe.pages.snapshot_documents import pipeline_diff_document
from stillframe.pipeline import Pipeline
from tests.cli.pipelines import add_up, commit, resting_shop, sell


def compared(path: Path, between: Callable[[Pipeline], object]) -> tuple[Pipeline, dict[str, Any]]:
    """Return a shop with a snapshot before and one after something, and the two compared."""
    shop = resting_shop(path / "shop.pipeline")
    commit(shop, 3, 1)
    shop.snapshot()
    between(shop)
    shop.snapshot()
    return shop, pipeline_diff_document(shop.path, shop.find("shop-1"), shop.find("shop-2"))


def test_what_changed_is_there_and_nothing_else(tmp_path: Path) -> None:
    """The books read two sales more; the till and the audit stood still."""
    shop, document = compared(tmp_path, lambda shop: add_up(shop, 2))
    before, after = shop.find("shop-1"), shop.find("shop-2")
    assert not document["is_equal"]
    changed = [(field["process"], field["field"]) for field in document["fields"]]
    assert changed == [("books", "total")]
    names = [channel["channel"] for channel in document["channels"]]
    assert names == ["sales: till->books", "totals: books->audit"]
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
    document = pipeline_diff_document(shop.path, manifest, manifest)
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


def test_a_shop_at_rest_has_not_changed(tmp_path: Path) -> None:
    """Two snapshots one after the other differ in their barriers alone."""
    _, document = compared(tmp_path, lambda shop: None)
    assert document["is_equal"]
    assert (document["fields"], document["channels"]) == ([], [])


def test_what_was_done_again_in_another_epoch_may_be_something_else(tmp_path: Path) -> None:
    """As many records and as many micro-batches as before are not the same ones."""
    shop = resting_shop(tmp_path / "shop.pipeline")
    shop.snapshot()
    sell(shop, 8)
    commit(shop, 0, 1)
    shop.snapshot()
    shop.restore("shop-1")
    sell(shop, 8)
    commit(shop, 0, 1)
    shop.snapshot()
    document = pipeline_diff_document(shop.path, shop.find("shop-2"), shop.find("shop-3"))
    assert not document["is_equal"]
    (sales,) = document["channels"]
    assert sales["channel"] == "sales: till->books"
    assert (sales["before"], sales["is_same_count"]) == (sales["after"], True)
    assert [
        (one["process"], one["field"], one["before"]["text"], one["after"]["text"])
        for one in document["fields"]
    ] == [("audit", "in epoch", "1", "2")]


def test_a_restore_alone_changes_nothing(tmp_path: Path) -> None:
    """In the new epoch nothing but barriers was put into the logs; and what logs do not tell any
    more may be something else."""
    shop = resting_shop(tmp_path / "shop.pipeline")
    shop.snapshot()
    shop.restore("shop-1")
    for _ in range(2):
        shop.snapshot()
    for first, second in (("shop-1", "shop-2"), ("shop-2", "shop-3"), ("shop-1", "shop-3")):
        assert pipeline_diff_document(shop.path, shop.find(first), shop.find(second))["is_equal"]
    for item in (shop.path / "channels" / "sales" / "epoch-2").glob("*.json"):
        item.unlink()
    document = pipeline_diff_document(shop.path, shop.find("shop-1"), shop.find("shop-3"))
    assert [channel["channel"] for channel in document["channels"]] == ["sales: till->books"]
