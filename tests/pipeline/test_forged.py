"""Files that somebody forged lead nowhere outside the pipeline, and are named."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stillframe.errors import Damaged
from stillframe.model import SnapshotId
from stillframe.pipeline import Pipeline
from stillframe.pipeline.log import DataFile, LogEntry, Rows, entry_name
from stillframe.pipeline.pending_snapshot import Request
from stillframe.pipeline.service import join
from stillframe.protocol.aligner import Mode
from stillframe.store.sealed_json import seal
from tests.pipeline.money import Account, leave_behind, line


def forged(pipeline: Pipeline, *, name: str = "x.parquet", **changes: object) -> Path:
    """Put a sealed item 0 into the line's channel whose one file is what it should not be."""
    path: Path = pipeline.path / "channels/coins/epoch-1" / entry_name(0)
    file = {"name": name, "partition": 0, "record_count": 1, "checksum": 0} | changes
    metadata = {"number": 0, "epoch": 1, "offsets": (0,)}
    metadata |= {key: file.pop(key) for key in list(file) if key in metadata}
    path.unlink(missing_ok=True)
    content = Rows((DataFile(**file),))  # type: ignore[arg-type]
    path.write_bytes(seal(LogEntry(**metadata, content=content)))  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize("name", ["{home}/x.parquet", "../../../../../home/x.parquet", "a/../x"])
def test_an_item_names_no_file_outside_its_channel(tmp_path: Path, name: str) -> None:
    """Dropping a snapshot deletes nothing there, and a fork writes nothing there."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "x.parquet").write_text("precious")
    (home / "letter.txt").write_text("precious")
    pipeline = line(tmp_path / "run")
    for sent in (1, 2, 3):
        leave_behind(pipeline, sent, received_count=1)
        pipeline.snapshot("unaligned")
    path = forged(pipeline, name=name.format(home=home))
    with pytest.raises(Damaged, match=path.name):
        pipeline.delete("run-1", "run-2")
    assert sorted(file.name for file in home.iterdir()) == ["letter.txt", "x.parquet"]


@pytest.mark.parametrize(
    "changes",
    [
        {"partition": 1},
        {"partition": -1},
        {"record_count": -1},
        {"offsets": (-1,)},
        {"offsets": (0, 0)},
        {"epoch": 2},
        {"name": ""},
        {"name": "."},
        {"name": ".hidden"},
        {"name": "batch-1/sub/part-0"},
        {"name": "batch-1/other"},
        {"name": "part\n"},
    ],
)
def test_an_item_that_no_writer_writes_is_damaged(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    """A partition that there is not, a negative count, a strange name: the item is named."""
    pipeline = line(tmp_path / "run")
    leave_behind(pipeline, 1)
    path = forged(pipeline, **changes)  # type: ignore[arg-type]
    with pytest.raises(Damaged, match=path.name):
        leave_behind(pipeline, 2, received_count=1)


def rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Seal other content into a file."""
    content = msgspec.json.decode(path.read_bytes())["content"]
    change(content)
    encoded = msgspec.json.encode(content)
    digest = hashlib.sha256(encoded).hexdigest().encode()
    path.write_bytes(b'{"content":%b,"hash":"%b"}' % (encoded, digest))


def put(*keys: str | int, value: object) -> Callable[[dict[str, Any]], None]:
    """Return a change that replaces what lies at the end of `keys`."""

    def change(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        assert content[keys[-1]] != value
        content[keys[-1]] = value

    return change


COURSE = [
    put("epoch", value=0),
    put("segments", "coins", value=[]),
    put("segments", "coins", value=[{"epoch": 0, "first": 0}]),
    put("segments", "coins", value=[{"epoch": 2, "first": 0}]),
    put("segments", "coins", value=[{"epoch": 1, "first": -1}]),
    put("segments", "coins", value=[{"epoch": 1, "first": 2**62}]),
    put("segments", value={}),
    put("batches", value={"x": [{"epoch": 1, "first": 0}]}),
    put("dataflow", "logs", 0, "name", value="../../home"),
    put("dataflow", "logs", 0, "source", value="x"),
    put("dataflow", "logs", 0, "schema", value="?"),
    put("dataflow", "queries", value=["../../home"]),
    put("dataflow", "services", value={"../home": "Account", "till": "Account"}),
]
OF_HEAD = [
    *COURSE,
    put("name", value="../x"),
    put("restored_from", value={"initiator": "../../x", "number": 1}),
    put("restored_from", value={"initiator": "run", "number": -1}),
    put("starts", value={}),
    put("starts", "till", value={}),
    put("starts", "till", value={"coins": -1}),
    put("starts", "till", value={"coins": 2**62}),
]
OF_MANIFEST = [
    *COURSE,
    put("name", value="../x"),
    put("snapshot", value={"initiator": "../../x", "number": 1}),
    put("fragments", value=[]),
    put("fragments", 0, "participant", value="../x"),
    put("fragments", 0, "barriers", value={}),
    put("fragments", 0, "service", value=None),
    put("fragments", 0, "query", value={"batch": 1}),
    put("fragments", 1, "positions", value={"coins": -1}),
    put("fragments", 1, "positions", value={"coins": 2**62}),
    put("channels", value=[]),
    put("channels", 0, "target", value="mint"),
    put("channels", 0, "position", value=-1),
    put("channels", 0, "position", value=2**62),
    put("channels", 0, "sent_counts", value=[]),
]


def test_a_request_of_another_snapshot_is_none(tmp_path: Path) -> None:
    """Its id becomes a path: whoever hands in a part would write it somewhere else."""
    pipeline = line(tmp_path / "run")
    elsewhere = tmp_path / "home-1/parts"
    elsewhere.mkdir(parents=True)
    (elsewhere.parent / "request.json").touch()
    request = Request(
        snapshot=SnapshotId("../../home", 1),
        epoch=1,
        mode=Mode.ALIGNED,
        name=None,
        initiated_at=0,
        deadline_at=2**40,
    )
    with join("mint", pipeline=pipeline.path, state=Account()) as mint:
        (pipeline.path / "pending/run-1").mkdir(parents=True)
        (pipeline.path / "pending/run-1/request.json").write_bytes(seal(request))
        mint.boundary()
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("change", OF_HEAD)
def test_a_description_that_no_pipeline_has_is_damaged(
    tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    """A name that leads elsewhere, an epoch or a position that cannot be: the file is named."""
    pipeline = line(tmp_path / "run")
    rewritten(pipeline.path / "pipeline.json", change)
    with pytest.raises(Damaged, match=r"run/pipeline\.json does not describe a valid pipeline"):
        Pipeline(pipeline.path)


@pytest.mark.parametrize("change", OF_MANIFEST)
def test_a_manifest_that_no_snapshot_has_is_damaged(
    tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    """As for the description of the pipeline."""
    pipeline = line(tmp_path / "run")
    leave_behind(pipeline, 1)
    pipeline.snapshot("unaligned")
    rewritten(pipeline.path / "snapshots/run-1/manifest.json", change)
    with pytest.raises(Damaged, match=r"run-1/manifest\.json "):
        pipeline.find("run-1")
