"""The content of a snapshot, read from a Spark driver: query states, logs, differences."""

from urllib.parse import quote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.window import Window

from stillframe.errors import UsageError
from stillframe.model import SnapshotId
from stillframe.pipeline.pipeline import Pipeline
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.spark.queries import register
from stillframe.spark.scan_planner import as_json
from stillframe.spark.session import check_reachable, checkpoint_address
from stillframe.spark.slices import LOG_FORMAT
from stillframe.storage.location import ObjectPath

_KEY_COLUMNS = ("key", "user_map_key")
_PARTITION = "partition_id"
_NUMBER = "number"


def query_state(
    spark: SparkSession,
    pipeline: Pipeline,
    snapshot: SnapshotId | str,
    query: str,
    *,
    operator: int = 0,
    store: str | None = None,
    **options: str,
) -> DataFrame:
    """Return the state of a stateful operator of a query at the cut, read by Spark itself.

    Args:
        spark: the session.
        pipeline: the pipeline.
        snapshot: an id or a savepoint's name.
        query: its name.
        operator: the number of the stateful operator: 0 is the one nearest the sink, and the
            numbers rise towards the sources, as Spark numbers them.
        store: the name of the state store, for operators that have several; None for the default.
        options: further options of Spark's format ``statestore``: ``joinSide="left"`` for a join
            of two streams, ``stateVarName="total"`` for ``transformWithState``.

    Returns:
        `key`, `value` and `partition_id`, or the columns that Spark has for that kind of operator.

    Raises:
        UsageError: there is no such snapshot or query, the query had no state at the cut, or the
            path is one that Spark cannot read states from.
    """
    manifest = pipeline.find(snapshot)
    batch = _batch(manifest, query)
    if batch is None:
        raise UsageError(
            f"query {query} had committed no micro-batch at snapshot {manifest.snapshot}, so it "
            "has no state there: take a snapshot after it has run"
        )
    path = manifest.pinned(pipeline.path, query)
    address = checkpoint_address(path)
    parts = path.key if isinstance(path, ObjectPath) else address
    if quote(parts, safe="/~") != parts:
        raise UsageError(
            f"Spark's state source cannot read below {path}: it confuses a space or another "
            "special character in a path with its percent code. Move the pipeline to a path "
            "without such characters"
        )
    reader = spark.read.format("statestore").options(batchId=batch, operatorId=operator, **options)
    if store is not None:
        reader = reader.option("storeName", store)
    check_reachable(spark, address)
    return reader.load(address if isinstance(path, ObjectPath) else f"file://{address}")


def log_records(
    spark: SparkSession,
    pipeline: Pipeline,
    channel: str,
    snapshot: SnapshotId | str | None = None,
) -> DataFrame:
    """Return all records of a log, with `_partition` and `_offset`; or those of a topic of Kafka
    that count.

    A topic has the columns `key`, `value`, `headers`, `partition`, `offset` and `timestamp`;
    executors need Stillframe with its extra ``kafka``. Records of a log before the oldest snapshot
    may have been trimmed: offsets then begin above 0.

    Args:
        spark: the session.
        pipeline: the pipeline.
        channel: its name.
        snapshot: only the records up to the cut of this one, an id or a savepoint's name; None for
            the channel as it is now. It has no records of timelines that a restore abandoned.

    Raises:
        UsageError: there is no such channel or snapshot.
    """
    flow = (pipeline if snapshot is None else pipeline.find(snapshot)).dataflow
    if channel not in (topic.name for topic in flow.topics):
        flow.log(channel)
    register(spark)
    options = {"pipeline": str(pipeline.path), "channel": channel}
    if snapshot is not None:
        options["snapshot"] = str(snapshot)
    return spark.read.format(LOG_FORMAT).options(**options).load()


