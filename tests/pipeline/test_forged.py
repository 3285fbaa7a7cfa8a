"""Files that somebody forged lead nowhere outside the pipeline, and are named."""

from pathlib import Path

import pytest

from stillframe.errors import Damaged
from stillframe.pipeline import Pipeline
from stillframe.pipeline.log import DataFile, Item, Rows, item_name
from stillframe.store.seal import seal
from tests.pipeline.money import leave_behind, line


def forged(pipeline: Pipeline, *, name: str = "x.parquet", **changes: object) -> Path:
    """Put a sealed item 0 into the line's channel whose one file is what it should not be."""
    path = pipeline.path / "channels/coins/epoch-1" / item_name(0)
    file = {"name": name, "partition": 0, "record_count": 1} | changes
    head = {"number": 0, "epoch": 1, "offsets": (0,)}
    head |= {key: file.pop(key) for key in list(file) if key in head}
    path.unlink(missing_ok=True)
    content = Rows((DataFile(**file),))  # type: ignore[arg-type]
    path.write_bytes(seal(Item(**head, content=content)))  # type: ignore[arg-type]
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
        pipeline.drop("run-1", "run-2")
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
