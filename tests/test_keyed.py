"""A keyed field: it behaves as a dict, and what it held at a cut can be read later."""

import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stillframe.keyed import UNTRACKED_COUNT_MIN, Keyed, KeyedCut
from tests.nightly import examples

KEYS = st.integers(0, 9)


class AgainstDict(RuleBasedStateMachine):
    """Every method, called on a Keyed and on a dict, with cuts in between."""

    def __init__(self) -> None:
        super().__init__()
        self.dict: dict[int, int] = {}
        self.keyed: Keyed[int, int] = Keyed()

    def both(self, act: Callable[[dict[int, int] | Keyed[int, int]], object]) -> None:
        """Do the same to both: the same comes of it, also the same error."""
        answers: list[object] = []
        for mapping in (self.dict, self.keyed):
            try:
                answers.append(act(mapping))
            except KeyError as error:
                answers.append(type(error))
        assert answers[0] == answers[1]

    @rule(key=KEYS, value=st.integers())
    def set(self, key: int, value: int) -> None:
        """Set a key."""
        self.both(lambda mapping: mapping.__setitem__(key, value))

    @rule(key=KEYS)
    def remove(self, key: int) -> None:
        """Remove a key that may not be there."""
        self.both(lambda mapping: mapping.__delitem__(key))

    @rule(key=KEYS)
    def pop(self, key: int) -> None:
        """Take a value out."""
        self.both(lambda mapping: mapping.pop(key, None))

    @rule()
    def popitem(self) -> None:
        """Take any pair out: of a dict it is the newest."""
        self.both(lambda mapping: mapping.popitem())

    @rule(key=KEYS)
    def setdefault(self, key: int) -> None:
        """Set a key that may be there."""
        self.both(lambda mapping: mapping.setdefault(key, 7))

    @rule(rows=st.dictionaries(KEYS, st.integers()))
    def update(self, rows: dict[int, int]) -> None:
        """Set several keys."""
        self.both(lambda mapping: mapping.update(rows))

    @rule()
    def clear(self) -> None:
        """Remove all."""
        self.both(lambda mapping: mapping.clear())

    @rule()
    def cut(self) -> None:
        """Cut, and read something of it, so that there is something to keep track of."""
        self.keyed.put_changes_aside()
        self.keyed.cut(None).take(2)

    @invariant()
    def they_are_equal(self) -> None:
        """In everything that can be seen."""
        assert dict(self.keyed) == dict(self.keyed.rows) == self.dict
        assert list(self.keyed) == list(self.keyed.keys()) == list(self.dict)
        assert list(self.keyed.items()) == list(self.dict.items())
        assert list(self.keyed.values()) == list(self.dict.values())
        assert len(self.keyed) == len(self.dict)
        assert [key in self.keyed for key in range(10)] == [key in self.dict for key in range(10)]
        assert [self.keyed.get(key) for key in range(10)] == [self.dict.get(k) for k in range(10)]
        assert repr(self.keyed) == f"Keyed({self.dict!r})"


TestAgainstDict = AgainstDict.TestCase
TestAgainstDict.settings = settings(max_examples=examples(40), stateful_step_count=30)


def read(cut: KeyedCut[int, int], count: int = 3) -> tuple[dict[int, int], set[int]]:
    """Read a cut to its end: the rows, and the keys that were removed."""
    rows: dict[int, int] = {}
    removed: set[int] = set()
    while (taken := cut.take(count)) is not None:
        keys, values, gone = taken
        assert not (rows.keys() | removed) & {*keys, *gone}
        rows.update(zip(keys, values, strict=True))
        removed.update(gone)
    cut.close()
    return rows, removed


