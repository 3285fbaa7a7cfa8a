"""The Spark session that the tests share, and what makes Spark quick where tables have ten rows."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from stillframe.spark import session
from tests import nightly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYTHON_OF_WORKERS = Path(__file__).with_name("python-of-workers")

QUICK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings that save more than they cost with small tables: fewer tasks, and no Java
class generated and compiled for each query. They change no result. Programs that tests start have
them as well where they choose nothing else, except on a cluster and at night."""


POLLING = "-Dspark.sql.streaming.pollingDelay=100ms"
"""How often an idle query asks its source. Every 10 ms, which is Spark's default, six idle queries
keep two cores busy."""


CODE_CACHE = "-XX:ReservedCodeCacheSize=240m"
"""Room for compiled code. With the compiler that ``./check`` chooses, Java reserves 48 MB. The
session that the tests share fills that: Java then spends a tenth of its CPU time on throwing code
away and compiling it again. At night eight queries need 61 MB: when it is full, Java stops
compiling, and prints that in the output of the program."""


LOCAL_FILES = Path(__file__).parent.parent / ".spark-classes" / "local-files"
"""Where ``./check`` puts the classes of ``scripts/LocalFiles.java``."""

QUICK_FILES = (
    "-Dspark.hadoop.fs.file.impl=stillframe.LocalFiles$Checked",
    "-Dspark.hadoop.fs.AbstractFileSystem.file.impl=stillframe.LocalFiles$CheckedContext",
)
"""Hadoop's file system without a program started for each file of a checkpoint. Tests on a cluster
and those at night have Hadoop's own."""

_TEMPORARY = "-Djava.io.tmpdir="
_directories: list[str] = []


def configure() -> None:
    """Choose the Python of workers, the polling of queries, the file system and the directory for
    temporary files, also for programs that tests start."""
    options = [os.environ.get("SPARK_SUBMIT_OPTS", ""), POLLING, CODE_CACHE]
    if _TEMPORARY not in options[0]:  # the processes of pytest-xdist have that of their parent
        _directories.append(tempfile.mkdtemp(prefix="stillframe-java-"))
        options.append(_TEMPORARY + _directories[-1])
    if nightly.SEED is None:
        options += [f"-D{name}={value}" for name, value in QUICK.items()]
        if LOCAL_FILES.exists():
            os.environ["SPARK_DIST_CLASSPATH"] = str(LOCAL_FILES)
            options += QUICK_FILES
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join(options)
    os.environ["PYSPARK_PYTHON"] = str(PYTHON_OF_WORKERS)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable


def unconfigure() -> None:
    """Delete what Java has left: a driver that is killed, as some tests do, deletes nothing."""
    for directory in _directories:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """A quiet session on two cores. It takes seconds to start: commands that are called in this
    process find it active and use it."""
    with mock.patch.dict(session._SETTINGS, QUICK):
        shared = session.spark_session(app_name="tests", master="local[2]")
    yield shared
    shared.stop()


class NoQueryOutlivesItsTest:
    """Ends what a test left running on the session that all share."""

    @staticmethod
    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(item: pytest.Item) -> None:
        """End the queries of a test that failed: the next one starts some of the same names."""
        shared = getattr(item, "funcargs", {}).get("spark")
        if shared is not None:
            for query in shared.streams.active:
                query.stop()
