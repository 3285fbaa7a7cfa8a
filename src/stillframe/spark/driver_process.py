"""The Java process that runs a query, and writes its topics: the next start waits for its end.

    ROOT/participants/NAME.writer       sealed; the Java process of the query's driver

If a driver's Python is killed, its lock is free at once. Java notices that a moment later, and
writes records until then; a Java that was stopped writes them when it continues. In an object store
nothing is recorded: drivers are on different machines there.
"""

import socket
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from stillframe.durable_files import replace_durably
from stillframe.pipeline.locks import PARTICIPANTS
from stillframe.runtime.os_process import OsProcess, apart_error, identify, is_alive, is_apart
from stillframe.storage.location import Location
from stillframe.storage.reading import is_there
from stillframe.store.layout import explain_io_errors
from stillframe.store.sealed_json import FORMAT, read_sealed, seal

NOTICE_S = 1.0
_POLL_S = 0.1


class Writer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``participants/NAME.writer``: the Java process of a driver, and its machine.
    `is_local` says that the tasks run in it, and not in executors."""

    format: int = FORMAT
    host: str
    process: OsProcess
    is_local: bool


def writer_of(spark: SparkSession) -> Writer | None:
    """Return the writer that a session is; None if its Java is not a process of this machine."""
    context = spark.sparkContext
    java = context._jvm  # noqa: SLF001 - the only way
    assert java is not None
    process = identify(int(java.java.lang.ProcessHandle.current().pid()))
    if process is None:
        return None
    is_local = str(context.master).split("[")[0] == "local"
    return Writer(host=socket.gethostname(), process=process, is_local=is_local)


def take_over(
    root: Location, query: str, own: Writer | None, report: Callable[[str], object]
) -> bool:
    """Wait for the end of the Java process that ran a query before, and record `own`, the one that
    runs it now. The caller holds the lock of the query.

    Returns:
        Whether everything has ended that could still write for an earlier run. Executors, and
        processes of another machine, are not known.

    Raises:
        Unavailable: the Java process is in another PID namespace of this machine.
    """
    if not isinstance(root, Path):
        return False
    path = root / PARTICIPANTS / f"{query}.writer"
    earlier = None
    if is_there(path):
        earlier = read_sealed(
            path, Writer, advice="delete it when no earlier driver of the query runs any more"
        )
    if earlier is not None and earlier != own:
        if _is_here(earlier) and is_apart(earlier.process):
            who = f"Java process {earlier.process.pid} of an earlier driver of query {query}"
            raise apart_error(who, "writes topics", path, "start the query again")
        wait_until(
            lambda: not (_is_here(earlier) and is_alive(earlier.process)),
            f"waiting for the Java process {earlier.process.pid} to end: it is of an earlier "
            f"driver of query {query}, and may still write its topics",
            report,
        )
    if own is not None and earlier != own:
        with explain_io_errors(path, "written"):
            replace_durably(path, seal(own))
    if earlier is None:
        return own is not None  # a driver that cannot be recorded may have run
    return earlier != own and earlier.is_local and _is_here(earlier)


def _is_here(writer: Writer) -> bool:
    """Return whether a writer is, or was, a process of this machine, as it runs now."""
    own = identify(1)
    return (
        writer.host == socket.gethostname()
        and own is not None
        and own.boot_id == writer.process.boot_id
    )


def wait_until(is_over: Callable[[], bool], words: str, report: Callable[[str], object]) -> None:
    """Wait until something is over; report these words after a second."""
    began, is_said = time.monotonic(), False
    while not is_over():
        if not is_said and time.monotonic() - began >= NOTICE_S:
            is_said = True
            report(words)
        time.sleep(_POLL_S)
