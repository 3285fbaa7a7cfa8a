"""Values in a page: bounded, harmless, and what is not there is said."""

import datetime
import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stillframe.json_values import plain
from stillframe.pages.values import CHARS_MAX, Budget, show, show_fields, show_pair, show_rows

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(VALUES)
@example({"\\x": None})
@example({"$0": None})
def test_a_short_value_is_shown_whole_and_harmless(value: Any) -> None:
    """As the JSON of ``plain``, in which everything can be printed."""
    shown = show(value, Budget(10**6))
    assert shown["text"].isprintable()
    if "left_out" not in shown and not _has_bytes(value):
        assert json.loads(_readable(shown["text"])) == plain(value)


def _has_bytes(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_bytes, value.values()))
    return isinstance(value, bytes) or (isinstance(value, list) and any(map(_has_bytes, value)))


def _readable(text: str) -> str:
    """Return text with the escapes that only Python knows as JSON has them."""
    return re.sub(
        r"\\\\|\\x([0-9a-f]{2})|\\U([0-9a-f]{8})",
        lambda found: chr(int(code, 16)) if (code := found[1] or found[2]) else found[0],
        text,
    )


@pytest.mark.parametrize(
    ("value", "left_out"),
    [
        ("x" * 10_000_000, "and 9,998,002 characters more"),
        ([1] * 1_000_000, "the first characters of 1,000,000 items"),
        ({str(n): n for n in range(5000)}, "the first characters of 5,000 items"),
        (["y" * 5000], "and 3,004 characters more"),
    ],
)
def test_of_a_long_value_it_is_said_how_much_is_not_there(value: Any, left_out: str) -> None:
    """Its text stays short."""
    shown = show(value, Budget(10**6))
    assert len(shown["text"]) == CHARS_MAX
    assert shown["left_out"] == left_out


def test_of_a_mapping_the_first_keys_are_shown() -> None:
    """And how many there are."""
    shown = show_rows({n: n * n for n in range(1000)}, Budget(10**6))
    assert (len(shown["rows"]), shown["row_count"], shown["left_out_count"]) == (100, 1000, 900)
    assert shown["rows"][3] == [{"text": "3"}, {"text": "9"}]


def test_when_there_is_no_more_room_nothing_is_dropped_without_a_word() -> None:
    """Each field that does not fit says how long it is."""
    fields = show_fields({f"f{n}": "z" * 100 for n in range(50)}, Budget(1000))
    assert len(fields) == 50
    assert sum(len(field["text"]) for field in fields) < 1000
    assert all("left_out" in field for field in fields[20:])


def test_two_long_values_are_shown_from_where_they_differ() -> None:
    """What is the same before is counted."""
    before, after = "a" * 10**6 + "b", "a" * 10**6 + "c" * 5
    one, other = show_pair(before, after, Budget(10**6))
    assert one["text"].endswith('aab"')
    assert other["text"].endswith('aaccccc"')
    assert one["skipped"] == other["skipped"] == "999,941 characters that are the same"


def test_what_json_cannot_hold_is_shown_too() -> None:
    """Keys of any kind, times, numbers that are none."""
    assert show({(1, "a"): 2}, Budget(1000))["text"] == '{"$[1,\\"a\\"]":2}'
    moment = datetime.datetime(2024, 5, 17, tzinfo=datetime.UTC)
    assert show(moment, Budget(1000))["text"] == '{"$time":"2024-05-17T00:00:00Z"}'
    assert show(float("nan"), Budget(1000))["text"] == '{"$float":"nan"}'
