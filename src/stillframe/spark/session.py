"""A Spark session: find Java, start quietly, name what is missing, send executors this package.

PySpark is imported only to start a session: this module can be imported without it.
"""

import contextlib
import importlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import IO, TYPE_CHECKING

from stillframe.errors import Unavailable, UsageError, text_of
from stillframe.storage.location import Location

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession


JAVA_VERSIONS = (17, 21, 25)
"""The major versions of Java that Spark 4 runs on."""

JAVA_DIRECTORY = Path("/usr/lib/jvm")
"""Where Debian puts every Java that it installs."""

PYSPARK_VERSION_MIN = (4, 2)
"""From this version on, a source in Python decides where a micro-batch ends."""
_ERROR_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""With these PySpark also prints each error that it raises, as JSON with the traceback of Java."""
_INSTALL = "pip install 'stillframe[spark]' (Java 17, 21 or 25 too)"
_CONNECT = "pyspark.sql.connect"
_NEEDED_MODULE = "jdk.incubator.vector"
_LAST_WORDS_BYTES = 2000
_STDERR = 2
_ONLY_FROM_HERE = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
"""For a session without executors on other machines, which connect to the driver."""

_SETTINGS = {
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"
"""Hadoop's file system for S3, which PySpark does not bring along."""
_S3_CREDENTIALS = (
    # Keys that Spark itself took from the environment of the driver.
    "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
    "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    # Profiles, and roles of containers and machines.
    "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
)
_S3A_SCHEME = "s3a://"
_S3_PACKAGES = "docs/spark-cluster.md, section 'Checkpoints in S3', names its packages"
_directories: list[tempfile.TemporaryDirectory[str]] = []
_shipped: "weakref.WeakSet[SparkContext]" = weakref.WeakSet()


def settings(master: str) -> dict[str, str]:
    """Return the settings of a session that is started here, for where Spark runs."""
    where = _ONLY_FROM_HERE if _is_local(master) else {}
    return {**_SETTINGS, **s3_settings(), **where}


def s3_settings() -> dict[str, str]:
    """Return settings with which Spark finds what ``s3://`` and ``s3a://`` address, such as
    checkpoints: the server and region of the variables of AWS, and credentials from their standard
    places. ``spark_session`` sets them; set them for your own session.

    No setting holds credentials. They need Hadoop's S3A on the class path.
    """
    hadoop = {
        "fs.s3.impl": _S3A,
        "fs.AbstractFileSystem.s3.impl": "org.apache.hadoop.fs.s3a.S3A",
        "fs.s3a.aws.credentials.provider": ",".join(_S3_CREDENTIALS),
    }
    if endpoint := os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
        hadoop |= {"fs.s3a.endpoint": endpoint, "fs.s3a.path.style.access": "true"}
    if region := os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"):
        hadoop["fs.s3a.endpoint.region"] = region
    return {f"spark.hadoop.{name}": value for name, value in hadoop.items()}


def checkpoint_address(location: Location) -> str:
    """Return the location of a checkpoint as Spark takes it; UsageError if it is neither local nor
    in S3 or HDFS."""
    if isinstance(location, Path):
        return str(location.absolute())
    scheme, _, rest = str(location).partition("://")
    if scheme == "hdfs":
        return str(location)
    if scheme != "s3":
        raise UsageError(
            f"{location} cannot hold a checkpoint of Spark: give a local directory, s3:// or hdfs://"
        )
    return _S3A_SCHEME + rest


def check_reachable(spark: "SparkSession", address: str) -> None:
    """Raise Unavailable if a checkpoint is in S3, and the session lacks Hadoop's S3A."""
    if not address.startswith(_S3A_SCHEME):
        return
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001 - there is no public way
    if hadoop.getClassByNameOrNull(_S3A) is None:
        raise Unavailable(
            f"Spark needs Hadoop's S3A for {address}, and it is not on its class path",
            remedy=_S3_PACKAGES,
        )


