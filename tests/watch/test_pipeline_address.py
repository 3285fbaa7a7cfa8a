"""A pipeline in an object store as the dashboard and the pages show it."""

import secrets

import pytest

from stillframe.errors import UsageError
from stillframe.pages.snapshot_documents import pipeline_diff_document, pipeline_snapshot_document
from stillframe.pipeline import Pipeline
from stillframe.pipeline.service import join
from stillframe.storage.location import locate
from stillframe.storage.opened import storage_of
from stillframe.watch.pipeline_probe import ABSENT, RUNNING, STOPPED, PipelineProbe
from stillframe.watch.pipeline_target import PipelineTarget
from stillframe.watch.snapshot_list import pipeline_snapshots
from tests.pipeline.money import Account, leave_behind, line


@pytest.fixture
def shop() -> Pipeline:
    """A pipeline ``mint -> till`` in memory."""
    return line(locate(f"memory://test-{secrets.token_hex(8)}/shop"))


def test_samples(shop: Pipeline) -> None:
    """Who runs, how long the channels are, and who has read them; also after a restore."""
    probe = PipelineProbe(shop.path)
    found = probe.sample()
    assert {one.status for one in found.participants.values()} == {ABSENT}
    leave_behind(shop, 5, 7, received_count=1)
    shop.snapshot()
    with join("till", pipeline=shop.path, state=Account()):
        found = probe.sample()
    assert found.errors == ()
    assert {name: one.status for name, one in found.participants.items()} == {
        "mint": STOPPED,
        "till": RUNNING,
    }
    log = found.logs["coins"]
    assert (log.entries, log.records, log.readers["till"].position) == (3, 2, 0)
    shop.restore()
    found = probe.sample()
    assert (found.metadata.epoch, found.participants["till"].status) == (2, STOPPED)
    assert found.logs["coins"].entries == 2
    assert PipelineTarget(shop.path).pipeline.path == shop.path


def test_a_lease_that_cannot_be_read_hides_nothing_else(shop: Pipeline) -> None:
    """It is named."""
    leave_behind(shop, 5, received_count=0)
    storage_of(shop.path).put(shop.path / "participants" / "till.lease", b"x")
    found = PipelineProbe(shop.path).sample()
    (error,) = found.errors
    assert "till.lease is not a lease" in error
    assert {one.status for one in found.participants.values()} == {STOPPED}
    assert found.logs["coins"].records == 1


def test_snapshots_and_their_pages(shop: Pipeline) -> None:
    """New and deleted ones; the records in transit, and what changed."""
    snapshots = pipeline_snapshots(shop.path)
    assert snapshots.poll() == ([], [])
    leave_behind(shop, 5, 7, received_count=1)
    first, second = shop.savepoint("first"), shop.savepoint("second")
    assert [len(ids) for ids in snapshots.poll()] == [2, 0]
    assert [row["id"] for row in snapshots.rows_before(None)] == ["shop-2", "shop-1"]
    shop.delete("first")
    assert [[str(one) for one in ids] for ids in snapshots.poll()] == [[], ["shop-1"]]
    with pytest.raises(UsageError):
        shop.find("first")
    manifest = shop.find("second")
    page = pipeline_snapshot_document(manifest, is_current=True, root=shop.path)
    assert "7" in str(page["channels"])
    assert pipeline_diff_document(shop.path, manifest, manifest)["before"]
    assert str(first) != str(second)
