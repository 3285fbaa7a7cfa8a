"""Finding Java, and saying clearly what is missing."""

import logging
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from stillframe.errors import Unavailable, UsageError
from stillframe.spark.queries import register, start_query
from stillframe.spark.session import (
    add_package,
    check_spark_python,
    find_java,
    settings,
    spark_session,
)


def make_java(home: Path, release: str | None) -> Path:
    """Make what looks like a Java at `home`."""
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch(mode=0o755)
    if release is not None:
        (home / "release").write_text(release)
    return home


GOOD = 'JAVA_VERSION="21.0.2"\nMODULES="java.base jdk.incubator.vector"\n'


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit Java in JAVA_HOME wins over all others."""
    home = make_java(tmp_path / "jdk", GOOD)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java() == home


def test_the_path_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without JAVA_HOME the Java on the PATH is taken, through links."""
    home = make_java(tmp_path / "jdk", GOOD)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert find_java() == home


@pytest.mark.parametrize(
    ("release", "reason"),
    [
        ('JAVA_VERSION="1.8.0_402"\n', "version 1"),
        ('JAVA_VERSION="22"\nMODULES="jdk.incubator.vector"\n', "version 22"),
        ('JAVA_VERSION="17.0.1"\nMODULES="java.base"\n', "lacks the module jdk.incubator.vector"),
        ("", "version unknown"),
        (None, "no file 'release'"),
    ],
)
def test_unfit_java_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str | None, reason: str
) -> None:
    """An unfit Java is not taken; if there is no other, the error says why and what to install."""
    home = make_java(tmp_path / "jdk", release)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("stillframe.spark.session.JAVA_DIRECTORY", tmp_path / "none")
    with pytest.raises(Unavailable, match=rf"(?s)jdk \(.*{reason}.*apt-get install openjdk"):
        find_java()


def test_without_pyspark_the_error_says_what_to_install() -> None:
    """Where PySpark is missing, asking for an audit names the extra; importing still works."""
    program = (
        "import sys; sys.modules['pyspark'] = None; sys.modules['pyspark.sql'] = None\n"
        "from pathlib import Path\n"
        "from stillframe.errors import Unavailable\n"
        "from stillframe.analytics import audit_store\n"
        "try: audit_store(Path('.'))\n"
        "except Unavailable as error: print(error)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert "pip install 'stillframe[spark]'" in answer.stdout


@pytest.mark.parametrize("version", ["3.5.4", "4.0.1", "4.1.0"])
def test_a_pyspark_that_is_too_old_is_named_with_what_is_needed(version: str) -> None:
    """It is not said to be missing, though it lacks what we import."""
    program = (
        "import sys, types\n"
        "for name in ('pyspark', 'pyspark.sql'): sys.modules[name] = types.ModuleType(name)\n"
        f"sys.modules['pyspark'].__version__ = {version!r}\n"
        "from pathlib import Path\n"
        "from stillframe.errors import Unavailable\n"
        "from stillframe.analytics import audit_store\n"
        "try: audit_store(Path('.'))\n"
        "except Unavailable as error: print(error)\n"
        "try: from stillframe.spark import start_query\n"
        "except Unavailable as error: print(error)\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    lines = answer.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert f"PySpark {version} is too old: 4.2 or later is needed" in line
        assert "not installed" not in line


class ConnectSession:
    """Stands for a session of Spark Connect, which has no sparkContext."""

    __module__ = "pyspark.sql.connect.session"
    version = "4.2.0"


def test_a_session_of_spark_connect_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before anything of it is used; also where the environment asks for such a session."""
    session = cast(Any, ConnectSession())
    frame, pipeline = SimpleNamespace(sparkSession=session), cast(Any, None)
    for use in (register, add_package, lambda _: start_query(cast(Any, frame), pipeline, "q")):
        with pytest.raises(UsageError, match=r"Spark Connect is not supported.*sparkContext"):
            use(session)
    monkeypatch.setenv("SPARK_REMOTE", "sc://server")
    with pytest.raises(UsageError, match="the variable SPARK_REMOTE is set"):
        spark_session()


def test_executors_of_a_cluster_can_reach_the_driver() -> None:
    """A session here listens to nobody else; one on a cluster listens where Spark thinks best."""
    for here in ("local", "local[*]", "local[2]"):
        assert settings(here)["spark.driver.host"] == "127.0.0.1"
    for there in ("spark://head:7077", "yarn", "k8s://https://head:6443"):
        assert not any(name.startswith("spark.driver") for name in settings(there))


INTERRUPTED = """
import os, signal
import pyspark.java_gateway as gateway
from stillframe.spark import spark_session

launch = gateway.Popen

def popen(*arguments, **options):
    launched = launch(*arguments, **options)
    os.kill(os.getpid(), signal.SIGINT)
    return launched

gateway.Popen = popen
spark_session(master="local[1]")
"""


def test_files_with_which_spark_could_not_start_python_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Spark is started; files that do no harm are none, and commands start Python so that
    it does not look there."""
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    check_spark_python("nothing was started")
    (tmp_path / "turtle.py").touch()
    check_spark_python(sys.executable)
    (tmp_path / "token.py").touch()
    with pytest.raises(Unavailable, match=r"modules of Python, token, turtle .*: rename them"):
        check_spark_python(sys.executable)
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    check_spark_python("nothing was started")


def test_ctrl_c_leaves_no_java_process_behind() -> None:
    """Also while Java is being launched: it has the same stdout, which is read until it ends."""
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == -signal.SIGINT
    assert ended.stdout.endswith("KeyboardInterrupt\n")


def test_an_error_of_a_query_is_raised_and_not_printed_as_well(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark's log of it has the traceback of Java, some 80 lines for a mistyped column."""
    printed: list[logging.LogRecord] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", printed.append)
    logger = logging.getLogger("SQLQueryContextLogger")
    logger.addHandler(handler)
    try:
        with pytest.raises(AnalysisException):
            spark.range(1).selectExpr("sum(missing)")
    finally:
        logger.removeHandler(handler)
    assert printed == []
