"""Predicates asked of all snapshots at once say what ``stillframe detect`` says of each."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from stillframe.analytics import predicate_eval, predicate_history
from stillframe.analytics.manifests import Published, read_published
from stillframe.analytics.predicate_history import DETECTED_SCHEMA, Summary, detect, summary
from stillframe.detect.predicate import resolve_predicate
from stillframe.detect.view import SnapshotView
from stillframe.errors import ApplicationError, Unavailable, UsageError
from stillframe.examples.philosophers import table
from stillframe.examples.token_ring import careless, ring
from stillframe.imports import add_cwd_to_path, load_topology
from stillframe.model import SnapshotId
from stillframe.store.store import Store
from stillframe.topology import Topology
from tests.analytics.chains import make_chains
from tests.analytics.epochs import make_store
from tests.cli.conftest import publish, purses, state_of
from tests.nightly import by_night

pytestmark = pytest.mark.spark

MANY = by_night(2_000, check=100)
DINNER = "stillframe.examples.philosophers:table"
RING = "stillframe.examples.token_ring:careless"
PURSES = "tests.cli.conftest:purses"


@pytest.fixture(autouse=True)
def same_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what is done to ``sys.path``."""
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture(scope="module")
def dinner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with 60 snapshots of philosophers, of several epochs."""
    path = tmp_path_factory.mktemp("dinner") / "store"
    return make_store(path, table, DINNER, snapshot_count=60)


@pytest.fixture
def money(tmp_path: Path) -> Iterator[Path]:
    """A store of four snapshots, of two epochs: in A-2 a coin is missing, and in A-4."""
    path = tmp_path / "money"
    store = Store.create(path, description=purses.description, reference=PURSES)
    store.raise_epoch(None)
    publish(store, 1, state_of(95, "", [5]))
    publish(store, 2, state_of(94, "", [5]))
    store.raise_epoch(SnapshotId("A", 1))
    publish(store, 3, state_of(95, "", [5]))
    publish(store, 4, state_of(95, "", [4]))
    yield path
    store.close()


def is_poor(view: SnapshotView) -> bool:
    """Whether A has less than 95."""
    balance: int = view.processes["A"].balance
    return balance < 95


def is_at_four(view: SnapshotView) -> bool:
    """Be wrong about one snapshot."""
    return bool(view.processes["C"]) if view.snapshot.number == 4 else False


def names(view: SnapshotView) -> str:
    """Not a predicate."""
    return str(view.snapshot)


def verdicts(rows: DataFrame) -> dict[str, tuple[bool | None, str]]:
    """Return by snapshot whether it holds, and the sentence."""
    return {row["snapshot"]: (row["holds"], row["sentence"]) for row in rows.collect()}


def one_by_one(path: Path, predicate: str, topology: Topology) -> dict[str, tuple[bool, str]]:
    """Return the same as ``stillframe detect`` judges, of all epochs."""
    store = Store.open(path)
    look = resolve_predicate(predicate, store, lambda: topology)
    seen = [look(entry) for entry in store.entries()]
    return {str(each.snapshot): (each.verdict.holds, each.verdict.sentence) for each in seen}


@pytest.mark.parametrize("predicate", ["deadlock", "termination"])
def test_philosophers_are_judged_as_one_by_one(
    spark: SparkSession, dinner: Path, predicate: str
) -> None:
    """In the same words, in the order of publishing; and some are deadlocked."""
    rows = detect(spark, dinner, predicate)
    expected = one_by_one(dinner, predicate, table)
    assert verdicts(rows) == expected
    assert [row["sequence"] for row in rows.collect()] == list(range(1, 61))
    assert predicate != "deadlock" or {True, False} == {holds for holds, _ in expected.values()}


@pytest.mark.slow
@pytest.mark.nightly(part="verdicts")
def test_many_snapshots_are_judged_in_one_job(spark: SparkSession, tmp_path: Path) -> None:
    """As one by one; each epoch says since which snapshot it holds, and it always stays."""
    path = make_store(tmp_path / "dinner", table, DINNER, snapshot_count=MANY)
    rows = detect(spark, path, "deadlock")
    assert verdicts(rows) == one_by_one(path, "deadlock", table)
    found = summary(rows)
    assert (found.snapshot_count, found.not_stable, found.unasked) == (MANY, None, ())
    assert sum(epoch.snapshot_count for epoch in found.epochs) == MANY
    held = [epoch for epoch in found.epochs if epoch.first is not None]
    assert 0 < len(held) < len(found.epochs)
    assert found.first is not None
    assert (found.first.epoch, found.first.snapshot) == (held[0].epoch, held[0].first)


def test_a_lost_token_is_missed(spark: SparkSession, tmp_path: Path) -> None:
    """Against the oldest snapshot, in each epoch."""
    early = ring(faulty=3, drops_at=4)
    path = make_store(tmp_path / "ring", early, None, snapshot_count=40)
    assert early.description.hash == careless.description.hash
    rows = detect(spark, path, "loss", topology=RING)
    expected = one_by_one(path, "loss", early)
    assert verdicts(rows) == expected
    assert {holds for holds, _ in expected.values()} == {True, False}


def test_modules_are_found_where_the_command_is_given(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by tasks: a crawl that is defined in the current directory is known to be finished."""
    (tmp_path / "pages" / "below" / "deep").mkdir(parents=True)
    (tmp_path / "pages" / "below" / "one.py").write_text("1\n")
    (tmp_path / "crawl_here.py").write_text(
        "from stillframe.examples.crawl import crawl\n"
        f"pages = crawl({str(tmp_path / 'pages')!r})\n"
        "def is_counted(view):\n"
        "    return any(process.line_count for process in view.processes.values())\n"
    )
    monkeypatch.chdir(tmp_path)
    add_cwd_to_path()
    pages = load_topology("crawl_here:pages")
    path = make_store(tmp_path / "store", pages, "crawl_here:pages", snapshot_count=40)
    for predicate in ("termination", "crawl_here:is_counted"):
        found = verdicts(detect(spark, path, predicate))
        assert found == one_by_one(path, predicate, pages)
        assert {holds for holds, _ in found.values()} == {True, False}


