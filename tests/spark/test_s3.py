"""Spark's own files in S3: checkpoints, and what a query writes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from stillframe.errors import Unavailable, UsageError
from stillframe.spark import s3_settings
from stillframe.spark.session import check_reachable, checkpoint_address
from stillframe.storage.location import locate
from stillframe.storage.opened import storage_of
from tests.analytics.bank import make_store
from tests.doc_pages import blocks
from tests.s3_servers import at_night
from tests.spark.outside import s3a_variables

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "spark-cluster.md"
PACKAGE = re.compile(r"([\w.]+):([\w.-]+):(\d[\w.]*)")
DEPENDENCY = re.compile(r'org="([\w.]+)" name="([\w.-]+)" rev="([\w.]+)" conf="s3a')


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("judged", str(Path("judged").absolute())),
        ("s3://bucket/judged", "s3a://bucket/judged"),
        ("s3a://bucket/judged", "s3a://bucket/judged"),
        ("hdfs://host:8020/judged", "hdfs://host:8020/judged"),
    ],
)
def test_spark_gets_the_same_place(given: str, expected: str) -> None:
    """In the scheme that Hadoop has for it."""
    assert checkpoint_address(locate(given)) == expected


def test_other_object_stores_hold_no_checkpoints() -> None:
    """The error says which can."""
    with pytest.raises(UsageError, match="give a local directory, s3:// or hdfs://"):
        checkpoint_address(locate("gs://bucket/judged"))


def test_settings_are_those_of_the_environment_without_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server of its own, the region, and no key."""
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    assert not [name for name in s3_settings() if "endpoint" in name or "path" in name]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "the-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-secret")
    found = s3_settings()
    assert found["spark.hadoop.fs.s3a.endpoint"] == "http://127.0.0.1:9"
    assert found["spark.hadoop.fs.s3a.path.style.access"] == "true"
    assert found["spark.hadoop.fs.s3a.endpoint.region"] == "eu-west-1"
    assert not [value for value in found.values() if "the-" in value]
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:10")
    monkeypatch.setenv("AWS_REGION", "eu-west-2")
    assert s3_settings()["spark.hadoop.fs.s3a.endpoint"] == "http://127.0.0.1:10"
    assert s3_settings()["spark.hadoop.fs.s3a.endpoint.region"] == "eu-west-2"


@pytest.mark.spark
def test_a_session_without_the_packages_is_refused(spark: SparkSession) -> None:
    """The error says where they are named; a local checkpoint needs none."""
    check_reachable(spark, "/judged")
    with pytest.raises(Unavailable, match="Checkpoints in S3") as refused:
        check_reachable(spark, "s3a://bucket/judged")
    assert "## Checkpoints in S3" in PAGE.read_text()
    assert "S3A for s3a://bucket/judged" in str(refused.value)


def test_the_packages_of_the_page_are_those_that_tests_use() -> None:
    """At the same versions."""
    named = set(PACKAGE.findall(PAGE.read_text()))
    tested = set(DEPENDENCY.findall((ROOT / "scripts" / "jars.xml").read_text()))
    assert named
    assert named <= tested


def test_the_program_of_the_page_sets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """All settings of the environment, in a builder."""
    monkeypatch.setenv("AWS_REGION", "eu-west-3")
    builder = SparkSession.Builder()
    monkeypatch.setattr(SparkSession, "builder", builder)
    _, program = blocks("python", PAGE.read_text())
    exec(program, {"SparkSession": SparkSession})
    assert s3_settings().items() <= builder._options.items()
    assert builder._options["spark.hadoop.fs.s3a.endpoint.region"] == "eu-west-3"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.nightly(part="storage", only=True)
def test_the_commands_of_the_page_work(versitygw_bucket: str, tmp_path: Path) -> None:
    """With the packages from Maven Central: the checkpoint is in the bucket."""
    make_store(tmp_path / "bank.store", snapshot_count=3)
    *_, commands = blocks("console", PAGE.read_text())
    script = commands.replace("$ ", "").replace("s3://bucket", versitygw_bucket).strip()
    said = subprocess.run(
        ["bash", "-ec", f"{script} --duration 1s"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.splitlines()[-1] == "PASS: 3 snapshots, 3 consistent"
    judged = locate(versitygw_bucket) / "judged"
    kept = {str(file.location) for file in storage_of(judged).files_below(judged)}
    assert f"{judged}/commits/0" in kept


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("bucket", ["moto_bucket", *at_night("versitygw_bucket", "hdfs")])
def test_a_query_continues_from_its_checkpoint_in_s3(
    bucket: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A second run repeats no verdict; ``s3://`` and ``s3a://`` lead Spark to the same files, and
    HDFS has them, too."""
    address = str(request.getfixturevalue(bucket))
    store = make_store(tmp_path / "store", snapshot_count=3)
    said = subprocess.run(
        [sys.executable, "-m", "tests.spark.s3_program", store, address],
        cwd=ROOT,
        env={**os.environ, **s3a_variables()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr[-3000:]
    report = json.loads(said.stdout)
    assert report["checkpoint"] == address.replace("s3:", "s3a:") + "/judged"
    assert json.loads(report["id"]).keys() == {"id"}
    once = [[f"P1-{number}", "consistent"] for number in (1, 2, 3)]
    assert report["verdicts"] == [once, once]
