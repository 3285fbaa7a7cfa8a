"""Verdicts on Spark: those of an oracle, for thousands of executions in one run."""

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from stillframe.analytics import spark_errors
from stillframe.analytics.log_events import LogMessage, event_rows, locate, vector_clock
from stillframe.analytics.log_verification import (
    findings,
    log_pieces,
    published_cuts,
    verdicts,
    verify,
)
from stillframe.errors import Damaged, NotConsistent, StoreError, UsageError
from stillframe.eventlog.to_trace import read_trace
from stillframe.model import Channel
from stillframe.trace import MessageId, Position
from tests.analytics import bank
from tests.analytics.test_log_checks import faults_in
from tests.eventlogs import Execution, Log, corrupt, faults_of, write
from tests.nightly import by_night, seeds

SEED = 864
EXECUTION_COUNT = by_night(2_000, check=100)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.nightly(part="verdicts")
@pytest.mark.parametrize("seed", seeds("verdicts on logs", SEED, night=2))
def test_many_logs_are_judged_as_by_brute_force(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """As the epochs of one event log: right ones, and ones with one thing wrong, which is named."""
    chance = random.Random(seed)
    logs: dict[int, Log] = {}
    wrong_with: dict[int, tuple[str, tuple[str, str], int | None]] = {}
    for epoch in range(1, EXECUTION_COUNT + 1):
        logs[epoch] = Execution(chance).log()
        changed = corrupt(logs[epoch], chance) if epoch % 2 else None
        if changed is not None:
            logs[epoch] = changed[0]
            wrong_with[epoch] = changed[1:]
        write(logs[epoch], tmp_path, epoch, chance)
    found = findings(log_pieces(spark, tmp_path)).persist()
    try:
        of_epoch = found.toArrow()
        judged = verdicts(found).collect()
    finally:
        found.unpersist()
    by_epoch: dict[int, list[dict[str, object]]] = {}
    for row in of_epoch.to_pylist():
        by_epoch.setdefault(row["epoch"], []).append(row)
    assert by_epoch.keys() == logs.keys()
    for epoch, log in logs.items():
        faults = faults_in(by_epoch[epoch])
        assert faults == faults_of(log), f"{seed=}, execution {epoch}"
        if epoch in wrong_with:
            kind, channel, number = wrong_with[epoch]
            assert (*channel, number) in {(*fault[1:3], fault[4]) for fault in faults}, kind
    is_wrong = {row["epoch"] for row in judged if row["verdict"] == "inconsistent"}
    marker_not_accepted = {row["epoch"] for row in judged if row["verdict"] == "incomplete"}
    assert is_wrong | marker_not_accepted == wrong_with.keys()
    kinds = {kind for kind, _, _ in wrong_with.values()}
    assert kinds == {"dropped", "doubled", "reordered", "moved", "marker missing"}


@pytest.mark.spark
def test_a_store_says_where_its_cuts_lie(spark: SparkSession, tmp_path: Path) -> None:
    """For each channel, snapshot by snapshot: sent, received, and the runs that were recorded."""
    cuts = published_cuts(spark, bank.make_store(tmp_path / "store", snapshot_count=2))
    rows = {(row["source"], row["target"]): row for row in cuts.collect()}
    assert rows.keys() == {(c.source, c.target) for c in bank.TOPOLOGY.description.channels}
    caught = rows["P1", "P2"]
    assert (caught["epoch"], caught["side"]) == (1, "published")
    assert sorted(map(tuple, caught["markers"])) == [
        ("P1-1", 6, 1, [(2, 5)]),
        ("P1-2", 7, 2, [(3, 5)]),
    ]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("file", "harm", "error"),
    [
        ("processes.parquet", "delete", Damaged),
        ("messages.parquet", "flip", Damaged),
        ("messages.parquet", "double", NotConsistent),
    ],
)
def test_cuts_are_those_of_a_store_that_is_whole(
    spark: SparkSession, tmp_path: Path, file: str, harm: str, error: type[Exception]
) -> None:
    """Every file of every snapshot is verified, also those that no cut is made of."""
    store = bank.make_store(tmp_path / "store", snapshot_count=2)
    directory = store / "snapshots" / "P1-2"
    if harm == "delete":
        (directory / file).unlink()
    elif harm == "flip":
        content = bytearray((directory / file).read_bytes())
        content[len(content) // 2] ^= 1
        (directory / file).write_bytes(content)
    else:
        bank.spoil(directory, file, lambda table: pa.concat_tables([table, table.slice(0, 1)]))
    with pytest.raises(error, match=r"snapshot P1-2: .*(messages|processes|P1->P2)"):
        published_cuts(spark, store)


def all_rows(pieces: DataFrame, _: str) -> list[Row]:
    """Collect the rows of a log."""
    with spark_errors("the log"):
        return event_rows(pieces).collect()


READING: tuple[Callable[[DataFrame, str], object], ...] = (
    all_rows,
    lambda pieces, _: verify(pieces),
    lambda pieces, process: locate(pieces, [LogMessage(1, process, "Z", 1)]),
    lambda pieces, process: vector_clock(pieces, 1, process, 1),
)


@pytest.mark.spark
@pytest.mark.parametrize("harm", ["changed", "removed"])
def test_damage_of_a_log_is_raised_as_such(spark: SparkSession, tmp_path: Path, harm: str) -> None:
    """When it is read, in one sentence, not as an error of a task."""
    chance = random.Random(SEED)
    write(Execution(chance).log(), tmp_path, 1, chance)
    pieces = log_pieces(spark, tmp_path)
    file = next(tmp_path.rglob("*.parquet"))
    if harm == "removed":
        file.unlink()
        for read in READING:
            with pytest.raises(StoreError, match=rf"FileNotFoundError: No such file .*{file}"):
                read(pieces, file.parent.name)
        return
    content = bytearray(file.read_bytes())
    content[8 : len(content) // 2] = bytes(len(content) // 2 - 8)
    file.write_bytes(content)
    for read in READING:
        with pytest.raises(
            Damaged, match=rf"^{file} is not an intact file of an event log: .*: move it out"
        ):
            read(pieces, file.parent.name)


@pytest.mark.spark
def test_a_message_is_found_in_its_events_and_clocks_are_those_of_the_trace(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Vector clocks come from the log alone, and are those that the trace in memory has."""
    chance = random.Random(SEED)
    log = Execution(chance).log()
    write(log, tmp_path, 1, chance)
    some = log_pieces(spark, tmp_path)
    trace = read_trace(tmp_path, 1)
    row = next(row for rows in log.values() for row in rows if row.kind == "accepted")
    assert row.channel is not None
    assert row.number is not None
    rows = locate(some, [LogMessage(1, *row.channel, row.number)]).collect()
    events = {(r["process"], r["kind"], r["event"]) for r in rows}
    message = MessageId(Channel(*row.channel), row.number)
    accepted = trace.accepted_in(message)
    assert accepted is not None
    assert events == {
        (row.channel[0], "sent", trace.sent_in(message).index),
        (row.channel[1], "accepted", accepted.index),
    }
    for process, events_of in trace.lines.items():
        last = Position(process, len(events_of))
        clock = dict(zip(trace.processes, trace.clock(last), strict=True))
        assert vector_clock(some, 1, process, last.index) == clock


@pytest.mark.spark
def test_an_event_that_is_not_there_has_no_clock(spark: SparkSession, tmp_path: Path) -> None:
    """The processes that there are are named."""
    chance = random.Random(SEED)
    write(Execution(chance).log(), tmp_path, 1, chance)
    with pytest.raises(UsageError, match=r"no event P9#1 in epoch 1 .* P0, P1"):
        vector_clock(log_pieces(spark, tmp_path), 1, "P9", 1)
