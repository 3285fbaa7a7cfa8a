"""A real cluster: Spark's own processes on this machine, and executors that know nothing of us."""

import contextlib
import json
import os
import re
import signal
import site
import subprocess
import sys
import threading
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyspark
from pyspark.sql import SparkSession

from stillframe.spark.session import find_java
from tests import nightly, s3_servers
from tests.s3_servers import S3Server
from tests.sparks import POLLING, PYTHON_OF_WORKERS

ROOT = Path(__file__).parent.parent.parent
SPARK_HOME = Path(pyspark.__file__).parent
NEEDED = ("numpy", "pandas", "pyarrow", "dateutil", "pytz", "tzdata", "six", "obstore")
"""What Spark asks of the Python of an executor that works with Arrow, what an object store needs,
and nothing else."""

DRIVER_TIMEOUT_S = 900


class Cluster(NamedTuple):
    """Where a cluster is, and which Python its executors have."""

    address: str
    prefix: str


def bare_python(directory: Path) -> Path:
    """Make an interpreter that has what Spark needs and neither us nor what we need."""
    venv.create(directory / "bare", with_pip=False)
    linked = directory / "linked"
    linked.mkdir()
    for packages in map(Path, site.getsitepackages()):
        for found in packages.iterdir():
            if re.split(r"[.-]", found.name)[0] in NEEDED and found.suffix != ".dist-info":
                (linked / found.name).symlink_to(found)
    packages = next((directory / "bare").glob("lib/python*/site-packages"))
    (packages / "linked.pth").write_text(f"{linked}\n")
    return directory / "bare" / "bin" / "python"


def can_import(python: Path, module: str) -> bool:
    """Return whether an interpreter has a module."""
    tried = subprocess.run(
        [python, "-c", f"import {module}"], cwd="/", env={}, capture_output=True, check=False
    )
    return tried.returncode == 0


def named_python(directory: Path, python: Path) -> Path:
    """Make a directory for the PATH in which ``python-of-spark`` is an interpreter."""
    directory.mkdir()
    program = directory / "python-of-spark"
    program.write_text(f'#!/bin/sh\nexec "{python}" "$@"\n')
    program.chmod(0o755)
    return directory


def environment(path: Path, server: S3Server) -> dict[str, str]:
    """Return the variables for a program of Spark's in which `path` is on the PATH, and which
    finds an object store."""
    names = ("HOME", "LANG", "TMPDIR", nightly.SEED_VARIABLE)
    kept = {name: os.environ[name] for name in names if name in os.environ}
    # For every Java, executors as well. All other settings are Spark's own.
    options = os.environ.get("SPARK_SUBMIT_OPTS", "").split()
    return {
        **kept,
        **s3_servers.environment(server),
        "JAVA_HOME": str(find_java()),
        "JDK_JAVA_OPTIONS": " ".join(
            [*(option for option in options if option.startswith("-X")), POLLING]
        ),
        "PATH": f"{path}:/usr/bin:/bin",
        "PYSPARK_PYTHON": "python-of-spark",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@contextlib.contextmanager
def part_of_spark(
    *arguments: str, variables: dict[str, str], says: str
) -> Iterator["re.Match[str]"]:
    """Run one of Spark's own classes until the body ends; wait until it says something."""
    program = subprocess.Popen(
        [SPARK_HOME / "bin" / "spark-class", *arguments],
        env=variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert program.stderr is not None
        heard = []
        for line in program.stderr:
            heard.append(line)
            if match := re.search(says, line):
                break
        else:
            raise AssertionError(f"{arguments[0]} ended: {''.join(heard)}")
        # Nobody reads on: it must not stand still when the pipe is full.
        drain = subprocess.Popen(["cat"], stdin=program.stderr, stdout=subprocess.DEVNULL)
        try:
            yield match
        finally:
            os.killpg(program.pid, signal.SIGKILL)
            program.wait()
            drain.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()
        assert program.stderr is not None
        program.stderr.close()


@contextlib.contextmanager
def standalone(place: Path, server: S3Server) -> Iterator[Cluster]:
    """Run a cluster of one coordinator of Spark's and two machines with a core each.

    Args:
        place: an empty directory for what they write.
        server: the object store that the executors find in their environment.
    """
    python = bare_python(place)
    for module in ("msgspec", "stillframe"):
        assert not can_import(python, module), f"the executors would have {module} anyway"
    assert can_import(python, "pyarrow, pandas, numpy")
    variables = environment(named_python(place / "of executors", python), server)
    deploy = "org.apache.spark.deploy"
    quiet = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with contextlib.ExitStack() as stack:
        head = stack.enter_context(
            part_of_spark(
                f"{deploy}.master.Master",
                *quiet,
                variables=variables,
                says=r"Starting Spark master at (spark://\S+)",
            )
        )
        for number in range(2):
            machine = str(place / f"machine-{number}")
            stack.enter_context(
                part_of_spark(
                    f"{deploy}.worker.Worker",
                    *quiet,
                    *("--cores", "1", "--memory", "1g", "--work-dir", machine, head[1]),
                    variables=variables,
                    says="Successfully registered with master",
                )
            )
        yield Cluster(head[1], str(place / "bare"))


def cluster_session(cluster: str) -> SparkSession:
    """Return a session of a driver on this machine, with executors of one core."""
    builder = SparkSession.builder.master(cluster).appName("cluster test")
    for setting, value in {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.cores": "1",
        "spark.executor.memory": "768m",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }.items():
        builder = builder.config(setting, value)
    return builder.getOrCreate()


class Driver:
    """The driver on a cluster, a program of its own, which runs one module after the other.

    Args:
        process: runs ``cluster_driver``.
        log: what that says.
    """

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self._process = process
        self._log = log

    def run(self, module: str, *arguments: object, place: Path) -> None:
        """Run a module of `tests` as the main program, in a directory.

        Raises:
            AssertionError: it failed; the message has the traceback.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = [str(place), module, *map(str, arguments)]
        hangs = threading.Timer(DRIVER_TIMEOUT_S, self._process.kill)
        hangs.start()
        try:
            self._process.stdin.write(f"{json.dumps(asked)}\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        finally:
            hangs.cancel()
        assert answer, f"the driver ended: {self._log.read_text()[-6000:]}"
        failure = json.loads(answer)
        assert failure is None, failure


@contextlib.contextmanager
def driver_in(place: Path, server: S3Server) -> Iterator[Driver]:
    """Run a driver until the body ends.

    Args:
        place: an empty directory for what it says.
        server: the object store that it finds in its environment.
    """
    variables = environment(named_python(place / "of the driver", PYTHON_OF_WORKERS), server)
    log = place / "driver.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.cluster_driver"],
            cwd=ROOT,
            env={
                **variables,
                "PYSPARK_DRIVER_PYTHON": sys.executable,
                "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        yield Driver(process, log)
    finally:
        process.communicate(timeout=DRIVER_TIMEOUT_S)
    assert process.returncode == 0, log.read_text()[-6000:]
