"""A diagram as PNG, in the light colours, drawn by resvg: no browser and no system library.

Its letters come from the fonts of this machine. Without a font resvg omits all text and reports no
error, so one letter is drawn first, in the fonts of the picture.
"""

from stillframe.diagram import svg
from stillframe.diagram.palette import FONT
from stillframe.diagram.shapes import Diagram
from stillframe.errors import Unavailable

ZOOM = 2
"""Pixels of the picture to one of the diagram: sharp on the screens of today, and in print."""
PIXEL_COUNT_MAX = 40_000_000
"""A picture that would have more is not enlarged: each takes four bytes while it is drawn."""
_LETTER = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">'
    f'<text y="15" font-family="{FONT}">{{}}</text></svg>'
)


def draw(diagram: Diagram) -> bytes:
    """Return `diagram` as a PNG file.

    Raises:
        Unavailable: resvg is not installed, or this machine has no font.
    """
    if _rasterize(_LETTER.format("A")) == _rasterize(_LETTER.format("")):
        raise Unavailable(
            "this machine has no font of fixed width, and a PNG would be without its text: install "
            "one, such as Debian's fonts-dejavu-core, or take an --out that ends in .svg"
        )
    is_huge = diagram.width * diagram.height * ZOOM**2 > PIXEL_COUNT_MAX
    text = svg.draw(diagram, is_plain=True)
    return _rasterize(text, zoom=1 if is_huge else ZOOM)


def _rasterize(text: str, zoom: int = 1) -> bytes:
    try:
        import resvg_py  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise Unavailable(
            "pictures as PNG need resvg: install it with pip install 'stillframe[png]'"
        ) from error
    return bytes(resvg_py.svg_to_bytes(svg_string=text, zoom=zoom))
