"""HDFS for tests at night: Hadoop's MiniDFSCluster, with three DataNodes, in one program.

With fewer, a file often took half a second to close: the client waits that long if the only
DataNode has not reported the block yet. Each test gets a separate directory.
"""

import contextlib
import importlib.util
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.s3_servers import running

JARS = Path(__file__).parent.parent / ".servers" / "hdfs"
"""Where ``./check nightly`` puts it."""
START_S = 120
OF_SPARK = ("hadoop-client-*", "slf4j-api-*", "jcl-over-slf4j-*", "log4j-*")
OTHERS = ("HADOOP_CONF_DIR", "HADOOP_HOME", "HADOOP_USER_NAME", "HADOOP_TOKEN_FILE_LOCATION")
"""Variables of the developer's own cluster, which a test must not see."""


@contextlib.contextmanager
def minicluster(directory: Path) -> Iterator[str]:
    """Run HDFS with its files below `directory`; yield its address. It ends with this program, even
    if that is killed."""
    assert (JARS / "installed").exists(), f"{JARS} is missing: ./check nightly gets it"
    from stillframe.spark.session import find_java  # noqa: PLC0415 - all tests import this module

    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    spark = Path(found.origin).parent / "jars"
    jars = [*JARS.glob("*.jar"), *(jar for name in OF_SPARK for jar in spark.glob(f"{name}.jar"))]
    details = directory / "details.json"
    java = find_java() / "bin" / "java"
    options = ("-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    classes = ("-cp", ":".join(map(str, jars)), "org.apache.hadoop.test.MiniDFSClusterManager")
    how = ("-format", "-datanodes", "3", "-writeDetails", details)
    place = f"-Dtest.build.data={directory}/data"
    with running(
        lambda port: [java, *options, place, *classes, *how, "-nnport", str(port)],
        directory,
        # Once all DataNodes have reported.
        is_ready=lambda: details.exists() and details.read_text().endswith("}"),
        start_s=START_S,
    ) as port:
        yield f"hdfs://127.0.0.1:{port}"


@pytest.fixture(scope="session")
def hdfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One HDFS for all tests of a process, at night."""
    with minicluster(tmp_path_factory.mktemp("hdfs")) as address:
        yield address


@pytest.fixture
def hdfs(hdfs_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty directory in HDFS, as the address that a user gives; at night."""
    for name in OTHERS:
        monkeypatch.delenv(name, raising=False)
    return f"{hdfs_server}/tests/{secrets.token_hex(6)}"