def find_java() -> Path:
    """Return the home directory of a Java that Spark can use: ``JAVA_HOME``, that on the ``PATH``,
    or one below ``/usr/lib/jvm``. Unavailable says what was seen and what to install."""
    rejected = []
    for home in dict.fromkeys(_java_homes()):
        reason = _unfit(home)
        if reason is None:
            return home
        rejected.append(f"{home} ({reason})")
    seen = f"; found only {', '.join(rejected)}" if rejected else " and found none"
    raise Unavailable(
        f"Spark needs Java 17, 21 or 25{seen}. Install one, for example with "
        "'apt-get install openjdk-17-jre-headless', or set JAVA_HOME to one"
    )


def spark_session(*, app_name: str = "stillframe", master: str = "local[*]") -> "SparkSession":
    """Return the active Spark session, or start one with little output. If it runs on this machine,
    other machines cannot connect to it.

    Your own session (on a cluster, with its own settings) is used unchanged if it is active. A
    session that is started here keeps its Java process until ``stop``, or the end of the program.

    Args:
        app_name: the name of the program in Spark.
        master: Spark's URL of the cluster, or ``local[*]``.

    Raises:
        Unavailable: PySpark or Java is missing or too old, or Spark did not start.
        UsageError: the active session is one of Spark Connect.
    """
    session_class: type[SparkSession] = import_with_pyspark("pyspark.sql").SparkSession
    if os.environ.get("SPARK_REMOTE"):
        raise _connect_refusal("the variable SPARK_REMOTE is set")
    active = session_class.getActiveSession()
    if active is not None:
        require_classic(active)
        return active
    os.environ["JAVA_HOME"] = str(find_java())
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ.setdefault(variable, sys.executable)
    if _is_local(master):
        check_spark_python(os.environ["PYSPARK_PYTHON"])
    builder = session_class.builder.master(master).appName(app_name)
    for setting, value in settings(master).items():
        builder = builder.config(setting, value)
    logger_class = import_with_pyspark("pyspark.logger").PySparkLogger
    for name in _ERROR_LOGGERS:
        logger_class.getLogger(name).disabled = True
    with _interrupted_after_launch(), _java_stderr_in_file() as last_words:
        try:
            return builder.getOrCreate()
        except Exception as error:
            last_words.seek(max(0, last_words.seek(0, os.SEEK_END) - _LAST_WORDS_BYTES))
            said = last_words.read().decode(errors="replace").strip()
            raise Unavailable(
                f"Spark did not start with the Java in {os.environ['JAVA_HOME']}: "
                f"{text_of(error)}. Its last output was: {said or 'nothing'}"
            ) from error


