"""The kill soak of effects outside, long at night, and the rules of its mark one by one.

``python -m tests.soak.invoices`` runs the soak alone.
"""

from pathlib import Path

import pytest

from examples.invoices import Due, Payment, Till, connect, settle
from stillframe.model import Channel, SnapshotId
from tests.nightly import Figure, by_night, seeds
from tests.soak.invoices import MOMENTS, soak


def due_after(*names: str) -> list[Due]:
    """Return what a till has to settle after these payments."""
    till = Till()
    for name in names:
        till.receive(Channel("C1", "till"), Payment(name, 100))
    return till.due


def table_after(path: Path, *settlings: tuple[str, list[Due]]) -> list[str]:
    """Return the invoices in a new table after these settlings, each in a connection of its own."""
    for settled, due in settlings:
        books = connect(path)
        settle(books, settled, due)
        books.close()
    return [invoice for (invoice,) in connect(path).execute("select invoice from paid")]


def test_what_was_committed_is_known_by_its_mark(tmp_path: Path) -> None:
    """The same payments again, some more, or a part of them again: each is committed once."""
    due = due_after("1", "2", "3")
    table = table_after(tmp_path / "books", ("", due[:2]), ("", due), (due[0].mark, due[1:]))
    assert table == ["1", "2", "3"]


def test_the_mark_makes_no_two_payments_one(tmp_path: Path) -> None:
    """No key hides a double: an invoice that is due twice in one history is committed twice."""
    assert table_after(tmp_path / "books", ("", due_after("1", "1"))) == ["1", "1"]


def test_what_another_history_committed_is_looked_up_from_then_on(tmp_path: Path) -> None:
    """After a restore by hand what was paid is passed over, also in later commits, and what was
    not is paid; also if as many payments were committed as the restored state has."""
    first, second = due_after("1", "2", "3"), due_after("1", "4", "2", "3", "5")
    table = table_after(
        tmp_path / "books", ("", first), ("", second[:2]), (second[1].mark, second[2:])
    )
    assert table == ["1", "2", "3", "4", "5"]


def test_only_what_is_before_the_cut_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came after the cut waits, and a snapshot that is told of late commits nothing again."""
    monkeypatch.setenv("INVOICES", str(tmp_path / "books"))
    till, channel = Till(), Channel("C1", "till")
    cuts = [SnapshotId("till", number) for number in range(3)]
    for cut, name in zip(cuts, "123", strict=True):
        till.receive(channel, Payment(name, 100))
        till.on_cut(cut)
    till.on_published(cuts[1])
    assert table_after(tmp_path / "books") == ["1", "2"]
    assert [due.invoice for due in till.due] == ["3"]
    till.on_published(cuts[0])
    till.on_published(cuts[1])
    assert table_after(tmp_path / "books") == ["1", "2"]


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
def test_who_commits_at_once_pays_twice(tmp_path: Path) -> None:
    """The same check finds the doubles of a till that does not wait."""
    _, wrong = soak(1, kill_count=1, return_count=0, directory=tmp_path, is_naive=True)
    assert any("was paid 2 times" in sentence for sentence in wrong), wrong
