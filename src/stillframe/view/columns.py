"""Where a step stands from left to right.

By what happened before what, not by time: clocks of different processes disagree and often nobody
noted the time at all, whereas layers need no clock, never let an arrow go back, and keep the
picture narrow, because steps of different processes that do not wait for each other share one.
"""

from collections.abc import Sequence
from itertools import groupby

import msgspec

from stillframe.model import ProcessId
from stillframe.view.window import Window


class Room(msgspec.Struct, frozen=True):
    """How much room a step needs, in pixels.

    Attributes:
        radius: of the step itself.
        left: how far its label reaches to the left of its x.
        right: how far its label reaches to the right.
        is_above: on which side of the line the label is.
    """

    radius: float
    left: float
    right: float
    is_above: bool


def layers(window: Window) -> list[int]:
    """Return of each step the length of the longest chain of steps that happened before it."""
    found: list[int] = []
    for previous, causes in zip(window.previous, window.causes, strict=True):
        before = causes if previous is None else (previous, *causes)
        found.append(max((found[index] + 1 for index in before), default=0))
    return found


def place(
    window: Window, rooms: Sequence[Room], *, x_from: float, gap: float, label_gap: float
) -> list[float]:
    """Return the x of each step: one for all steps of a layer.

    Neighbouring layers are at least `gap` pixels apart, and as far as the labels on one side of a
    line need it, which keep `label_gap` pixels between them and from `x_from`.
    """
    layer_of = layers(window)
    xs = [0.0] * len(layer_of)
    x = x_from - gap / 2
    ends: dict[tuple[ProcessId, bool], float] = {}
    in_order = sorted(range(len(layer_of)), key=layer_of.__getitem__)
    for _, layer in groupby(in_order, key=layer_of.__getitem__):
        indices = list(layer)
        x += gap
        for index in indices:
            previous, room = window.previous[index], rooms[index]
            if previous is not None:
                x = max(x, xs[previous] + rooms[previous].radius + room.radius)
            end = ends.get((window.steps[index].process, room.is_above), x_from)
            x = max(x, end + label_gap + room.left)
        for index in indices:
            xs[index] = x
            ends[window.steps[index].process, rooms[index].is_above] = x + rooms[index].right
    return xs
