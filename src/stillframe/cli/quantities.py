"""Quantities as text: each has a unit."""

import re

from stillframe.diagram import text_metrics
from stillframe.errors import UsageError

_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h)", re.ASCII)
_NEVER = ("never", "0")

count, moment = text_metrics.count, text_metrics.moment


def parse_duration(option: str, text: str) -> float:
    """Return seconds for text such as ``250ms``, ``1s``, ``2m``; `option` is named in the error."""
    found = _DURATION.fullmatch(text)
    duration_s = float(found[1]) * _UNIT_S[found[2]] if found else 0.0
    if duration_s == 0:
        raise UsageError(
            f"{option} {text!r} is not a duration above 0: write a number with a unit and no "
            "space between, for example 250ms, 1s, 2m or 1h"
        )
    return duration_s


def parse_interval(option: str, text: str) -> float | None:
    """Return seconds as ``parse_duration``, or None for ``never`` and ``0``."""
    return None if text in _NEVER else parse_duration(option, text)


def parse_wait(option: str, text: str, *, max_s: float) -> float:
    """Return seconds as ``parse_duration``, at most `max_s`, or 0 for ``0``."""
    wait_s = 0.0 if text == "0" else parse_duration(option, text)
    if wait_s > max_s:
        raise UsageError(f"{option} {text!r} is too long: at most {duration(max_s)} is possible")
    return wait_s


def duration(seconds: float) -> str:
    """Return a length of time in the unit that suits it: 14 ms, 1.25 s, 3 min 20 s."""
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms" if seconds < 0.1 else f"{seconds * 1000:.0f} ms"
    if seconds < 59.995:
        return f"{seconds:.2f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def size(byte_count: int) -> str:
    """Return a number of bytes in the decimal unit that suits it: 812 B, 9.5 kB, 1.2 MB."""
    amount = float(byte_count)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{byte_count} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"
