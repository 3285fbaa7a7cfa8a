"""Predicates by name, and snapshots that are dropped while they are looked at."""

import shutil
import sys
from pathlib import Path

import pytest

from stillframe.detect.predicate import (
    check_predicate_name,
    deadlock,
    if_present,
    load_predicate,
    termination,
    topology_of_store,
)
from stillframe.errors import Damaged, UsageError
from stillframe.imports import add_cwd_to_path, load_function
from stillframe.model import Snapshot
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.store import Store
from stillframe.store.writer import local
from tests.analytics import bank


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store of two snapshots."""
    return Store.open(bank.make_store(tmp_path / "store", snapshot_count=2))


def test_a_name_is_a_predicate() -> None:
    """What must be there is asked for if it is needed, and only then."""

    def expected() -> dict[str, dict[str, int | float]]:
        raise AssertionError("nobody needs that")

    assert load_predicate("deadlock", expected) is deadlock
    assert load_predicate("termination", expected) is termination
    with pytest.raises(AssertionError, match="nobody needs that"):
        load_predicate("loss", expected)
    check_predicate_name("select 1 = 1")
    with pytest.raises(UsageError, match="there is no predicate 'love'"):
        check_predicate_name("love")


def test_what_was_dropped_is_passed_over_whatever_else_is_wrong(store: Store) -> None:
    """Of two snapshots one is dropped and one is damaged: the latter is told when it is read."""
    dropped, damaged = store.entries()
    (local(damaged.directory) / "manifest.json").write_bytes(b"?")

    def read(entry: SnapshotEntry) -> Snapshot:
        return store.load(entry.id)

    shutil.rmtree(local(dropped.directory))
    assert if_present(dropped, read) is None
    with pytest.raises(Damaged, match=r"manifest\.json was changed"):
        if_present(damaged, read)


def test_the_topology_must_be_the_one_that_is_expected(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found in the directory where one is, too, and named in the error."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    known, topology = topology_of_store(
        store, "tests.analytics.bank:TOPOLOGY", store.description.hash
    )
    assert (known, topology) == ("tests.analytics.bank:TOPOLOGY", bank.TOPOLOGY)
    with pytest.raises(UsageError, match="were taken with a different topology from tests"):
        topology_of_store(store, known, "0" * 64)
    with pytest.raises(UsageError, match="give --topology"):
        topology_of_store(store, None, store.description.hash)


def test_functions_are_found_in_the_directory_that_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on the path once."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "only_here.py").write_text("def holds(view):\n    return True\n")
    with pytest.raises(UsageError, match="there is no module 'only_here' here"):
        load_function("only_here:holds")
    add_cwd_to_path(str(tmp_path))
    add_cwd_to_path(str(tmp_path))
    assert sys.path.count(str(tmp_path)) == 1
    assert load_function("only_here:holds")(None) is True
    with pytest.raises(UsageError, match="only_here has no function 'never'"):
        load_function("only_here:never")
