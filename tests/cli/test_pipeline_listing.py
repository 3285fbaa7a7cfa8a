"""``pipeline list`` and ``pipeline delete``: which snapshots there are, which go and which stay."""

import json
import time
from pathlib import Path

import pytest

from stillframe.durable_files import replace_durably
from stillframe.model import Abandoned, Reason, SnapshotId
from stillframe.pipeline import Pipeline, coordinator
from stillframe.pipeline.metadata import Request
from stillframe.pipeline.service import join
from stillframe.protocol.aligner import Mode
from stillframe.store.sealed_json import seal
from tests.cli.conftest import Call, rows_and_words
from tests.cli.pipelines import Till, commit
from tests.pipeline.money import changed


def test_snapshots_are_listed_in_order(call: Call, shop: Pipeline) -> None:
    """Id, name, timeline, mode and epoch; records in transit; size of the checkpoints. Who
    recorded unaligned in an aligned snapshot, because nothing runs, is named."""
    shop.snapshot()
    commit(shop, 0, 0)
    shop.savepoint("gold", "unaligned")
    result = call("pipeline", "list", shop.path)
    (first, second), words = rows_and_words(result.stdout)
    assert first[:5] == ["shop-1", "present", "aligned", "audit,", "books"]
    assert second[:4] == ["shop-2", "gold", "present", "unaligned"]
    assert "books" not in second
    assert first[-4:] == ["3", "0", "0", "B"]
    assert second[-4:] == ["3", "0", "51", "B"]
    assert words == ["2 snapshots; pipeline shop is in epoch 1; a restore starts from shop-2"]


def test_the_present_timeline_is_marked(call: Call, shop: Pipeline) -> None:
    """After a restore, what was taken after that snapshot is of another timeline."""
    shop.snapshot()
    shop.snapshot()
    shop.restore("shop-1")
    shop.snapshot()
    result = call("pipeline", "list", shop.path)
    rows, _ = rows_and_words(result.stdout)
    assert [row[1:3] for row in rows] == [
        ["began", "here"],
        ["aligned", rows[1][2]],
        ["present", "aligned"],
    ]
    assert "epoch 2, which started from shop-1; a restore starts from shop-3" in result.stdout


def test_abandoned_snapshots_are_listed_with_their_reason(call: Call, shop: Pipeline) -> None:
    """One that met its deadline, one that was interrupted, and one that was left by a program that
    was killed; the last ones, when there are many."""

    def interrupt(progress: object) -> None:
        raise KeyboardInterrupt

    shop.snapshot()
    with join("till", pipeline=shop.path, state=Till()):
        assert isinstance(shop.snapshot(timeout_s=0.01), Abandoned)
        with pytest.raises(KeyboardInterrupt):
            shop.snapshot(progress=interrupt)
        left = Request(
            snapshot=SnapshotId("shop", 4),
            epoch=1,
            mode=Mode.ALIGNED,
            name=None,
            initiated_at=time.time(),
            deadline_at=time.time() + 60.0,
        )
        replace_durably(shop.path / coordinator.ID_FILE, seal(coordinator.LastSnapshot(last=4)))
        coordinator._ask(shop.path, left)
    shop.snapshot()
    result = call("pipeline", "list", shop.path)
    _, lines = rows_and_words(result.stdout)
    assert lines[0].startswith("snapshot shop-2 was abandoned: the deadline passed")
    assert "missing: audit, books, till" in lines[0]
    died = "was abandoned: the coordinator died before the snapshot was published"
    assert lines[1:3] == [f"snapshot shop-3 {died}; KeyboardInterrupt", f"snapshot shop-4 {died}"]
    listed = json.loads(call("pipeline", "list", shop.path, "--json").stdout)["abandoned"]
    assert [one["snapshot"] for one in listed] == ["shop-2", "shop-3", "shop-4"]
    for number in range(coordinator.ABANDONED_COUNT_MAX):
        coordinator._remember(shop.path, Abandoned(SnapshotId("shop", 9 + number), Reason.DEADLINE))
    kept = coordinator.abandoned_snapshots(shop.path)
    assert (len(kept), str(kept[0].snapshot)) == (coordinator.ABANDONED_COUNT_MAX, "shop-9")
    (shop.path / coordinator.ABANDONED_FILE).write_text("{}")
    damaged = call("pipeline", "list", shop.path)
    assert damaged.exit_code == 1
    assert "shop-1" in damaged.stdout
    assert coordinator.ABANDONED_FILE in damaged.stdout


def test_the_list_can_be_json(call: Call, shop: Pipeline) -> None:
    """One document with the figures that the table rounds."""
    shop.savepoint("gold")
    shop.snapshot()
    shop.restore("gold")
    listed = json.loads(call("pipeline", "list", shop.path, "--json").stdout)
    entries = listed.pop("snapshots")
    assert listed == {
        "version": 2,
        "pipeline": str(shop.path),
        "name": "shop",
        "epoch": 2,
        "restored_from": "shop-1",
        "latest": "shop-1",
        "abandoned": [],
        "damaged": [],
    }
    assert [(one["id"], one["name"], one["is_current"]) for one in entries] == [
        ("shop-1", "gold", True),
        ("shop-2", None, False),
    ]
    assert entries[0]["initiated_at"] < entries[0]["completed_at"] <= entries[0]["published_at"]


