"""Draw a diagram as SVG: text stays text, nothing is loaded, nothing runs; light and dark.

The same diagram gives the same bytes. Everything that comes from a trace is escaped, and what XML
cannot hold is left out. What a page may point at has a ``data-key``: a word that says what it is,
and which one.

The colours are those of Okabe and Ito (*Color Universal Design*, 2008), which also the colour blind
tell apart; dashes say the same once more. Each rule of the style has a plain colour before the
variable, for programs that draw SVG and know no variables; for those that take a variable for black
there is a style sheet without.

As PNG it is in the light colours, drawn by resvg: no browser and no system library. Its letters
come from the fonts of this machine. Without a font resvg omits all text and reports no error, so
one letter is drawn first, in the fonts of the diagram.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from stillframe.diagram import text_metrics
from stillframe.diagram.shapes import (
    Curve,
    Diagram,
    Dot,
    Extent,
    Label,
    LegendRow,
    Line,
    LockArrow,
    Mark,
    MarkerArrow,
    MessageArrow,
    Path,
    Point,
    Role,
    Sample,
    midpoint,
)
from stillframe.errors import Unavailable
from stillframe.model import Channel

DOT_RADIUS = 4.0
RING_RADIUS = 8.5
HEAD_LENGTH = 8.0
TEXT_CHARS_MAX = 1000
DESCRIPTION_CHARS_MAX = 4000
KEY_CHARS_MAX = 250
_FADING = ((0.0, 0.55, "1"), (0.55, 0.8, "0.6"), (0.8, 1.0, "0.3"))
"""(from, to, opacity) of the parts of an arrow that does not arrive."""
PNG_ZOOM = 2
"""Pixels of a PNG to one of the diagram: sharp on the screens of today, and in print."""
PIXEL_COUNT_MAX = 40_000_000
"""A PNG that would have more is not enlarged: each takes four bytes while it is drawn."""
LIGHT = {
    "paper": "#ffffff",
    "ink": "#1c2024",
    "line": "#8a9199",
    "quiet": "#59626b",
    "caught": "#b36b00",
    "orphan": "#d01c1c",
    "cut-0": "#0072b2",
    "cut-1": "#00805f",
    "cut-2": "#a8447f",
    "cut-3": "#6b5b00",
    "cut-4": "#5b3fb0",
}
DARK = {
    "paper": "#14171a",
    "ink": "#e8eaed",
    "line": "#6f7881",
    "quiet": "#a3adb7",
    "caught": "#f0a830",
    "orphan": "#ff6b5e",
    "cut-0": "#56b4e9",
    "cut-1": "#2fc99a",
    "cut-2": "#e08fc0",
    "cut-3": "#d6c94a",
    "cut-4": "#a99bf5",
}
CUT_DASHES = ("none", "9 4", "3 3", "12 3 3 3", "6 2 2 2 2 2")
"""Of the curves of cuts."""
MARKER_DASHES = ("1 4", "1 4 4 4", "1 3 1 7", "1 7", "2 2 2 6")
"""Of the arrows of markers."""
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"

_VARIABLE = re.compile(r" [a-z]+: var\([a-z0-9-]+\);?")
_RULES = (
    ("text", (("fill", "ink"),), f"font: 12px {FONT}; stroke-width: 3px; paint-order: stroke"),
    ("text", (("stroke", "paper"),), "stroke-linejoin: round"),
    (".name", (), "font-weight: bold; stroke-width: 5px"),
    (".notice", (("fill", "quiet"),), "font-style: italic"),
    (".paper", (("fill", "paper"),), ""),
    (".line", (("stroke", "line"),), "stroke-width: 1.5"),
    (".arrow", (("stroke", "quiet"),), "fill: none; stroke-width: 1.3"),
    (".head", (("fill", "quiet"),), "stroke: none"),
    (".open", (("stroke", "quiet"), ("fill", "paper")), "stroke-width: 1.3"),
    (".caught .arrow", (("stroke", "caught"),), "stroke-width: 3.5"),
    (".caught .head", (("fill", "caught"),), ""),
    (".caught .open", (("stroke", "caught"),), "stroke-width: 2.5"),
    (".orphan .arrow", (("stroke", "orphan"),), "stroke-width: 3; stroke-dasharray: 8 3"),
    (".orphan .head", (("fill", "orphan"),), ""),
    (".unseen .arrow", (), "stroke-dasharray: 2 4"),
    (".blocked .arrow", (("stroke", "orphan"),), "stroke-width: 3.5"),
    (".blocked .head", (("fill", "orphan"),), ""),
    (".lock .arrow", (), "stroke-dasharray: 7 3"),
    (".dot", (("fill", "ink"),), ""),
    (".ring", (("stroke", "ink"), ("fill", "paper")), "stroke-width: 1.5"),
    (".cut", (), "fill: none; stroke-width: 2.2"),
    (".marker .arrow", (), "stroke-width: 1.8; stroke-linecap: round"),
    (".crowded .message:not(.caught):not(.orphan):not(.blocked) .arrow", (), "stroke-width: 0.9"),
    (".crowded .caught .arrow", (), "stroke-width: 2"),
    (".crowded .marker .arrow", (), "stroke-width: 1.3; opacity: 0.5"),
    (".faint", (), "opacity: 0.45"),
)
_LETTER = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">'
    f'<text y="15" font-family="{FONT}">{{}}</text></svg>'
)


def draw(diagram: Diagram, *, has_style: bool = True, is_plain: bool = False) -> str:
    """Return `diagram` as the text of an SVG file.

    A page that it becomes a part of has the style already. A plain style is light and without
    variables, for programs that know none.
    """
    make_sheet = plain_style_sheet if is_plain else style_sheet
    width, height = math.ceil(diagram.width), math.ceil(diagram.height)
    parts = [
        start_element(width, height, is_crowded=diagram.is_crowded),
        _title(diagram.title),
        f"<desc>{_escape(diagram.description, DESCRIPTION_CHARS_MAX)}</desc>",
        *([f"<style>\n{make_sheet()}\n</style>"] if has_style else []),
        f'<rect class="paper" width="{width}" height="{height}"/>',
        *(_text(label, "notice") for label in diagram.notices),
        *(put(shape) for shapes, put in layers(diagram) for shape in shapes),
        *map(_legend_row, diagram.legend),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def start_element(
    width: int, height: int, *, top: int = 0, is_crowded: bool = False, role: str = "img"
) -> str:
    """Return the beginning of the SVG element of a diagram, in which y begins at `top`."""
    kind = "diagram crowded" if is_crowded else "diagram"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{kind}" role="{role}" width="{width}" '
        f'height="{height}" viewBox="0 {top} {width} {height}">'
    )


def draw_png(diagram: Diagram) -> bytes:
    """Return `diagram` as a PNG file; Unavailable: resvg or a font is missing."""
    if _rasterize(_LETTER.format("A")) == _rasterize(_LETTER.format("")):
        raise Unavailable(
            "this machine has no monospaced font, so a PNG would have no text: install one, such "
            "as Debian's fonts-dejavu-core, or use an --out that ends in .svg"
        )
    is_huge = diagram.width * diagram.height * PNG_ZOOM**2 > PIXEL_COUNT_MAX
    return _rasterize(draw(diagram, is_plain=True), zoom=1 if is_huge else PNG_ZOOM)


def _rasterize(text: str, zoom: int = 1) -> bytes:
    try:
        import resvg_py  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise Unavailable(
            "pictures as PNG need resvg: install it with pip install 'stillframe[png]'"
        ) from error
    return bytes(resvg_py.svg_to_bytes(svg_string=text, zoom=zoom))


def layers(diagram: Diagram) -> Iterator[tuple[Sequence[Any], Callable[[Any], str]]]:
    """Yield the shapes of a diagram, layer by layer from the lowest, each with the function that
    draws one of them. Notices and legend are not among them."""
    yield diagram.lines, _line
    yield diagram.markers, _marker
    yield diagram.messages, _message
    yield diagram.locks, _lock
    yield diagram.curves, _curve
    yield diagram.marks, _mark
    yield diagram.dots, _dot
    yield diagram.lines, _names_of_line
    yield diagram.curves, lambda c: f'<g class="{_colour(c.colour)}">{_text(c.label)}</g>'


def _line(line: Line) -> str:
    ends = _attributes(x1=line.x_from, y1=line.y, x2=line.x_to, y2=line.y)
    return f'<line class="line"{_key("process", line.process)}{ends}/>'


def _names_of_line(line: Line) -> str:
    words = "".join(_text(label, "name") for label in line.labels)
    return f"<g>{_title(f'process {line.process}')}{words}</g>"


def _curve(curve: Curve) -> str:
    """Between two lines the curve leaves upright and arrives upright, so it never swings beyond
    its points."""
    path = [f"M{_point(curve.points[0])}"]
    for begin, end in zip(curve.points, curve.points[1:], strict=False):
        bow = (end[1] - begin[1]) * 0.45
        controls = (begin[0], begin[1] + bow), (end[0], end[1] - bow)
        path.append(f"C{_point(controls[0])} {_point(controls[1])} {_point(end)}")
    kind = _colour(curve.colour, is_faint=curve.is_faint)
    drawn = f'<path class="cut" d="{" ".join(path)}"/>'
    return _group(kind, _key("cut", curve.name), curve.full, drawn)


def _message(arrow: MessageArrow) -> str:
    kind = "message" if arrow.role is Role.PLAIN else f"message {arrow.role.value}"
    key = _key("message", arrow.message)
    drawn = f"{_arrow(arrow.path, arrow.extent)}{_text(arrow.label)}"
    return _group(kind, key, arrow.full, drawn)


def _marker(arrow: MarkerArrow) -> str:
    kind = f"marker {_colour(arrow.colour, is_faint=arrow.is_faint)}"
    key = _key("marker", arrow.snapshot, Channel(arrow.source, arrow.target))
    return _group(kind, key, arrow.full, _arrow(arrow.path, arrow.extent))


def _lock(arrow: LockArrow) -> str:
    kind = "lock blocked" if arrow.is_blocked else "lock"
    drawn = f"{_arrow(arrow.path, Extent.WHOLE)}{_text(arrow.label)}"
    return _group(kind, _key("lock", arrow.process, arrow.lock), arrow.full, drawn)


def _arrow(path: Path, extent: Extent) -> str:
    if extent is Extent.LEAVING:
        fading = (
            f'<path class="arrow" opacity="{opacity}" '
            f'd="M{_point(path.at(begin))} L{_point(path.at(end))}"/>'
            for begin, end, opacity in _FADING
        )
        return "".join(fading) + _circle("open", path.end, 3.0)
    begin = path.at(0.35) if extent is Extent.ENTERING else path.begin
    tip, heel, left, right = _head(path)
    control = path.control if extent is Extent.WHOLE else midpoint(begin, heel)
    return (
        f'<path class="arrow" d="M{_point(begin)} Q{_point(control)} {_point(heel)}"/>'
        f'<path class="head" d="M{_point(tip)} L{_point(left)} L{_point(right)} Z"/>'
    )


def _head(path: Path) -> tuple[Point, Point, Point, Point]:
    """Return the tip of an arrow's head, the middle of its back, and the ends of its back."""
    (x, y), (x_before, y_before) = path.end, path.at(0.9)
    length = math.hypot(x - x_before, y - y_before) or 1.0
    along = (x - x_before) / length, (y - y_before) / length
    tip = x - along[0] * RING_RADIUS, y - along[1] * RING_RADIUS
    heel = tip[0] - along[0] * HEAD_LENGTH, tip[1] - along[1] * HEAD_LENGTH
    half = HEAD_LENGTH * 0.42
    left = heel[0] - along[1] * half, heel[1] + along[0] * half
    right = heel[0] + along[1] * half, heel[1] - along[0] * half
    return tip, heel, left, right


