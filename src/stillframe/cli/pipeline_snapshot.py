"""``stillframe spark snapshot`` and ``savepoint``: take one now, or again and again, and say who
holds it up."""

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import typer

from stillframe.cli import output, quantities
from stillframe.cli.pipeline_listing import document_of
from stillframe.cli.pipeline_progress import moving
from stillframe.cli.verdict import EXIT_NO
from stillframe.errors import StillframeError
from stillframe.model import Abandoned, SnapshotId
from stillframe.pipeline.coordinator import periodically
from stillframe.pipeline.pipeline import Pipeline, sentence_on_damaged
from stillframe.pipeline.progress import Progress
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.protocol.aligner import Mode


def take(
    path: Path,
    mode: Mode,
    *,
    name: str | None,
    timeout_s: float,
    keep: int | None,
    is_json: bool,
) -> None:
    """Take a snapshot of the pipeline at `path`, a savepoint if it has a name; then keep so many.

    Raises:
        typer.Exit: with 1; it was given up.
    """
    pipeline = Pipeline(path)
    outcome, _ = _take(pipeline, mode, name, timeout_s)
    _tell(outcome, is_json=is_json)
    if not isinstance(outcome, Manifest):
        raise typer.Exit(EXIT_NO)
    _keep(pipeline, keep)


def take_every(
    path: Path, mode: Mode, every_s: float, *, timeout_s: float, keep: int | None, is_json: bool
) -> None:
    """Take snapshots of the pipeline at `path` until somebody ends the command.

    One that is given up, or cannot be taken just now, is said and does not end it.
    """
    pipeline = Pipeline(path)
    pipeline.dataflow.check_mode(mode)
    with _ended_like_ctrl_c(), contextlib.suppress(KeyboardInterrupt):
        for _ in periodically(every_s, time.sleep):
            try:
                outcome, is_ended = _take(pipeline, mode, None, timeout_s)
                _tell(outcome, is_json=is_json)
                if is_ended:
                    return
                _keep(pipeline, keep)
            except StillframeError as error:
                output.say(f"no: {error}")


def _keep(pipeline: Pipeline, count: int | None) -> None:
    if count is not None and (damaged := pipeline.keep(count)):
        output.say(sentence_on_damaged(damaged))


def _tell(outcome: "Manifest | Abandoned | Interrupted", *, is_json: bool) -> None:
    if is_json:
        output.put_json(
            {"published": document_of(outcome), "abandoned": None}
            if isinstance(outcome, Manifest)
            else {"published": None, "abandoned": outcome}
        )
    if not isinstance(outcome, Manifest):
        output.say(f"no: {outcome}")
        return
    if not is_json:
        output.put_lines([str(outcome.snapshot)])
    output.say(published(outcome))


class Interrupted(msgspec.Struct, frozen=True):
    """A snapshot that was given up because somebody ended the command."""

    snapshot: SnapshotId | None
    missing: tuple[str, ...]
    reason: str = "interrupted"

    def __str__(self) -> str:
        which = "the snapshot" if self.snapshot is None else f"snapshot {self.snapshot}"
        missing = f"; missing: {', '.join(self.missing)}" if self.missing else ""
        return f"{which} was given up: {self.reason}{missing}; nothing is held up any more"


def _take(
    pipeline: Pipeline, mode: Mode, name: str | None, timeout_s: float
) -> tuple[Manifest | Abandoned | Interrupted, bool]:
    """Take one, and return how it went and whether somebody ended the command meanwhile."""
    last: Progress | None = None
    began_at = time.time()
    try:
        with _ended_like_ctrl_c(), moving() as draw:

            def progress(now: Progress) -> None:
                nonlocal last
                last = now
                draw(now)

            if name is None:
                return pipeline.snapshot(mode, timeout_s=timeout_s, progress=progress), False
            return pipeline.savepoint(name, mode, timeout_s=timeout_s, progress=progress), False
    except KeyboardInterrupt:
        newest = pipeline.snapshots()[-1:]
        if newest and newest[0].initiated_at >= began_at:
            return newest[0], True  # too late: it was published a moment before
        missing = Interrupted(last.snapshot, last.awaited) if last else Interrupted(None, ())
        return missing, True


@contextlib.contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """Let SIGTERM end the body as Ctrl-C does: what is under way must not hold queries up after."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def published(manifest: Manifest) -> str:
    """Say what a published snapshot is."""
    kind = "snapshot" if manifest.name is None else f"savepoint {manifest.name}, snapshot"
    sentence = (
        f"{kind} {manifest.snapshot}: {manifest.mode}, epoch {manifest.epoch}, "
        f"{quantities.count(manifest.record_count, 'record')} on channels, recorded in "
        f"{quantities.duration(manifest.completed_at - manifest.initiated_at)}, published after "
        f"{quantities.duration(manifest.published_at - manifest.initiated_at)}"
    )
    return f"{sentence}; {doubled(manifest)}" if manifest.duplicate_count else sentence


def doubled(manifest: Manifest) -> str:
    """Say what a restore of a snapshot receives twice."""
    return f"a restore receives {quantities.count(manifest.duplicate_count, 'record')} twice"
