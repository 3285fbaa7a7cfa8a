"""The commands that check on Spark what processes recorded, and make stores and tables of it:
``verify`` of an event log, ``assemble`` and ``compact``."""

import functools
import math
from collections import Counter
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from stillframe.analytics.manifests import Published, places_of, read_published
from stillframe.analytics.snapshot_verdicts import CONSISTENT, INCOMPLETE, INCONSISTENT
from stillframe.cli import output, quantities, spark_session
from stillframe.cli.command import Commands, argument, conclude, end_with_failure, option
from stillframe.cli.options import KEEP, MASTER, StorePath
from stillframe.errors import Damaged, UsageError
from stillframe.eventlog.reader import epochs, list_segments
from stillframe.model import SnapshotId, natural_order
from stillframe.storage.location import Location
from stillframe.trace import Position

if TYPE_CHECKING:  # spark_session.session says what to do if PySpark is missing
    from pyspark.sql import DataFrame, SparkSession

ROW_COUNT_MAX = 20
"""Rows of the table of verdicts, the wrong ones first; JSON has all."""
ASSEMBLED_MAX = 50
"""Rows of the table of assembled snapshots; JSON has all."""

Fields = dict[str, Any]

LOG = argument("LOG", "Event log: the directory that 'run --event-log' wrote.")

app = Commands()


@app.add("log verify money.log --store money")
def verify(
    log: Location = LOG,
    store: Location | None = option(
        "DIR", "Store of the same system, to compare its snapshots with the log."
    ),
    epoch: int | None = option("N", "Check only this epoch of the system.  [default: all]"),
    where: str = MASTER,
) -> None:
    """Check every snapshot against an event log: no message is received before the cut and sent
    after it, channels were recorded completely and in order, and each carried one marker. Exit
    1 at a contradiction, and name its first message."""
    try:
        _check(log, epoch)
        published = None if store is None else read_published(store)
        if published is not None and published.is_empty:
            raise UsageError(
                f"the store {store} holds no snapshot yet: there is nothing to compare"
            )
        with spark_session.session(where, "verifying") as spark:
            found = _find(spark, log, published, epoch)
    except Damaged as error:
        found = {"ok": False, "verdict": str(error), "snapshots": []}
    wrong_first = sorted(found["snapshots"], key=lambda row: row["verdict"] == CONSISTENT)
    columns: output.Columns[Fields] = {
        "epoch": lambda row: None if row["epoch"] is None else str(row["epoch"]),
        "snapshot": lambda row: row["snapshot"] or "(the log)",
        "verdict": itemgetter("verdict"),
        "actions inside": itemgetter("event_count"),
        "in transit": itemgetter("message_count"),
        "why": why,
    }
    _answer_rows(found, columns, wrong_first, texts=3, limit=ROW_COUNT_MAX)
    conclude(found["ok"], found["verdict"])


def _answer_rows(
    document: Fields, columns: output.Columns[Fields], rows: list[Fields], *, texts: int, limit: int
) -> None:
    """Write the answer; without ``--json``, its rows as a table, if there are any."""
    put = functools.partial(output.put_table, "", columns, rows, texts=texts, limit=limit)
    output.answer(document, put if rows else None)


@app.add("log clock money.log P1#17")
def clock(
    log: Location = LOG,
    event: str = argument("PROCESS#EVENT", "An event, such as P1#17, the 17th event of P1."),
    epoch: int | None = option("N", "Epoch of the system.  [default: the last]"),
    where: str = MASTER,
) -> None:
    """Compute the vector clock of an event: how many events of each process happened before it."""
    process, sharp, index = event.rpartition("#")
    if not sharp or not index.isascii() or not index.isdigit():
        raise UsageError(f"{event!r} is not an event, such as P1#17")
    _check(log, epoch)
    chosen = epochs(log)[-1] if epoch is None else epoch
    with spark_session.session(where, "looking for causes") as spark:
        from stillframe.analytics.log_events import vector_clock  # noqa: PLC0415 - needs PySpark
        from stillframe.analytics.log_verification import log_pieces  # noqa: PLC0415

        counts = vector_clock(log_pieces(spark, log), chosen, process, int(index))
    if output.wants_json():
        output.put_json({"epoch": chosen, "event": event, "clock": counts})
        return
    output.report(
        f"numbers of events that happened before {event} of epoch {chosen}, itself included"
    )
    output.put_table("", ("process", "events"), counts.items())


def _check(log: Location, epoch: int | None) -> None:
    """Refuse what is no event log, before Spark is started for it."""
    known = sorted({part.header.epoch for part in list_segments(log)})
    if epoch is not None and epoch not in known:
        raise UsageError(
            f"the event log {log} has nothing of epoch {epoch}; it has the epochs "
            f"{', '.join(map(str, known))}"
        )


