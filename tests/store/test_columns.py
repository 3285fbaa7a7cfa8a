"""Fields become columns: kinds that meet, values that fit, and values that do not."""

import datetime
from typing import Any

import pytest

from stillframe.errors import StoreError
from stillframe.store.tables import ARROW_TYPES, merged_columns, to_array
from stillframe.topology import COLUMN_KINDS, Column

UTC = datetime.UTC


def test_every_kind_has_a_type() -> None:
    """What a topology may call a column, the store can write."""
    assert set(ARROW_TYPES) == {*COLUMN_KINDS.values(), "json"}


@pytest.mark.parametrize(
    ("kinds", "met"),
    [
        (["int", "int"], "int"),
        (["int", "float"], "float"),
        (["float", "int", "float"], "float"),
        (["int", "float", "text"], "json"),
        (["time", "text"], "json"),
        (["bool", "int"], "json"),
        (["bytes"], "bytes"),
    ],
)
def test_kinds_of_one_name_meet(kinds: list[str], met: str) -> None:
    """Numbers meet as float, everything else that differs as JSON, in whatever order they come."""
    for order in (kinds, kinds[::-1]):
        classes = {f"C{i}": (Column("x", kind),) for i, kind in enumerate(order)}
        assert merged_columns(classes) == (Column("x", met),)


def test_columns_keep_the_order_of_first_sight() -> None:
    """The columns of the first class come first, then what the others add."""
    classes = {
        "A": (Column("b", "int"), Column("a", "int")),
        "B": (Column("c", "text"), Column("a", "int")),
        "C": (),
    }
    assert [column.name for column in merged_columns(classes)] == ["b", "a", "c"]


@pytest.mark.parametrize(
    ("kind", "values", "read"),
    [
        ("int", [1, -(2**63), 2**63 - 1, None], [1, -(2**63), 2**63 - 1, None]),
        ("float", [1, 0.5, None], [1.0, 0.5, None]),
        ("text", ["", "ä", None], ["", "ä", None]),
        ("bytes", [b"\x00", None], [b"\x00", None]),
        ("bool", [True, None], [True, None]),
        ("json", [1, "a", [1, {"b": None}], None], ["1", '"a"', '[1,{"b":null}]', None]),
        ("json", [{1: 2}, {(1, 2): b"a"}], ['{"$1":2}', '{"$[1,2]":{"$bytes":"YQ=="}}']),
        (
            "time",
            [datetime.datetime(2024, 1, 2, tzinfo=UTC), "2024-01-02T00:00:00", None],
            [datetime.datetime(2024, 1, 2, tzinfo=UTC)] * 2 + [None],
        ),
    ],
)
def test_values_are_kept(kind: str, values: list[Any], read: list[Any]) -> None:
    """Each value is there as its kind says; None is null; a time without a zone is UTC."""
    array = to_array(Column("x", kind), values, str)
    assert array.type == ARROW_TYPES[kind]
    assert array.to_pylist() == read


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", 2**63),
        ("int", "one"),
        ("int", 0.5),
        ("int", True),
        ("float", 2**53 + 1),
        ("float", "x"),
        ("bool", 2),
        ("text", 5),
        ("bytes", 5),
        ("time", "tomorrow"),
    ],
)
def test_a_value_that_does_not_fit_is_named(kind: str, value: Any) -> None:
    """The error says whose value it is, which field, the value and what to do; nothing is cut."""
    with pytest.raises(StoreError, match=r"row 2: field 'x' holds .* kind") as caught:
        to_array(Column("x", kind), [None, None, value, None], lambda index: f"row {index}")
    assert repr(value) in str(caught.value)
    assert "declare the field with another type" in str(caught.value)


def test_a_long_value_is_shortened_in_the_error() -> None:
    """An error message does not hold a whole document."""
    with pytest.raises(StoreError) as caught:
        to_array(Column("x", "int"), ["y" * 10_000], str)
    assert len(str(caught.value)) < 600
