"""``stillframe view``: an execution as a picture, as one after each step, or as a page."""

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from stillframe.cli import execution, output, quantities
from stillframe.cli.cut_option import parse_cut
from stillframe.cli.execution import Execution
from stillframe.diagram import layout, svg
from stillframe.diagram.shapes import Diagram, Sample
from stillframe.durable_files import write_atomically
from stillframe.errors import UsageError
from stillframe.model import SnapshotId
from stillframe.pages import self_contained_page
from stillframe.pages.player_document import player_document
from stillframe.trace import Cut

SVG, PNG, HTML = ".svg", ".png", ".html"
DRAWN: dict[str, Callable[[Diagram], bytes]] = {
    SVG: lambda shown: svg.draw(shown).encode(),
    PNG: svg.draw_png,
}
"""Suffix -> what makes a file of a diagram."""
NUMBER_DIGITS_MIN = 3


class Wish(msgspec.Struct, frozen=True):
    """What is to be shown, and how.

    Attributes:
        out: where to; its suffix says in which form. None: the name of what is shown with ``.svg``.
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


def show(what: str, wish: Wish, *, is_json: bool) -> None:
    """Show what `what` means.

    Raises:
        UsageError: it means nothing, has no such snapshot, cut or step, or a file is in the way.
        Unavailable: what draws PNG is not installed.
        OSError: a file cannot be read or written.
    """
    suffix = (wish.out.suffix if wish.out is not None else "") or SVG
    _check_form(suffix, wish)
    found = execution.read(what)
    if suffix == HTML:
        _write_page(found, wish, is_json=is_json)
    else:
        _draw(found, wish, suffix, is_json=is_json)


def _check_form(suffix: str, wish: Wish) -> None:
    if suffix not in {*DRAWN, HTML}:
        raise UsageError(
            f"--out {wish.out}: let it end in .svg, .png or .html, which says in which form"
        )
    if suffix == HTML and wish.steps:
        raise UsageError("--steps draws pictures, and a page has all steps in it: leave one out")


def _write_page(found: Execution, wish: Wish, *, is_json: bool) -> None:
    """Write a page that goes through the execution step by step."""
    assert wish.out is not None
    snapshot, cuts = chosen(found, wish)
    with output.words().status("drawing every step"):
        page = player_document(
            found.trace,
            title=found.path.stem,
            played=found.script[1] if found.script is not None else None,
            snapshot=snapshot,
            cuts=cuts,
            first=wish.first,
        )
        text = self_contained_page.render(page, title=found.path.stem).encode()
    write_atomically(wish.out, [text], inputs=[found.path])
    if is_json:
        output.put_json({"files": [wish.out], "left_out": page["notice"]})
    shown = len(page["steps"])
    say_left_out(found, wish, page["notice"], shown)
    steps, size = quantities.count(shown, "step"), quantities.size(len(text))
    output.say(f"done: {wish.out}: {steps}, {size}: open it in a browser")


def _draw(found: Execution, wish: Wish, suffix: str, *, is_json: bool) -> None:
    """Draw one picture, or a sequence of them."""
    trace, draw = found.trace, DRAWN[suffix]
    snapshot, cuts = chosen(found, wish)
    whole = layout.lay_out(trace, snapshot=snapshot, cuts=cuts, first=wish.first)
    out = wish.out if wish.out is not None else found.beside.with_suffix(suffix)
    shown = len(whole.dots) + len(whole.marks)
    if wish.steps:
        pictures = layout.frames(trace, snapshot=snapshot, cuts=cuts, first=wish.first)
        drawn = map(draw, _with_progress(pictures, shown))
        files = _write_sequence(found.path, out, drawn, shown)
    else:
        write_atomically(out, [draw(whole)], inputs=[found.path])
        files = [out]
    left_out = layout.left_out(trace, first=wish.first)
    if is_json:
        output.put_json({"files": files, "left_out": left_out})
    for row in whole.legend:
        if row.sample is Sample.CUT:
            output.say(row.full)
    say_left_out(found, wish, left_out, shown)
    steps = quantities.count(shown, "step")
    processes = quantities.count(len(whole.lines), "process")
    what = quantities.count(len(files), "picture")
    where = f"{what} in {out.with_suffix('')}" if wish.steps else str(out)
    output.say(f"done: {where}: {steps} of {processes}")


def chosen(found: Execution, wish: Wish) -> tuple[SnapshotId | None, list[Cut]]:
    """Return the snapshot and the cut that are wished for.

    Raises:
        UsageError: one of them is none.
    """
    snapshot = None if wish.snapshot is None else SnapshotId.parse(wish.snapshot)
    return snapshot, [] if wish.cut is None else [parse_cut(wish.cut, found.trace)]


def say_left_out(found: Execution, wish: Wish, left_out: str, shown: int) -> None:
    """Say what is not among the `shown` steps, and how to see the rest."""
    if left_out:
        going_on = wish.first + shown
        hint = f": --first {going_on} goes on" if going_on <= len(found.trace.steps) else ""
        output.say(f"{left_out}{hint}")


def _write_sequence(path: Path, out: Path, pictures: Iterable[bytes], count: int) -> list[Path]:
    """Write numbered pictures to the directory that has the name of `out` without its suffix."""
    directory, stem, suffix = out.with_suffix(""), out.stem, out.suffix or SVG
    digits = max(NUMBER_DIGITS_MIN, len(str(count)))
    files = [directory / f"{stem}-{number:0{digits}}{suffix}" for number in range(1, count + 1)]
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is a file, and pictures go there: give another --out")
    directory.mkdir(parents=True, exist_ok=True)
    numbered = re.compile(re.escape(f"{stem}-") + r"\d+" + re.escape(suffix))
    old = {file for file in directory.iterdir() if numbered.fullmatch(file.name)} - {*files}
    if old:
        raise UsageError(
            f"{min(old)} is of a longer sequence, and would stand at the end of this one: remove "
            f"{directory} or give another --out"
        )
    for file, picture in zip(files, pictures, strict=True):
        write_atomically(file, [picture], inputs=[path])
    return files


def _with_progress(pictures: Iterable[Diagram], count: int) -> Iterator[Diagram]:
    columns = TextColumn("{task.description}"), MofNCompleteColumn(), TimeRemainingColumn()
    console = output.words()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        yield from bar.track(pictures, total=count, description="drawing steps")
