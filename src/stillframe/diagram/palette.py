"""The colours of a diagram, light and dark, as a style sheet.

They are those of Okabe and Ito (*Color Universal Design*, 2008), which also the colour blind tell
apart; dashes say the same once more. Each rule has a plain colour before the variable, for programs
that draw SVG and know no variables; for those that take a variable for black there is a style sheet
without.
"""

import re
from collections.abc import Iterator

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
    (".dot", (("fill", "ink"),), ""),
    (".ring", (("stroke", "ink"), ("fill", "paper")), "stroke-width: 1.5"),
    (".cut", (), "fill: none; stroke-width: 2.2"),
    (".marker .arrow", (), "stroke-width: 1.8; stroke-linecap: round"),
    (".crowded .message:not(.caught):not(.orphan) .arrow", (), "stroke-width: 0.9"),
    (".crowded .caught .arrow", (), "stroke-width: 2"),
    (".crowded .marker .arrow", (), "stroke-width: 1.3; opacity: 0.5"),
    (".faint", (), "opacity: 0.45"),
)


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
