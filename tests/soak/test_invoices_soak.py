"""The kill soak of effects outside, long at night, and the rules of its mark one by one.

``python -m tests.soak.invoices`` runs the soak alone.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from stillframe import Channel, Due, SnapshotId
from stillframe.examples.invoices import Payment, Till, connect, settle, shop
from tests.nightly import Figure, by_night, seeds
from tests.soak.invoices import MOMENTS, soak


class History:
    """A till that runs, without a system."""

    def __init__(self) -> None:
        self.till = Till()
        shop.codecs["till"].open_outboxes(self.till, "till", "a run")
        self.count = 0

    def due(self, *names: str) -> Due[Payment]:
        """Return what is to be committed after these payments."""
        for name in names:
            self.till.receive(Channel("C1", "till"), Payment(name, 100))
        self.count += 1
        self.till.payments.cut(SnapshotId("till", self.count))
        self.till.payments.published(SnapshotId("till", self.count))
        due = self.till.payments.due()
        assert due is not None
        return due


def table_after(path: Path, *dues: Due[Payment]) -> list[str]:
    """Return the invoices in the table after these commits, each in a connection of its own."""
    for due in dues:
        with closing(connect(path)) as books:
            settle(books, due)
    with closing(connect(path)) as books:
        return [invoice for (invoice,) in books.execute("select invoice from paid")]


def test_what_was_committed_is_known_by_its_mark(tmp_path: Path) -> None:
    """The same payments again, some more, or later ones alone: each is committed once."""
    history = History()
    first, more = history.due("1", "2"), history.due("3")
    history.till.payments.forget(first)
    table = table_after(tmp_path / "books", first, first, more, history.due("4"))
    assert table == ["1", "2", "3", "4"]


def test_the_mark_makes_no_two_payments_one(tmp_path: Path) -> None:
    """No key hides a double: an invoice that is due twice in one history is committed twice."""
    assert table_after(tmp_path / "books", History().due("1", "1")) == ["1", "1"]


def test_what_another_history_committed_is_looked_up_from_then_on(tmp_path: Path) -> None:
    """After a restore by hand what was paid is passed over, also in later commits, and what was
    not is paid; also if as many payments were committed as the restored state has."""
    second = History()
    both = [second.due("1", "4"), second.due("2", "3", "5")]
    table = table_after(tmp_path / "books", History().due("1", "2", "3"), *both)
    assert table == ["1", "2", "3", "4", "5"]


def test_a_commit_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Neither payments nor the mark, so that the next one commits them all."""
    history, path = History(), tmp_path / "books"
    with closing(connect(path)) as books:
        books.set_authorizer(lambda action, *_: int(action == sqlite3.SQLITE_UPDATE))
        with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
            settle(books, history.due("1"))
    assert table_after(path) == []
    assert table_after(path, history.due("2")) == ["1", "2"]


@pytest.mark.nightly(part="soak")
@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds("invoices", night=1) or (1,))
def test_payments_outside_are_made_once(seed: int, tmp_path: Path, figure: Figure) -> None:
    """After kills at the worst moments, and after restores of older snapshots by hand."""
    kill_count = by_night(50, check=len(MOMENTS))
    return_count = by_night(8, check=1)
    run, wrong = soak(seed, kill_count=kill_count, return_count=return_count, directory=tmp_path)
    figure("kills", kill_count)
    figure("restores", return_count)
    figure("payments", run.done["payments at the end of the kills"])
    assert wrong == []
    assert run.done["payments at the end of the kills"] > 0
    assert all(run.done[f"kills: {moment}"] for moment in MOMENTS)


@pytest.mark.slow
def test_who_commits_at_once_pays_what_is_taken_back(tmp_path: Path) -> None:
    """The same check finds that a till did not wait: by the second payment of what it had paid
    when it died."""
    _, wrong = soak(1, kill_count=1, return_count=0, directory=tmp_path, is_naive=True)
    assert "was paid 2 times" in " ".join(wrong), wrong
