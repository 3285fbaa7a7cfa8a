"""A part of a recorded value that the type of now leaves out is a loss; nothing else is."""

from typing import Any

import msgspec
import pytest

from stillframe.keyed import Keyed
from stillframe.migration import migrate
from stillframe.process import Process
from stillframe.topology import Topology
from tests.migration.systems import snapshot_of


class Point(msgspec.Struct, array_like=True):
    """A value that is recorded as a list."""

    x: int = 1
    y: int = 2


class Dot(msgspec.Struct, array_like=True):
    """What a `Point` is without its y."""

    x: int = 1


@pytest.mark.parametrize(
    ("before", "after", "value", "is_cut"),
    [
        (Point, Dot, Point(), True),
        (Dot, Point, Dot(), False),
        (set[str], frozenset[str], set("abcdefgh"), False),
        (list[int], set[int], [1, 1], True),
        (list[int], list[float], [1, 2], False),
        (list[float], list[float | None], [float("nan")], False),
        (dict[str, int], Keyed[str, int], {"a": 1}, False),
        (dict[str, Point], dict[str, Dot], {"a": Point()}, True),
        (dict[str, dict[str, Point]], dict[str, dict[str, Dot]], {"a": {"b": Point()}}, True),
    ],
)
def test_a_part_of_a_value_that_goes_is_a_loss(
    before: Any, after: Any, value: Any, *, is_cut: bool
) -> None:
    """Less of a value is a loss; more, another order of a set, or 1 as 1.0 is none."""
    kinds = [
        type("Holder", (Process,), {"__annotations__": {"value": kind}}) for kind in (before, after)
    ]
    made = [Topology({"A": kind(value)}, []) for kind in kinds]
    migration = migrate(snapshot_of(made[0]), made[0].description, made[1])
    sentences = ["a part of value was removed"] if is_cut else []
    assert [change.sentence for change in migration.losses] == sentences
