"""A pipeline of real programs, which share nothing but a bucket, or a directory in HDFS."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stillframe.pipeline import Pipeline
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.storage.location import locate
from tests.pipeline.money import STOP, TOTAL, diamond, money_in, money_now
from tests.s3_servers import at_night


@contextmanager
def programs(pipeline: Pipeline, stop: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run each service as a program. All have left when the body has ended, or been killed."""
    stop.mkdir()
    command = [sys.executable, "-m", "tests.pipeline.money", str(pipeline.path)]
    names = pipeline.dataflow.participants
    started = [subprocess.Popen([*command, name, str(stop)]) for name in names]
    try:
        yield started
        (stop / STOP).touch()
        assert {one.wait(60) for one in started} in ({0}, {-signal.SIGKILL})
    finally:
        for one in started:
            one.kill()
            one.wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    "bucket",
    [
        "moto_bucket",
        *at_night("versitygw_bucket", "hdfs"),
    ],
    indirect=True,
)
def test_a_pipeline_on_s3(bucket: str, tmp_path: Path) -> None:
    """Publish, crash, restore, fork and delete: at each cut all the money is there."""
    pipeline = diamond(locate(bucket) / "shop", "shop")
    with programs(pipeline, tmp_path / "first") as running:
        first = pipeline.savepoint("first", "unaligned", timeout_s=20)
        for one in running:
            one.kill()
    assert isinstance(first, Manifest)
    pipeline.restore("first")
    with programs(pipeline, tmp_path / "second"):
        second = pipeline.snapshot("aligned", timeout_s=20)
    assert isinstance(second, Manifest)
    assert [money_in(pipeline, one) for one in (first, second)] == [TOTAL, TOTAL]
    fork = pipeline.fork("first", locate(bucket) / "fork")
    local = pipeline.fork("shop-2", tmp_path / "local")
    assert pipeline.delete("first") == []
    assert [one.snapshot for one in pipeline.snapshots()] == [second.snapshot]
    pipeline.restore()
    assert [money_now(one) for one in (pipeline, fork, local)] == [TOTAL, TOTAL, TOTAL]