@given(
    before=st.dictionaries(KEYS, st.integers()),
    steps=st.lists(st.tuples(KEYS, st.none() | st.integers())),
)
def test_a_cut_holds_what_was_there_whatever_happens_later(
    before: dict[int, int], steps: list[tuple[int, int | None]]
) -> None:
    """All keys are read, one after each change that is made meanwhile."""
    keyed = Keyed(before)
    keyed.put_changes_aside()
    cut = keyed.cut(None)
    seen: dict[int, int] = {}
    for key, value in steps:
        if value is None:
            keyed.pop(key, None)
        else:
            keyed[key] = value
        taken = cut.take(1)
        if taken is not None:
            seen.update(zip(taken[0], taken[1], strict=True))
    assert seen | read(cut)[0] == before


def test_only_what_changed_is_read() -> None:
    """The set that was put aside is gone through; a key that was removed is told apart."""
    keyed = Keyed({1: 10, 2: 20, 3: 30})
    keyed.track()
    keyed[2] = 21
    del keyed[3]
    changed = keyed.put_changes_aside()
    assert changed is not None
    cut = keyed.cut([changed])
    keyed[1] = 11
    keyed[2] = 22
    assert read(cut) == ({2: 21}, {3})
    assert list(keyed.put_changes_aside() or ()) == [1, 2]


def test_a_key_that_changed_before_several_cuts_is_read_once() -> None:
    """The sets of the cuts since the base overlap."""
    keyed = Keyed({1: 10, 2: 20})
    keyed.track()
    keyed[1] = 11
    first = keyed.put_changes_aside()
    keyed[1] = 12
    keyed[2] = 21
    second = keyed.put_changes_aside()
    assert first is not None
    assert second is not None
    assert read(keyed.cut([first, second])) == ({1: 12, 2: 21}, set())


def test_a_closed_cut_costs_nothing_more() -> None:
    """No old value is kept for it."""
    keyed = Keyed({1: 10})
    keyed.put_changes_aside()
    cut = keyed.cut(None)
    cut.close()
    cut.close()
    keyed[1] = 11
    assert cut.before == {}


def test_keys_that_come_and_go_do_not_fill_the_memory() -> None:
    """Where no cut asks for them, it is forgotten which they were: any key may have changed."""
    keyed: Keyed[int, int] = Keyed()
    keyed.track()
    for key in range(UNTRACKED_COUNT_MIN + 1):
        keyed[key] = key
        del keyed[key]
    assert keyed.put_changes_aside() is None
    assert keyed.put_changes_aside() == {}


def test_an_empty_one_has_nothing_to_pop() -> None:
    """As a dict says it."""
    with pytest.raises(KeyError, match="empty"):
        Keyed().popitem()


def test_to_clear_a_large_one_takes_no_longer_for_each_key() -> None:
    """Its dict does not look for its end among all that was removed."""
    keyed = Keyed((key, key) for key in range(400_000))
    keyed.track()
    began = time.process_time()
    keyed.clear()
    assert time.process_time() - began < 10  # about 0.2 s, and most of a minute if it does
    assert not keyed


@pytest.mark.parametrize("key_count", range(320, 360))
def test_a_key_that_is_popped_and_a_full_dict_hide_no_other_key(key_count: int) -> None:
    """A dict that has no room left (341 keys, of 512 places) moves its rows together when one is
    put back: whoever went through it would pass over as many as had been removed before."""
    keyed = Keyed((key, key) for key in range(key_count))
    for key in range(50):
        del keyed[key]
    held = dict(keyed)
    keyed.put_changes_aside()
    cut = keyed.cut(None)
    keys, values, removed = cut.take(100) or ([], [], [])
    keyed.popitem()
    rest = cut.take(key_count) or ([], [], [])
    assert dict(zip(keys + rest[0], values + rest[1], strict=True)) == held
    assert not removed + rest[2]


def test_the_values_of_a_million_keys_are_those_of_a_dict() -> None:
    """A sum over them costs no call of Python for each key."""
    keyed = Keyed({1: 10, 2: 20})
    values = keyed.values()
    assert type(values) is type({}.values())
    keyed[3] = 30
    assert sum(values) == 60
