"""``stillframe spark restore`` and ``fork``: go on from a snapshot, here or beside."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from stillframe.cli import output, quantities
from stillframe.cli.pipeline_snapshot import doubled
from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.pipeline import Pipeline
from stillframe.pipeline.snapshot_manifest import Manifest


def restore(path: Path, name: str | None, *, is_json: bool) -> None:
    """Take the stopped pipeline at `path` back to a snapshot; None for the newest of its course."""
    pipeline = Pipeline(path)
    manifest = pipeline.latest() if name is None else pipeline.find(name)
    began = time.monotonic()
    with _verifying(manifest) as progress:
        pipeline.restore(str(manifest.snapshot), progress=progress)
    seconds = time.monotonic() - began
    if is_json:
        output.put_json(
            {
                "snapshot": manifest.snapshot,
                "epoch": pipeline.epoch,
                "duplicate_count": manifest.duplicate_count,
                "byte_count": manifest.bytes,
                "seconds": seconds,
            }
        )
    output.say(
        f"epoch {pipeline.epoch}: pipeline {path} went back to snapshot {manifest.snapshot} in "
        f"{quantities.duration(seconds)}, its {quantities.size(manifest.bytes)} of checkpoints "
        "verified",
        *_next_words(manifest, path),
    )


def fork(path: Path, snapshot: str, target: Path, *, name: str | None, is_json: bool) -> None:
    """Make a pipeline at `target` that goes on from a snapshot of the one at `path`."""
    pipeline = Pipeline(path)
    manifest = pipeline.find(snapshot)
    with _verifying(manifest) as progress:
        second = pipeline.fork(str(manifest.snapshot), target, name=name, progress=progress)
    head = read_metadata(second.path)
    if is_json:
        output.put_json(
            {
                "snapshot": manifest.snapshot,
                "pipeline": second.path,
                "name": head.name,
                "epoch": head.epoch,
                "duplicate_count": manifest.duplicate_count,
                "byte_count": manifest.bytes,
            }
        )
    output.say(
        f"epoch {head.epoch}: pipeline {target}, called {head.name}, goes on from snapshot "
        f"{manifest.snapshot} of {path}, its {quantities.size(manifest.bytes)} of checkpoints "
        "verified",
        *_next_words(manifest, target),
    )


def _next_words(manifest: Manifest, path: Path) -> Iterator[str]:
    """Yield what is to be done next, and what to expect."""
    names = ", ".join(manifest.dataflow.participants)
    yield f"next, start its programs with the pipeline {path}; each goes on from there: {names}"
    if manifest.duplicate_count:
        yield f"it was taken in mode {manifest.mode}: {doubled(manifest)}"


@contextlib.contextmanager
def _verifying(manifest: Manifest) -> Iterator[Callable[[int], None]]:
    """Give what moves a bar, on a terminal, by the length of a file that was verified."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    console = output.words()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(f"verifying snapshot {manifest.snapshot}", total=manifest.bytes)
        yield lambda byte_count: bar.update(task, advance=byte_count)
