"""What is shown of a value says all of it: a reader written from ``docs/json.md`` gets it back."""

import base64
import datetime
import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stillframe.cli.output import cell
from stillframe.json_values import json_text, plain, plain_text
from stillframe.store.diff import is_same

encode = msgspec.msgpack.encode
TIMES = st.datetimes(timezones=st.just(datetime.UTC))
SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.binary(),
    st.floats(allow_nan=False) | st.just(math.nan),  # all NaN are one
    st.text() | st.sampled_from(["$", "$1", "$float", "$$", "1", "null", "nan", "inf", "1970"]),
    TIMES,
    TIMES.map(str),
)
KEYS = SCALARS | st.tuples(SCALARS, st.tuples(SCALARS))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
LOOKALIKES: list[Any] = [
    *({1: 10, "1": 20}, {"$1": 10, "1": 20}, {"$float": "nan"}, math.nan, None, "NaN", "null"),
    *(math.inf, -math.inf, 0.0, -0.0, 0, False, 1, 1.0, True, 2**53, 2**53 + 1, "1", "", "inf"),
    *(b"nan", "bmFu", {"$bytes": "bmFu"}, [[1, 2]], {1: 2}, {(1, 2): 3}, {None: 1}, {"null": 1}),
    *({math.nan: 1}, {math.nan: 1, float("nan"): 1}, {math.nan: 2, float("nan"): 1}),
    *(
        {"$pairs": []},
        {"$": 1},
        {"$$": 1},
        {"$time": 1},
        '{"$float":"nan"}',
        '"1"',
        "[[1,2]]",
        "1970-01-01",
    ),
    *(datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC), "1970-01-01 00:00:00+00:00"),
]


def refuse(constant: str) -> Any:
    """JSON has no NaN and no Infinity."""
    raise AssertionError(constant)


def read(shown: Any) -> Any:
    """Return what the page says that this JSON stands for."""
    match shown:
        case {"$float": text}:
            return float(text)
        case {"$bytes": text}:
            return base64.b64decode(text)
        case {"$time": text}:
            return datetime.datetime.fromisoformat(text)
        case {"$extension": [code, text]}:
            return msgspec.msgpack.Ext(code, base64.b64decode(text))
        case {"$pairs": pairs}:
            return {hashable(read(key)): read(item) for key, item in pairs}
        case dict():
            return {read_key(key): read(value) for key, value in shown.items()}
        case list():
            return list(map(read, shown))
    return shown


def read_key(key: str) -> Any:
    """Return the key that a name in an object stands for."""
    if not key.startswith("$") or key == "$":
        return key
    return hashable(read(json.loads(key[1:])))


def hashable(key: Any) -> Any:
    """A list is no key: it stands for a tuple."""
    return tuple(map(hashable, key)) if isinstance(key, list) else key


@given(VALUES)
@example(LOOKALIKES)
@example(msgspec.msgpack.Ext(5, b"a"))
@example({"a": {"$float": "nan", "b": 1}})
def test_json_loses_nothing(value: Any) -> None:
    """Whatever a process recorded, and in JSON that every reader takes."""
    recorded = msgspec.msgpack.decode(encode(value))
    text = json_text(recorded)
    assert text == plain_text(plain(recorded))  # also if it is not made plain first
    assert encode(read(json.loads(text, parse_constant=refuse))) == encode(recorded)


def test_values_that_differ_are_shown_differently() -> None:
    """In JSON and in the cells of a table."""
    assert len({*map(json_text, LOOKALIKES)}) == len(LOOKALIKES)
    assert len({*map(cell, LOOKALIKES)}) == len(LOOKALIKES)


def test_ordinary_values_are_shown_as_they_are() -> None:
    """Only what JSON cannot say has another form."""
    ordinary = {"name": "Ann", "€": [1, 2.5, None, True], "$": {"a": 2**60}}
    assert plain(ordinary) == ordinary
    assert [*map(cell, ["Ann", 7, 2.5, True, None, math.nan])] == "Ann 7 2.5 true null nan".split()


def deeper(calls: int, value: Any) -> str:
    """Return the text of a value, with so many calls on the stack."""
    return deeper(calls - 1, value) if calls else json_text(value)


NAN = b"\xcb\x7f\xf8" + bytes(6)


@pytest.mark.parametrize(
    ("before", "end", "shown", "shown_end", "after"),
    [
        (b"\x92\x01", b"\x90", "[1,", "[]", "]"),
        (b"\x82\xa1b\x01\xa1a", b"\x80", '{"b":1,"a":', "{}", "}"),
        (b"\x81\x01", NAN, '{"$1":', '{"$float":"nan"}', "}"),
        (
            *(b"\x82" + NAN + b"\x01" + NAN, b"\xc0"),
            '{"$pairs":[[{"$float":"nan"},1],[{"$float":"nan"},',
            *("null", "]]}"),
        ),
    ],
)
def test_the_text_of_a_value_does_not_depend_on_the_stack(
    before: bytes, end: bytes, shown: str, shown_end: str, after: str
) -> None:
    """A value may be as deep as one that can be recorded."""
    levels = 850
    value = msgspec.msgpack.decode(before * levels + end)
    expected = shown * levels + shown_end + after * levels
    assert [deeper(calls, value) == expected for calls in (0, 400)] == [True, True]
    assert is_same(value, value)


def test_a_cell_shows_text_that_is_as_deep_as_no_value() -> None:
    """It is never read as JSON, and still differs from the cell of a list."""
    assert cell("[" * 20_000) == '"' + "[" * 56 + "..."
    assert cell("a" * 99) == "a" * 57 + "..."