def _find(
    spark: "SparkSession", log: Location, published: Published | None, epoch: int | None
) -> Fields:
    """Return the verdict over an event log. It is ``ok`` if no snapshot is inconsistent, nothing is
    wrong with the log itself, and every snapshot of the store, if one was given, is whole and
    logged to its end. Otherwise `verdict` names the first problem. `snapshots` has a row for each
    (``log_verification.verdicts``), and one without a name for the log itself."""
    from stillframe.analytics import log_verification, verified_parquet  # noqa: PLC0415 - PySpark is there now
    from stillframe.analytics.audit import invalid_snapshots  # noqa: PLC0415

    pieces = log_verification.log_pieces(spark, log)
    wrong_in_store: dict[SnapshotId, str] = {}
    cuts = None
    if published is not None:
        wrong_in_store = published.damages | {
            snapshot: str(error) for snapshot, error in invalid_snapshots(spark, published).items()
        }
        valid = {one: m for one, m in published.manifests.items() if one not in wrong_in_store}
        if valid:
            cuts = log_verification.channel_cuts(
                spark, msgspec.structs.replace(published, manifests=valid)
            )
    if epoch is not None:
        pieces = pieces.filter(pieces["epoch"] == epoch)
        cuts = None if cuts is None else cuts.filter(cuts["epoch"] == epoch)
    with verified_parquet.spark_errors(log):
        collected = log_verification.verdicts(log_verification.findings(pieces, cuts)).collect()
    names = (
        set() if published is None else {*map(str, published.manifests), *map(str, wrong_in_store)}
    )
    found = [row.asDict(recursive=True) for row in collected]
    for snapshot, reason in wrong_in_store.items():
        assert published is not None
        manifest = published.manifests.get(snapshot)
        # Without a manifest, the log may still know the epoch.
        known = (row["epoch"] for row in found if row["snapshot"] == str(snapshot))
        of_epoch = next(known, None) if manifest is None else manifest.epoch
        if None in (epoch, of_epoch) or epoch == of_epoch:
            _blame(found, of_epoch, str(snapshot), reason)
    rows = sorted(found, key=_order)
    snapshots = [row for row in rows if row["snapshot"] is not None]
    wrong = [
        row
        for row in rows
        if row["verdict"] == INCONSISTENT
        or (row["snapshot"] in names and row["verdict"] != CONSISTENT)
    ]
    # What the log itself lacks explains much of the rest.
    lacks = [
        f"{_name(row)}: {why(row)}"
        for row in rows
        if row["snapshot"] is None and row["verdict"] == INCOMPLETE
    ]
    if wrong:
        sentence = f"{_name(wrong[0])}: {why(wrong[0])}{_places(pieces, wrong[0])}"
        more = len(wrong) - 1
        sentence += f" ({more} more of {len(rows)} verdicts have the same fault)" if more else ""
        return {"ok": False, "verdict": "; ".join((*lacks, sentence)), "snapshots": rows}
    incomplete = sum(row["verdict"] != CONSISTENT for row in snapshots)
    sentence = f"{quantities.count(len(snapshots) - incomplete, 'snapshot')} consistent"
    if incomplete:
        sentence += f", {incomplete} incomplete"
    return {"ok": True, "verdict": "; ".join((sentence, *lacks)), "snapshots": rows}


def _blame(rows: list[Fields], epoch: int | None, snapshot: str, reason: str) -> None:
    """Say of a snapshot, which the log may not have, what is wrong with it in the store."""
    row = next((r for r in rows if (r["epoch"], r["snapshot"]) == (epoch, snapshot)), None)
    if row is None:
        row = {"epoch": epoch, "snapshot": snapshot, "event_count": None, "message_count": 0}
        row |= {"missing": [], "faults": [], "gaps": [], "fault_count": 0}
        rows.append(row)
    fault = {"source": "the store", "target": None, "what": reason}
    fault |= {"first": None, "last": None, "count": None}
    row["faults"] = [fault, *row["faults"]]
    row |= {"verdict": INCONSISTENT, "fault_count": row["fault_count"] + 1}


def _order(row: Fields) -> tuple[float, bool, int]:
    """Snapshots in the order of their numbers, what is said of the log itself last; those whose
    epoch is not known at the end."""
    name, epoch = row["snapshot"], row["epoch"]
    number = 0 if name is None else int(name.rpartition("-")[2])
    return math.inf if epoch is None else epoch, name is None, number


def _name(row: Fields) -> str:
    if row["snapshot"] is None:
        return f"the event log of epoch {row['epoch']}"
    return f"snapshot {row['snapshot']}"


def why(row: Fields) -> str:
    """Say the first thing that is wrong with a snapshot; nothing if it is consistent."""
    found = [*row["faults"], *row["gaps"]]
    if found:
        return _sentence(found[0])
    if row["missing"]:
        absent = "has no log" if row["snapshot"] is None else "did not record"
        return f"{', '.join(sorted(row['missing'], key=natural_order))} {absent}"
    return ""


def _sentence(found: Fields) -> str:
    place = found["source"]
    if found["target"] is not None:
        place = f"channel {place}->{found['target']}"
    if found["first"] is None:
        return f"{place}: {found['what']}"
    thing = "action" if found["target"] is None else "message"
    numbers = f"{thing} {found['first']}"
    if found["last"] != found["first"]:
        numbers = f"{thing}s {found['first']} to {found['last']}"
    return f"{place}, {numbers}: {found['what']}"


