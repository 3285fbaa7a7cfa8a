"""What a coordinator leaves, how often it looks, and for whom it waits."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from stillframe.pipeline import join
from stillframe.pipeline.part import PINNED, Request, request_path, under_way
from stillframe.pipeline.progress import Progress
from stillframe.pipeline.published import MANIFEST, Manifest, snapshot_path
from tests.pipeline.money import Account, leave_behind, line


def test_a_published_snapshot_holds_just_the_manifest_and_the_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came up on the way goes before it has its name, and nobody sees a request without its
    parts: who has recorded would do it again."""
    pipeline = line(tmp_path / "run")
    leave_behind(pipeline, 5)
    seen: list[Request | None] = []
    remove = shutil.rmtree

    def watched(path: Path, **options: Any) -> None:
        seen.append(under_way(pipeline.path))
        remove(path, **options)

    with join("mint", pipeline=pipeline.path, state=Account()) as mint:

        def leave_a_pin(progress: Progress) -> None:
            directory = request_path(pipeline.path, progress.snapshot)
            (directory / PINNED / ".sums.0123").mkdir(parents=True)
            (directory / "systems").mkdir()
            monkeypatch.setattr(shutil, "rmtree", watched)
            mint.boundary()

        found = pipeline.snapshot(progress=leave_a_pin)
    assert isinstance(found, Manifest)
    directory = snapshot_path(pipeline.path, found.snapshot)
    assert sorted(path.name for path in directory.iterdir()) == [PINNED, MANIFEST]
    assert list((directory / PINNED).iterdir()) == []
    assert seen
    assert set(seen) == {None}
