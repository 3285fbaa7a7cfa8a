"""Equal sets have equal bytes wherever something is recorded, whatever order Python has them in."""

import copy
import datetime
import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillframe import Channel, Message, Process, Topology
from stillframe.ordered_sets import may_hold_set, with_ordered_sets
from stillframe.outbox import Outbox
from stillframe.protocol.action_runner import ActionRunner
from stillframe.runtime.process.endpoints import _enqueuer
from stillframe.services.agent import Agent
from stillframe.state_codec import StateCodec

encode = msgspec.msgpack.encode


class Letter(enum.Enum):
    """Has no order."""

    A = "a"
    B = "b"


class Branch(msgspec.Struct, frozen=True):
    """Refers to itself, and can be in a set."""

    names: frozenset[int]
    branches: frozenset["Branch"] = frozenset()


@dataclass(frozen=True, slots=True)
class Held:
    """A dataclass whose attributes cannot be set."""

    tags: set[int]


Annotation = set[int] | None


@pytest.mark.parametrize(
    "annotation",
    [
        *(set, frozenset[str], dict[str, list[set[int]]], dict[frozenset[int], int], Annotation),
        *(tuple[int, frozenset[int]], Branch, Held, list[Held], Any, list, dict[str, Any]),
    ],
)
def test_a_type_that_can_hold_a_set_is_found(annotation: Any) -> None:
    """Anywhere in the type, or because it says nothing of its items."""
    assert may_hold_set(annotation)


@pytest.mark.parametrize(
    "annotation", [int, str | None, list[int], dict[str, tuple[int, ...]], Letter, float | bytes]
)
def test_values_of_other_types_are_not_walked(annotation: Any) -> None:
    """That would take time at every recording."""
    assert not may_hold_set(annotation)


def _of(first: int, second: int) -> list[Any]:
    """Return values with sets that Python iterates over in the order in which these were added."""
    numbers = frozenset([first, second])
    assert list(numbers) == [first, second], "both have one place in the table of a set"
    return [
        set(numbers),
        {"a": [numbers], "b": (numbers, {numbers: 1})},
        Held(set(numbers)),
        Branch(numbers, frozenset([Branch(numbers)])),
        {1: set(numbers), "1": None},
    ]


@pytest.mark.parametrize(("one", "other"), [*zip(_of(0, 8), _of(8, 0), strict=True)])
def test_equal_sets_are_recorded_alike(one: Any, other: Any) -> None:
    """In every type that msgspec encodes."""
    before = copy.deepcopy(one)
    assert one == other
    assert encode(one) != encode(other)
    assert encode(with_ordered_sets(one)) == encode(with_ordered_sets(other))
    assert one == before, "what is recorded is not changed"
    assert with_ordered_sets(7) == 7


ITEMS: st.SearchStrategy[Any] = st.one_of(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text() | st.binary(),
    st.sampled_from(Letter),
    st.datetimes(timezones=st.just(datetime.UTC)),
    st.frozensets(st.integers(0, 40)),
    st.tuples(st.text(), st.frozensets(st.text())),
)


@given(st.lists(ITEMS, unique_by=encode), st.randoms())
def test_items_of_all_types_get_one_order(items: list[Any], random: Any) -> None:
    """Also items that Python cannot sort."""
    shuffled = random.sample(items, len(items))
    found = [encode(with_ordered_sets(set(each))) for each in (items, shuffled)]
    assert found[0] == found[1] or len(set(items)) < len(items), "1, True and 1.0 are equal"
    kept = {encode(with_ordered_sets(item)) for item in set(items)}
    assert {*map(bytes, msgspec.msgpack.decode(found[0], type=list[msgspec.Raw]))} == kept


class Tagged(Message):
    """A message with a set."""

    tags: set[int]


class Tagger(Process):
    """A set in a field, in a message, and in an outbox."""

    tags: set[int] = field(default_factory=set)

    def start(self) -> None:
        """Send it."""
        self.send("B", Tagged(self.tags))

    def receive(self, channel: Channel, message: Tagged) -> None:
        """Take it."""


def _state(tags: set[int]) -> object:
    return StateCodec(Tagger).capture(Tagger(tags=tags))


def _sent(tags: set[int]) -> object:
    system = Topology({"A": Tagger(tags=tags), "B": Tagger()}, [("A", "B")])
    return ActionRunner("A", system).perform("start")


def _queued(tags: set[int]) -> object:
    pending: list[Any] = []
    _enqueuer(Tagged, pending)(Tagged(tags))
    return bytes(pending[0])


def _put(tags: set[int]) -> object:
    return Outbox[Any](lambda due: None).put(Held(tags))


def _observed(tags: set[int]) -> object:
    return Agent("bank", {"tags": tags}, secret=bytes(64))._capture().state


@pytest.mark.parametrize("record", [_state, _sent, _queued, _put, _observed])
def test_every_recording_has_one_order(record: Callable[[set[int]], object]) -> None:
    """States, messages, effects and observations."""
    one, other = {0, 8}, {8, 0}
    assert list(one) != list(other)
    assert record(one) == record(other)
