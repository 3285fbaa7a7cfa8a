"""A result that a test made up is compared with a real one: each difference in shape is found."""

import msgspec
import pytest

from tests.shapes import same_shape


class Found(msgspec.Struct):
    """A result."""

    ok: bool
    rows: list[dict[str, object]]


REAL = Found(True, [{"name": "A-1", "at": 1.5, "why": None}, {"name": "A-2", "at": 2.5, "why": ""}])


@pytest.mark.parametrize(
    "canned",
    [
        REAL,
        Found(False, []),
        Found(False, [{"name": "B", "at": 0.0, "why": "late"}] * 3),
        Found(
            False, [{"name": "B", "at": 0.0, "why": "late"}, {"name": "", "at": 0.0, "why": None}]
        ),
    ],
)
def test_other_values_have_the_same_shape(canned: Found) -> None:
    """Nothing but types and keys is compared; an item of a list may look like any real one."""
    same_shape(canned, REAL)


@pytest.mark.parametrize(
    ("canned", "said"),
    [
        ({"ok": True}, "the result is of type dict, and really Found"),
        (Found(1, []), "the result.ok is of type int, and really bool"),  # type: ignore[arg-type]
        (Found(True, [{"name": "B"}]), r"the result.rows\[0\]: only one of both has at, why"),
        (
            Found(True, [{"name": "B", "at": 1, "why": None}]),
            r"the result.rows\[0\].at is of type int, and really float",
        ),
        (Found(True, [{"name": "B", "at": 1.5, "why": 3}]), r"why is of type int, and really None"),
    ],
)
def test_where_shapes_differ_is_named(canned: object, said: str) -> None:
    """A type that is another, a key that only one of them has."""
    with pytest.raises(AssertionError, match=said):
        same_shape(canned, REAL)


def test_a_list_that_is_really_empty_shows_no_shape() -> None:
    """An empty list has no items to compare with: a made-up one with items is refused."""
    with pytest.raises(AssertionError, match="the result is really empty"):
        same_shape([1], [])
