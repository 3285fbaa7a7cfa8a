"""PNG: the picture of the SVG, never without its text."""

import sys
from functools import partial

import pytest
import resvg_py

from stillframe.diagram import layout, svg
from stillframe.errors import Unavailable
from stillframe.trace import Event, Trace
from tests.diagram.runs import lecture
from tests.fonts import font

__all__ = ["font"]


def size(content: bytes) -> tuple[int, int]:
    """Return the width and height of a PNG."""
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    return int.from_bytes(content[16:20]), int.from_bytes(content[20:24])


@pytest.mark.usefixtures("font")
def test_it_is_of_twice_the_size_unless_it_is_huge() -> None:
    """Sharp, but bounded."""
    shown = layout.lay_out(lecture())
    assert size(svg.draw_png(shown)) == (2 * shown.width, 2 * shown.height)
    names = [f"P{number}" for number in range(30)]
    huge = layout.lay_out(Trace(names, [Event("P0", "abcdefghi") for _ in range(200)]))
    assert huge.width * huge.height * 4 > svg.PIXEL_COUNT_MAX
    assert size(svg.draw_png(huge))[0] < huge.width + 1


def test_its_style_has_colours_and_no_variables() -> None:
    """What draws it takes a variable for black; there is the same rule for everything."""
    plain = svg.plain_style_sheet()
    assert "var(" not in plain
    assert "--" not in plain
    assert plain.count(" fill: #") + plain.count("{ fill: #") >= 10
    rules = [line for line in svg.style_sheet().splitlines() if "color-scheme" not in line]
    assert [line.partition("{")[0] for line in plain.splitlines()] == [
        line.partition("{")[0] for line in rules
    ]


@pytest.mark.usefixtures("font")
def test_text_is_drawn() -> None:
    """A label more makes another picture of the same size."""
    pictures = [
        svg.draw_png(layout.lay_out(Trace(["P1"], [Event("P1", label)]))) for label in ("a", "b")
    ]
    assert pictures[0] != pictures[1]
    assert size(pictures[0]) == size(pictures[1])


def test_without_a_font_there_is_no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error says what to install, where the text would be missing without a word."""
    without = partial(resvg_py.svg_to_bytes, skip_system_fonts=True)
    monkeypatch.setattr(resvg_py, "svg_to_bytes", without)
    with pytest.raises(Unavailable, match=r"has no monospaced font.*fonts-dejavu-core"):
        svg.draw_png(layout.lay_out(lecture()))


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the command that installs it."""
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(Unavailable, match=r"pip install 'stillframe\[png\]'"):
        svg.draw_png(layout.lay_out(lecture()))