def _dot(dot: Dot) -> str:
    at = dot.x, dot.y
    kind = "event recorded" if dot.is_recorded else "event"
    ring = _circle("ring", at, RING_RADIUS) if dot.is_recorded else ""
    drawn = f"{ring}{_circle('dot', at, DOT_RADIUS)}{_text(dot.label)}"
    return _group(kind, _key("event", dot.position), dot.full, drawn)


def _mark(mark: Mark) -> str:
    x, y = mark.x, mark.y
    size = 6.0 if mark.is_cut else 3.5
    corners = " ".join(map(_point, ((x, y - size), (x + size, y), (x, y + size), (x - size, y))))
    shape = f'<polygon class="{"head" if mark.is_cut else "open"}" points="{corners}"/>'
    kind = f"mark {_colour(mark.colour, is_faint=mark.is_faint)}"
    key = _key("step", mark.snapshot, mark.process, *([mark.source] if mark.source else []))
    return _group(kind, key, mark.full, f"{shape}{_text(mark.label)}")


def _legend_row(row: LegendRow) -> str:
    y = row.label.y - 4
    begin, end = (row.x, y), (row.x + 26, y)
    middle = (row.x + 13, y)
    whole = Path(begin, middle, (end[0] + RING_RADIUS, y))
    match row.sample:
        case Sample.NOTHING:
            sample, kind = "", ""
        case Sample.CUT:
            sample = f'<path class="cut" d="M{_point(begin)} L{_point(end)}"/>'
            kind = _colour(row.colour)
        case Sample.RECORDED:
            sample, kind = _circle("ring", middle, RING_RADIUS), ""
            sample += _circle("dot", middle, DOT_RADIUS)
        case Sample.MARKER:
            sample, kind = _arrow(whole, Extent.WHOLE), f"marker {_colour(row.colour)}"
        case Sample.IN_TRANSIT | Sample.UNKNOWN:
            sample, kind = _arrow(Path(begin, middle, end), Extent.LEAVING), "message"
            kind += " unseen" if row.sample is Sample.UNKNOWN else ""
        case Sample.MESSAGE | Sample.LOCK:
            sample, kind = _arrow(whole, Extent.WHOLE), row.sample.value
        case Sample.CAUGHT | Sample.ORPHAN | Sample.UNSEEN | Sample.BLOCKED:
            sample, kind = _arrow(whole, Extent.WHOLE), f"message {row.sample.value}"
    return (
        f'<g class="legend">{_title(row.full)}<g class="{kind}">{sample}</g>{_text(row.label)}</g>'
    )


