"""The SVG: valid, escaped, the same every time, and readable in light and dark."""

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillframe.diagram import layout, svg
from stillframe.model import Channel
from stillframe.trace import Event, MessageId, Trace
from tests.diagram.runs import by_chance, lecture, traces

ROOT = Path(__file__).parent.parent.parent
SPACE = "{http://www.w3.org/2000/svg}"
HOSTILE = [
    "</text><script>alert(1)</script>",
    "]]>",
    "<![CDATA[",
    "&lt;&amp;&#0;&nbsp;",
    "\" onload=\"alert(1)' '",
    "a\x00\x08\x1b\x7f\u202e\ufffe\ud800b",
    "url(https://example.org/x)",
    "}</style><style>*{display:none}",
    "x" * 10_000,
    "\u0301" * 10_000,
]
KNOWN = {"svg", "title", "desc", "style", "rect", "g", "line", "path", "circle", "polygon", "text"}


def parse(text: str) -> ElementTree.Element:
    """Return the root of an SVG file; it must be valid XML of known elements."""
    root = ElementTree.fromstring(text)
    assert {element.tag.removeprefix(SPACE) for element in root.iter()} <= KNOWN
    return root


def texts(root: ElementTree.Element) -> list[str]:
    """Return what is written in a picture."""
    return [element.text or "" for element in root.iter(f"{SPACE}text")]


@given(traces(step_count_max=30), st.booleans())
def test_every_diagram_is_valid_and_has_all_its_parts(trace: Trace, is_halfway: bool) -> None:
    """An element for each event and message, and each name as text."""
    picture = layout.lay_out(trace, steps=len(trace.steps) // 2 if is_halfway else None)
    root = parse(svg.draw(picture))
    kinds = [element.get("class", "").split() for element in root.iter(f"{SPACE}g")]
    assert sum("event" in kind for kind in kinds) == len(picture.dots)
    assert sum("recorded" in kind for kind in kinds) == sum(d.is_recorded for d in picture.dots)
    legend_count = sum("legend" in kind for kind in kinds)
    messages = sum("message" in kind for kind in kinds)
    assert messages >= len(picture.messages)
    assert legend_count == len(picture.legend)
    written = texts(root)
    assert all(dot.label.text in written for dot in picture.dots if dot.label)
    assert all(process in written for process in trace.processes)


@pytest.mark.parametrize("label", HOSTILE)
def test_hostile_labels_stay_text(label: str) -> None:
    """They add no element, no attribute and no length."""
    message = MessageId(Channel("P1", "P2"), 1)

    def trace(label: str) -> Trace:
        steps = [Event("P1", label, sent=(message,)), Event("P2", label, accepted=(message,))]
        return Trace(["P1", "P2"], steps)

    text = svg.draw(layout.lay_out(trace(label), cuts=[(1, 0)]))
    plain = svg.draw(layout.lay_out(trace("plain"), cuts=[(1, 0)]))
    root, other = parse(text), parse(plain)
    assert [(e.tag, sorted(e.attrib)) for e in root.iter()] == [
        (e.tag, sorted(e.attrib)) for e in other.iter()
    ]
    assert [e.text for e in root.iter(f"{SPACE}style")] == [
        e.text for e in other.iter(f"{SPACE}style")
    ]
    assert len(text) < len(plain) + 5000


def test_a_short_hostile_label_is_shown_as_it_is() -> None:
    """Escaped, not mangled."""
    root = parse(svg.draw(layout.lay_out(Trace(["P1"], [Event("P1", "</text><script>")]))))
    assert "</text><script>" in texts(root)


def test_a_picture_loads_and_runs_nothing() -> None:
    """No script, no reference, no event attribute; the only address is the name of the format."""
    text = svg.draw(layout.lay_out(by_chance(1, 6, 80, 2)))
    assert re.findall(r"https?:[^\"]*", text) == ["http://www.w3.org/2000/svg"]
    for forbidden in ("<script", "href", "url(", "@import", "<image", "<use", "foreignObject"):
        assert forbidden not in text
    names = {name for element in parse(text).iter() for name in element.attrib}
    assert not any(name.startswith("on") for name in names)


def test_a_screen_reader_is_told_what_it_is() -> None:
    """An image with a title and a description; each shape has a title of its own."""
    root = parse(svg.draw(layout.lay_out(lecture())))
    assert root.get("role") == "img"
    assert root.findtext(f"{SPACE}title") == "Space-time diagram of 3 processes"
    description = root.findtext(f"{SPACE}desc") or ""
    assert description.startswith("11 events and 4 messages of 3 processes")
    assert "snapshot P1-1: consistent" in description
    titles = [element.text for element in root.iter(f"{SPACE}title")]
    assert "event P2#3 H; sends P2->P1 #1" in titles
    assert "message P2->P1 #1: H→D" in titles


def test_numbers_have_at_most_one_decimal() -> None:
    """So that pictures stay small and differences readable."""
    root = parse(svg.draw(layout.lay_out(by_chance(3, 6, 80, 2))))
    figures = [
        figure
        for element in root.iter()
        for name, value in element.attrib.items()
        if name in {"x", "y", "x1", "x2", "y1", "y2", "cx", "cy", "r", "d", "points", "viewBox"}
        for figure in re.findall(r"-?[\d.]+", value)
    ]
    assert len(figures) > 500
    assert all(re.fullmatch(r"-?\d+(\.\d)?", figure) for figure in figures)
    assert "-0" not in figures


def test_the_same_trace_gives_the_same_bytes() -> None:
    """In other programs, too, whose sets have another order."""
    program = (
        "import sys\n"
        "from stillframe.diagram import layout, svg\n"
        "from tests.diagram.runs import by_chance\n"
        "sys.stdout.write(svg.draw(layout.lay_out(by_chance(7, 5, 60, 2))))"
    )
    pictures = {
        subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            capture_output=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT}/src:{ROOT}"},
        ).stdout
        for seed in ("1", "2")
    }
    assert pictures == {svg.draw(layout.lay_out(by_chance(7, 5, 60, 2))).encode()}