def diff(
    spark: SparkSession,
    pipeline: Pipeline,
    first: SnapshotId | str,
    second: SnapshotId | str,
    participant: str,
    *,
    operator: int = 0,
    store: str | None = None,
    **options: str,
) -> DataFrame:
    """Return what differs between two snapshots in the state of a query or a service.

    The snapshots may lie in any order, and on different timelines of the pipeline.

    Args:
        spark: the session.
        pipeline: the pipeline.
        first: an id or a savepoint's name.
        second: another one.
        participant: a query; or a service, whose fields are compared.
        operator: as for ``query_state``; so are `store` and `options`.
        store: see `operator`.
        options: see `operator`.

    Returns:
        a row per key that differs, with `change` (``added``, ``removed`` or ``changed``), `key`,
        `before` and `after`. The key of a service is the name of a field, and its values are JSON.
        Where a key holds several values, as in a join, each value that was added or removed is a
        row.

    Raises:
        UsageError: there is no such snapshot or participant; or the query has no state in either.
    """
    manifests = [pipeline.find(first), pipeline.find(second)]
    if participant in manifests[0].dataflow.services:
        earlier, later = (_fields(spark, manifest, participant) for manifest in manifests)
        return differences(earlier, later, ["key"]).orderBy("key")
    found = [
        None
        if _batch(manifest, participant) is None
        else query_state(
            spark, pipeline, name, participant, operator=operator, store=store, **options
        )
        for manifest, name in zip(manifests, (first, second), strict=True)
    ]
    there = next((frame for frame in found if frame is not None), None)
    if there is None:
        raise UsageError(
            f"query {participant} had committed no micro-batch at either snapshot: there is no "
            "state to compare"
        )
    before, after = (there.limit(0) if frame is None else frame for frame in found)
    keys = [name for name in _KEY_COLUMNS if name in there.columns]
    return differences(before.drop(_PARTITION), after.drop(_PARTITION), keys)


def differences(before: DataFrame, after: DataFrame, keys: list[str]) -> DataFrame:
    """Return the rows that came, went or changed between two tables with the same columns.

    `keys` are the columns that identify a row. The result has `change`, the keys, and the other
    columns in `before` and `after`, as a struct if there are several; null where there was or is no
    row.
    """
    values = [name for name in before.columns if name not in keys]
    went = _numbered(before.exceptAll(after), keys, values, "before")
    came = _numbered(after.exceptAll(before), keys, values, "after")
    same = [F.col(f"{name}_before").eqNullSafe(F.col(f"{name}_after")) for name in (*keys, _NUMBER)]
    was, is_there = F.col(f"{_NUMBER}_before").isNotNull(), F.col(f"{_NUMBER}_after").isNotNull()
    change = F.when(was & is_there, "changed").when(was, "removed").otherwise("added")
    return went.join(came, same, "full_outer").select(
        change.alias("change"),
        *(F.when(was, F.col(f"{k}_before")).otherwise(F.col(f"{k}_after")).alias(k) for k in keys),
        "before",
        "after",
    )


def _numbered(rows: DataFrame, keys: list[str], values: list[str], side: str) -> DataFrame:
    """Assign numbers to the rows of each key: several of one key are compared in order."""
    value = F.col(values[0]) if len(values) == 1 else F.struct(*values)
    order = Window.partitionBy(*keys).orderBy(*values)
    return rows.select(
        *(F.col(name).alias(f"{name}_{side}") for name in keys),
        F.row_number().over(order).alias(f"{_NUMBER}_{side}"),
        value.alias(side),
    )


def _fields(spark: SparkSession, manifest: Manifest, service: str) -> DataFrame:
    """Return the fields of a service as rows, with their values as JSON."""
    state = manifest.fragment(service).service
    assert state is not None
    fields = state.fields()
    rows = [*zip(fields, as_json(list(fields.values())).to_pylist(), strict=True)]
    return spark.createDataFrame(rows, "key STRING, value STRING")


def _batch(manifest: Manifest, query: str) -> int | None:
    """Return the last micro-batch of a query at the cut; None if it had none."""
    manifest.dataflow.check_participant(query, "query")
    state = manifest.fragment(query).query
    return None if state is None else state.batch
