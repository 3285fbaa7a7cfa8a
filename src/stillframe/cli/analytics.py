"""The commands that ask Spark about all snapshots of a store at once."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stillframe.analytics import audit_store
from stillframe.analytics.manifests import Published, read_published, while_published
from stillframe.analytics.predicate_eval import DAMAGED
from stillframe.cli import output, quantities, spark_session
from stillframe.cli.command import Commands, argument, conclude, end_with_no, option
from stillframe.cli.options import CLASSES, MASTER, StorePath, event_log_option
from stillframe.errors import Damaged, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stillframe.analytics.audit import Audit, SnapshotAudit
    from stillframe.analytics.predicate_history import Summary, Unevaluable

ROW_COUNT_MAX = 20
"""So many rows of a table are shown, the ones that matter most; JSON has all."""
Fields = dict[str, Any]
PATH_COUNT_MAX = 5
"""So many ways of markers are shown, the slowest."""
HISTORY_COLUMNS: output.Columns[Fields] = {
    "snapshot": lambda row: row["snapshot"],
    "initiated": lambda row: quantities.moment(row["initiated_at"].timestamp()),
    "epoch": lambda row: str(row["epoch"]),
    "paused for": lambda row: quantities.duration(row["pause_s"]),
    "encoded in": lambda row: quantities.duration(row["capture_s"]),
    "waited": lambda row: quantities.duration(row["waiting_s"]),
    "published in": lambda row: quantities.duration(row["publishing_s"]),
    "size": lambda row: quantities.size(row["bytes"]),
    "in transit": lambda row: row["message_count"],
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
_COUNTS = ("sent_count", "received_count", "message_count")
_FOUND_LENGTH_MAX = 60
_NAMED_MAX = 5

app = Commands()


@app.add("Example: stillframe spark audit money --states 'sum(balance)' --messages 'sum(amount)'")
def audit(
    path: StorePath,
    states_sql: str | None = option(
        "SQL", "Aggregate over process states.", "--states", show_default=False
    ),
    messages_sql: str | None = option(
        "SQL", "Aggregate over messages caught.", "--messages", show_default=False
    ),
) -> None:
    """Check bytes and books of all snapshots at once, and that the sum of both aggregates never
    changes; exit 1 names the first that is wrong."""
    try:
        with output.words().status("auditing on Spark"):
            found = audit_store(path, states_sql=states_sql, messages_sql=messages_sql)
    except Damaged as error:
        verdict = {"ok": False, "verdict": str(error)}
        output.answer({**verdict, "snapshots": [], "history_damage": None})
        end_with_no(str(error))
    output.answer(found, lambda: _put_audit(found))
    conclude(found.ok, found.verdict)


def _put_audit(found: "Audit") -> None:
    wrong_first = sorted(found.snapshots, key=lambda row: row.is_valid)
    columns: output.Columns[SnapshotAudit] = {
        "snapshot": lambda row: str(row.id),
        "verdict": lambda row: (
            row.damage or row.contradiction or ("sound" if row.is_valid else "total differs")
        ),
        "messages caught": lambda row: row.message_count,
        "in states": lambda row: _amount(row.states_amount),
        "in channels": lambda row: _amount(row.messages_amount),
        "total": lambda row: _amount(row.total),
        "differs by": lambda row: _amount(row.difference),
    }
    output.put_records(columns, wrong_first, texts=2, limit=ROW_COUNT_MAX, more="more snapshots")


def _amount(value: Any) -> str:
    return "" if value is None else f"{value:,}"


class HistoryRows(msgspec.Struct, frozen=True):
    """What Spark found, as rows; `in_transit` without the channels on which nothing was."""

    snapshots: list[Fields]
    spread: list[Fields]
    channels: list[Fields]
    in_transit: list[Fields]
    marker_paths: list[Fields] | None


@app.add("Examples: stillframe spark history money; stillframe spark history money --log money.log")
def history(
    path: StorePath,
    *,
    log: Path | None = event_log_option(
        "Directory of the event log: show the way of the markers, too."
    ),
    where: str = MASTER,
) -> None:
    """Show for every snapshot how long it took and what it waited for, its size and what was in
    transit; over all of them the median, nine tenths and the most; and the busiest channels."""
    published = read_published(path)
    if published.is_empty:
        raise UsageError(f"the store {path} holds no snapshot yet: there is no history of any")
    with spark_session.session(where, "reading the history") as spark:
        found = _find_history(spark, path, published, log)
    damages = {str(snapshot): why for snapshot, why in published.damages.items()}
    output.answer(
        {"store": path, "damages": damages} | msgspec.structs.asdict(found),
        lambda: _put_history(found),
    )
    if damages:
        end_with_no(*(f"snapshot {name} is left out: {why}" for name, why in damages.items()))


def _find_history(
    spark: "SparkSession", path: Path, published: Any, log: Path | None
) -> HistoryRows:
    from stillframe.analytics import log_events, snapshot_stats, verified_parquet  # noqa: PLC0415

    with verified_parquet.spark_errors(path):
        snapshots = snapshot_stats.snapshots(spark, published)
        channels = snapshot_stats.channel_history(
            snapshot_stats.channel_counts(spark, published), snapshots
        ).persist()
        try:
            busy = channels.where("message_count > 0").orderBy("sequence", "source", "target")
            found = HistoryRows(
                spark_session.rows_of(snapshots),
                sorted(
                    spark_session.rows_of(snapshot_stats.spread(snapshots)),
                    key=lambda row: snapshot_stats.FIGURES.index(row["figure"]),
                ),
                spark_session.rows_of(snapshot_stats.channel_spread(channels)),
                spark_session.rows_of(busy.select("snapshot", "source", "target", "message_count")),
                None,
            )
        finally:
            channels.unpersist()
    if log is None:
        return found
    with verified_parquet.spark_errors(log):
        paths = log_events.marker_paths(snapshot_stats.marker_steps(spark, log))
        hops = spark_session.rows_of(paths.orderBy("snapshot", "hop"))
    return msgspec.structs.replace(found, marker_paths=hops)


def _put_history(found: HistoryRows) -> None:
    newest = found.snapshots[-ROW_COUNT_MAX:]
    output.put_records(HISTORY_COLUMNS, newest, texts=2)
    if len(found.snapshots) > len(newest):
        output.say(f"and {len(found.snapshots) - len(newest):,} older ones (--json has all)")
    output.put_table(
        f"over {quantities.count(len(found.snapshots), 'snapshot')}",
        ("", "median", "90 %", "most", "in"),
        (
            (name, *_spread(row, shown))
            for row in found.spread
            for name, shown in [_FIGURES[row["figure"]]]
        ),
    )
    output.put_table(
        "messages in transit",
        ("channel", "median", "90 %", "most", "in"),
        (
            (f"{row['source']}->{row['target']}", *_spread(row, "{:,.0f}".format))
            for row in found.channels[:ROW_COUNT_MAX]
        ),
    )
    if len(found.channels) > ROW_COUNT_MAX:
        output.say(f"and {len(found.channels) - ROW_COUNT_MAX:,} less busy channels")
    if found.marker_paths is not None:
        _put_paths(found.marker_paths)


def _spread(row: Fields, shown: Callable[[float], str]) -> tuple[str, ...]:
    return (*(shown(row[value]) for value in ("median", "p90", "max")), row["snapshot"])


def _put_paths(hops: list[Fields]) -> None:
    paths: dict[str, list[Fields]] = {}
    for hop in hops:
        paths.setdefault(hop["snapshot"], []).append(hop)
    slowest = sorted(paths.values(), key=lambda path: -(path[-1]["elapsed_ms"] or 0.0))
    output.put_table(
        "the slowest ways of markers, to the last that arrived",
        ("snapshot", "hop", "held for", "travelled"),
        (
            (
                hop["snapshot"],
                f"{hop['source']}->{hop['target']}",
                *(
                    "" if hop[name] is None else f"{hop[name]:,.1f} ms"
                    for name in ("held_ms", "travelled_ms")
                ),
            )
            for path in slowest[:PATH_COUNT_MAX]
            for hop in path
        ),
        texts=2,
    )
    output.say("a hop between two machines is wrong by as much as their clocks differ")


class DifferenceRows(msgspec.Struct, frozen=True):
    """What Spark found, as rows (``store_diff.Difference``); `key_counts` has a row for each
    process and keyed field."""

    is_equal: bool
    fields: list[Fields]
    key_counts: list[Fields]
    keys: list[Fields]
    channels: list[Fields]
    messages: list[Fields]


@app.add("Example: stillframe spark diff money P1-16 P1-17")
def diff(
    path: StorePath,
    before: str = argument("A", "Id of a snapshot, or name of a savepoint."),
    after: str = argument("B", "Another."),
    *,
    where: str = MASTER,
) -> None:
    """Compare two snapshots: fields, keys of keyed fields that were added, removed or changed,
    channels, and messages that only one caught; exit 1 if they differ."""
    published = read_published(path)
    for name in (before, after):  # before Spark is started
        published.find(name)
    with spark_session.session(where, "comparing") as spark:
        found = while_published(path, lambda now: _find_difference(spark, now, before, after))
    output.answer(found, lambda: _put_difference(found, before, after))
    if found.is_equal:
        output.say(f"{before} and {after} record the same states and the same messages")
        return
    output.say(
        f"{before} and {after} differ in {quantities.count(len(found.fields), 'field')}, "
        f"{quantities.count(len(found.keys), 'key')} and "
        f"{quantities.count(len(found.channels), 'channel')}"
    )
    end_with_no()


def _find_difference(
    spark: "SparkSession", published: Published, before: str, after: str
) -> DifferenceRows:
    from stillframe.analytics import verified_parquet  # noqa: PLC0415 - they need PySpark
    from stillframe.analytics.store_diff import difference  # noqa: PLC0415

    with verified_parquet.spark_errors(published.path):
        made = difference(spark, published, published.find(before), published.find(after))
        ordered = {
            "fields": made.fields.orderBy("process", "field"),
            "keys": made.keys.orderBy("process", "field", "change", "key"),
            "channels": made.channels.orderBy("source", "target"),
            "messages": made.messages.orderBy("source", "target", "number", "caught"),
        }
        rows = {
            name: [row.asDict() for row in frame.toLocalIterator()]
            for name, frame in ordered.items()
        }
    return DifferenceRows(is_equal=not any(rows.values()), key_counts=_counts(rows["keys"]), **rows)


def _counts(keys: Iterable[Fields]) -> list[Fields]:
    counted: dict[tuple[str, str], Counter[str]] = {}
    for row in keys:
        counted.setdefault((row["process"], row["field"]), Counter())[row["change"]] += 1
    return [
        {"process": process, "field": field}
        | {f"{change}_count": counts[change] for change in ("added", "removed", "changed")}
        for (process, field), counts in counted.items()
    ]


def _put_difference(found: DifferenceRows, before: str, after: str) -> None:
    _put_rows("processes", ("process", "field", before, after), found.fields, texts=4)
    _put_rows(
        "keys", ("process", "field", "added", "removed", "changed"), found.key_counts, texts=2
    )
    columns = ("process", "field", "change", "key", before, after)
    _put_rows("which keys", columns, found.keys, texts=6)
    counts = [f"{what}, {name}" for what in ("sent", "received", "in it") for name in "AB"]
    _put_rows(
        f"channels, counts in messages: A is {before}, B is {after}",
        ("channel", *counts, "only A", "only B"),
        map(_channel, found.channels),
    )
    _put_rows(
        "messages that only one caught",
        ("channel", "number", "caught by", "kind", "message"),
        (
            {
                "channel": f"{row['source']}->{row['target']}",
                "number": str(row["number"]),
                "caught": before if row["caught"] == "before" else after,
                "kind": row["kind"],
                "message": row["message"],
            }
            for row in found.messages
        ),
        texts=5,
    )


def _channel(row: Fields) -> Fields:
    sides = ("before", "after")
    return {
        "channel": f"{row['source']}->{row['target']}",
        **{f"{count}_{side}": row[f"{count}_{side}"] for count in _COUNTS for side in sides},
        **{f"only_{side}": row[f"only_{side}"] for side in sides},
    }


def _put_rows(
    title: str, columns: Sequence[str], rows: Iterable[Fields], *, texts: int = 1
) -> None:
    if cells := [tuple(map(_cell, row.values())) for row in rows]:
        output.put_table(title, columns, cells, texts=texts, limit=ROW_COUNT_MAX, more="more")


def _cell(value: str | int | None) -> str:
    return f"{value:,}" if isinstance(value, int) else output.shortened(value or "")


@app.add(
    "Examples: stillframe spark detect dinner deadlock; stillframe spark detect money 'select "
    "snapshot, sum(balance) < 100 from processes group by snapshot'"
)
def detect(
    path: StorePath,
    name: str = argument(
        "PREDICATE",
        "As 'stillframe detect' has it: termination, deadlock, loss or MODULE:FUNCTION; or a "
        "question in SQL, over the rows of all snapshots together, that gives for each its id, "
        "and true or false.",
    ),
    *,
    reference: str | None = CLASSES,
    where: str = MASTER,
) -> None:
    """Ask a stable predicate of every snapshot of a store, of all its epochs: whether it holds now,
    in which it held first, and whether it stayed; exit 1 if it does not hold or did not stay."""
    with spark_session.session(where, "asking all snapshots") as spark:
        from stillframe.analytics import predicate_history  # noqa: PLC0415 - PySpark is there now

        rows = predicate_history.detect(spark, path, name, topology=reference)
        found = predicate_history.summary(rows)
        snapshots = [row.asDict() for row in rows.collect()]
    output.answer(_detection_document(name, found, snapshots), lambda: _put_detection(snapshots))
    _say_detection(name, found)
    _say_unasked(found.unasked)
    if not found.holds:
        end_with_no()


def _detection_document(name: str, found: "Summary", snapshots: list[Fields]) -> Fields:
    """Return what ``detect`` says of the present epoch, and then of all."""
    return {
        "predicate": name,
        "holds": found.holds,
        "found": found.shown and found.shown.verdict.sentence,
        "snapshot": found.shown and found.shown.snapshot,
        "first": found.since and found.since.snapshot,
        "snapshot_count": found.present_count,
        "not_stable": found.not_stable and [seen.snapshot for seen in found.not_stable],
        "first_of_all": found.first and found.first.snapshot,
        "epochs": found.epochs,
        "snapshots": snapshots,
    }


def _put_detection(snapshots: list[Fields]) -> None:
    """Write what could not be asked, then the first in which it holds, then the others."""
    ordered = sorted(snapshots, key=lambda row: (row["holds"] is not None, not row["holds"]))
    columns: output.Columns[Fields] = {
        "snapshot": lambda row: row["snapshot"],
        "holds": lambda row: {True: "yes", False: "no", None: "?"}[row["holds"]],
        "found": lambda row: _beginning_of(row["sentence"]),
        "epoch": lambda row: None if row["epoch"] is None else str(row["epoch"]),
    }
    output.put_records(columns, ordered[:ROW_COUNT_MAX], texts=3)
    if (left_out := len(snapshots) - ROW_COUNT_MAX) > 0:
        output.say(f"and {quantities.count(left_out, 'more snapshot')} (--json has all)")


def _beginning_of(sentence: str) -> str:
    is_long = len(sentence) > _FOUND_LENGTH_MAX
    return f"{sentence[:_FOUND_LENGTH_MAX]}..." if is_long else sentence


def _say_detection(name: str, found: "Summary") -> None:
    """Say what ``stillframe detect`` says, and what all epochs say."""
    # It needs what runs systems, which no other command here does.
    from stillframe.cli.snapshots import holds_sentence, not_stable_sentence  # noqa: PLC0415

    if found.not_stable is not None:
        output.say(f"no: {not_stable_sentence(name, *found.not_stable)}")
    elif found.shown is None:
        output.say(f"no: no snapshot of the present epoch could be asked of {name}")
    elif found.since is None:
        shown = found.shown
        output.say(f"no: {name} does not hold in {shown.snapshot}: {shown.verdict.sentence}")
    else:
        output.say(holds_sentence(name, found.shown, found.since, found.present_count))
    if len(found.epochs) > 1:
        asked = quantities.count(found.snapshot_count, "snapshot")
        of_all = f"of all {asked} in {quantities.count(len(found.epochs), 'epoch')}"
        if found.first is None:
            output.say(f"{of_all} it held in none")
        else:
            held = sum(epoch.first is not None for epoch in found.epochs)
            stayed = " and stayed in each" if found.not_stable is None else ""
            output.say(
                f"{of_all} it held first in {found.first.snapshot}, in epoch {found.first.epoch}; "
                f"it held in {quantities.count(held, 'epoch')}{stayed}"
            )


def _say_unasked(unasked: "tuple[Unevaluable, ...]") -> None:
    """Name the snapshots that could not be asked, by reason."""
    reasons: dict[str, list[Unevaluable]] = {}
    for each in unasked:
        reasons.setdefault(each.failure, []).append(each)
    for reason, found in reasons.items():
        names = ", ".join(each.snapshot for each in found[:_NAMED_MAX])
        more = f" and {len(found) - _NAMED_MAX:,} more" if len(found) > _NAMED_MAX else ""
        output.say(f"not asked, {reason}: {names}{more}")
    if DAMAGED in reasons:
        first = reasons[DAMAGED][0]
        raise Damaged(f"snapshot {first.snapshot} could not be asked: {first.sentence}")
