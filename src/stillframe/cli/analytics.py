"""The commands that ask Spark about all snapshots of a store at once."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from stillframe.analytics import audit_store
from stillframe.analytics.manifests import Published, read_published, while_published
from stillframe.analytics.predicate_eval import DAMAGED
from stillframe.cli import observations, output, quantities, spark_session
from stillframe.cli.command import (
    Commands,
    argument,
    conclude,
    end_undecided,
    end_with_failure,
    option,
)
from stillframe.cli.options import CLASSES, MASTER, StorePath, event_log_option
from stillframe.errors import Damaged, UsageError
from stillframe.storage.location import Location
from stillframe.store.layout import check_is_store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from stillframe.analytics.audit import SnapshotAudit
    from stillframe.analytics.predicate_history import Summary, Unevaluable

ROW_COUNT_MAX = 20
"""Maximum rows of a table that are printed: the ones that matter most. JSON has all."""
Fields = dict[str, Any]
PATH_COUNT_MAX = 5
"""Maximum paths of markers that are printed: the slowest."""
HISTORY_COLUMNS: output.Columns[Fields] = {
    "snapshot": itemgetter("snapshot"),
    "initiated": lambda row: quantities.moment(row["initiated_at"].timestamp()),
    "epoch": lambda row: str(row["epoch"]),
    "paused for": lambda row: quantities.duration(row["pause_s"]),
    "encoded in": lambda row: quantities.duration(row["capture_s"]),
    "waited": lambda row: quantities.duration(row["waiting_s"]),
    "published in": lambda row: quantities.duration(row["publishing_s"]),
    "size": lambda row: quantities.size(row["bytes"]),
    "in transit": itemgetter("message_count"),
    "chain": lambda row: str(row["chain_length"]) if row["bases"] else "",
    "savepoint": lambda row: ", ".join(row["savepoints"]),
}
_FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "pause_s": ("paused for", quantities.duration),
    "capture_s": ("encoded in", quantities.duration),
    "waiting_s": ("waited", quantities.duration),
    "publishing_s": ("published in", quantities.duration),
    "total_s": ("took", quantities.duration),
    "bytes": ("size", lambda value: quantities.size(round(value))),
    "message_count": ("in transit", lambda value: f"{value:,.0f}"),
    "chain_length": ("chain", lambda value: f"{value:,.0f}"),
}
_CHANGES = ("added", "removed", "changed")
_COUNTS = ("sent_count", "received_count", "message_count", "only")
_FOUND_LENGTH_MAX = 60
_NAMED_MAX = 5

app = Commands()


@app.add("store audit money --states 'sum(balance)' --messages 'sum(amount)'")
def audit(
    path: StorePath,
    states_sql: str | None = option("SQL", "SQL aggregate over process states.", "--states"),
    messages_sql: str | None = option(
        "SQL", "SQL aggregate over messages in transit.", "--messages"
    ),
) -> None:
    """Check the bytes and message counts of all snapshots, and that the sum of both aggregates
    never changes. Exit 1 if a snapshot is invalid."""
    try:
        check_is_store(path)  # before Spark is started
        with output.status("auditing on Spark"):
            found = audit_store(path, states_sql=states_sql, messages_sql=messages_sql)
    except Damaged as error:
        verdict = {"ok": False, "verdict": str(error)}
        output.answer({**verdict, "snapshots": [], "history_damage": None})
        end_with_failure(str(error))
    wrong_first = sorted(found.snapshots, key=lambda row: row.is_valid)
    columns: output.Columns[SnapshotAudit] = {
        "snapshot": attrgetter("id"),
        "verdict": lambda row: (
            row.damage or row.contradiction or ("valid" if row.is_valid else "different total")
        ),
        "in transit": attrgetter("message_count"),
        "in states": attrgetter("states_amount"),
        "in channels": attrgetter("messages_amount"),
        "total": attrgetter("total"),
        "difference": attrgetter("difference"),
    }
    limits: Fields = {"limit": ROW_COUNT_MAX, "more": "more snapshots"}
    output.answer(found, lambda: output.put_table("", columns, wrong_first, texts=2, **limits))
    conclude(found.ok, found.verdict)


@app.add("store stats money", "store stats money --event-log money.log", "store stats seen")
def stats(
    path: StorePath,
    event_log: Location | None = event_log_option(
        "Event log of the system. Adds the paths of the slowest markers."
    ),
    where: str = MASTER,
) -> None:
    """Summarize all snapshots: durations, sizes and messages in transit, with median, p90 and
    maximum, and the busiest channels. Or all observations of services: durations, sizes and counts
    of calls; this needs no Spark."""
    if (seen := observations.reader_of(path)) is not None:
        observations.refuse_options(("--event-log", event_log))
        observations.summarize_observations(seen)
        return
    published = read_published(path)
    if published.is_empty:
        raise UsageError(f"the store {path} holds no snapshot yet: take one")
    with spark_session.session(where, "reading the history") as spark:
        found = _find_history(spark, path, published, event_log)
    damages = {str(snapshot): why for snapshot, why in published.damages.items()}
    damaged = [{"id": snapshot, "detail": why} for snapshot, why in damages.items()]
    document = found | {"snapshots": spark_session.documents_of(found["snapshots"])}
    output.answer({"store": path, "damaged": damaged} | document, lambda: _put_history(found))
    if damages:
        end_with_failure(*(f"snapshot {name} is left out: {why}" for name, why in damages.items()))


def _find_history(
    spark: "SparkSession", path: Location, published: Published, log: Location | None
) -> Fields:
    """Return what Spark finds, as rows; `in_transit` without channels on which nothing was."""
    from stillframe.analytics import log_events, snapshot_stats, verified_parquet  # noqa: PLC0415

    with verified_parquet.spark_errors(path):
        snapshots = snapshot_stats.snapshots(spark, published)
        channels = snapshot_stats.channel_history(
            snapshot_stats.channel_counts(spark, published), snapshots
        ).persist()
        try:
            busy = channels.where("message_count > 0").orderBy("sequence", "source", "target")
            found: dict[str, DataFrame] = {
                "snapshots": snapshots,
                "spread": snapshot_stats.spread(snapshots),
                "channels": snapshot_stats.channel_spread(channels),
                "in_transit": busy.select("snapshot", "source", "target", "message_count"),
            }
            rows: Fields = {name: spark_session.rows_of(frame) for name, frame in found.items()}
        finally:
            channels.unpersist()
    rows["spread"].sort(key=lambda row: snapshot_stats.FIGURES.index(row["figure"]))
    rows["marker_paths"] = None
    if log is not None:
        with verified_parquet.spark_errors(log):
            paths = log_events.marker_paths(snapshot_stats.marker_steps(spark, log))
            rows["marker_paths"] = spark_session.rows_of(paths.orderBy("snapshot", "hop"))
    return rows


def _put_history(found: Fields) -> None:
    snapshots, channels = found["snapshots"], found["channels"]
    output.put_table("", HISTORY_COLUMNS, snapshots[-ROW_COUNT_MAX:], texts=2)
    if (older := len(snapshots) - ROW_COUNT_MAX) > 0:
        output.report(f"and {older:,} older ones (--json has all)")
    figures = ((*_FIGURES[row["figure"]], row) for row in found["spread"])
    over = f"over {quantities.count(len(snapshots), 'snapshot')}"
    _put_spread(over, "", figures)
    busiest = (
        (f"{row['source']}->{row['target']}", "{:,.0f}".format, row)
        for row in channels[:ROW_COUNT_MAX]
    )
    _put_spread("messages in transit", "channel", busiest)
    if (quieter := len(channels) - ROW_COUNT_MAX) > 0:
        output.report(f"and {quieter:,} less busy channels")
    if found["marker_paths"] is not None:
        _put_paths(found["marker_paths"])


def _put_spread(
    title: str, what: str, rows: Iterable[tuple[str, Callable[[float], str], Fields]]
) -> None:
    cells = (
        (name, *(shown(row[value]) for value in ("median", "p90", "max")), row["snapshot"])
        for name, shown, row in rows
    )
    output.put_table(title, (what, "median", "90 %", "most", "in"), cells)


def _put_paths(hops: list[Fields]) -> None:
    def milliseconds(name: str) -> Callable[[Fields], str]:
        return lambda hop: "" if hop[name] is None else f"{hop[name]:,.1f} ms"

    paths = (list(path) for _, path in groupby(hops, itemgetter("snapshot")))
    slowest = sorted(paths, key=lambda path: -(path[-1]["elapsed_ms"] or 0.0))
    columns: output.Columns[Fields] = {
        "snapshot": itemgetter("snapshot"),
        "hop": lambda hop: f"{hop['source']}->{hop['target']}",
        "held for": milliseconds("held_ms"),
        "travelled": milliseconds("travelled_ms"),
    }
    title = "the slowest paths of markers, to the last that arrived"
    output.put_table(title, columns, chain(*slowest[:PATH_COUNT_MAX]), texts=2)
    output.report("a hop between two machines includes the difference of their clocks")


@app.add("store diff money P1-16 P1-17")
def diff(
    path: StorePath,
    before: str = argument("A", "First snapshot or savepoint."),
    after: str = argument("B", "Second snapshot or savepoint."),
    where: str = MASTER,
) -> None:
    """Compare two snapshots: fields, keys of keyed fields, channels, and messages that only one
    recorded. Exit 1 if they differ."""
    published = read_published(path)
    for name in (before, after):  # before Spark is started
        published.find(name)
    with spark_session.session(where, "comparing") as spark:
        found = while_published(path, lambda now: _find_difference(spark, now, before, after))
    output.answer(found, lambda: _put_difference(found, before, after))
    if found["is_equal"]:
        output.report(f"{before} and {after} record the same states and the same messages")
        return
    fields, keys, channels = (
        quantities.count(len(found[f"{what}s"]), what) for what in ("field", "key", "channel")
    )
    output.report(f"{before} and {after} differ in {fields}, {keys} and {channels}")
    end_with_failure()


def _find_difference(
    spark: "SparkSession", published: Published, before: str, after: str
) -> Fields:
    from stillframe.analytics import verified_parquet  # noqa: PLC0415 - they need PySpark
    from stillframe.analytics.store_diff import difference  # noqa: PLC0415

    with verified_parquet.spark_errors(published.path):
        made = difference(spark, published, published.find(before), published.find(after))
        ordered = {
            "fields": made.fields.orderBy("process", "field"),
            "keys": made.keys.orderBy("process", "field", "change", "key"),
            "channels": made.channels.orderBy("source", "target"),
            "messages": made.messages.orderBy("source", "target", "number", "side"),
        }
        rows = {
            name: [row.asDict() for row in frame.toLocalIterator()]
            for name, frame in ordered.items()
        }
    counts = Counter((row["process"], row["field"], row["change"]) for row in rows["keys"])
    key_counts = [
        {"process": process, "field": field}
        | {f"{change}_count": counts[process, field, change] for change in _CHANGES}
        for process, field in dict.fromkeys((process, field) for process, field, _ in counts)
    ]
    return {"is_equal": not any(rows.values()), **rows, "key_counts": key_counts}


def _put_difference(found: Fields, before: str, after: str) -> None:
    _put_rows("processes", ("process", "field", before, after), found["fields"], texts=4)
    _put_rows("keys", ("process", "field", *_CHANGES), found["key_counts"], texts=2)
    columns = ("process", "field", "change", "key", before, after)
    _put_rows("which keys", columns, found["keys"], texts=6)
    sides = {"before": before, "after": after}
    counts = [f"{what}, {name}" for what in ("sent", "received", "in it") for name in "AB"]
    _put_rows(
        f"channels, counts in messages: A is {before}, B is {after}",
        ("channel", *counts, "only A", "only B"),
        (
            {"channel": f"{row['source']}->{row['target']}"}
            | {f"{count}_{side}": row[f"{count}_{side}"] for count in _COUNTS for side in sides}
            for row in found["channels"]
        ),
    )
    _put_rows(
        "messages in transit in only one",
        ("channel", "number", "in transit in", "kind", "message"),
        (
            {
                "channel": f"{row['source']}->{row['target']}",
                "number": str(row["number"]),
                "in transit in": sides[row["side"]],
                "kind": row["kind"],
                "message": row["message"],
            }
            for row in found["messages"]
        ),
        texts=5,
    )


def _put_rows(
    title: str, columns: Sequence[str], rows: Iterable[Fields], *, texts: int = 1
) -> None:
    """Write a table, if there is anything in it, with the beginnings of long texts."""
    cells = [
        [output.shortened(cell) if isinstance(cell, str) else cell for cell in row.values()]
        for row in rows
    ]
    if cells:
        output.put_table(title, columns, cells, texts=texts, limit=ROW_COUNT_MAX, more="more")


@app.add(
    "store detect dinner deadlock",
    "store detect money 'select _snapshot, sum(balance) < 100 from processes group by _snapshot'",
)
def detect(
    path: StorePath,
    name: str = argument(
        "PREDICATE",
        "termination, deadlock, loss or MODULE:FUNCTION, as for 'detect'; or an SQL"
        " query over the rows of all snapshots that returns each snapshot's id and "
        "true or false.",
    ),
    reference: str | None = CLASSES,
    where: str = MASTER,
) -> None:
    """Check a stable predicate in every snapshot of all epochs: whether it holds now, when it
    held first, and whether it stayed. Exit 1 if it does not hold, and 3 if that is not decided."""
    check_is_store(path)  # before Spark is started
    with spark_session.session(where, "evaluating all snapshots") as spark:
        from stillframe.analytics import predicate_history  # noqa: PLC0415 - PySpark is there now

        rows = predicate_history.detect(spark, path, name, topology=reference)
        found = predicate_history.summary(rows)
        snapshots = spark_session.rows_of(rows)
    # It needs what runs systems, which no other command here does.
    from stillframe.cli.snapshots import nothing_to_compare, said_of_now  # noqa: PLC0415

    of_now, sentence = said_of_now(
        name, found.shown, found.since, found.not_stable, found.present_count
    )
    is_alone = found.snapshot_count == found.present_count == 1
    if name == "loss" and is_alone and not found.holds:
        of_now, sentence = nothing_to_compare(of_now)
    verdict = {True: "yes", False: "no", None: "not decided"}[of_now["holds"]]
    of_all: Fields = {
        "first_of_all": found.first and found.first.snapshot,
        "epochs": found.epochs,
        "snapshots": spark_session.documents_of(snapshots),
    }
    output.answer(of_now | of_all, lambda: _put_detection(snapshots))
    output.report(f"{verdict}: {sentence}")
    _say_of_epochs(found)
    _say_unasked(found.unasked)
    if of_now["holds"] is None:
        end_undecided()
    if not of_now["holds"]:
        end_with_failure()


def _put_detection(snapshots: list[Fields]) -> None:
    """Write what could not be asked, then the first in which it holds, then the others."""

    def beginning(row: Fields) -> str:
        text = row["sentence"]
        return text if len(text) <= _FOUND_LENGTH_MAX else f"{text[:_FOUND_LENGTH_MAX]}..."

    ordered = sorted(snapshots, key=lambda row: (row["holds"] is not None, not row["holds"]))
    columns: output.Columns[Fields] = {
        "snapshot": itemgetter("snapshot"),
        "holds": lambda row: {True: "yes", False: "no", None: "?"}[row["holds"]],
        "found": beginning,
        "epoch": lambda row: None if row["epoch"] is None else str(row["epoch"]),
    }
    output.put_table("", columns, ordered[:ROW_COUNT_MAX], texts=3)
    if (left_out := len(snapshots) - ROW_COUNT_MAX) > 0:
        output.report(f"and {quantities.count(left_out, 'more snapshot')} (--json has all)")


def _say_of_epochs(found: "Summary") -> None:
    if len(found.epochs) <= 1:
        return
    asked = quantities.count(found.snapshot_count, "snapshot")
    of_all = f"of all {asked} in {quantities.count(len(found.epochs), 'epoch')}"
    if found.first is None:
        output.report(f"{of_all} it held in none")
        return
    held = quantities.count(sum(epoch.first is not None for epoch in found.epochs), "epoch")
    stayed = " and stayed in each" if found.not_stable is None else ""
    output.report(
        f"{of_all} it held first in {found.first.snapshot}, in epoch {found.first.epoch}; "
        f"it held in {held}{stayed}"
    )


def _say_unasked(unasked: "tuple[Unevaluable, ...]") -> None:
    reasons: dict[str, list[Unevaluable]] = {}
    for each in unasked:
        reasons.setdefault(each.failure, []).append(each)
    for reason, found in reasons.items():
        names = ", ".join(each.snapshot for each in found[:_NAMED_MAX])
        more = f" and {len(found) - _NAMED_MAX:,} more" if len(found) > _NAMED_MAX else ""
        output.report(f"not evaluated, {reason}: {names}{more}")
    if DAMAGED in reasons:
        first = reasons[DAMAGED][0]
        raise Damaged(f"snapshot {first.snapshot} could not be evaluated: {first.sentence}")
