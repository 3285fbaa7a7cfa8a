"""Whoever takes, restores, forks or drops may fail at any file: all as before, or all done."""

import itertools
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stillframe import durable_files
from stillframe.errors import StoreError, UsageError
from stillframe.pipeline import Pipeline
from stillframe.pipeline.snapshot_manifest import Manifest
from tests.nightly import by_night
from tests.pipeline.money import TOTAL, leave_behind, line, money_in, money_now

STEPS = (
    *((Path, name) for name in ("mkdir", "rename", "replace", "unlink", "open")),
    *((os, name) for name in ("link", "sync", "fsync")),
    *((shutil, name) for name in ("rmtree", "copyfile")),
)

STEP = by_night(1, check=4)


class Killed(BaseException):
    """The program ends here; what it would clear up stays."""


class FailureAt:
    """Lets the n-th step on files fail: with a full disk once, or by the end of the program."""

    def __init__(self, patch: pytest.MonkeyPatch, place: int, kind: type[BaseException]) -> None:
        self.place, self.kind = place, kind
        self.count = 0
        for owner, name in STEPS:
            patch.setattr(owner, name, self.counted(getattr(owner, name)))

    def counted(self, act: Callable[..., Any]) -> Callable[..., Any]:
        """Count a step, and fail if it is the one."""

        def go(*args: Any, **options: Any) -> Any:
            if threading.current_thread().name == "lease":
                return act(*args, **options)  # it is renewed at any time, if the machine is slow
            self.count += 1
            if self.count == self.place or (self.kind is Killed and self.count > self.place):
                raise self.kind(28, "no space")
            return act(*args, **options)

        return go


def take(pipeline: Pipeline, target: Path) -> None:
    """Take a snapshot."""
    assert isinstance(pipeline.snapshot("unaligned"), Manifest)


def restore(pipeline: Pipeline, target: Path) -> None:
    """Go back to the first snapshot."""
    pipeline.restore("run-1")


def fork(pipeline: Pipeline, target: Path) -> None:
    """Make a second pipeline from the first snapshot."""
    pipeline.fork("run-1", target)


def drop(pipeline: Pipeline, target: Path) -> None:
    """Drop all but the newest snapshot."""
    pipeline.keep(1)


@pytest.mark.nightly(part="soak")
@pytest.mark.slow
@pytest.mark.parametrize("kind", [OSError, Killed])
@pytest.mark.parametrize("act", [take, restore, fork, drop])
def test_a_failure_at_any_file_leaves_a_whole_pipeline(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[Pipeline, Path], None],
    kind: type[BaseException],
) -> None:
    """After a failure at step 1, 2, 3...: each snapshot is whole, and the act succeeds again.

    The check fails every fourth step: 1, 5, 9... with an error, 3, 7, 11... with a kill.
    """
    origin = line(tmp_path / "origin", name="run")
    for _ in range(2):
        leave_behind(origin, 5, 7, received_count=1)
        assert isinstance(origin.snapshot("unaligned"), Manifest)
    # The programs end here, not the machine; forcing it all to the disk would take minutes.
    monkeypatch.setattr(os, "sync", lambda: None)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    first = 1 + STEP // 2 if kind is Killed else 1
    for place in itertools.count(first, STEP):
        root, target = tmp_path / f"at-{place}", tmp_path / f"fork-{place}"
        shutil.copytree(origin.path, root)
        with pytest.MonkeyPatch.context() as patch:
            failure = FailureAt(patch, place, kind)
            try:
                act(Pipeline(root), target)
            except (StoreError, OSError, Killed):
                pass
        check_whole(Pipeline(root))
        if target.exists() and any(target.iterdir()):
            assert money_now(Pipeline(target)) == TOTAL
        else:
            act(Pipeline(root), target)
        check_whole(Pipeline(root))
        if failure.count < place:
            break
    assert place > 5


def check_whole(pipeline: Pipeline) -> None:
    """Every snapshot has all the money, and the pipeline goes on, from now and from each."""
    found = pipeline.snapshots()
    assert found
    assert all(money_in(pipeline, manifest) == TOTAL for manifest in found)
    leave_behind(pipeline, 3)
    assert money_now(pipeline) == TOTAL
    pipeline.restore(str(found[-1].snapshot))
    leave_behind(pipeline, 2)
    assert money_now(pipeline) == TOTAL


def test_a_pipeline_is_made_again_after_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the attempt left is no stranger's."""
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda *args: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            line(tmp_path / "run")
    with pytest.raises(UsageError, match="is not a pipeline"):
        Pipeline(tmp_path / "run")
    assert durable_files.partial_path(tmp_path / "run" / "pipeline.json").exists()
    assert line(tmp_path / "run").epoch == 1
