"""``stillframe spark progress``: who has recorded, who is awaited, for what and since when."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
from rich.live import Live
from rich.text import Text

from stillframe.cli import output, quantities
from stillframe.cli.verdict import EXIT_NO
from stillframe.pages.values import plain
from stillframe.pipeline.locks import COORDINATOR, Lock
from stillframe.pipeline.pipeline import Pipeline
from stillframe.pipeline.progress import Progress

COLUMNS = ("participant", "what", "since", "for")
LINE_COUNT_MAX = 10
"""So many awaited participants are shown in the moving lines; the table has all."""
POLL_S = 0.1


def show_progress(path: Path, *, is_json: bool) -> None:
    """Write how far the snapshot is that is being taken of the pipeline at `path`."""
    pipeline = Pipeline(path)
    progress = pipeline.progress()
    if is_json:
        output.put_json(_document(progress))
    if progress is None:
        output.say("no snapshot is under way")
        return
    now = time.time()
    if not is_json:
        output.put_table("", COLUMNS, _rows(progress, now), texts=2)
    output.say(_summary(progress, now))
    if _is_left_over(pipeline, progress):
        output.say(_left_over(progress))


def watch(path: Path, *, is_json: bool) -> None:
    """Follow the snapshot that is being taken of the pipeline at `path` until it is over.

    Raises:
        typer.Exit: with 1; it was given up.
    """
    pipeline = Pipeline(path)
    first = progress = pipeline.progress()
    if first is None:
        if is_json:
            output.put_json(_document(None))
        output.say("no snapshot is under way")
        return
    with moving() as draw:
        while progress is not None and progress.snapshot == first.snapshot:
            draw(progress)
            if _is_left_over(pipeline, progress):
                break
            time.sleep(POLL_S)
            progress = pipeline.progress()
    is_published = first.snapshot in (manifest.snapshot for manifest in pipeline.snapshots())
    if is_json:
        output.put_json({"snapshot": first.snapshot, "is_published": is_published})
    if is_published:
        output.say(f"snapshot {first.snapshot} is published")
        return
    is_over = progress is None or progress.snapshot != first.snapshot
    output.say(f"no: snapshot {first.snapshot} was given up" if is_over else _left_over(first))
    raise typer.Exit(EXIT_NO)


@contextlib.contextmanager
def moving() -> Iterator[Callable[[Progress], None]]:
    """Give what draws progress on a terminal, line over line, and wipes it away at the end.

    Where words do not go to a terminal it draws nothing.
    """
    console = output.words()
    if not console.is_terminal:
        yield lambda progress: None
        return
    with Live(console=console, transient=True) as live:
        yield lambda progress: live.update(Text("\n".join(lines(progress, time.time()))))


def lines(progress: Progress, now: float) -> list[str]:
    """Return how far a snapshot is at the time `now`, for people."""
    awaiting = progress.awaiting[:LINE_COUNT_MAX]
    shown = [
        f"  {awaited.sentence()}, for {_age(awaited.since or progress.initiated_at, now)}"
        for awaited in awaiting
    ]
    left_out = len(progress.awaiting) - len(awaiting)
    more = [f"  and {left_out:,} more are awaited"] if left_out else []
    return [_summary(progress, now), *shown, *more]


def _summary(progress: Progress, now: float) -> str:
    recorded_count = len(progress.recorded)
    count = recorded_count + len(progress.awaiting)
    return (
        f"snapshot {progress.snapshot}, {progress.mode}, begun {_age(progress.initiated_at, now)} "
        f"ago: {recorded_count} of {count} have recorded"
        + (f" ({', '.join(sorted(progress.recorded))})" if recorded_count else "")
    )


def _rows(progress: Progress, now: float) -> list[tuple[str, ...]]:
    what = {name: ("has recorded", at) for name, at in progress.recorded.items()}
    for awaited in progress.awaiting:
        # Until the barriers of others are there it has been waiting since the beginning.
        since = awaited.since or progress.initiated_at
        sentence = awaited.sentence().removeprefix(f"{awaited.participant} ")
        what[awaited.participant] = (sentence, since)
    return [
        (name, sentence, quantities.moment(since), _age(since, now))
        for name, (sentence, since) in sorted(what.items())
    ]


def _age(since: float, now: float) -> str:
    # Somebody else's clock may be ahead of ours.
    return quantities.duration(max(0.0, now - since))


def _is_left_over(pipeline: Pipeline, progress: Progress) -> bool:
    """Return whether nobody takes the snapshot any more: its coordinator was killed."""
    # Only after the deadline, because asking for the lock could be in the way of the next snapshot.
    if time.time() <= progress.deadline_at:
        return False
    lock = Lock(pipeline.path / COORDINATOR)
    is_free = lock.try_acquire()
    lock.release()
    return is_free


def _left_over(progress: Progress) -> str:
    return (
        f"no: the program that took snapshot {progress.snapshot} is gone, and its deadline has "
        "passed: take another, which clears this one away"
    )


def _document(progress: Progress | None) -> dict[str, Any]:
    if progress is None:
        return {"snapshot": None}
    document: dict[str, Any] = plain(progress)
    sentences = [{"sentence": awaited.sentence()} for awaited in progress.awaiting]
    return document | {
        "mode": str(progress.mode),
        "awaiting": [
            one | sentence for one, sentence in zip(document["awaiting"], sentences, strict=True)
        ],
        "culprits": [awaited.participant for awaited in progress.stragglers],
    }
