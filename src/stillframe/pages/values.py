"""Encode values as printable JSON text, for a page with bounds and the size of what is cut off.

A value can be anything that a process recorded: ten megabytes of text, a mapping of a million keys,
or letters that turn the direction of writing around.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

from stillframe.diagram.text_metrics import count
from stillframe.json_values import json_text

Item = TypeVar("Item")

CHARS_MAX = 2000
"""Characters shown of a value."""
BEFORE_MAX = 60
"""Characters shown before the first difference of two long values."""
ITEMS_MAX = 1000
"""Items of a list or mapping that are encoded."""
ROWS_MAX = 100
"""Keys shown of a keyed field."""
_COST = 60
"""What a value takes in a document besides its text, in characters."""


def printable(text: str, *, kept: str = "") -> str:
    """Return `text` with escapes for what cannot be printed or changes the direction of writing,
    but for the characters `kept`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in text)


class Budget:
    """The number of characters of values that still fit into a document."""

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

    def limit(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield `items` as long as there is room for more."""
        for item in items:
            if self.is_spent:
                return
            yield item


def show(value: Any, budget: Budget, *, chars_max: int = CHARS_MAX) -> dict[str, Any]:
    """Return a value for a page: its `text`, and in `left_out` what is not in that."""
    items = len(value) if isinstance(value, dict | list | tuple) else 0
    if items > ITEMS_MAX:
        first = islice(value.items() if isinstance(value, dict) else value, ITEMS_MAX)
        text = json_text(dict(first) if isinstance(value, dict) else list(first))
        left_out = f"the first characters of {count(items, 'item')}"
        return {"text": printable(budget.take(text, chars_max)), "left_out": left_out}
    return _show_text(json_text(value), 0, budget, chars_max)


def show_pair(before: Any, after: Any, budget: Budget) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two values that differ, long texts from shortly before where they begin to."""
    texts = json_text(before), json_text(after)
    skipped = max(0, same_count(*texts) - BEFORE_MAX) if max(map(len, texts)) > CHARS_MAX else 0
    return _show_text(texts[0], skipped, budget), _show_text(texts[1], skipped, budget)


def _show_text(
    text: str, skipped: int, budget: Budget, chars_max: int = CHARS_MAX
) -> dict[str, Any]:
    kept = budget.take(text[skipped:], chars_max)
    shown: dict[str, Any] = {"text": printable(kept)}
    if skipped:
        shown["skipped"] = f"{count(skipped, 'character')} that are the same"
    if (left := len(text) - skipped - len(kept)) > 0:
        shown["left_out"] = f"and {count(left, 'character')} more"
    return shown


def same_count(one: str, other: str) -> int:
    """Return with how many characters both begin, without a look at each of millions."""
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
    first = budget.limit(islice(rows.items(), ROWS_MAX))
    shown = [[show(key, budget), show(value, budget)] for key, value in first]
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
    shown = []
    for name, value in fields.items():
        is_keyed = name in by_key and isinstance(value, dict)
        found = show_rows(value, budget) if is_keyed else show(value, budget, chars_max=chars_max)
        shown.append({"name": printable(name)} | found)
    return shown
