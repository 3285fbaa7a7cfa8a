"""``stillframe view``: an execution as a picture, as one after each step, or as a page."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from stillframe import tracefile
from stillframe.cli import output, quantities, sim
from stillframe.cli.app import SCRIPT_SUFFIX
from stillframe.cli.command import Commands, argument
from stillframe.cli.options import ViewOptions
from stillframe.cli.trace import parse_cut
from stillframe.diagram import layout, svg
from stillframe.diagram.shapes import Diagram, Sample
from stillframe.durable_files import write_atomically
from stillframe.errors import UsageError
from stillframe.model import SnapshotId
from stillframe.pages import self_contained_page
from stillframe.pages.player_document import player_document
from stillframe.sim.scenario import Played
from stillframe.storage.location import ObjectPath, local_path, locate
from stillframe.store.layout import has_observations
from stillframe.trace import Trace

SVG, PNG, HTML = ".svg", ".png", ".html"
DRAWN: dict[str, Callable[[Diagram], bytes]] = {
    SVG: lambda shown: svg.draw(shown).encode(),
    PNG: svg.draw_png,
}
"""Suffix -> what makes a file of a diagram."""
NUMBER_DIGITS_MIN = 3


class Execution(msgspec.Struct, frozen=True):
    """An execution that was read from `path`: a trace, or a script that was played, whose last
    epoch is `trace`."""

    path: Path
    trace: Trace
    played: Played | None


def _read_execution(what: str) -> Execution:
    """Return the execution that `what` means: a trace file, a ``.run`` file, or the name of one
    that comes with stillframe."""
    path = local_path(what)
    if what.endswith(SCRIPT_SUFFIX) or (what in sim.included_names() and not path.exists()):
        script = sim.script_path(what)
        played = sim.play(script, sim.read_script(script))
        return Execution(script, played.world.trace(), played)
    if path.is_dir():
        raise UsageError(
            f"{what} is a directory, but neither a store nor a pipeline: give one of these, a "
            "trace, or a script that ends in .run"
        )
    if not path.exists():
        raise UsageError(
            f"there is no file {what}: give a trace, a .run file, or an included script: "
            f"{', '.join(sim.included_names())}"
        )
    return Execution(path, tracefile.read(path), None)


app = Commands()


@app.add(
    "view lecture.trace --snapshot P1-1 --out lecture.svg",
    "view lecture --out lecture.html",
    "view seen 17 --out seen.html",
)
def view(
    what: str = argument(
        "TRACE|SCRIPT|STORE",
        "Trace file, script (a .run file, or the name of an included one), store, pipeline or "
        "store of observations.",
    ),
    number: str | None = argument(
        "NUMBER",
        "Observation to show, if it is a store of observations.  [default: the newest]",
        default=None,
    ),
    *,
    options: ViewOptions,
) -> None:
    """Draw an execution as a space-time diagram, or as a page that plays it step by step. Or show
    a snapshot of a store or pipeline: its cut, states and channels. Or show an observation of
    services: its open calls, states and amounts."""
    where = locate(what)
    if has_observations(where):
        from stillframe.cli import view_store  # noqa: PLC0415 - it loads what reads them

        view_store.show_observation(where, number, options)
        return
    if number is not None:
        is_file = isinstance(where, ObjectPath) or where.exists()
        if not is_file and what not in sim.included_names():
            raise UsageError(f"{what} does not exist: give a store that 'observe' has written")
        raise UsageError(
            f"the number {number} is for observations of services, and {what} holds none: select a "
            "snapshot with --snapshot"
        )
    if isinstance(where, ObjectPath) or where.is_dir():
        # It loads what reads stores and pipelines, which no picture of a trace needs.
        from stillframe.cli import view_store  # noqa: PLC0415

        if view_store.is_store(where):
            view_store.show(where, options)
            return
    if options.compare is not None or options.event_log is not None:
        raise UsageError(f"--compare and --event-log are for stores, and {what} is not a store")
    suffix = (options.out.suffix if options.out is not None else "") or SVG
    if suffix not in {*DRAWN, HTML}:
        raise UsageError(
            f"--out {options.out}: use a name that ends in .svg, .png or .html, which selects "
            "the format"
        )
    if suffix == HTML and options.steps:
        raise UsageError(
            "--steps draws pictures, but a page shows every step already: leave out "
            "--steps, or use .svg or .png"
        )
    found = _read_execution(what)
    if suffix == HTML:
        _write_page(found, options)
    else:
        _draw(found, options, suffix)


def _write_page(found: Execution, options: ViewOptions) -> None:
    assert options.out is not None
    title, chosen = found.path.stem, _chosen(found, options)
    with output.status("drawing every step"):
        page = player_document(found.trace, title=title, played=found.played, **chosen)
        text = self_contained_page.render(page, title=title).encode()
    write_atomically(options.out, [text], inputs=[found.path])
    output.answer({"files": [options.out], "left_out": page["notice"]})
    shown = len(page["steps"])
    _say_left_out(found, options, page["notice"], shown)
    steps, size = quantities.count(shown, "step"), quantities.size(len(text))
    output.report(f"done: {options.out}: {steps}, {size}: open it in a browser")


def _draw(found: Execution, options: ViewOptions, suffix: str) -> None:
    plan = layout.Plan(found.trace, **_chosen(found, options), is_sequence=options.steps)
    whole, draw = plan.draw(plan.step_count), DRAWN[suffix]
    # By default beside the file, or here if that comes with stillframe.
    beside = Path(found.path.name) if sim.is_included(found.path) else found.path
    out = options.out if options.out is not None else beside.with_suffix(suffix)
    shown = plan.step_count
    if options.steps:
        pictures = output.tracked(map(plan.draw, range(1, shown + 1)), "drawing steps", shown)
        files = _write_sequence(found.path, out, map(draw, pictures), shown)
    else:
        write_atomically(out, [draw(whole)], inputs=[found.path])
        files = [out]
    output.answer({"files": files, "left_out": plan.notice})
    for row in whole.legend:
        if row.sample is Sample.CUT:
            output.report(row.full)
    _say_left_out(found, options, plan.notice, shown)
    steps = quantities.count(shown, "step")
    processes = quantities.count(len(whole.lines), "process")
    what = quantities.count(len(files), "picture")
    where = f"{what} in {out.with_suffix('')}" if options.steps else str(out)
    output.report(f"done: {where}: {steps} of {processes}")


def _chosen(found: Execution, options: ViewOptions) -> dict[str, Any]:
    """Return what is to be drawn of the execution, as all that draws it takes it."""
    return {
        "snapshot": None if options.snapshot is None else SnapshotId.parse(options.snapshot),
        "cuts": [] if options.cut is None else [parse_cut(options.cut, found.trace)],
        "first": options.first,
    }


def _say_left_out(found: Execution, options: ViewOptions, left_out: str, shown: int) -> None:
    if left_out:
        going_on = options.first + shown
        hint = f": continue with --first {going_on}" if going_on <= len(found.trace.steps) else ""
        output.say(f"{left_out}{hint}")


def _write_sequence(path: Path, out: Path, pictures: Iterable[bytes], count: int) -> list[Path]:
    """Write numbered pictures to the directory that has the name of `out` without its suffix."""
    directory, stem, suffix = out.with_suffix(""), out.stem, out.suffix or SVG
    digits = max(NUMBER_DIGITS_MIN, len(str(count)))
    files = [directory / f"{stem}-{number:0{digits}}{suffix}" for number in range(1, count + 1)]
    if directory.exists() and not directory.is_dir():
        raise UsageError(
            f"{directory} is a file, but the pictures need a directory of that name: "
            "give another --out"
        )
    directory.mkdir(parents=True, exist_ok=True)
    numbered = re.compile(re.escape(f"{stem}-") + r"\d+" + re.escape(suffix))
    old = {file for file in directory.iterdir() if numbered.fullmatch(file.name)} - {*files}
    if old:
        raise UsageError(
            f"{min(old)} belongs to a longer sequence, and would look like the end of this one: "
            f"remove {directory} or give another --out"
        )
    for file, picture in zip(files, pictures, strict=True):
        write_atomically(file, [picture], inputs=[path])
    return files