def _places(pieces: "DataFrame", row: Fields) -> str:
    from stillframe.analytics.log_events import LogMessage, locate  # noqa: PLC0415 - needs PySpark

    first = next((fault for fault in row["faults"] if fault["target"] and fault["first"]), None)
    if first is None:
        return ""
    message = LogMessage(row["epoch"], first["source"], first["target"], first["first"])
    events = [
        f"{found['kind']} in event {Position(found['process'], found['event'])}"
        for found in locate(pieces, [message])
        .orderBy("kind", "event", ascending=[False, True])
        .collect()
    ]
    return f" ({'; '.join(events)})" if events else ""


@app.add(
    "store compact money --out money.tables --keep 1000",
    "store compact money --out audited --snapshot P1-17",
)
def compact(
    path: StorePath,
    out: Location = option(
        "DIR",
        "Directory of the tables. If it exists, only new snapshots are added.",
        default=...,
    ),
    of: str | None = option(
        "SNAPSHOT",
        "Add only this snapshot or savepoint.  [default: all]",
        "--snapshot",
    ),
    keep: int | None = KEEP,
    where: str = MASTER,
) -> None:
    """Combine the small files of a store into a few large Parquet tables, with the full state of
    every snapshot. Every byte is verified first, and a crash leaves the tables unchanged."""
    published = read_published(path)
    if of is not None:  # before Spark is started
        published.find(of)
    with spark_session.session(where, "compacting") as spark:
        from stillframe.analytics import compaction  # noqa: PLC0415 - needs PySpark

        done = compaction.compact_store(spark, path, out, of=of, keep=keep)
    catalog = done.catalog
    directory = compaction.version_path(out, catalog.version)
    rows: list[Fields] = [
        {
            "table": name,
            "row_count": sum(file.row_count for file in files),
            "file_count": len(files),
            "bytes": sum(file.bytes for file in files),
        }
        for name in (compaction.INDEX, *catalog.columns)
        for files in [catalog.files(name)]
    ]
    columns: output.Columns[Fields] = {
        "table": itemgetter("table"),
        "rows": itemgetter("row_count"),
        "files": itemgetter("file_count"),
        "size": lambda row: quantities.size(row["bytes"]),
    }
    output.answer(
        {
            "directory": directory,
            "added": done.added,
            "removed": done.removed,
            "snapshot_count": len(catalog.snapshots),
            "tables": rows,
        },
        lambda: output.put_table("", columns, rows),
    )
    output.report(
        f"{quantities.count(len(done.added), 'snapshot')} added, {len(done.removed):,} removed: "
        f"{quantities.count(len(catalog.snapshots), 'snapshot')} in {directory}"
    )


@app.add("store assemble money.parts --out money.again")
def assemble(
    directory: Location = argument(
        "DIR",
        "Directory with the fragments of all processes, written with --fragment-dir.",
    ),
    out: Location = option(
        "STORE",
        "Directory of the store. If it exists, only new snapshots are added.",
        default=...,
    ),
    timeout: str = option(
        "DURATION",
        "Treat fragments completed later than this after the snapshot started as late.",
        default="10s",
    ),
    epoch: int | None = option("N", "Use only this epoch of the system.  [default: all]"),
    where: str = MASTER,
) -> None:
    """Build a store from the fragments that processes wrote on their own machines, including
    snapshots that no coordinator published. Snapshots with missing or late fragments are
    named. Exit 1 if fragments contradict each other."""
    timeout_s = quantities.parse_duration("--timeout", timeout)
    places_of(directory, epoch)  # before Spark is started
    with spark_session.session(where, "assembling") as spark:
        from stillframe.analytics.assembly import assemble as work  # noqa: PLC0415 - needs PySpark

        found = work(spark, directory, out, timeout_s=timeout_s, epoch=epoch)
        rows = spark_session.rows_of(found)
    wrong_first = sorted(rows, key=lambda row: row["verdict"] == CONSISTENT)
    columns: output.Columns[Fields] = {
        "snapshot": itemgetter("snapshot"),
        "epoch": lambda row: str(row["epoch"]),
        "verdict": itemgetter("verdict"),
        "why": itemgetter("why"),
        "fragments": itemgetter("fragment_count"),
        "late": lambda row: ", ".join(row["late"]),
    }
    document: Fields = {"store": out, "snapshots": spark_session.documents_of(rows)}
    _answer_rows(document, columns, wrong_first, texts=4, limit=ASSEMBLED_MAX)
    counts = Counter(row["verdict"] for row in rows)
    sentence = f"{quantities.count(counts.pop(CONSISTENT, 0), 'snapshot')} added to {out}"
    for verdict, count in sorted(counts.items()):
        sentence += f"; {count:,} {verdict}"
    if late := sum(bool(row["late"]) for row in rows):
        sentence += f"; {late:,} with fragments that arrived late"
    output.report(sentence)
    if INCONSISTENT in counts:
        end_with_failure()
