"""The Java process of a driver: the next start of its query waits for its end."""

import subprocess
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from stillframe.errors import Unavailable
from stillframe.runtime.os_process import current_process, identify, is_alive
from stillframe.spark import driver_process
from stillframe.spark.driver_process import Writer, take_over, writer_of
from stillframe.storage.location import Location
from tests.pipeline.test_object_checkpoint import in_memory

HOST = "this-machine"


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline, of which nothing but the locks matters."""
    monkeypatch.setattr(driver_process, "NOTICE_S", 0.0)
    monkeypatch.setattr("socket.gethostname", lambda: HOST)
    (tmp_path / "participants").mkdir()
    return tmp_path


def own() -> Writer:
    """Return the process of this test as a writer."""
    return Writer(host=HOST, process=current_process(), is_local=True)


def start(root: Location, writer: Writer | None) -> tuple[bool, list[str]]:
    """Start the query, which waits for nothing; return what is known, and what was reported."""
    said: list[str] = []
    return take_over(root, "sums", writer, said.append), said


@pytest.mark.parametrize("is_local", [True, False])
def test_a_start_waits_for_the_process_of_the_last_one(root: Path, is_local: bool) -> None:
    """It says for which, and never ends it. What executors do is not known after that."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as running:
        process = identify(running.pid)
        assert process is not None
        assert start(root, Writer(host=HOST, process=process, is_local=is_local)) == (True, [])
        said: list[str] = []

        def end(words: str) -> None:
            said.append(words)
            assert running.poll() is None
            assert running.stdin is not None
            running.stdin.close()

        assert take_over(root, "sums", own(), end) is is_local
    words = f"the Java process {running.pid} to end: it is of an earlier driver of query sums, and"
    assert said == [f"waiting for {words} may still write its topics"]


def test_a_start_in_the_same_process_waits_for_none(root: Path) -> None:
    """Its producers may still have records of the earlier run."""
    assert start(root, own()) == (True, [])
    assert start(root, own()) == (False, [])


@pytest.mark.parametrize(("host", "boot_id"), [("another", None), (HOST, "another")])
def test_nothing_is_known_of_another_machine(root: Path, host: str, boot_id: str | None) -> None:
    """A process there may have the same number, and in a container the same boot id."""
    process = current_process()
    if boot_id is not None:
        process = msgspec.structs.replace(process, boot_id=boot_id)
    start(root, Writer(host=host, process=process, is_local=True))
    assert start(root, own()) == (False, [])


def test_a_process_in_another_namespace_is_not_taken_for_ended(root: Path) -> None:
    """Containers of one pod have one name and one boot id, and numbers of their own."""
    apart = msgspec.structs.replace(current_process(), space=1)
    start(root, Writer(host=HOST, process=apart, is_local=True))
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"another PID namespace.* ended, delete .*writer"):
            start(root, own())


def test_nothing_is_known_if_the_process_cannot_be_seen(root: Path) -> None:
    """Java may run on another machine than Python: nothing is recorded of it."""
    assert [start(root, None), start(root, None)] == [(False, []), (False, [])]


def test_nothing_is_known_in_an_object_store() -> None:
    """Drivers are on different machines there."""
    root = in_memory()
    assert start(root, own()) == (False, [])
    assert start(root, own()) == (False, [])


@pytest.mark.spark
def test_the_writer_of_a_session_is_its_java(spark: SparkSession) -> None:
    """On this machine the tasks run in it."""
    writer = writer_of(spark)
    assert writer is not None
    assert writer.is_local
    assert is_alive(writer.process)
    assert Path(f"/proc/{writer.process.pid}/comm").read_text() == "java\n"
