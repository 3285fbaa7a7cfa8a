"""Whole systems whose processes write into an object store."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import stillframe
from stillframe import SnapshotEntry
from stillframe.errors import StoreError, UsageError
from stillframe.eventlog.reader import list_segments, read_segment
from stillframe.eventlog.segments import RECORDED, read_rows
from stillframe.runtime import events
from stillframe.runtime.process.event_logging import check_epoch_unused
from stillframe.storage.location import Location, ObjectPath, locate
from stillframe.storage.opened import storage_of
from stillframe.store.fragments import check_fragments_unused, find_fragments
from stillframe.store.store import Store
from tests.faulty_proxy import Fault, faulty_proxy
from tests.nightly import Figure
from tests.runtime.programs import rally
from tests.runtime.test_event_logging import check_log
from tests.runtime.test_fragment_systems import check
from tests.s3_servers import S3Server, at_night, use
from tests.storage import faulty as in_memory
from tests.store.test_fragments import read_all

ROOT = Path(__file__).parent.parent.parent


def copied_from(place: Location, target: Path) -> Path:
    """Copy all objects below a place into a directory."""
    assert isinstance(place, ObjectPath)
    for one in storage_of(place).files_below(place):
        assert isinstance(one.location, ObjectPath)
        path = target / one.location.relative_to(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(storage_of(place).read(one.location, bytes_max=2**30)[0])
    return target


@pytest.mark.slow
@pytest.mark.parametrize("server", ["moto_bucket", *at_night("versitygw_bucket", "hdfs")])
def test_processes_write_logs_and_fragments_into_an_object_store(
    request: pytest.FixtureRequest, server: str, tmp_path: Path
) -> None:
    """As ``run --event-log --fragment-dir``: the log explains every snapshot, has no gap, and is
    the log of a directory if it is copied into one; and each snapshot has its fragments."""
    bucket = request.getfixturevalue(server)
    command = ["run", "tests.runtime.programs:rally", "--store", str(tmp_path / "store")]
    command += ["--interval", "200ms", "--duration", "1s"]
    options = ["--event-log", f"{bucket}/rally.log", "--fragment-dir", f"{bucket}/parts"]
    subprocess.run(
        [sys.executable, "-m", "stillframe", *command, *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        timeout=60,
    )
    log = locate(f"{bucket}/rally.log")
    copy = copied_from(log, tmp_path / "log")
    for place in (log, copy):
        assert len(check_log(place, tmp_path / "store").snapshots) > 1
    remote, local = list_segments(log), list_segments(copy)
    assert [s.header for s in remote] == [s.header for s in local]
    assert {s.path.suffix for s in remote} == {".parquet"}
    for here, there in zip(remote, local, strict=True):
        assert here.header.lost_count == 0
        assert list(read_segment(here)) == list(read_segment(there))
    with pytest.raises(UsageError, match="already holds the event log of epoch 1"):
        check_epoch_unused(log, 1)
    check_epoch_unused(log, 2)
    parts, store = locate(f"{bucket}/parts"), Store.open(tmp_path / "store")
    found = copied_from(parts, tmp_path / "parts")
    entries = [entry for entry in store.entries() if entry.epoch == 1]
    assert len(check(found, entries, [store.load(entry.id) for entry in entries])) > 2
    assert find_fragments(parts) == find_fragments(found)
    with pytest.raises(UsageError, match="already holds fragments of epoch 1"):
        check_fragments_unused(parts, 1)
    with pytest.raises(UsageError, match="already holds the event log"):
        stillframe.run(rally, store=tmp_path / "other", log=f"{bucket}/rally.log")


def test_an_object_store_that_fails_keeps_a_system_from_starting() -> None:
    """What is wrong is said before anything begins, and what to do."""
    log = ObjectPath("memory://test-of-a-start", "rally.log")
    with (
        in_memory.faulty(log, in_memory.since(1, in_memory.Fault.DENIED)),
        pytest.raises(StoreError, match="the credentials do not allow it") as denied,
    ):
        check_epoch_unused(log, 1)
    assert "check the credentials in the environment" in str(denied.value)


@pytest.mark.nightly(part="storage", only=True)
def test_a_system_outlives_an_object_store_that_is_down(
    versitygw_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: Figure
) -> None:
    """Snapshots go on, each process tells once that its log cannot be written, and the log has all
    of it afterwards. Some fragments are lost, and the others are whole."""
    has_failed = threading.Event()
    reports: list[str] = []

    def on_event(event: events.Event) -> None:
        if isinstance(event, events.OutputFailed):
            reports.append(event.detail)
            if sum("event log" in report for report in reports) == len(rally.processes):
                has_failed.set()

    bucket = versitygw_server.new_bucket()
    place = locate(f"s3://{bucket}/rally.log")
    with faulty_proxy(versitygw_server.port) as proxy:
        use(versitygw_server, monkeypatch, port=proxy.port)
        with stillframe.run(
            rally,
            store=tmp_path / "store",
            interval_s=0.5,
            log=str(place),
            fragments=f"s3://{bucket}/parts",
            on_event=on_event,
        ) as system:
            system.snapshot()
            proxy.plan = lambda request: Fault(503, is_forwarded=False)
            assert has_failed.wait(120)
            taken = system.snapshot()
            assert isinstance(taken, SnapshotEntry)
            proxy.plan = lambda request: None
            system.snapshot()
        entries = Store.open(tmp_path / "store").entries()
        recorded: dict[str, set[str]] = {}
        for segment in list_segments(place):
            assert segment.header.lost_count == 0
            for table in read_rows(segment.path, segment.groups, ["kind", "snapshot"]):
                rows = table.filter(pc.equal(table.column("kind").cast(pa.string()), RECORDED))
                names = rows.column("snapshot").cast(pa.string()).to_pylist()
                recorded.setdefault(segment.header.process, set()).update(names)
        assert {*recorded} == {*rally.processes}
        assert all({str(entry.id) for entry in entries} <= names for names in recorded.values())
        assert sum("event log" in report for report in reports) == len(rally.processes)
        figure("snapshots", len(entries))
        whole = read_all(locate(f"s3://{bucket}/parts"))
        assert {str(place.snapshot) for place in whole} <= {*recorded["A"]}
        figure("fragments", len(whole))