def test_functions_and_sql_are_asked(spark: SparkSession, money: Path) -> None:
    """A function of one's own as one by one; SQL in one query over all, beside own views."""
    own = f"{__name__}:is_poor"
    assert verdicts(detect(spark, money, own)) == one_by_one(money, own, purses)
    spark.range(3).createOrReplaceTempView("processes")
    sql = (
        "select s.snapshot, coalesce(sum(p.balance), 0) < 195 from snapshots s"
        " left join processes p on p._snapshot = s.snapshot group by s.snapshot"
    )
    found = verdicts(detect(spark, money, sql))
    assert {name: holds for name, (holds, _) in found.items()} == {
        **dict.fromkeys(("A-1", "A-3", "A-4"), False),
        "A-2": True,
    }
    assert found["A-2"][1] == f"{sql} is true"
    assert spark.table("processes").count() == 3
    assert SparkSession.getActiveSession() is spark
    spark.catalog.dropTempView("processes")


def test_sql_sees_every_key(spark: SparkSession, tmp_path: Path) -> None:
    """Also those that a snapshot has from the ones that it is based on; a changed byte in one of
    these is damage of all that need it."""
    path = tmp_path / "store"
    make_chains(path, 3)
    entries = Store.open(path).entries()
    table = next(name for name in Store.open(path).tables(entries[0].id) if "_" in name)
    count = f"count(_process) from snapshots s left join {table} on _snapshot = s.snapshot"
    counts = {str(e.id): Store.open(path).tables(e.id)[table].num_rows for e in entries}
    middle = sorted(counts.values())[len(counts) // 2]
    sql = f"select s.snapshot, {count} group by s.snapshot".replace(" from", f" >= {middle} from")
    found = verdicts(detect(spark, path, sql))
    assert {name: holds for name, (holds, _) in found.items()} == {
        name: number >= middle for name, number in counts.items()
    }
    based = next(entry for entry in entries if entry.bases)
    keyed = next(path / "snapshots" / str(e) for e in based.bases)
    for file in keyed.glob(f"{table}.*"):
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    rows = {row["snapshot"]: row for row in detect(spark, path, sql).collect()}
    assert (rows[str(based.id)]["failure"], rows[keyed.name]["failure"]) == ("damaged", "damaged")
    assert table in rows[str(based.id)]["sentence"]


def test_the_summary_looks_at_every_epoch(spark: SparkSession, money: Path) -> None:
    """The present one says whether it holds now; the first is of an earlier one."""
    found = summary(detect(spark, money, "loss"))
    assert found.holds
    assert (found.snapshot_count, found.present_count) == (4, 2)
    assert found.shown is not None
    assert found.since is not None
    assert found.first is not None
    assert [str(s.snapshot) for s in (found.shown, found.since, found.first)] == [
        *("A-4", "A-4", "A-2")
    ]
    assert [(e.epoch, e.snapshot_count, str(e.first)) for e in found.epochs] == [
        *((1, 2, "A-2"), (2, 2, "A-4"))
    ]
    poor = summary(detect(spark, money, f"{__name__}:is_poor"))
    assert not poor.holds
    assert poor.first is not None
    assert (poor.since, str(poor.first.snapshot)) == (None, "A-2")


def said(spark: SparkSession, *rows: tuple[str, int, float, float, bool, bool | None]) -> Summary:
    """Return the summary of rows (snapshot, epoch, initiated, completed, present, holds)."""
    whole = [
        (name, number, *rest, "", None if rest[-1] is not None else "damaged")
        for number, (name, *rest) in enumerate(rows)
    ]
    return summary(spark.createDataFrame(whole, DETECTED_SCHEMA))


def test_what_held_and_does_not_any_more_is_not_stable(spark: SparkSession) -> None:
    """In any epoch; snapshots that overlap show nothing; one that could not be asked is named."""
    found = said(
        spark,
        ("A-1", 1, 0.0, 1.0, False, True),
        ("A-2", 1, 1.0, 2.0, False, False),
        ("A-3", 2, 3.0, 4.0, True, True),
        ("A-4", 2, 4.0, 5.0, True, None),
    )
    assert found.not_stable is not None
    assert [str(each.snapshot) for each in found.not_stable] == ["A-1", "A-2"]
    assert not found.holds
    assert [each.snapshot for each in found.unasked] == ["A-4"]
    overlap = said(spark, ("A-1", 1, 1.1, 1.2, True, True), ("A-2", 1, 1.0, 2.0, True, False))
    assert overlap.holds
    assert overlap.shown is not None
    assert str(overlap.shown.snapshot) == "A-1"


@pytest.mark.parametrize("predicate", ["deadlock", "loss", "select snapshot, true from snapshots"])
def test_what_cannot_be_asked_is_named(
    spark: SparkSession, money: Path, monkeypatch: pytest.MonkeyPatch, predicate: str
) -> None:
    """A changed byte, a changed manifest, a snapshot that was dropped; the others are asked."""
    changed = money / "snapshots" / "A-2" / "channels.parquet"
    changed.write_bytes(changed.read_bytes()[:-1] + b"?")
    manifest = money / "snapshots" / "A-3" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes() + b" ")
    rows = {row["snapshot"]: row for row in detect(spark, money, predicate).collect()}
    assert [rows[f"A-{n}"]["failure"] for n in (1, 2, 3, 4)] == [None, "damaged", "damaged", None]
    assert "channels.parquet was changed" in rows["A-2"]["sentence"]
    assert "manifest.json" in rows["A-3"]["sentence"]

    def then_drop(path: Path) -> Published:
        found = read_published(path)
        shutil.rmtree(money / "snapshots" / "A-4")
        return found

    monkeypatch.setattr(predicate_history, "read_published", then_drop)
    found = summary(detect(spark, money, predicate))
    assert [(each.snapshot, each.failure) for each in found.unasked] == [
        *(("A-3", "damaged"), ("A-2", "damaged"), ("A-4", "dropped"))
    ]


