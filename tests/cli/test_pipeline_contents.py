"""``pipeline show``: every participant's state and position, and the books of every channel."""

import json
import threading
from pathlib import Path

import pyarrow as pa

from stillframe.pipeline import Pipeline, channel
from stillframe.pipeline.service import join
from tests.cli.conftest import Call, rows_and_words
from tests.cli.pipelines import SALES, Books, Till, commit, sales


def test_states_and_books_are_shown(call: Call, shop: Pipeline) -> None:
    """Fields of services, micro-batches of queries, positions; sent - received = on it."""
    commit(shop, 3, 1)
    shop.snapshot()
    result = call("pipeline", "show", shop.path, "shop-1")
    assert result.exit_code == 0
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert 'books service Books {"total":5,"notes":{}} sales 1 totals 1' in lines
    assert 'till service Till {"sold":18} sales 3' in lines
    assert "audit query after micro-batch 3 totals 1" in lines
    assert "sales till books 3 1 2 0" in lines
    assert "totals books audit 1 1 0 0" in lines
    assert (
        "snapshot shop-1: aligned (books unaligned), epoch 1, 2 records in transit" in result.stdout
    )


def test_the_newest_is_shown_if_none_is_named(call: Call, shop: Pipeline) -> None:
    """A query that never ran has no micro-batch yet."""
    shop.snapshot()
    shop.savepoint("gold")
    result = call("pipeline", "show", shop.path)
    assert "savepoint gold, snapshot shop-2" in result.stdout
    assert "no micro-batch yet" in result.stdout


def test_show_writes_json(call: Call, shop: Pipeline) -> None:
    """States as objects, whole, and the counts of each channel."""
    commit(shop, 3, 1)
    shop.savepoint("gold")
    shown = json.loads(call("pipeline", "show", shop.path, "gold", "--json").stdout)
    parts = {part.pop("participant"): part for part in shown["participants"]}
    assert parts["audit"].pop("recorded_at") > 0
    assert parts["books"].pop("recorded_at") > 0
    assert parts["audit"] == {
        "kind": "query",
        "positions": {"totals": 1},
        "barriers": {},
        "batch": 3,
        "state": None,
    }
    assert parts["books"] == {
        "kind": "service",
        "positions": {"sales": 1},
        "barriers": {"totals": 1},
        "batch": None,
        "state": {"total": 5, "notes": {}},
    }
    assert shown["channels"][0] == {
        "channel": "sales",
        "source": "till",
        "target": "books",
        "position": 1,
        "barrier": 3,
        "sent_count": 3,
        "received_count": 1,
        "record_count": 2,
        "duplicate_count": 0,
    }


def test_long_states_are_shortened_for_people_only(call: Call, shop: Pipeline) -> None:
    """60 characters in the table, all of them in JSON."""
    books = Books()
    with join("books", pipeline=shop.path, state=books):
        books.notes["memo"] = "x" * 200
    shop.snapshot()
    assert "x" * 60 not in call("pipeline", "show", shop.path).stdout
    assert "at most 60 characters" in call("pipeline", "show", shop.path).stdout
    shown = json.loads(call("pipeline", "show", shop.path, "--json").stdout)
    assert shown["participants"][1]["state"]["notes"] == {"memo": "x" * 200}


def test_an_unknown_snapshot_is_named(call: Call, shop: Pipeline) -> None:
    """With those that there are; and where there is none, that one has to be taken."""
    none = call("pipeline", "show", shop.path)
    assert (none.exit_code, none.stdout) == (2, "")
    assert "has no snapshot to restore" in none.stderr
    shop.savepoint("gold")
    result = call("pipeline", "show", shop.path, "silver")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no snapshot and no savepoint 'silver'" in result.stderr
    assert "there are: gold" in " ".join(result.stderr.split())


def test_a_name_like_an_id_is_refused(call: Call, shop: Pipeline) -> None:
    """Whoever asks for a snapshot by its id must not get a savepoint, or the other way round."""
    result = call("pipeline", "savepoint", shop.path, "shop-1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "a savepoint cannot be called 'shop-1'" in " ".join(result.stderr.split())
    assert shop.snapshots() == []


def test_duplicates_are_announced(call: Call, tmp_path: Path) -> None:
    """At-least-once: who reads two tills reads past the barrier of the first until the second puts
    its own; list, show and restore say how many records come twice."""
    two = Pipeline.create(
        tmp_path / "two.pipeline",
        services={"left": Till, "right": Till, "books": Books},
        channels=[
            channel("a", SALES, source="left", targets=["books"]),
            channel("b", SALES, source="right", targets=["books"]),
        ],
    )
    is_begun = threading.Event()
    thread = threading.Thread(
        target=two.snapshot,
        args=("at-least-once",),
        kwargs={"progress": lambda now: is_begun.set()},
    )
    with (
        join("left", pipeline=two.path, state=Till()) as left,
        join("right", pipeline=two.path, state=Till()) as right,
        join("books", pipeline=two.path, state=Books()) as books,
    ):
        thread.start()
        assert is_begun.wait(10)
        left.boundary()
        left.append("a", sales(1, 2))
        received: list[pa.Table] = [next(iter(books))[1]]
        right.boundary()
        right.append("b", sales(3))
        received.append(next(iter(books))[1])
        books.boundary()
        thread.join(10)
    assert [table.num_rows for table in received] == [2, 1]
    shown = call("pipeline", "show", two.path)
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    assert "a left books 0 2 0 2" in lines
    assert "b right books 0 0 0 0" in lines
    assert "a restore receives 2 records twice" in shown.stdout
    ((*_, duplicates, _, _),), _ = rows_and_words(call("pipeline", "list", two.path).stdout)
    assert duplicates == "2"
    restored = call("pipeline", "restore", two.path)
    assert (
        "it was taken in mode at-least-once: a restore receives 2 records twice" in restored.stdout
    )
