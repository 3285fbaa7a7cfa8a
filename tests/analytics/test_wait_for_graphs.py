"""Deadlock in many wait-for graphs at once, against ``detect`` and a slow judge."""

from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

from stillframe.analytics import wait_for_graphs as module
from stillframe.analytics.wait_for_graphs import WAITS_SCHEMA, deadlocks
from stillframe.detect.predicate import deadlock
from stillframe.errors import UsageError
from stillframe.waiting import Waiting, for_all, for_any
from tests.detect.test_deadlock import seen
from tests.detect.waits import judge, random_waits

pytestmark = pytest.mark.spark

SNAPSHOT_COUNT = 2000

Graphs = Mapping[str, Mapping[str, Waiting]]
"""By snapshot, who waits for whom."""


def frame(spark: SparkSession, graphs: Graphs) -> DataFrame:
    """Return the graphs as rows, in no order."""
    rows = [
        (snapshot, process, other, waiting.needs_all)
        for snapshot, waits in graphs.items()
        for process, waiting in waits.items()
        for other in waiting.processes
    ]
    Random(0).shuffle(rows)
    return spark.createDataFrame(rows, WAITS_SCHEMA)


def found(rows: DataFrame) -> dict[str, Any]:
    """Return the rows by snapshot; none has two."""
    collected = rows.collect()
    by_snapshot = {row["snapshot"]: row for row in collected}
    assert len(by_snapshot) == len(collected)
    return by_snapshot


def check(rows: Mapping[str, Any], graphs: Graphs) -> None:
    """Check that exactly the deadlocks were found that the slow judge finds."""
    deadlocked_count = 0
    for snapshot, waits in graphs.items():
        processes, rings = judge(waits)
        deadlocked_count += bool(processes)
        if not processes:
            assert snapshot not in rows
            continue
        assert rows[snapshot]["processes"] == processes
        said = [(ring["is_cycle"], tuple(ring["processes"])) for ring in rows[snapshot]["rings"]]
        assert said == rings
    assert 0 < deadlocked_count == len(rows) < len(graphs)


def random_graphs(count: int) -> Graphs:
    """Return so many graphs of up to six processes."""
    chance = Random(2)
    return {
        f"P1-{number}": random_waits(chance, process_count=chance.randint(1, 6))
        for number in range(1, count + 1)
    }


def test_thousands_of_snapshots_are_judged_in_one_job(spark: SparkSession) -> None:
    """Each as by trying everything."""
    graphs = random_graphs(SNAPSHOT_COUNT)
    check(found(deadlocks(frame(spark, graphs))), graphs)


def test_who_can_go_on_is_taken_out_in_rounds(spark: SparkSession) -> None:
    """Of graphs that do not fit into a task until that is done; others are judged as they are."""
    ring = {"A": for_all("B", "X"), "B": for_any("A"), "C": for_any("A", "B"), "X": for_all("Y")}
    chain = {f"D{number}": for_all(f"D{number + 1}") for number in range(9)}
    graphs = {"P1-1": ring, "P1-2": chain, "P1-3": {"A": for_all("B"), "B": for_all("A")}}
    rows = found(deadlocks(frame(spark, graphs), wait_count_max=5))
    assert rows["P1-1"]["sentence"] == "A waits for B waits for A; waiting for them: C"
    assert rows["P1-3"]["sentence"] == "A waits for B waits for A"
    assert rows.keys() == {"P1-1", "P1-3"}


def test_what_does_not_fit_is_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """When nobody more can go on, or the rounds are over."""
    ring = {f"A{number}": for_all(f"A{(number + 1) % 4}") for number in range(4)}
    with pytest.raises(UsageError, match="P1-1 has 4 unresolved waits, more than the 3 that"):
        deadlocks(frame(spark, {"P1-1": ring}), wait_count_max=3)
    monkeypatch.setattr(module, "ROUND_COUNT_MAX", 1)
    chain = {f"D{number}": for_all(f"D{number + 1}") for number in range(5)}
    with pytest.raises(UsageError, match="P1-1 has 4 unresolved waits"):
        deadlocks(frame(spark, {"P1-1": chain}), wait_count_max=3)


def test_rounds_and_tasks_agree(spark: SparkSession) -> None:
    """A round takes out none who is deadlocked, and in the end all who are not."""
    graphs = random_graphs(100)
    waits = frame(spark, graphs)
    for _ in range(6):
        waits = module._after_round(waits).localCheckpoint()
    left: dict[str, set[str]] = {}
    for row in waits.collect():
        left.setdefault(row["snapshot"], set()).add(row["process"])
    expected = {snapshot: set(judge(waits)[0]) for snapshot, waits in graphs.items()}
    assert left == {snapshot: names for snapshot, names in expected.items() if names}


def test_it_says_what_detect_says(spark: SparkSession) -> None:
    """In the same words: of cycles, knots, and those behind them."""
    graphs: Graphs = {
        "P1-1": {"A": for_all("B", "E"), "B": for_all("C"), "C": for_all("A"), "D": for_any("A")},
        "P1-2": {"B": for_any("A", "C"), "A": for_any("C", "B"), "C": for_any("A", "B")},
        "P1-3": {"A": for_all("B"), "B": for_all("A"), "C": for_all("D", "A"), "D": for_any("C")},
    }
    rows = found(deadlocks(frame(spark, graphs), known_count_max=9))
    for snapshot, waits in graphs.items():
        everybody: dict[str, Waiting | None] = {**dict.fromkeys("ABCDE"), **waits}
        assert rows[snapshot]["sentence"] == deadlock(seen(everybody)).sentence


def test_names_come_in_their_order_also_beyond_ascii(spark: SparkSession) -> None:
    """A ring begins with the name that Python sorts first."""
    names = ["Ä", "Z", "z", "\N{GRINNING FACE}", "\N{FULLWIDTH LATIN SMALL LETTER A}"]
    ring = {name: for_all(names[index - 1]) for index, name in enumerate(names)}
    rows = found(deadlocks(frame(spark, {"P1-1": ring})))
    assert rows["P1-1"]["processes"] == sorted(names)
    assert rows["P1-1"]["rings"][0]["processes"][0] == "Z"


def test_ids_may_be_numbers(spark: SparkSession) -> None:
    """They are taken as texts, and other columns are left alone."""
    waits = spark.createDataFrame(
        [(7, 1, 2, True, "x"), (7, 2, 1, False, "y")],
        "snapshot INT, process BIGINT, waits_for BIGINT, needs_all BOOLEAN, note STRING",
    )
    assert found(deadlocks(waits))["7"]["sentence"] == "1 waits for 2 waits for 1"


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([("P1-1", "A", "B", True), ("P1-1", "A", "C", False)], "process A of snapshot P1-1 waits"),
        ([("P1-1", "A", None, True)], "a wait of snapshot P1-1 has a null"),
    ],
)
def test_rows_that_make_no_sense_are_refused(
    spark: SparkSession, rows: Iterable[tuple[object, ...]], words: str
) -> None:
    """The task names the snapshot; columns are looked at before any task runs."""
    waits = spark.createDataFrame(list(rows), WAITS_SCHEMA)
    with pytest.raises(PythonException, match=words):
        deadlocks(waits).collect()
    with pytest.raises(UsageError, match="the waits lack the column needs_all; they have snapshot"):
        deadlocks(waits.drop("needs_all"))