@pytest.mark.parametrize(
    ("predicate", "error", "words"),
    [
        ("love", UsageError, "there is no predicate 'love'"),
        (f"{__name__}:names", ApplicationError, "names returned 'A-1', a str, on snapshot A-1"),
        (f"{__name__}:is_at_four", ApplicationError, "raised KeyError: 'C', on snapshot A-4"),
        ("select balance from processes", UsageError, "returns the columns balance bigint"),
        ("select snapshot, 1 = 1 from nowhere", UsageError, "TABLE_OR_VIEW_NOT_FOUND"),
        (
            "select _snapshot, true from messages where amount = 4",
            UsageError,
            "no row for snapshot",
        ),
        ("select _snapshot, true from processes", UsageError, "returns two rows for snapshot"),
        ("select snapshot, null = true from snapshots", UsageError, "returns NULL for snapshot A-"),
        ("select 'x', true from snapshots", UsageError, "returns 'x', which is not a snapshot id"),
    ],
)
def test_what_makes_no_sense_is_the_callers(
    spark: SparkSession, money: Path, predicate: str, error: type[Exception], words: str
) -> None:
    """The error says what to give, as from ``stillframe detect``."""
    with pytest.raises(error, match=words) as caught:
        detect(spark, money, predicate)
    assert "\n" not in str(caught.value)


