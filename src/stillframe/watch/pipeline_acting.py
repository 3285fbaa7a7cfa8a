"""Does with a pipeline what somebody wishes on the page, as ``stillframe spark`` does it."""

import threading
from typing import Any, assert_never

from stillframe.errors import UsageError
from stillframe.model import Abandoned
from stillframe.pipeline.head import read_head
from stillframe.pipeline.pipeline import Outcome, Pipeline
from stillframe.pipeline.progress import Progress
from stillframe.pipeline.published import Manifest
from stillframe.watch.pipeline_picture import mode_for
from stillframe.watch.wishes import Keep, Restore, Take, Wish


class Over(Exception):
    """Whoever serves the page ends, and takes no snapshot to its end."""


def act(pipeline: Pipeline, wish: Wish, is_over: threading.Event) -> tuple[dict[str, Any], Outcome]:
    """Do it, and return whether it was done, and what came of it in a sentence; and the snapshot.

    It may take as long as a snapshot does: call it in a thread.

    Args:
        pipeline: which.
        wish: what for.
        is_over: when it is set, a snapshot under way is given up, so that nothing stays held.

    Raises:
        Unavailable: another program takes a snapshot or restores, or a query or service runs.
        UsageError: that cannot be done.
        StillframeError: it went wrong.
        Over: it is.
    """
    match wish:
        case Take(initiator, name):
            if initiator is not None:
                raise UsageError("a snapshot of a pipeline begins at the heads of its dataflow")
            return _take(pipeline, name, is_over)
        case Keep():
            raise UsageError(
                "a snapshot of a pipeline gets its name when it is taken: take a savepoint"
            )
        case Restore(snapshot):
            manifest = pipeline.restore(snapshot)
            names = ", ".join(manifest.dataflow.participants)
            stores = [
                f"'stillframe restore {cut.store} --pipeline {pipeline.path}'"
                for cut in manifest.systems
            ]
            also = f"; the systems go back with {', '.join(stores)}" if stores else ""
            sentence = (
                f"epoch {read_head(pipeline.path).epoch}: the pipeline went back to snapshot "
                f"{manifest.snapshot}; next, start its programs again: {names}{also}"
            )
            return {"is_done": True, "sentence": sentence}, manifest
        case _:
            assert_never(wish)


def _take(
    pipeline: Pipeline, name: str | None, is_over: threading.Event
) -> tuple[dict[str, Any], Outcome]:
    def go_on(_: Progress) -> None:
        if is_over.is_set():
            raise Over

    mode = mode_for(pipeline.dataflow)
    if name is None:
        outcome = pipeline.snapshot(mode, progress=go_on)
    else:
        outcome = pipeline.savepoint(name, mode, progress=go_on)
    if isinstance(outcome, Abandoned):
        return {"is_done": False, "sentence": str(outcome)}, outcome
    return {
        "is_done": True,
        "sentence": _published(outcome),
        "snapshot": str(outcome.snapshot),
    }, outcome


def _published(manifest: Manifest) -> str:
    kind = "snapshot" if manifest.name is None else f"savepoint {manifest.name}, snapshot"
    count = manifest.record_count
    return (
        f"{kind} {manifest.snapshot} was recorded in "
        f"{manifest.completed_at - manifest.initiated_at:.2f} s and published after "
        f"{manifest.published_at - manifest.initiated_at:.2f} s, with {count:,} "
        f"record{'' if count == 1 else 's'} on channels"
    )