def _group(kind: str, key: str, full: str, drawn: str) -> str:
    return f'<g class="{kind}"{key}>{_title(full)}{drawn}</g>'


def _colour(colour: int, *, is_faint: bool = False) -> str:
    name = f"colour-{colour % len(CUT_DASHES)}"
    return f"{name} faint" if is_faint else name


def _circle(kind: str, at: Point, radius: float) -> str:
    return f'<circle class="{kind}"{_attributes(cx=at[0], cy=at[1], r=radius)}/>'


def _text(label: Label | None, kind: str = "") -> str:
    if label is None:
        return ""
    named = f" class={quoteattr(kind)}" if kind else ""
    anchor = "" if label.anchor == "start" else f' text-anchor="{label.anchor}"'
    place = _attributes(x=label.x, y=label.y)
    return f"<text{named}{place}{anchor}>{_escape(label.text, TEXT_CHARS_MAX)}</text>"


def _title(text: str) -> str:
    return f"<title>{_escape(text, TEXT_CHARS_MAX)}</title>"


def _key(what: str, *which: object) -> str:
    key = text_metrics.clean(" ".join((what, *map(str, which))), char_count_max=KEY_CHARS_MAX)
    return f" data-key={quoteattr(key)}"


def _escape(text: str, char_count_max: int) -> str:
    return escape(text_metrics.clean(text, char_count_max=char_count_max))


