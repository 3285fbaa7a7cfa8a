"""Stable predicates, evaluated on all snapshots of a store at once.

Termination, deadlock, loss and your own functions are evaluated in tasks, on objects of your
classes (``predicate_eval``). For deadlock the tasks return the wait-for edges, and
``wait_for_graphs`` finds the deadlocks. A question in SQL is one query over all snapshots. The
answers are those of ``stillframe detect``.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import BooleanType, StringType

from stillframe import errors
from stillframe.analytics import snapshot_stats, verified_parquet
from stillframe.analytics.full_snapshots import TABLES, FullSnapshots
from stillframe.analytics.manifests import Published, read_published
from stillframe.analytics.predicate_eval import (
    ANSWERS_SCHEMA,
    DAMAGED,
    DEADLOCK,
    DROPPED,
    WAS_DROPPED,
    PredicateSpec,
    evaluate_all,
)
from stillframe.analytics.verified_parquet import first_line
from stillframe.analytics.wait_for_graphs import deadlocks
from stillframe.detect.predicate import (
    NO_DEADLOCK,
    Evaluation,
    Verdict,
    check_predicate_name,
    initial_places,
    is_sql,
    not_stable,
    topology_of_store,
)
from stillframe.errors import Damaged, UsageError
from stillframe.model import SnapshotId
from stillframe.spark.session import add_package
from stillframe.storage.location import Location
from stillframe.store.layout import is_published_at
from stillframe.store.manifest import FILES, Manifest, reachable
from stillframe.store.store import Store

DETECTED_SCHEMA = (
    "snapshot STRING, "
    "sequence BIGINT, "  # the order of publishing; null, as all that follows, if unreadable
    "epoch BIGINT, "
    "initiated_at DOUBLE, "  # seconds since 1970
    "completed_at DOUBLE, "
    "is_present BOOLEAN, "  # of the present epoch; if that has none, the one from which it began
    "holds BOOLEAN, "  # null if it could not be asked
    "sentence STRING, "  # what was found in it, or why it could not be asked
    "failure STRING"  # DAMAGED, DROPPED or OTHER_TOPOLOGY if it could not be asked
)
OTHER_TOPOLOGY = "another topology"

_TASKS_PER_CORE = 4

SNAPSHOTS = "snapshots"
"""The view with a row for each snapshot; the others are the tables of ``FullSnapshots``."""
EXAMPLE = "select _snapshot, sum(balance) < 100 from processes group by _snapshot"

_WANTED = (
    f"Write a query over the views {SNAPSHOTS}, {', '.join(TABLES)} and one for each keyed "
    "field, which contain the rows of all snapshots. It must return one row per snapshot, with "
    f"its id and true or false; for example {EXAMPLE!r}"
)


class Answer(NamedTuple):
    """The answer of one snapshot, or why there is none."""

    holds: bool | None
    sentence: str
    failure: str | None = None


class Unevaluable(msgspec.Struct, frozen=True):
    """A snapshot that the predicate could not be evaluated on.

    Attributes:
        snapshot: its id.
        failure: the kind of failure.
        sentence: why, as a sentence.
    """

    snapshot: str
    failure: str
    sentence: str


class EpochSummary(msgspec.Struct, frozen=True):
    """The answers of one epoch.

    Attributes:
        epoch: its number.
        snapshot_count: how many snapshots of it were evaluated.
        first: the first one in which the predicate held; None if there is none.
    """

    epoch: int
    snapshot_count: int
    first: SnapshotId | None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """All answers together.

    Attributes:
        snapshot_count: how many snapshots were evaluated.
        present_count: how many of them are of the present epoch.
        shown: the one that best describes the present: the newest of the present epoch in which the
            predicate holds, or else the newest.
        since: the first of the present epoch in which it held; None if there is none.
        first: the first in which it held in the earliest epoch; None if there is none.
        not_stable: two that show that it did not stay; None if none do.
        epochs: the answers by epoch.
        unasked: the snapshots that it could not be evaluated on.
    """

    snapshot_count: int
    present_count: int
    shown: Evaluation | None
    since: Evaluation | None
    first: Evaluation | None
    not_stable: tuple[Evaluation, Evaluation] | None
    epochs: tuple[EpochSummary, ...]
    unasked: tuple[Unevaluable, ...]

    @property
    def holds(self) -> bool:
        """Whether it holds now, and stayed wherever it held."""
        return self.since is not None and self.not_stable is None


def detect(
    spark: SparkSession, store_path: str | Location, predicate: str, *, topology: str | None = None
) -> DataFrame:
    """Evaluate a stable predicate on every snapshot of a store, of all its epochs.

    The jobs have finished when this returns; the rows are on the driver.

    Args:
        spark: the session to run in, for example ``spark_session()``.
        store_path: the directory of the store, to which a running system may write. Tasks must see
            it under the same name.
        predicate: termination, deadlock, loss (against the oldest snapshot of the same topology),
            MODULE:FUNCTION, or a question in SQL (``evaluate_sql``).
        topology: ``MODULE:ATTRIBUTE``; None for the one that the store names.

    Returns:
        A row (`DETECTED_SCHEMA`) for each snapshot, in the order of publishing.

    Raises:
        UsageError: there is no store, snapshot or predicate of that name; or the topology is not
            that of the present epoch; or the predicate is not valid.
        ApplicationError: your predicate raised, or a method of a process returned a wrong value.
        Unavailable: a package is missing where tasks run, or a task failed.
        StoreError: the store cannot be read.
    """
    published = read_published(store_path)
    if published.is_empty:
        raise errors.UsageError(f"the store {store_path} holds no snapshot yet: take one")
    if is_sql(predicate):
        found = evaluate_sql(spark, published, predicate)
    else:
        found = _evaluate_in_tasks(spark, published, predicate, topology)
    present = _present(published)
    rows: list[tuple[object, ...]] = [
        (
            *(str(snapshot), each.sequence, each.epoch, each.initiated_at, each.completed_at),
            *(snapshot in present, *found[str(snapshot)]),
        )
        for snapshot, each in published.manifests.items()
    ]
    rows += [
        (str(snapshot), None, None, None, None, None, None, text, DAMAGED)
        for snapshot, text in sorted(published.damages.items())
    ]
    return spark.createDataFrame(rows, DETECTED_SCHEMA)


def summary(detected: DataFrame) -> Summary:
    """Return the answers of all snapshots together, from the rows of ``detect``."""
    rows = sorted(detected.collect(), key=lambda row: row["sequence"] or 0)
    asked = [(_evaluation(row), row["is_present"]) for row in rows if row["holds"] is not None]
    evaluations = [seen for seen, _ in asked]
    present = [seen for seen, is_present in asked if is_present]
    newest = [seen for seen in present if seen.verdict.holds] or present
    by_epoch: dict[int, list[Evaluation]] = {}
    for seen in evaluations:
        by_epoch.setdefault(seen.epoch, []).append(seen)
    firsts = {epoch: _first(of_one) for epoch, of_one in by_epoch.items()}
    return Summary(
        snapshot_count=len(evaluations),
        present_count=len(present),
        shown=newest[-1] if newest else None,
        since=_first(present),
        first=_first(evaluations),
        not_stable=not_stable(evaluations),
        epochs=tuple(
            EpochSummary(epoch, len(by_epoch[epoch]), None if first is None else first.snapshot)
            for epoch, first in sorted(firsts.items())
        ),
        unasked=tuple(
            Unevaluable(row["snapshot"], row["failure"], row["sentence"])
            for row in rows
            if row["holds"] is None
        ),
    )


def _evaluation(row: Row) -> Evaluation:
    return Evaluation(
        SnapshotId.parse(row["snapshot"]),
        row["epoch"],
        row["initiated_at"],
        row["completed_at"],
        Verdict(row["holds"], row["sentence"]),
    )


def _first(evaluations: Iterable[Evaluation]) -> Evaluation | None:
    """Return the first in which it held."""
    held = (seen for seen in evaluations if seen.verdict.holds)
    return min(held, key=lambda seen: (seen.epoch, seen.completed_at), default=None)


def _present(published: Published) -> set[SnapshotId]:
    """Return the snapshots of the present epoch, or the one that it started from."""
    head, manifests = published.head, published.manifests.values()
    present = {each.snapshot for each in manifests if each.epoch == head.epoch}
    if not present and head.restored_from is not None:
        present = {head.restored_from}
    return present


def _evaluate_in_tasks(
    spark: SparkSession, published: Published, predicate: str, reference: str | None
) -> dict[str, Answer]:
    entries = published.entries()
    if not entries:
        return {}
    store = Store.open(published.path)
    present = _present(published)
    newest = max(entries, key=lambda entry: (entry.id in present, entry.sequence))
    known, topology = topology_of_store(store, reference, published.description(newest.id).hash)
    check_predicate_name(predicate)
    expected = initial_places(store, topology, entries) if predicate == "loss" else {}
    spec = PredicateSpec(
        store=str(published.path),
        reference=known,
        topology=topology.description.hash,
        here=str(Path.cwd()),
        predicate=predicate,
        expected=expected,
    )
    manifests = {str(snapshot): each for snapshot, each in published.manifests.items()}
    ours = {name: each for name, each in manifests.items() if each.topology == spec.topology}
    other = Answer(None, f"was taken with a different topology from {known}", OTHER_TOPOLOGY)
    found = dict.fromkeys(manifests.keys() - ours.keys(), other)
    return found | _run_tasks(spark, spec, ours)


def _run_tasks(
    spark: SparkSession, spec: PredicateSpec, manifests: Mapping[str, Manifest]
) -> dict[str, Answer]:
    """Return the answers of snapshots of the topology that tasks load."""
    add_package(spark)
    names = [(name,) for name in manifests]
    task_count = min(len(names), _TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
    ids = spark.createDataFrame(names, "snapshot STRING").repartition(task_count)
    rows = ids.mapInArrow(evaluate_all(spec), from_arrow_schema(ANSWERS_SCHEMA)).persist()
    deadlocked: dict[str, str] = {}
    try:
        answered = rows.where("process IS NULL").collect()
        _raise_failures(answered)
        if spec.predicate == DEADLOCK:
            found = deadlocks(
                rows.where("process IS NOT NULL"),
                # A process that waits for another has a channel from it.
                known_count_max=max(manifest.channel_count for manifest in manifests.values()),
            )
            deadlocked = {row["snapshot"]: row["sentence"] for row in found.collect()}
    except PythonException as error:
        said = str(error).strip().splitlines()
        raise errors.Unavailable(f"a Spark task failed: {said[-1]}") from error
    except PySparkException as error:
        raise errors.Unavailable(f"Spark failed: {first_line(error)}") from error
    finally:
        rows.unpersist()
    answers = {}
    for name, holds, sentence, failure, *_ in answered:
        answers[name] = Answer(holds, sentence, failure)
        if spec.predicate == DEADLOCK and failure is None:
            answers[name] = Answer(name in deadlocked, deadlocked.get(name, NO_DEADLOCK))
    return answers


def _raise_failures(rows: Iterable[Row]) -> None:
    for row in rows:
        if row["failure"] not in (None, DAMAGED, DROPPED):
            kind = getattr(errors, row["failure"], errors.StillframeError)
            raise kind(row["sentence"])


def evaluate_sql(spark: SparkSession, published: Published, sql: str) -> dict[str, Answer]:
    """Return for each snapshot the answer to a question in SQL, which gives rows of an id and true
    or false; or why there is none. The session's own views stay as they are."""
    damages = _damages(spark, published)
    answers = {
        str(snapshot): Answer(None, text, DAMAGED)
        if is_published_at(published.directory(snapshot))
        else Answer(None, WAS_DROPPED, DROPPED)
        for snapshot, text in damages.items()
    }
    full = [snapshot for snapshot in published.manifests if snapshot not in damages]
    if not full:
        return answers
    session = spark.newSession()
    try:
        _make_views(session, published, full)
        return answers | _query(session, sql, [str(snapshot) for snapshot in full])
    finally:
        # The session that made the last DataFrame is the active one.
        spark.createDataFrame([], "snapshot STRING")


