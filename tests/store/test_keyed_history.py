"""Every snapshot that is left gives back the mappings of its cut, whatever happened in between."""

import contextlib
import copy
import datetime
import os
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillframe.errors import UsageError
from stillframe.model import SnapshotId
from stillframe.store import retention
from stillframe.store import store as store_module
from stillframe.store.store import Store
from stillframe.store.writer import local
from tests.nightly import examples
from tests.store.keyed_samples import (
    BANKS,
    DESCRIPTION,
    Fields,
    Guest,
    Place,
    held,
    nothing,
    part,
    snapshot_of,
    whole,
)

CHAIN_LENGTH_MAX = 3
KEYS: dict[str, list[Any]] = {
    "accounts": ["", "a", "b", "c", "ä\0"],
    "seats": [Place(1, "x"), Place(1, "y"), Place(2, "x")],
    "days": [datetime.date(2024, 1, day) for day in (1, 2, 3)],
}
VALUES: dict[str, list[Any]] = {
    "accounts": [0, 1, -(2**63)],
    "seats": [Guest("A"), Guest("B", 7)],
    "days": [None, 0.5, float("inf")],
}
MOSTLY = ["set", "set", "remove", "take", "take", "take", "tell", "tell"]
SOMETIMES = ["forget", "whole", "drop", "keep", "save", "reopen"]
DO = st.sampled_from(MOSTLY + SOMETIMES)


class History:
    """Two banks that go on, and a store that is told of them; the oracle copies dicts."""

    def __init__(self, path: Path, draw: Any) -> None:
        self.draw = draw
        self.store = Store.create(path, description=DESCRIPTION)
        self.store.raise_epoch(None)
        self.now: dict[str, Fields] = {bank: nothing() for bank in BANKS}
        self.cuts: dict[SnapshotId, dict[str, Fields]] = {}
        self.told: dict[str, SnapshotId | None] = dict.fromkeys(BANKS)
        self.number = 0

    def do_set(self) -> None:
        """Set a key of a bank."""
        bank, name = self.draw(st.sampled_from(BANKS)), self.draw(st.sampled_from(list(KEYS)))
        key = self.draw(st.sampled_from(KEYS[name]))
        self.now[bank][name][key] = self.draw(st.sampled_from(VALUES[name]))

    def do_remove(self) -> None:
        """Remove a key of a bank, if it is there."""
        bank, name = self.draw(st.sampled_from(BANKS)), self.draw(st.sampled_from(list(KEYS)))
        self.now[bank][name].pop(self.draw(st.sampled_from(KEYS[name])), None)

    def do_take(self) -> None:
        """Take a snapshot; some are never published."""
        self.number += 1
        cut = copy.deepcopy(self.now)
        parts = []
        for bank in BANKS:
            base = self.told[bank]
            before = nothing() if base is None else self.cuts[base][bank]
            parts.append(part(bank, before, cut[bank], base))
        self.publish(parts, cut)

    def do_whole(self) -> None:
        """Take a snapshot in which the fields are not apart from the others."""
        self.number += 1
        cut = copy.deepcopy(self.now)
        self.publish([whole(bank, cut[bank]) for bank in BANKS], cut)

    def publish(self, parts: list[Any], cut: dict[str, Fields]) -> None:
        """Publish; it is refused if a base was dropped, and then a restart forgets the bases."""
        snapshot = snapshot_of(self.number, parts)
        there = {entry.id for entry in self.store.entries()}
        if any(p.base is not None and p.base not in there for p in parts):
            with pytest.raises(UsageError, match="does not hold that"):
                self.store.publish(snapshot)
            self.do_forget()
            return
        self.store.publish(snapshot)
        self.cuts[snapshot.id] = cut

    def do_tell(self) -> None:
        """Tell a bank of a snapshot; it may be an older one than it knows."""
        known = [None, *(entry.id for entry in self.store.entries())]
        self.told[self.draw(st.sampled_from(BANKS))] = self.draw(st.sampled_from(known[-4:]))

    def do_forget(self) -> None:
        """Begin again from nothing that anybody was told."""
        self.told = dict.fromkeys(BANKS)

    def do_drop(self) -> None:
        """Drop one; those that must stay do."""
        entries = self.store.entries()
        if not entries:
            return
        chosen = self.draw(st.sampled_from(entries)).id
        with contextlib.suppress(UsageError):
            self.store.drop(str(chosen))
            assert chosen not in {entry.id for entry in self.store.entries()}
            assert chosen not in (entries[-1].id, self.store.current())

    def do_keep(self) -> None:
        """Keep a few from now on."""
        self.store.keep(self.draw(st.integers(1, 4)))

    def do_save(self) -> None:
        """Make one a savepoint."""
        entries = self.store.entries()
        if entries:
            with contextlib.suppress(UsageError):  # that name is taken
                self.store.save(self.draw(st.sampled_from(entries)).id, f"kept.{self.number}x")

    def do_reopen(self) -> None:
        """Close the store and open it again."""
        self.store.close()
        self.store = Store.open_writer(self.store.path)

    def check(self) -> None:
        """Compare every snapshot that is left with the oracle."""
        entries = self.store.entries()
        assert self.store.verify_all(lambda *_: None) == len(entries)
        for entry in entries:
            assert held(self.store.load(entry.id)) == self.cuts[entry.id]
        assert set(self.store.savepoints.values()) <= {entry.id for entry in entries}
        assert not list(local(self.store.path).glob("snapshots/.*"))


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(st.data())
def test_every_snapshot_left_is_the_cut_that_it_was(data: st.DataObject) -> None:
    """Random changes, snapshots on random bases, drops, retention, savepoints and restarts."""
    with (
        tempfile.TemporaryDirectory() as directory,
        # Nothing crashes here, and it takes nine tenths of the time.
        mock.patch.object(os, "fsync"),
        mock.patch.object(retention, "CHAIN_LENGTH_MAX", CHAIN_LENGTH_MAX),
        mock.patch.object(store_module, "CHAIN_LENGTH_MAX", CHAIN_LENGTH_MAX),
    ):
        history = History(Path(directory) / "store", data.draw)
        for act in data.draw(st.lists(DO, min_size=5, max_size=30)):
            getattr(history, f"do_{act}")()
            history.store.settle()  # so that the same choices always meet the same store
        history.check()
        history.store.close()
