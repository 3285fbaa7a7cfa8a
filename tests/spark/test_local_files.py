"""The file system that Spark has in tests does what Hadoop's own does."""

import stat
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tests.sparks import LOCAL_FILES

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not LOCAL_FILES.exists(), reason="./check compiles it"),
]
OWN = "stillframe.LocalFiles"
HADOOPS = "org.apache.hadoop.fs.RawLocalFileSystem"


@pytest.fixture(params=[OWN, HADOOPS])
def files(spark: SparkSession, request: pytest.FixtureRequest) -> Any:
    """One of both file systems."""
    context: Any = spark.sparkContext
    made = context._jvm.java.lang.Class.forName(request.param).newInstance()
    made.initialize(made.getUri(), context._jsc.hadoopConfiguration())
    return made


def path_of(spark: SparkSession, path: Path) -> Any:
    """Return a path as Hadoop has it."""
    context: Any = spark.sparkContext
    return context._jvm.org.apache.hadoop.fs.Path(str(path))


def test_the_session_uses_it(spark: SparkSession) -> None:
    """Both ways to a file lead to it: streaming queries use the second one."""
    context: Any = spark.sparkContext
    hadoop, settings = context._jvm.org.apache.hadoop.fs, context._jsc.hadoopConfiguration()
    assert hadoop.FileSystem.getLocal(settings).getRaw().getClass().getName() == OWN
    root = context._jvm.java.net.URI("file:///")
    way = hadoop.AbstractFileSystem.get(root, settings)
    assert way.getClass().getName() == f"{OWN}$CheckedContext"
    assert way.getRawFs().getClass().getName() == f"{OWN}$Context"


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o1777, 0o000])
def test_permissions_are_set(spark: SparkSession, files: Any, tmp_path: Path, mode: int) -> None:
    """Every bit of them, also through a link."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    context: Any = spark.sparkContext
    permission = context._jvm.org.apache.hadoop.fs.permission.FsPermission(f"{mode:04o}")
    files.setPermission(path_of(spark, tmp_path / "link"), permission)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


def test_links_are_seen(spark: SparkSession, files: Any, tmp_path: Path) -> None:
    """What is a link, what is none, and what is not there."""
    (tmp_path / "file").write_text("seven..")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")

    def status(name: str) -> Any:
        return files.getFileLinkStatus(path_of(spark, tmp_path / name))

    assert (status("file").isSymlink(), status("file").getLen()) == (False, 7)
    assert status("link").getSymlink().toUri().getPath() == str(tmp_path / "file")
    assert status("dangling").getSymlink().toUri().getPath() == str(tmp_path / "nowhere")
    with pytest.raises(Py4JJavaError, match="FileNotFoundException"):
        status("missing")