def _damages(spark: SparkSession, published: Published) -> dict[SnapshotId, str]:
    """Return the snapshots that cannot be read, with what they are based on, and why."""
    files = [
        published.file(snapshot, record.name)
        for snapshot, manifest in published.manifests.items()
        for record in manifest.files
    ]
    changed = verified_parquet.damages(spark, files)
    found = {}
    for snapshot in published.manifests:
        try:
            published.check_chains([snapshot])
        except Damaged as error:
            found[snapshot] = str(error)
            continue
        chain = {snapshot, *reachable(snapshot, published.manifests.get)}
        texts = [
            changed[path]
            for link in sorted(chain, key=lambda link: link != snapshot)
            for record in published.manifests[link].files
            if link == snapshot or record.name not in FILES
            if (path := published.file(link, record.name)[1]) in changed
        ]
        if texts:
            found[snapshot] = texts[0]
    return found


def _make_views(
    session: SparkSession, published: Published, snapshots: Sequence[SnapshotId]
) -> None:
    names = session.createDataFrame([(str(snapshot),) for snapshot in snapshots], "snapshot STRING")
    known = snapshot_stats.snapshots(session, published).join(
        F.broadcast(names), "snapshot", "left_semi"
    )
    known.createOrReplaceTempView(SNAPSHOTS)
    full = FullSnapshots(session, published, snapshots)
    for name in (*TABLES, *full.keyed_names):
        full.table(name).createOrReplaceTempView(name)


