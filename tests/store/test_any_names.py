"""Fields may have any name, also those of columns of the store."""

from pathlib import Path

from stillframe.detect.predicate import SqlPredicate
from stillframe.detect.view import view_of
from stillframe.model import Channel, SnapshotId
from stillframe.store.store import Store
from tests.store import any_names


def test_what_was_recorded_comes_back(tmp_path: Path) -> None:
    """States, messages and keys, full and from changes; and the columns say the same."""
    store = Store.open(any_names.make_store(tmp_path / "store"))
    for number in (1, 2):
        snapshot = SnapshotId("A", number)
        store.verify(snapshot)
        view = view_of(store.load(snapshot), any_names.TOPOLOGY)
        assert view.processes["B"].number == number
        assert dict(view.processes["B"].parts) == any_names.VALUES
        assert view.channels[Channel("A", "B")] == (any_names.MESSAGE,)


def test_questions_tell_them_from_those_of_the_store(tmp_path: Path) -> None:
    """A column of the store begins with an underscore, one of a field has the field's name."""
    store = Store.open(any_names.make_store(tmp_path / "store"))
    tables = store.tables(snapshot := SnapshotId("A", 2))
    query = SqlPredicate(
        """
        select (select count(*) from processes
                where _process in ('A', 'B') and process = 2 and _snapshot = 'A-2'
                and snapshot = 1 and _kind = 'Named' and kind = 3 and number = 2) = 2
        and (select count(*) from messages
             where _number = 3 and number = 77 and _kind = 'Sent' and kind = 'K'
             and _source = 'A' and source = 1 and snapshot = 'of mine') = 1
        and (select count(*) from Named_parts
             where _key = 'a' and key = 3 and process = 'y' and is_removed
             and key_encoded = 7 and value = 1) = 2
        and (select count(*) from Named_parts) = 4
        """
    )
    assert query.evaluate(f"snapshot {snapshot}", tables).holds
