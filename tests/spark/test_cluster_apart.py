"""A pipeline in an object store, on a cluster whose machines share no directory.

An executor and then a whole machine are killed, and then everything: the outputs after a restore
are as computed from the input.
"""

import os
import signal
from pathlib import Path

import pytest

from stillframe.storage.location import locate
from tests.s3_servers import S3Server
from tests.soak.pipeline import Soak
from tests.soak.pipeline_outputs import differences
from tests.soak.pipeline_shop import FRESH_COUNT, expected
from tests.spark.outside import s3a_variables
from tests.spark.standalone import (
    MACHINE_OF_SPARK,
    environment,
    executors_of,
    named_python,
    running,
    standalone,
)
from tests.sparks import PYTHON_OF_WORKERS


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.nightly(part="storage", only=True)
def test_a_pipeline_survives_executors_machines_and_the_death_of_everything(
    versitygw_server: S3Server,
    versitygw_bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its queries go on without an executor and without a machine, and snapshots are published."""
    (tmp_path / "cluster").mkdir()
    python = named_python(tmp_path / "of the driver", PYTHON_OF_WORKERS)
    variables = environment(python, versitygw_server) | s3a_variables("spark.executor.memory=768m")
    with standalone(tmp_path / "cluster", versitygw_server, is_apart=True) as cluster:
        for name, value in variables.items():
            if name != "PATH":
                monkeypatch.setenv(name, value)
        monkeypatch.setenv("PATH", f"{python}:{os.environ['PATH']}")
        run = Soak(1, tmp_path, locate(versitygw_bucket), cluster.address)
        try:
            run.start_missing()
            run.snapshot()
            machine, other = running(MACHINE_OF_SPARK, cluster.address)
            [executor] = executors_of(other)
            os.kill(executor, signal.SIGKILL)
            run.snapshot()
            for victim in (machine, *executors_of(machine)):
                os.kill(victim, signal.SIGKILL)
            run.snapshot()
            for name in list(run.running):
                run.kill(name)
            run.restore()
            found = run.finish(None)
        finally:
            run.close()
    action_count = run.done["orders"] // FRESH_COUNT
    assert differences(found, expected(action_count)) == []