def test_snapshots_of_former_code_are_named(spark: SparkSession, tmp_path: Path) -> None:
    """The present ones must be of the topology that is given; SQL is asked of all."""
    path = tmp_path / "money"
    former = ring(process_count=2)
    store = Store.create(path, description=former.description)
    store.raise_epoch(None)
    store.close()
    shutil.rmtree(path)
    path = make_store(path, former, None, snapshot_count=2)
    store = Store.open_writer(path)
    store.raise_epoch(None, purses.description)
    publish(store, 7, state_of(95, "", [5]))
    store.close()
    rows = detect(spark, path, "termination", topology=PURSES).collect()
    assert [row["failure"] for row in rows] == ["another topology"] * 2 + [None]
    assert rows[0]["sentence"] == f"was taken with a different topology from {PURSES}"
    with pytest.raises(UsageError, match="were taken with a different topology from"):
        detect(spark, path, "termination", topology=RING)
    rows = detect(spark, path, "select snapshot, epoch = 2 from snapshots").collect()
    assert [row["holds"] for row in rows] == [False, False, True]


def test_the_store_must_hold_something(spark: SparkSession, tmp_path: Path, money: Path) -> None:
    """None, an empty one, and one that does not say of which topology it is."""
    with pytest.raises(UsageError, match="does not exist"):
        detect(spark, tmp_path / "nowhere", "deadlock")
    empty = tmp_path / "empty"
    Store.create(empty, description=purses.description).close()
    with pytest.raises(UsageError, match="holds no snapshot yet"):
        detect(spark, empty, "deadlock")
    unnamed = make_store(tmp_path / "unnamed", careless, None, snapshot_count=1)
    with pytest.raises(UsageError, match="give --topology"):
        detect(spark, unnamed, "deadlock")


def test_what_is_missing_where_tasks_run_is_said(
    money: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package, a module of the user's, or the same code."""

    def opened(**changes: Any) -> Store:
        ask = predicate_eval.PredicateSpec(
            **{
                "store": str(money),
                "reference": PURSES,
                "topology": purses.description.hash,
                "here": str(money),
                "predicate": "deadlock",
                "expected": {},
                **changes,
            }
        )
        return predicate_eval._opened(ask)[0]

    assert opened().path == money
    with pytest.raises(
        UsageError, match=r"on Spark's executors: .*differs between Spark's executors and"
    ):
        opened(topology="0" * 64)
    with pytest.raises(UsageError, match=f"there is no module 'nowhere' .* same module in {money}"):
        opened(reference="nowhere:nothing")
    monkeypatch.setitem(sys.modules, "stillframe.store.store", None)
    with pytest.raises(Unavailable, match="pip install stillframe"):
        opened()
