"""A question in SQL over all snapshots of a store at once."""

from collections.abc import Collection, Iterable, Iterator, Sequence

from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.types import BooleanType, StringType

from stillframe.analytics import snapshot_stats, verified_parquet
from stillframe.analytics.full_snapshots import TABLES, FullSnapshots
from stillframe.analytics.manifests import Published
from stillframe.analytics.predicate_eval import DAMAGED, DROPPED, WAS_DROPPED, Answer
from stillframe.errors import Damaged, UsageError
from stillframe.model import SnapshotId
from stillframe.store.chain import gather
from stillframe.store.manifest import FILES

SNAPSHOTS = "snapshots"
"""The view with a row for each snapshot; the others are the tables of ``FullSnapshots``."""
EXAMPLE = "select snapshot, sum(balance) < 100 from processes group by snapshot"

_WANTED = (
    f"Ask over the views {SNAPSHOTS}, {', '.join(TABLES)} and one for each keyed field, which have "
    "the rows of all snapshots together, for one row for each snapshot: its id, and true or false; "
    f"for example {EXAMPLE!r}"
)


def evaluate_sql(spark: SparkSession, published: Published, sql: str) -> dict[str, Answer]:
    """Return what a question in SQL says of each snapshot, but those of which a byte has changed.

    Args:
        spark: the session; its own views stay as they are.
        published: what the store holds.
        sql: gives rows with two columns, the id of a snapshot and true or false.

    Raises:
        UsageError: it cannot be asked, or does not give exactly that for each snapshot.
        Damaged, StoreError: the store cannot be read, or changed meanwhile.
    """
    damages = _damages(spark, published)
    answers = {
        str(snapshot): Answer(None, text, DAMAGED)
        if published.directory(snapshot).is_dir()
        else Answer(None, WAS_DROPPED, DROPPED)
        for snapshot, text in damages.items()
    }
    whole = [snapshot for snapshot in published.manifests if snapshot not in damages]
    if not whole:
        return answers
    session = spark.newSession()
    try:
        _make_views(session, published, whole)
        return answers | _ask(session, sql, [str(snapshot) for snapshot in whole])
    finally:
        # Whoever made a DataFrame last has the active session.
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
        chain = {snapshot, *gather(snapshot, published.manifests.get)}
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
    """Give the tables of snapshots their names in a session."""
    names = session.createDataFrame([(str(snapshot),) for snapshot in snapshots], "snapshot STRING")
    known = snapshot_stats.snapshots(session, published).join(
        F.broadcast(names), "snapshot", "left_semi"
    )
    known.createOrReplaceTempView(SNAPSHOTS)
    whole = FullSnapshots(session, published, snapshots)
    for name in (*TABLES, *whole.keyed_names):
        whole.table(name).createOrReplaceTempView(name)


def _ask(session: SparkSession, sql: str, names: Sequence[str]) -> dict[str, Answer]:
    try:
        asked = session.sql(sql)
        fields = asked.schema.fields
        if [type(field.dataType) for field in fields] != [StringType, BooleanType]:
            columns = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in fields)
            raise UsageError(f"the question {sql!r} gives the columns {columns}. {_WANTED}")
        rows = asked.limit(len(names) + 1).collect()
    except PySparkException as error:
        found = verified_parquet.error_of_task(error)
        if found is not None:
            raise found from error
        raise UsageError(
            f"the question {sql!r} cannot be asked: {verified_parquet.first_line(error)}. {_WANTED}"
        ) from error
    answers = dict(_checked(rows, set(names), sql))
    missing = [name for name in names if name not in answers]
    if missing:
        raise UsageError(
            f"the question {sql!r} gives no row for snapshot {missing[0]}: of a snapshot without "
            "rows in a table nothing is left to group, so begin with 'from snapshots left join'. "
            f"{_WANTED}"
        )
    return answers


def _checked(rows: Iterable[Row], names: Collection[str], sql: str) -> Iterator[tuple[str, Answer]]:
    """Yield the answers, one for each of the snapshots `names` at most."""
    answered: set[str] = set()
    for name, holds in rows:
        if name not in names:
            raise UsageError(
                f"the question {sql!r} gives {name!r}, which is no snapshot. {_WANTED}"
            )
        if holds is None or name in answered:
            what = "NULL" if holds is None else "two rows"
            raise UsageError(f"the question {sql!r} gives {what} for snapshot {name}. {_WANTED}")
        answered.add(name)
        yield name, Answer(holds, f"{sql} is {str(holds).lower()}")