def _attributes(**numbers: float) -> str:
    return "".join(f' {name}="{_number(value)}"' for name, value in numbers.items())


def _point(point: Point) -> str:
    return f"{_number(point[0])},{_number(point[1])}"


def _number(value: float) -> str:
    """Return a number with at most one decimal, and no sign before zero."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


def style_sheet() -> str:
    """Return the style sheet of a diagram."""
    light, dark = (
        " ".join(f"--{name}: {colour};" for name, colour in colours.items())
        for colours in (LIGHT, DARK)
    )
    head = (
        f".diagram {{ color-scheme: light dark; {light} }}",
        f"@media (prefers-color-scheme: dark) {{ .diagram {{ {dark} }} }}",
    )
    return "\n".join((*head, *_rules()))


def plain_style_sheet() -> str:
    """Return the style sheet of a diagram on light paper, without variables."""
    return _VARIABLE.sub("", "\n".join(_rules()))


def _rules() -> Iterator[str]:
    yield from (_rule(*rule) for rule in _RULES)
    for colour, (curve, marker) in enumerate(zip(CUT_DASHES, MARKER_DASHES, strict=True)):
        name, this = f"cut-{colour}", f".colour-{colour}"
        yield _rule(f"{this} .cut", (("stroke", name),), f"stroke-dasharray: {curve}")
        yield _rule(f"{this} .arrow", (("stroke", name),), f"stroke-dasharray: {marker}")
        yield _rule(f"{this} .head", (("fill", name),))
        yield _rule(f"{this} .open", (("stroke", name),))
        yield _rule(f"{this} text", (("fill", name),))


def _rule(selector: str, paints: tuple[tuple[str, str], ...], more: str = "") -> str:
    body = [f"{what}: {LIGHT[name]}; {what}: var(--{name})" for what, name in paints]
    root = ".diagram" if selector.startswith(".crowded") else ".diagram "
    return f"{root}{selector} {{ {'; '.join((*body, more) if more else body)} }}"