def _query(session: SparkSession, sql: str, names: Sequence[str]) -> dict[str, Answer]:
    try:
        asked = session.sql(sql)
        fields = asked.schema.fields
        if [type(field.dataType) for field in fields] != [StringType, BooleanType]:
            columns = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in fields)
            raise UsageError(f"the query {sql!r} returns the columns {columns}. {_WANTED}")
        rows = asked.limit(len(names) + 1).collect()
    except PySparkException as error:
        found = verified_parquet.error_of_task(error)
        if found is not None:
            raise found from error
        raise UsageError(
            f"the query {sql!r} failed: {verified_parquet.first_line(error)}. {_WANTED}"
        ) from error
    known = set(names)
    answers: dict[str, Answer] = {}
    for name, holds in rows:
        if name not in known:
            raise UsageError(
                f"the query {sql!r} returns {name!r}, which is not a snapshot id. {_WANTED}"
            )
        if holds is None or name in answers:
            what = "NULL" if holds is None else "two rows"
            raise UsageError(f"the query {sql!r} returns {what} for snapshot {name}. {_WANTED}")
        answers[name] = Answer(holds, f"{sql} is {str(holds).lower()}")
    missing = [name for name in names if name not in answers]
    if missing:
        raise UsageError(
            f"the query {sql!r} returns no row for snapshot {missing[0]}: a snapshot without "
            f"rows in a table has no group, so begin with 'from snapshots left join'. {_WANTED}"
        )
    return answers
