"""``stillframe view``: the space-time diagram of a trace, or one after each step."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from stillframe import tracefile
from stillframe.cli import output, quantities
from stillframe.cli.cut_option import parse_cut
from stillframe.errors import UsageError
from stillframe.model import SnapshotId
from stillframe.view import diagram, svg
from stillframe.view.shapes import Diagram, Sample
from stillframe.whole_file import write_whole

SUFFIX = ".svg"
NUMBER_DIGITS_MIN = 3


class Wish(msgspec.Struct, frozen=True):
    """What is to be drawn.

    Attributes:
        out: where to; None: the name of the trace with ``.svg``.
        snapshot: the id of the one that the picture is about.
        cut: a cut to show, such as ``P1=3,P2=5``.
        first: the step of the trace to begin with, from 1.
        steps: whether to draw a picture after each step.
    """

    out: Path | None
    snapshot: str | None
    cut: str | None
    first: int
    steps: bool


def draw(path: Path, wish: Wish, *, is_json: bool) -> None:
    """Draw the trace in the file at `path`.

    Raises:
        UsageError: the trace has no such snapshot, cut or step, or a file is in the way.
        OSError: a file cannot be read or written.
    """
    trace = tracefile.read(path)
    snapshot = None if wish.snapshot is None else SnapshotId.parse(wish.snapshot)
    cuts = [] if wish.cut is None else [parse_cut(wish.cut, trace)]
    whole = diagram.lay_out(trace, snapshot=snapshot, cuts=cuts, first=wish.first)
    out = wish.out if wish.out is not None else path.with_suffix(SUFFIX)
    shown = len(whole.dots) + len(whole.marks)
    if wish.steps:
        pictures = diagram.frames(trace, snapshot=snapshot, cuts=cuts, first=wish.first)
        files = _write_sequence(path, out, pictures, shown)
    else:
        write_whole(out, [svg.draw(whole).encode()], inputs=[path])
        files = [out]
    left_out = diagram.left_out(trace, first=wish.first)
    if is_json:
        output.put_json({"files": files, "left_out": left_out})
    for row in whole.legend:
        if row.sample is Sample.CUT:
            output.say(row.full)
    if left_out:
        going_on = wish.first + shown
        hint = f": --first {going_on} goes on" if going_on <= len(trace.steps) else ""
        output.say(f"{left_out}{hint}")
    steps = quantities.count(shown, "step")
    processes = quantities.count(len(whole.lines), "process")
    what = quantities.count(len(files), "picture")
    where = f"{what} in {out.with_name(_stem(out))}" if wish.steps else str(out)
    output.say(f"done: {where}: {steps} of {processes}")


def _write_sequence(path: Path, out: Path, pictures: Iterable[Diagram], count: int) -> list[Path]:
    """Write numbered pictures to the directory that has the name of `out` without its suffix."""
    stem = _stem(out)
    directory = out.with_name(stem)
    digits = max(NUMBER_DIGITS_MIN, len(str(count)))
    files = [directory / f"{stem}-{number:0{digits}}{SUFFIX}" for number in range(1, count + 1)]
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is a file, and pictures go there: give another --out")
    directory.mkdir(parents=True, exist_ok=True)
    numbered = re.compile(re.escape(f"{stem}-") + r"\d+" + re.escape(SUFFIX))
    old = {file for file in directory.iterdir() if numbered.fullmatch(file.name)} - {*files}
    if old:
        raise UsageError(
            f"{min(old)} is of a longer sequence, and would stand at the end of this one: remove "
            f"{directory} or give another --out"
        )
    for file, picture in zip(files, _with_progress(pictures, count), strict=True):
        write_whole(file, [svg.draw(picture).encode()], inputs=[path])
    return files


def _with_progress(pictures: Iterable[Diagram], count: int) -> Iterator[Diagram]:
    columns = TextColumn("{task.description}"), MofNCompleteColumn(), TimeRemainingColumn()
    console = output.words()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        yield from bar.track(pictures, total=count, description="drawing steps")


def _stem(out: Path) -> str:
    return out.name.removesuffix(SUFFIX)