def test_a_pipeline_without_snapshots_is_no_error(call: Call, shop: Pipeline) -> None:
    """The words say how to take the first."""
    result = call("pipeline", "list", shop.path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert (
        "there is nothing to restore: take a snapshot with 'stillframe pipeline snapshot "
        f"{shop.path}'" in result.stdout
    )


def test_named_snapshots_are_dropped(call: Call, shop: Pipeline) -> None:
    """By id or by name, and one that is named twice once."""
    shop.snapshot()
    shop.savepoint("gold")
    shop.snapshot()
    result = call("pipeline", "delete", shop.path, "shop-1", "gold", "shop-2", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "version": 2,
        "deleted": ["shop-1", "shop-2"],
        "left": ["shop-3"],
    }
    assert result.stderr == "deleted 2 snapshots (shop-1, shop-2); 1 snapshot left\n"


def test_a_damaged_snapshot_is_dropped_by_its_id(call: Call, shop: Pipeline) -> None:
    """Nothing of it need be read for that."""
    shop.snapshot()
    shop.snapshot()
    changed(shop.path / "snapshots/shop-1/manifest.json")
    result = call("pipeline", "delete", shop.path, "shop-1")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "deleted 1 snapshot (shop-1); 1 snapshot left\n"


def test_the_newest_are_kept(call: Call, shop: Pipeline) -> None:
    """``--keep`` counts without savepoints, which stay."""
    shop.savepoint("gold")
    for _ in range(3):
        shop.snapshot()
    result = call("pipeline", "delete", shop.path, "--keep", "1")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "deleted 2 snapshots (shop-2, shop-3); 2 snapshots left\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give either the snapshots to delete or --keep N"),
        (["shop-2", "--keep", "1"], "give either the snapshots to delete or --keep N"),
        (["shop-2", "shop-9"], "there is no snapshot and no savepoint 'shop-9'"),
        (["shop-2", "shop-1"], "the current epoch started from snapshot shop-1"),
        (["--keep", "-1"], "Invalid value for '--keep'"),
    ],
)
def test_what_cannot_be_dropped_leaves_everything(
    call: Call, shop: Pipeline, arguments: list[str], says: str
) -> None:
    """Exit 2 with the reason, and not even the others that were named are gone."""
    shop.snapshot()
    shop.snapshot()
    shop.restore("shop-1")
    result = call("pipeline", "delete", shop.path, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr
    assert len(shop.snapshots()) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("snapshot",),
        ("savepoint", "gold"),
        ("list",),
        ("show",),
        ("restore",),
        ("status",),
        ("delete", "shop-1"),
    ],
)
def test_a_directory_without_a_pipeline_is_named(
    call: Call, tmp_path: Path, money: Path, arguments: tuple[str, ...]
) -> None:
    """Nothing there, something else, or a store: exit 2 says which, and nothing is made."""
    command, *rest = arguments
    nowhere = tmp_path / "nowhere"
    for path, says in (
        (nowhere, f"{nowhere} does not exist: give the directory in which the program created"),
        (tmp_path, f"{tmp_path} is not a pipeline"),
        (
            money,
            f"{money} is a store, with the snapshots of a system of processes, not a pipeline",
        ),
    ):
        before = sorted(tmp_path.rglob("*"))
        result = call("pipeline", command, path, *rest)
        assert (result.exit_code, result.stdout) == (2, "")
        assert says in result.stderr
        assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "arguments", [("list",), ("show", "shop-1"), ("verify",), ("diff", "shop-1", "shop-2")]
)
def test_commands_of_stores_know_a_pipeline(
    call: Call, shop: Pipeline, arguments: tuple[str, ...]
) -> None:
    """They do not take it for a damaged store, and say where its commands are."""
    shop.snapshot()
    command, *rest = arguments
    result = call(command, shop.path, *rest)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "use the commands under 'stillframe pipeline', such as" in result.stderr
    assert f"'stillframe pipeline list {shop.path}'" in result.stderr


def test_a_damaged_manifest_hides_no_other_snapshot(call: Call, shop: Pipeline) -> None:
    """The good one is listed, the damaged one is named, and the exit code is 1."""
    shop.snapshot()
    shop.snapshot()
    changed(shop.path / "snapshots/shop-1/manifest.json")
    result = call("pipeline", "list", shop.path)
    assert result.exit_code == 1, result.output
    assert [row[0] for row in rows_and_words(result.stdout)[0]] == ["shop-2"]
    assert "shop-1/manifest.json was changed since it was written" in result.stdout
