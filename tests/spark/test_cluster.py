"""A real cluster: Spark's own processes on this machine, and executors that know nothing of us.

By day, ``test_cluster_page`` compacts a store on it; the other functions for whole stores run there
at night.
"""

import json
from pathlib import Path

import pytest

from tests.nightly import by_night
from tests.spark.standalone import Cluster, Driver

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.xdist_group("cluster")]
LARGE_COUNT = by_night(1000, check=100)
"""How many verdicts there are at least."""


@pytest.mark.nightly(part="pipelines")
def test_a_pipeline_on_a_cluster_goes_back_and_comes_to_the_same_end(
    cluster: Cluster, driver: Driver, tmp_path: Path
) -> None:
    """Executors without our package run aggregation and join; a restore ends as computed."""
    report = tmp_path / "report.json"
    program = "tests.spark.cluster_program"
    driver.run(program, tmp_path / "shop", cluster.address, report, place=tmp_path)
    said = json.loads(report.read_text())
    assert {row["prefix"] for row in said["executors"]} == {cluster.prefix}
    assert not any(row["has_msgspec"] for row in said["executors"])
    assert all("stillframe.zip" in row["package"] for row in said["executors"])
    assert len({row["place"] for row in said["executors"]}) == 2, "one executor did all"
    assert len(said["wrong"]) == by_night(3, check=2)
    assert not any(said["wrong"].values()), said["wrong"]


@pytest.mark.nightly(part="verdicts")
def test_verdicts_on_a_cluster_are_the_same_also_if_an_executor_is_killed(
    cluster: Cluster, driver: Driver, tmp_path: Path
) -> None:
    """A killed executor costs its tasks, which run again; no row of the answers changes."""
    report = tmp_path / "report.json"
    driver.run("tests.spark.verify_program", tmp_path, cluster.address, report, place=tmp_path)
    said = json.loads(report.read_text())
    assert said["failed_task_count"] > 0, "the executor was killed when it did nothing"
    assert len(said["alone"]) > LARGE_COUNT
    assert {row[2] for row in said["alone"]} == {"consistent", "inconsistent"}
    assert said["on the cluster"] == said["alone"]
    assert said["with one killed"] == said["alone"]


@pytest.mark.nightly(part="verdicts", only=True)
def test_the_history_of_a_store_is_read_and_compacted_on_a_cluster(
    cluster: Cluster, driver: Driver, tmp_path: Path, moto_bucket: str
) -> None:
    """Executors without our package verify files, merge chains, write tables, put fragments
    together, and read observations from an object store."""
    report, program = tmp_path / "report.json", "tests.spark.history_program"
    driver.run(program, tmp_path, cluster.address, report, moto_bucket, place=tmp_path)
    said = json.loads(report.read_text())
    assert said["found"] == said["expected"]
