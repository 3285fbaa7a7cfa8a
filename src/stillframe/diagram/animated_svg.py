"""One SVG of all steps, in which a page shows and hides groups to move from step to step.

What a page shows after each step is the diagram that ``layout`` draws of that step. ``data-from``
is the step count at which a group appears, ``data-to`` the one at which it disappears, and
``data-choices`` lists the selectable cuts with which it is shown; each is omitted where it makes no
difference. An event is white before the chosen cut of its process and red after it (Dijkstra, EWD
864a); ``data-step`` is the number of the step that an event or a mark shows.
"""

import math
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from stillframe.diagram import layout, svg
from stillframe.diagram.cuts import Choice
from stillframe.diagram.scene import CUT_OVERHANG, PADDING, TOP
from stillframe.diagram.shapes import Dot, Mark
from stillframe.model import ProcessId
from stillframe.trace import Trace

_Span = tuple[int, int]


def draw(
    trace: Trace,
    choices: Sequence[Choice],
    *,
    first: int = 1,
    step_count_max: int = layout.STEP_COUNT_MAX,
) -> str:
    """Return the diagram of all steps, with the cuts to choose from, as the text of an SVG element
    without a style. UsageError if the trace has no such snapshot, cut or step."""
    wanted = choices or [Choice()]
    found: dict[tuple[int, Any, str | None], list[list[_Span]]] = {}
    for number, choice in enumerate(wanted):
        cuts = [choice.cut] if choice.cut is not None else []
        plan = layout.Plan(trace, choice.snapshot, cuts, first, step_count_max, is_sequence=True)
        counts = plan.chosen.counts if choices and plan.chosen is not None else None
        for step_count in range(plan.step_count + 1):
            picture = plan.draw(step_count)
            for layer, (shapes, _) in enumerate(svg.layers(picture)):
                for shape in shapes:
                    key = layer, shape, _colour(shape, counts)
                    spans = found.setdefault(key, [[] for _ in wanted])[number]
                    begin = spans.pop()[0] if spans and spans[-1][1] == step_count else step_count
                    spans.append((begin, step_count + 1))
    putters = [put for _, put in svg.layers(picture)]
    groups = []
    for layer, shape, colour in sorted(found, key=itemgetter(0)):
        drawn = putters[layer](shape)
        by_span: dict[_Span, list[str]] = {}
        for number, spans in enumerate(found[layer, shape, colour]):
            for span in spans:
                by_span.setdefault(span, []).append(str(number))
        for (begin, after), numbers in by_span.items():
            pairs = (
                ("class", colour),
                ("data-step", shape.step if isinstance(shape, Dot | Mark) else None),
                ("data-from", begin or None),
                ("data-to", after if after <= plan.step_count else None),
                ("data-choices", " ".join(numbers) if len(numbers) < len(wanted) else None),
            )
            attributes = "".join(f' {name}="{v}"' for name, v in pairs if v is not None)
            groups.append(f"<g{attributes}>{drawn}</g>" if attributes else drawn)
    # Only the lines and the room that cuts need.
    ys = [line.y for line in picture.lines] or [TOP]
    top, bottom = min(ys) - TOP, max(ys) + CUT_OVERHANG + PADDING
    width, height = math.ceil(picture.width), math.ceil(bottom - top)
    start = svg.start_element(width, height, top=round(top), is_crowded=picture.is_crowded)
    return "\n".join((f"{start}<title>{picture.title}</title>", *groups, "</svg>\n"))


def _colour(shape: object, counts: Mapping[ProcessId, int] | None) -> str | None:
    """Return the colour of an event if a cut is chosen; without a count of its process, white."""
    if counts is None or not isinstance(shape, Dot):
        return None
    index = shape.position.index
    return "white" if index <= counts.get(shape.position.process, index) else "red"
