"""A question in SQL over all snapshots of a store at once."""

from collections.abc import Collection, Iterable, Iterator, Sequence

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.types import BooleanType, StringType

from stillframe.errors import UsageError
from stillframe.model import SnapshotId
from stillframe.spark import history, timeline, verified
from stillframe.spark.asking import DAMAGED, DROPPED, WAS_DROPPED, Answer
from stillframe.spark.audit import shortened
from stillframe.spark.manifests import Published
from stillframe.store.manifest import CHANNELS, FILES, MESSAGES, PROCESSES, Manifest
from stillframe.topology import Description

VIEWS = ("snapshots", "processes", "channels", "messages")
EXAMPLE = "select snapshot, sum(balance) < 100 from processes group by snapshot"

_WANTED = (
    f"Ask over the views {', '.join(VIEWS[:-1])} and {VIEWS[-1]}, which have the rows of all "
    "snapshots together, for one row for each snapshot: its id, and true or false; for example "
    f"{EXAMPLE!r}"
)


def ask_all(spark: SparkSession, published: Published, sql: str) -> dict[str, Answer]:
    """Return what a question in SQL says of each snapshot, but those of which a byte has changed.

    Args:
        spark: the session; its own views stay as they are.
        published: what the store holds.
        sql: gives rows with two columns, the id of a snapshot and true or false.

    Raises:
        UsageError: it cannot be asked, or does not give exactly that for each snapshot.
        Damaged, StoreError: the store cannot be read, or changed meanwhile.
    """
    files = [published.file(each, name) for name in FILES for each in published.manifests]
    damages = verified.damages(spark, files)
    answers = {
        name: Answer(None, text, DAMAGED)
        if published.directory(SnapshotId.parse(name)).is_dir()
        else Answer(None, WAS_DROPPED, DROPPED)
        for name, text in damages.items()
    }
    whole = [each for each in published.manifests.values() if str(each.snapshot) not in damages]
    session = spark.newSession()
    try:
        for topology, description in published.topologies.described.items():
            ours = [each for each in whole if each.topology == topology]
            if ours:
                _make_views(session, published, description, ours)
                answers |= _ask(session, sql, [str(each.snapshot) for each in ours])
    finally:
        # Whoever made a DataFrame last has the active session.
        spark.createDataFrame([], "snapshot STRING")
    return answers


def _make_views(
    session: SparkSession,
    published: Published,
    description: Description,
    manifests: Sequence[Manifest],
) -> None:
    """Give the tables of the snapshots of one topology their names in a session."""

    def rows(name: str, schema: str) -> DataFrame:
        files = [published.file(each.snapshot, name) for each in manifests]
        return verified.rows(session, files, schema)

    ids = F.broadcast(_ids(session, manifests))
    tables = (
        timeline.snapshots(session, published).join(ids, "snapshot", "left_semi"),
        rows(PROCESSES, history.PROCESSES_SCHEMA + history.field_schema(description.states)),
        rows(CHANNELS, history.CHANNELS_SCHEMA),
        rows(MESSAGES, history.MESSAGES_SCHEMA + history.field_schema(description.messages)),
    )
    for name, table in zip(VIEWS, tables, strict=True):
        table.createOrReplaceTempView(name)


def _ids(session: SparkSession, manifests: Sequence[Manifest]) -> DataFrame:
    return session.createDataFrame([(str(each.snapshot),) for each in manifests], "snapshot STRING")


def _ask(session: SparkSession, sql: str, names: Sequence[str]) -> dict[str, Answer]:
    try:
        asked = session.sql(sql)
        fields = asked.schema.fields
        if [type(field.dataType) for field in fields] != [StringType, BooleanType]:
            columns = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in fields)
            raise UsageError(f"the question {sql!r} gives the columns {columns}. {_WANTED}")
        rows = asked.limit(len(names) + 1).collect()
    except PySparkException as error:
        found = verified.raised(error)
        if found is not None:
            raise found from error
        raise UsageError(
            f"the question {sql!r} cannot be asked: {shortened(error)}. {_WANTED}. Fields that are "
            "Keyed have no view here: 'stillframe detect' has a table for each"
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
