"""Values in a page: as text of JSON, harmless and bounded; what is cut off is said, with its size.

A value can be anything that a process recorded: ten megabytes of text, a mapping of a million keys,
or letters that turn the direction of writing around.
"""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import msgspec

from stillframe.view.legend import count
from stillframe.view.plain import plain, printable

CHARS_MAX = 2000
"""So many characters of a value are shown."""
BEFORE_MAX = 60
"""So many characters before the first difference of two long values are shown."""
ITEMS_MAX = 1000
"""So many items of a list or mapping are looked at."""
ROWS_MAX = 100
"""So many keys of a keyed field are shown."""
_COST = 60
"""What a value takes in a document besides its text, in characters."""


class Budget:
    """How many characters of values there is room for.

    Args:
        chars: in all.
    """

    def __init__(self, chars: int) -> None:
        self._chars = chars

    @property
    def is_spent(self) -> bool:
        """Whether there is no more room."""
        return self._chars <= 0

    def take(self, text: str, chars_max: int) -> str:
        """Return as much of `text` as there is room for, at most `chars_max` characters."""
        taken = text[: max(0, min(chars_max, self._chars))]
        self._chars -= len(taken) + _COST
        return taken


def text_of(value: Any) -> str:
    """Return a value as the text of JSON.

    What JSON cannot hold is written as Python does.
    """
    try:
        return msgspec.json.encode(plain(value)).decode()
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return repr(value)


def show(value: Any, budget: Budget, *, chars_max: int = CHARS_MAX) -> dict[str, Any]:
    """Return a value for a page: its `text`, and in `left_out` what is not in that."""
    items = len(value) if isinstance(value, dict | list | tuple) else 0
    if items > ITEMS_MAX:
        first = dict(islice(value.items(), ITEMS_MAX)) if isinstance(value, dict) else value
        text = text_of(first if isinstance(first, dict) else first[:ITEMS_MAX])
        kept = budget.take(text, chars_max)
        whole = f"the first characters of {count(items, 'item')}"
        return {"text": printable(kept), "left_out": whole}
    text = text_of(value)
    kept = budget.take(text, chars_max)
    shown: dict[str, Any] = {"text": printable(kept)}
    if len(kept) < len(text):
        shown["left_out"] = f"and {count(len(text) - len(kept), 'character')} more"
    return shown


def show_pair(before: Any, after: Any, budget: Budget) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two values that differ, long texts from shortly before where they begin to."""
    texts = text_of(before), text_of(after)
    same = _same_count(*texts)
    skipped = max(0, same - BEFORE_MAX) if max(map(len, texts)) > CHARS_MAX else 0
    return _show_from(texts[0], skipped, budget), _show_from(texts[1], skipped, budget)


def _show_from(text: str, skipped: int, budget: Budget) -> dict[str, Any]:
    kept = budget.take(text[skipped:], CHARS_MAX)
    shown: dict[str, Any] = {"text": printable(kept)}
    if skipped:
        shown["skipped"] = f"{count(skipped, 'character')} that are the same"
    if (left := len(text) - skipped - len(kept)) > 0:
        shown["left_out"] = f"and {count(left, 'character')} more"
    return shown


def _same_count(one: str, other: str) -> int:
    """Return with how many characters both begin."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def show_rows(rows: Mapping[Any, Any], budget: Budget) -> dict[str, Any]:
    """Return a mapping for a page key by key: `rows` of key and value, and how many there are."""
    shown = []
    for key, value in islice(rows.items(), ROWS_MAX):
        if budget.is_spent:
            break
        shown.append([show(key, budget), show(value, budget)])
    return {"rows": shown, "row_count": len(rows), "left_out_count": len(rows) - len(shown)}


def show_fields(
    fields: Mapping[str, Any],
    budget: Budget,
    *,
    keyed: Iterable[str] = (),
    chars_max: int = CHARS_MAX,
) -> list[dict[str, Any]]:
    """Return fields by name for a page; of those that are `keyed`, key by key."""
    by_key = {*keyed}
    return [
        {"name": printable(name)}
        | (
            show_rows(value, budget)
            if name in by_key and isinstance(value, dict)
            else show(value, budget, chars_max=chars_max)
        )
        for name, value in fields.items()
    ]