def test_there_is_a_light_and_a_dark_palette() -> None:
    """One style sheet holds both, with the same variables, and uses no other."""
    sheet = svg.style_sheet()
    assert "@media (prefers-color-scheme: dark)" in sheet
    assert svg.LIGHT.keys() == svg.DARK.keys()
    assert {*re.findall(r"var\(--([\w-]+)\)", sheet)} == svg.LIGHT.keys()
    assert sheet in svg.draw(layout.lay_out(lecture()))


@pytest.mark.parametrize("colours", [svg.LIGHT, svg.DARK], ids=["light", "dark"])
def test_colours_stand_out_from_the_paper(colours: dict[str, str]) -> None:
    """Text and what matters by 4.5 to 1, the lines of processes by 3 to 1 (WCAG 2.2)."""
    paper = luminance(colours["paper"])
    for name, colour in colours.items():
        if name != "paper":
            light, dark = sorted((paper, luminance(colour)), reverse=True)
            least = 3.0 if name in {"line", "caught"} else 4.5
            assert (light + 0.05) / (dark + 0.05) >= least, name


def luminance(colour: str) -> float:
    """Return the relative luminance of ``#rrggbb``."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_cuts_differ_also_without_colour() -> None:
    """Each has dashes of its own, and so have its markers."""
    assert len({*svg.CUT_DASHES}) == len(svg.CUT_DASHES) == 5
    assert len({*svg.MARKER_DASHES}) == len(svg.MARKER_DASHES) == 5


def test_a_page_can_point_at_what_is_drawn() -> None:
    """Each event, message, marker, step and cut has a key of its own, and no style comes along."""
    picture = layout.lay_out(lecture())
    text = svg.draw(picture, has_style=False)
    keys = [e.get("data-key", "") for e in parse(text).iter() if "data-key" in e.attrib]
    assert len(keys) == len({*keys})
    assert {"event P2#3", "message P2->P1 #1", "step P1-1 P2 P1", "step P1-1 P1"} <= {*keys}
    assert {"marker P1-1 P1->P2", "cut snapshot P1-1", "process P3"} <= {*keys}
    assert "<style" not in text
