"""Two streaming queries that feed each other, and a copy of them beside the original."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from stillframe.errors import UsageError
from stillframe.pipeline import Pipeline, channel
from stillframe.pipeline.log import LogReader
from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.service import join
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.spark.queries import read_channels, start_query
from tests.nightly import by_night

pytestmark = [pytest.mark.slow, pytest.mark.spark]
BALL = pa.schema([("ball", pa.int64()), ("hops", pa.int64())])
HOPS = by_night(8, check=4)


@dataclass
class Players:
    """The service that throws the balls in."""

    thrown_count: int = 0


def make(root: Path) -> Pipeline:
    """Make a pipeline in which a ball goes round until it has no hops left."""
    return Pipeline.create(
        root,
        queries=["ping", "pong"],
        services={"players": Players},
        channels=[
            channel("in", BALL, source="players", targets=["ping"]),
            channel("forth", BALL, source="ping", targets=["pong"]),
            channel("back", BALL, source="pong", targets=["ping"]),
        ],
    )


def one_hop(frame: DataFrame) -> DataFrame:
    """Take one hop from every ball that has any."""
    return frame.where("hops > 0").selectExpr("ball", "hops - 1 AS hops")


def start(spark: SparkSession, pipeline: Pipeline) -> list[StreamingQuery]:
    """Start both."""
    balls = read_channels(spark, pipeline, "ping", "in", "back")
    return [
        start_query(one_hop(balls), pipeline, "ping"),
        start_query(one_hop(read_channels(spark, pipeline, "pong", "forth")), pipeline, "pong"),
    ]


def hops_seen(pipeline: Pipeline, log: str, *, is_copy: bool) -> Counter[tuple[int, int]]:
    """Return what was appended to a log: (ball, hops) -> how often. Of a copy, what it appended
    itself: it has of the items before only those that could still be asked for."""
    head = read_metadata(pipeline.path)
    reader = LogReader(pipeline.path, head.dataflow.log(log), head.segments[log])
    first = head.segments[log][-1].first if is_copy else 0
    seen: Counter[tuple[int, int]] = Counter()
    for item in reader.entries(first, reader.tail(first)):
        seen.update((row["ball"], row["hops"]) for row in reader.table(item).to_pylist())
    return seen


def sent_before(pipeline: Pipeline, manifest: Manifest, log: str) -> Counter[tuple[int, int]]:
    """Return what was appended to a log before the barrier of a snapshot."""
    reader = LogReader(pipeline.path, manifest.dataflow.log(log), manifest.segments[log])
    (barrier,) = [part.barriers[log] for part in manifest.fragments if log in part.barriers]
    seen: Counter[tuple[int, int]] = Counter()
    for item in reader.entries(0, barrier):
        seen.update((row["ball"], row["hops"]) for row in reader.table(item).to_pylist())
    return seen


def throw(pipeline: Pipeline, upto: int) -> None:
    """Throw in balls that were not thrown yet."""
    players = Players()
    with join("players", pipeline=pipeline.path, state=players) as me:
        while players.thrown_count < upto:
            ball = players.thrown_count
            me.append("in", pa.table({"ball": [ball], "hops": [HOPS]}, schema=BALL))
            players.thrown_count += 1
            me.boundary()


def run_to_the_end(queries: list[StreamingQuery]) -> None:
    """Wait until no ball moves, and stop."""
    for _ in range(HOPS):
        for query in queries:
            query.processAllAvailable()
    for query in queries:
        query.stop()


@pytest.mark.nightly(part="pipelines")
def test_queries_on_a_cycle_come_back_exactly(spark: SparkSession, tmp_path: Path) -> None:
    """In mode unaligned: with balls under way on the cycle, a restore and a fork both go on so that
    each ball makes each of its hops once; the modes that would wait for ever are refused."""
    pipeline = make(tmp_path / "cycle")
    queries = start(spark, pipeline)
    throw(pipeline, 20)
    with pytest.raises(UsageError, match="would wait for each other"):
        pipeline.snapshot("aligned")
    taken = [pipeline.snapshot("unaligned") for _ in range(2)]
    throw(pipeline, 30)
    manifests = [outcome for outcome in taken if isinstance(outcome, Manifest)]
    assert len(manifests) == 2
    copy = pipeline.fork(str(manifests[0].snapshot), tmp_path / "copy")
    run_to_the_end(queries)
    expected = {
        "forth": Counter({(b, h): 1 for b in range(30) for h in range(HOPS - 1, -1, -2)}),
        "back": Counter({(b, h): 1 for b in range(30) for h in range(HOPS - 2, -1, -2)}),
    }
    for log, counts in expected.items():
        assert hops_seen(pipeline, log, is_copy=False) == counts
    pipeline.restore(str(manifests[1].snapshot))
    for system in (pipeline, copy):
        queries = start(spark, system)
        throw(system, 30)
        run_to_the_end(queries)
    for log, counts in expected.items():
        assert hops_seen(pipeline, log, is_copy=False) == counts
        assert hops_seen(copy, log, is_copy=True) == counts - sent_before(
            pipeline, manifests[0], log
        )
