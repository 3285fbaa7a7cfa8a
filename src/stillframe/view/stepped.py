"""One picture of all steps: what is there only from one step to another says so, and a page shows
it and hides it.

After each step what is shown is the picture that ``diagram`` has of that step. A group has
``data-from``, after how many steps it appears; ``data-to``, after how many it is gone again; and
``data-choices``, for which of the cuts to choose from it is there: all of it left out where it says
nothing. An event is white if its process had not reached the chosen cut, and red afterwards
(Dijkstra, EWD 864a); ``data-step`` says which step an event or a mark is.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

import msgspec

from stillframe.model import ProcessId
from stillframe.trace import Trace
from stillframe.view import diagram, svg, window
from stillframe.view.recording import Choice
from stillframe.view.scene import CUT_OVERHANG, PADDING, TOP
from stillframe.view.shapes import Diagram, Dot, Mark


class _Piece(msgspec.Struct, frozen=True):
    """Something in a picture: a shape, which step it is if it is one, and its colour."""

    layer: int
    shape: Any
    step: int | None
    colour: str | None


_Span = tuple[int, int]


class _Limits(TypedDict):
    first: int
    step_count_max: int


def draw(
    trace: Trace,
    choices: Sequence[Choice],
    *,
    first: int = 1,
    step_count_max: int = diagram.STEP_COUNT_MAX,
) -> str:
    """Return the picture of all steps as the text of an SVG element, without a style.

    Args:
        trace: what happened.
        choices: the cuts to choose from; none are fine.
        first: the step of the trace to begin with, from 1.
        step_count_max: how many steps are shown.

    Raises:
        UsageError: the trace has no such snapshot, cut or step.
    """
    shown = window.look(trace, first=first, step_count_max=step_count_max)
    limits = _Limits(first=first, step_count_max=step_count_max)
    wanted: Sequence[Choice | None] = choices or [None]
    found: dict[_Piece, list[list[_Span]]] = {}
    for number, choice in enumerate(wanted):
        counts = choice.whites(trace) if choice is not None else None
        whites = dict(zip(trace.processes, counts, strict=True)) if counts is not None else None
        for step_count, picture in enumerate(_pictures(trace, choice, limits)):
            for piece in _pieces(picture, shown, whites):
                spans = found.setdefault(piece, [[] for _ in wanted])[number]
                begin = spans.pop()[0] if spans and spans[-1][1] == step_count else step_count
                spans.append((begin, step_count + 1))
    end = diagram.lay_out(trace, **limits)
    putters = [put for _, put in svg.layers(end)]
    groups = []
    for piece in sorted(found, key=lambda piece: piece.layer):
        drawn = putters[piece.layer](piece.shape)
        for (begin, after), numbers in _by_span(found[piece]).items():
            attributes = _attributes(
                ("class", piece.colour),
                ("data-step", piece.step),
                ("data-from", begin or None),
                ("data-to", after if after <= len(shown.steps) else None),
                ("data-choices", _listed(numbers) if len(numbers) < len(wanted) else None),
            )
            groups.append(f"<g{attributes}>{drawn}</g>" if attributes else drawn)
    return "\n".join((_begin(end), *groups, "</svg>\n"))


def _pictures(trace: Trace, choice: Choice | None, limits: _Limits) -> Iterator[Diagram]:
    """Yield the picture before the first step, and after each."""
    snapshot = choice.snapshot if choice is not None else None
    cuts = [choice.cut] if choice is not None and choice.cut is not None else []
    yield diagram.lay_out(trace, snapshot=snapshot, cuts=cuts, steps=0, **limits)
    yield from diagram.frames(trace, snapshot=snapshot, cuts=cuts, **limits)


def _pieces(
    picture: Diagram, shown: window.Window, whites: Mapping[ProcessId, int] | None
) -> Iterator[_Piece]:
    events = (index for index, position in enumerate(shown.positions) if position is not None)
    others = (index for index, position in enumerate(shown.positions) if position is None)
    for layer, (shapes, _) in enumerate(svg.layers(picture)):
        for shape in shapes:
            step, colour = None, None
            if isinstance(shape, Dot):
                step = next(events) + 1
                if whites is not None:
                    is_white = shape.position.index <= whites[shape.position.process]
                    colour = "white" if is_white else "red"
            elif isinstance(shape, Mark):
                step = next(others) + 1
            yield _Piece(layer, shape, step, colour)


def _by_span(spans: Sequence[Sequence[_Span]]) -> dict[_Span, list[int]]:
    """Return for each span the choices with which a piece is there just so long."""
    found: dict[_Span, list[int]] = {}
    for number, own in enumerate(spans):
        for span in own:
            found.setdefault(span, []).append(number)
    return found


def _listed(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))


def _attributes(*pairs: tuple[str, str | int | None]) -> str:
    return "".join(f' {name}="{value}"' for name, value in pairs if value is not None)


def _begin(picture: Diagram) -> str:
    """Return the beginning of the element: only the lines and the room that cuts need."""
    ys = [line.y for line in picture.lines] or [TOP]
    top, bottom = min(ys) - TOP, max(ys) + CUT_OVERHANG + PADDING
    width, height = math.ceil(picture.width), math.ceil(bottom - top)
    kind = "diagram crowded" if picture.is_crowded else "diagram"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{kind}" role="img" width="{width}" '
        f'height="{height}" viewBox="0 {top:.0f} {width} {height}">'
        f"<title>{picture.title}</title>"
    )
