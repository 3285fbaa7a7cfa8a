"""Clean, shorten and measure the text of a diagram.

Names come from foreign logs: they may be endless or hold what no file of text may hold.
"""

import datetime
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

Item = TypeVar("Item")

ELLIPSIS = "…"
SIZE = 12.0
"""Height of the letters, in pixels."""
_ADVANCE = 0.61
"""Width of a letter in the usual fonts of fixed width, as a part of its height."""
_ADVANCE_WIDE = 1.3
"""The same for East Asian letters and pictures."""


def clean(text: str, *, char_count_max: int) -> str:
    """Return `text` on one line and not longer than allowed. Control characters, changes of the
    writing direction and lone surrogates become a space or nothing, and an ellipsis replaces the
    rest of a text that is too long."""
    if text.isprintable() and len(text) <= char_count_max and text == " ".join(text.split()):
        return text
    shown: list[str] = []
    for char in text:
        if char.isspace():
            if shown and shown[-1] != " ":
                shown.append(" ")
        elif char.isprintable():
            shown.append(char)
            if len(shown) > char_count_max:
                break
    return shorten("".join(shown).rstrip(), char_count_max=char_count_max)


def shorten(text: str, *, char_count_max: int) -> str:
    """Return `text`, cut off with an ellipsis if it is too long."""
    is_short = len(text) <= char_count_max
    return text if is_short else text[: max(0, char_count_max - 1)].rstrip() + ELLIPSIS


def shorten_name(name: str, *, char_count_max: int) -> str:
    """Return `name`, with an ellipsis in its middle if it is too long: names that begin alike often
    differ at the end."""
    if len(name) <= char_count_max:
        return name
    tail = (char_count_max - 1) * 2 // 3
    return name[: char_count_max - 1 - tail] + ELLIPSIS + name[len(name) - tail :]


def count(number: int, noun: str) -> str:
    """Return a number of things, such as ``1 message`` or ``2 processes``."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending}"


def moment(seconds: float) -> str:
    """Return seconds since 1970 as date and time of day in UTC, to the millisecond."""
    time = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return f"{time:%Y-%m-%d %H:%M:%S}.{time.microsecond // 1000:03} UTC"


def listing(items: Sequence[Item], count_max: int, name: Callable[[Item], str] = str) -> str:
    """Return the first items in a row, and how many more there are."""
    names = ", ".join(map(name, items[:count_max]))
    more = len(items) - count_max
    return f"{names} and {more:,} more" if more > 0 else names


def width(text: str) -> float:
    """Return the estimated width of `text` in a monospaced font, in pixels; rather too much."""
    return SIZE * sum(_advance(char) for char in text)


@lru_cache(maxsize=1024)
def fit(text: str, width_max: float) -> str:
    """Return as much of `text` as fits into `width_max` pixels, with an ellipsis for the rest."""
    if width(text) <= width_max:
        return text
    room = width_max - width(ELLIPSIS)
    end = 0
    for char in text:
        room -= SIZE * _advance(char)
        if room < 0:
            break
        end += 1
    return text[:end].rstrip() + ELLIPSIS


def _advance(char: str) -> float:
    return _ADVANCE_WIDE if unicodedata.east_asian_width(char) in "WF" else _ADVANCE
