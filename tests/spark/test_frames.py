"""A query starts only with a DataFrame that can take part in snapshots; the error says what is
missing. Nothing is started here: what is refused leaves nothing, and what is right is only read."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from stillframe.errors import UsageError
from stillframe.pipeline import Pipeline, channel
from stillframe.pipeline.locks import is_running
from stillframe.pipeline.metadata import checkpoint_path, read_metadata
from stillframe.spark.queries import check_sources, read_channels, start_query, with_barriers

VALUE = pa.schema([("v", pa.int64())])


@dataclasses.dataclass
class Source:
    """The service that writes; it remembers nothing."""

    sent: int = 0


def make_pipeline(path: Path) -> Pipeline:
    """Make a pipeline of two queries that read channels, and one that reads none."""
    return Pipeline.create(
        path,
        queries=["both", "left-only", "rates"],
        services={"source": Source},
        channels=[
            channel("left", VALUE, source="source", targets=["both", "left-only"]),
            channel("right", VALUE, source="source", targets=["both"]),
            channel("merged", VALUE, source="both"),
            channel("copied", VALUE, source="left-only"),
            channel("measured", VALUE, source="rates"),
        ],
    )


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    """The pipeline, whose path holds what plans of Spark are full of."""
    parent = tmp_path / "a [b], c=d"
    parent.mkdir()
    return make_pipeline(parent / "x.pipeline")


def rates(spark: SparkSession) -> DataFrame:
    """Return a stream of another source."""
    return spark.readStream.format("rate").load().selectExpr("value as v")


def refused(frame: DataFrame, pipeline: Pipeline, query: str) -> str:
    """Return why a query is not started, after which nothing of it is there."""
    with pytest.raises(UsageError) as raised:
        start_query(frame, pipeline, query)
    assert not checkpoint_path(pipeline.path, 1, query).exists()
    assert not is_running(pipeline.path, query)
    return str(raised.value)


def check(frame: DataFrame, pipeline: Pipeline, query: str) -> None:
    """Check a DataFrame as the start of a query does."""
    check_sources(frame, pipeline.path, read_metadata(pipeline.path), query)


@pytest.mark.spark
def test_without_a_source_of_ours_no_query_starts(spark: SparkSession, pipeline: Pipeline) -> None:
    """Every snapshot would wait for it in vain. What to do depends on the declared channels."""
    found = refused(rates(spark), pipeline, "rates")
    assert "query rates of" in found
    assert "with_barriers(frame, pipeline, 'rates')" in found
    found = refused(rates(spark), pipeline, "both")
    assert "query both of" in found
    assert "read_channels(spark, pipeline, 'both', 'left', 'right')" in found


@pytest.mark.spark
def test_a_source_of_another_query_is_refused(
    spark: SparkSession, pipeline: Pipeline, tmp_path: Path
) -> None:
    """Of the same pipeline, of another one, and beside what is right."""
    frame = read_channels(spark, pipeline, "left-only", "left")
    assert f"as query left-only of {pipeline.path}" in refused(frame, pipeline, "both")
    other = make_pipeline(tmp_path / "other.pipeline")
    frame = read_channels(spark, other, "both", "left", "right")
    assert f"as query both of {other.path}" in refused(frame, pipeline, "both")
    frame = frame.union(read_channels(spark, pipeline, "both", "left", "right"))
    assert f"as query both of {other.path}" in refused(frame, pipeline, "both")


@pytest.mark.spark
def test_a_declared_channel_that_is_not_read_is_named(
    spark: SparkSession, pipeline: Pipeline
) -> None:
    """Its barriers would never be seen, and nothing of it be read."""
    frame = read_channels(spark, pipeline, "both", "left")
    found = refused(frame, pipeline, "both")
    assert "query both of" in found
    assert "is declared to read right, but its DataFrame does not" in found


@pytest.mark.spark
def test_whatever_reads_all_channels_is_taken(spark: SparkSession, pipeline: Pipeline) -> None:
    """One source or several, joined, united, counted, through a view, by format alone; a branch
    that gives nothing; two columns of one name."""
    left = read_channels(spark, pipeline, "both", "left", rows_max=10)
    right = read_channels(spark, pipeline, "both", "right")
    options = {"PIPELINE": str(pipeline.path), "Query": "both", "channels": " left, right"}
    by_format = spark.readStream.format("Stillframe").options(**options).load()
    left.createOrReplaceTempView("of_the_left")
    try:
        for frame in (
            read_channels(spark, pipeline, "both", "left", "right"),
            left.union(right),
            left.join(right, "v"),
            left.crossJoin(right),
            left.where("false").union(right).groupBy("v").count(),
            spark.table("of_the_left").union(right),
            spark.sql("select v, count(*) from of_the_left group by v").union(right.join(right)),
            by_format,
        ):
            check(frame, pipeline, "both")
    finally:
        spark.catalog.dropTempView("of_the_left")
    check(with_barriers(rates(spark), pipeline, "rates").distinct(), pipeline, "rates")
    batch = spark.createDataFrame([(1,)], "v long")
    check(left.union(right).join(batch, "v", "left"), pipeline, "both")


@contextmanager
def setting(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Let a session have a setting in the body."""
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.unset(name)


