"""A real cluster: Spark's own processes on this machine, and executors that know nothing of us."""

import contextlib
import json
import os
import re
import signal
import site
import subprocess
import sys
import tempfile
import threading
import venv
from collections.abc import Iterator, Sequence
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
EXECUTOR, MACHINE_OF_SPARK = "CoarseGrainedExecutorBackend", "deploy.worker.Worker"

MACHINE = """
set -e
programs=$1 temporary=$2
shift 2
mount --bind "$programs" /mnt
mount -t tmpfs private "$temporary"
mkdir -p "$programs"
mount --bind /mnt "$programs"
mount -o remount,bind,ro "$programs"
exec "$@"
"""
"""Runs a program in a mount namespace where everything that it may write is its own."""


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
    *arguments: str, variables: dict[str, str], says: str, machine: Sequence[str] = ()
) -> Iterator["re.Match[str]"]:
    """Run one of Spark's own classes until the body ends, by the words of a `machine`; wait until
    it says something."""
    program = subprocess.Popen(
        [*machine, SPARK_HOME / "bin" / "spark-class", *arguments],
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
def standalone(place: Path, server: S3Server, *, is_apart: bool = False) -> Iterator[Cluster]:
    """Run a cluster of one coordinator of Spark's and two machines with a core each.

    Args:
        place: an empty directory for what they write.
        server: the object store that the executors find in their environment.
        is_apart: whether the machines share no directory that they can write.
    """
    python = bare_python(place)
    for module in ("msgspec", "stillframe"):
        assert not can_import(python, module), f"the executors would have {module} anyway"
    assert can_import(python, "pyarrow, pandas, numpy")
    variables = environment(named_python(place / "of executors", python), server)
    deploy = "org.apache.spark.deploy"
    quiet = ("--port", "0", "--webui-port", "0")
    machine = (
        ("unshare", "--mount", "sh", "-c", MACHINE, "machine", str(place), tempfile.gettempdir())
        if is_apart
        else ()
    )
    work = Path(tempfile.gettempdir()) if is_apart else place
    with contextlib.ExitStack() as stack:
        head = stack.enter_context(
            part_of_spark(
                f"{deploy}.master.Master",
                *("--host", "127.0.0.1", *quiet),
                variables=variables,
                says=r"Starting Spark master at (spark://\S+)",
            )
        )
        for number in range(2):
            # Spark's machines of one address read each other's files.
            host = f"127.0.0.{2 + number}" if is_apart else "127.0.0.1"
            stack.enter_context(
                part_of_spark(
                    f"{deploy}.worker.Worker",
                    *("--host", host, *quiet, "--cores", "1", "--memory", "1g"),
                    *("--work-dir", str(work / f"machine-{number}"), head[1]),
                    variables=variables | {"SPARK_LOCAL_IP": host},
                    machine=machine,
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


def running(*words: str) -> list[int]:
    """Return the operating-system processes whose command has all these words in it."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_text(errors="replace")
        except OSError:
            continue
        if all(word in command for word in words):
            found.append(int(path.name))
    return found


def executors_of(machine: int) -> set[int]:
    """Return the executors that a machine of Spark's, which is a process here, has started."""
    lists = Path(f"/proc/{machine}/task").glob("*/children")
    children = {int(child) for found in lists for child in found.read_text().split()}
    return children & {*running(EXECUTOR)}


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