def check_spark_python(python: str) -> None:
    """Raise Unavailable if Spark cannot start Python in this directory, whose files come before the
    modules of Python there."""
    names = {path.name.partition(".")[0] for path in Path.cwd().iterdir()}
    shared = sorted(names & sys.stdlib_module_names)
    if not shared or os.environ.get("PYTHONSAFEPATH"):
        return
    # Most such files do no harm.
    trial = [python, "-c", "import pyspark.daemon, pyspark.worker"]
    ended = subprocess.run(trial, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if ended.returncode:
        said = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise Unavailable(
            f"Spark cannot start Python in {Path.cwd()}, which has files that are called like "
            f"modules of Python, {', '.join(shared)} ({said})",
            remedy="rename them, start in another directory, or set PYTHONSAFEPATH=1",
        )


@contextlib.contextmanager
def _interrupted_after_launch() -> Iterator[None]:
    """Let Ctrl-C interrupt the body only while no Java process is being launched.

    PySpark would leave that process without the directory in which it reports its port, and it
    would never end. Once it runs, it ends with this program.
    """
    from pyspark import SparkContext  # noqa: PLC0415 - its version was checked

    is_asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal is_asked
        is_asked = True
        if SparkContext._gateway is not None:  # noqa: SLF001 - no public name says it
            signal.default_int_handler(number, frame)

    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is ask:  # a session that starts takes it for itself
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if is_asked:
        raise KeyboardInterrupt


def require_classic(spark: "SparkSession") -> None:
    """Raise a UsageError if this is a session of Spark Connect."""
    if type(spark).__module__.startswith(_CONNECT):
        raise _connect_refusal("this session is one")


def _connect_refusal(why: str) -> UsageError:
    return UsageError(
        f"Spark Connect is not supported, and {why}: Stillframe sends its package through "
        "sparkContext, and Spark calls its sinks in the driver. Run this program as the driver, "
        "with SparkSession.builder.master(...) and without remote(...) and SPARK_REMOTE"
    )


def check_version(version: str) -> None:
    """Raise Unavailable if a version of PySpark or Spark is older than the one that is needed."""
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if found < PYSPARK_VERSION_MIN:
        needed = ".".join(map(str, PYSPARK_VERSION_MIN))
        raise Unavailable(
            f"PySpark {version} is too old: {needed} or later is needed, because in older ones a "
            "Python source cannot end a micro-batch",
            remedy=_INSTALL,
        )


def add_package(spark: "SparkSession") -> None:
    """Send this package to the executors of a session, once for all sessions that share them. They
    have Arrow and PySpark, and import only modules that need no more. A UsageError if it is a
    session of Spark Connect."""
    require_classic(spark)
    context = spark.sparkContext
    if context in _shipped or _is_local(str(context.master)):
        return
    package = Path(__file__).parent.parent
    # Executors that come later fetch it too: it stays until this program ends.
    directory = tempfile.TemporaryDirectory(prefix="stillframe-")
    _directories.append(directory)
    archive = Path(directory.name) / "stillframe.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(package.rglob("*.py")):
            file.write(path, Path("stillframe") / path.relative_to(package))
    context.addPyFile(str(archive))
    _shipped.add(context)


def import_with_pyspark(module: str) -> ModuleType:
    """Return a module that imports PySpark; Unavailable says that it is missing or too old."""
    try:
        import pyspark  # noqa: PLC0415 - only here is Spark needed
    except ImportError as error:
        raise Unavailable(
            f"PySpark is not installed ({text_of(error)})", remedy=_INSTALL
        ) from error
    check_version(pyspark.__version__)
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Unavailable(
            f"a package that PySpark needs is missing: {text_of(error)}", remedy=_INSTALL
        ) from error


def _is_local(master: str) -> bool:
    return re.match(r"local($|\[)", master) is not None


def _java_homes() -> Iterator[Path]:
    if named := os.environ.get("JAVA_HOME"):
        yield Path(named).resolve()
    if program := shutil.which("java"):
        yield Path(program).resolve().parent.parent
    for home in sorted(JAVA_DIRECTORY.glob("*")):
        if (home / "bin" / "java").is_file():
            yield home.resolve()


def _unfit(home: Path) -> str | None:
    """Return why Spark cannot use the Java in `home`, or None. Each has a file ``release``."""
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "it has no file 'release'"
    version = re.search(r'^JAVA_VERSION="(\d+)', release, re.MULTILINE)
    if version is None or int(version[1]) not in JAVA_VERSIONS:
        return f"version {version[1]}" if version else "version unknown"
    if _NEEDED_MODULE not in release:
        return f"it lacks the module {_NEEDED_MODULE}"
    return None


@contextlib.contextmanager
def _java_stderr_in_file() -> Iterator[IO[bytes]]:
    """Give what is started meanwhile a file as its stderr: Java and Spark greet with warnings that
    no setting silences. Errors of jobs arrive as Python exceptions."""
    sys.stderr.flush()
    ours = os.dup(_STDERR)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), _STDERR)
        try:
            yield file
        finally:
            os.dup2(ours, _STDERR)
            os.close(ours)