@pytest.mark.spark
def test_what_spark_does_not_show_is_not_refused(
    spark: SparkSession, pipeline: Pipeline, tmp_path: Path
) -> None:
    """Plans that it cuts short, options that it hides or leaves out; what it shows counts."""
    frame = read_channels(spark, pipeline, "both", "left", "right")
    with setting(spark, "spark.sql.maxPlanStringLength", "200"):
        check(frame, pipeline, "both")
    with setting(spark, "spark.sql.debug.maxToStringFields", "1"):
        check(frame, pipeline, "both")
    hidden = make_pipeline(tmp_path / "password-and-token.pipeline")
    check(read_channels(spark, hidden, "both", "left", "right"), hidden, "both")
    found = refused(read_channels(spark, hidden, "left-only", "left"), hidden, "both")
    assert "as query left-only of" in found
    kafka = spark.readStream.format("rate").option("password", "x").load().selectExpr("value as v")
    assert "with_barriers" in refused(kafka, pipeline, "rates")


class Shown:
    """Stands for a DataFrame whose plan Spark shows as `line`."""

    def __init__(self, line: str, after: str = "== Optimized Logical Plan ==") -> None:
        self.sparkSession = self
        self._text = f"== Analyzed Logical Plan ==\n{line}\n{after}\n"

    def sql(self, *_: Any, **__: Any) -> "Shown":
        """Stand for what explains it."""
        return self

    def collect(self) -> list[list[str]]:
        """Return the plan."""
        return [[self._text]]


@pytest.mark.parametrize(
    "line",
    [
        "~StreamingRelationV2 stillframe, a.PythonTable@5b6f, [], [v#5L], Catalog(c), default.ours",
        "+- RelationOfAStream stillframe",
        "",
    ],
)
def test_a_table_of_ours_and_an_unknown_plan_are_not_refused(pipeline: Pipeline, line: str) -> None:
    """A table of a catalog shows no options; a later Spark may call a relation otherwise."""
    check(cast(DataFrame, Shown(line)), pipeline, "both")


def test_a_plan_is_not_judged_by_its_beginning(pipeline: Pipeline) -> None:
    """The same plan is refused when it is seen to its end."""
    line = "StreamingRelationV2 a.Rate@1, rate, a.RateTable@2, [], [v#5L]"
    check(cast(DataFrame, Shown(line, after="... 1000 more characters")), pipeline, "both")
    with pytest.raises(UsageError, match="reads none of left, right: "):
        check(cast(DataFrame, Shown(line)), pipeline, "both")
