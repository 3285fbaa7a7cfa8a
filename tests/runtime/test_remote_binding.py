"""A system of real programs and its pipeline, which share nothing but a bucket, or HDFS."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stillframe.model import Abandoned
from stillframe.pipeline import Pipeline
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.runtime.run_file import read_run_file
from stillframe.storage.location import locate
from stillframe.store.store import Store
from tests.nightly import Figure
from tests.runtime.mixed import CHANNELS, SERVICES, START
from tests.runtime.test_pipeline_binding import minting, money
from tests.spark.flows import wait_until

ROOT = Path(__file__).parent.parent.parent
KILL_COUNT = 8
pytestmark = [pytest.mark.slow, pytest.mark.nightly(part="storage", only=True)]


@contextmanager
def running(*command: object) -> Iterator["subprocess.Popen[str]"]:
    """Run a system by a command; it runs when the body begins, and is killed if it is still there
    at the end."""
    program = [sys.executable, "-m", "stillframe", *map(str, command), "--json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(program, cwd=ROOT, stdout=pipe, text=True) as supervisor:
        try:
            assert supervisor.stdout is not None
            assert any('"SystemRunning"' in line for line in supervisor.stdout)
            yield supervisor
        finally:
            supervisor.kill()


def whole(pipeline: Pipeline, *, mode: str = "unaligned") -> Manifest:
    """Take a snapshot, which has all the money."""
    found = pipeline.snapshot(mode, timeout_s=60)
    assert isinstance(found, Manifest), str(found)
    assert money(pipeline, found) == START
    return found


def at(pipeline: Pipeline) -> tuple[object, ...]:
    """Return the options for a system of it. An append in HDFS takes a tenth of a second, on a busy
    machine more, and a marker waits for the messages before it."""
    return ("--pipeline", pipeline.path, "--timeout", "60s")


@pytest.fixture(params=["versitygw_bucket", "hdfs"])
def pipeline(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Pipeline:
    """A pipeline there; what belongs to this machine is in a directory of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    place = locate(str(request.getfixturevalue(request.param)))
    return Pipeline.create(place / "coins", services=SERVICES, channels=CHANNELS)


def taking(pipeline: Pipeline) -> tuple[threading.Thread, list[Manifest | Abandoned]]:
    """Begin a snapshot in a thread; return that, and where the outcome will be."""
    outcome: list[Manifest | Abandoned] = []
    thread = threading.Thread(
        target=lambda: outcome.append(pipeline.snapshot("unaligned", timeout_s=20))
    )
    thread.start()
    wait_until(lambda: bool(outcome) or pipeline.status() is not None)
    return thread, outcome


def test_a_supervisor_is_killed_in_a_snapshot(pipeline: Pipeline, figure: Figure) -> None:
    """Its processes end, and both are restored to one snapshot, again and again."""
    store, place = pipeline.path.parent / "store", at(pipeline)
    command: tuple[object, ...] = ("run", "tests.runtime.mixed:system", "--store", store, *place)
    outcomes: list[Manifest | Abandoned] = []
    for _ in range(KILL_COUNT):
        with minting(pipeline), running(*command) as supervisor:
            whole(pipeline)
            thread, outcome = taking(pipeline)
            supervisor.kill()
            thread.join()
            outcomes += outcome
        pipeline.restore()
        command = ("restore", store, *place)
    with minting(pipeline), running(*command):
        whole(pipeline)
    assert {money(pipeline, one) for one in pipeline.snapshots()} == {START}
    published = sum(isinstance(one, Manifest) for one in outcomes)
    figure("kills in a snapshot, and published all the same", f"{len(outcomes)}, {published}")


def test_a_system_that_wakes_up_ends(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was frozen in a snapshot until its leases had lapsed; the pipeline was restored, and a
    second supervisor, as if on another machine, took over its store."""
    store, place = pipeline.path.parent / "store", at(pipeline)
    command: tuple[object, ...] = ("run", "tests.runtime.mixed:system", "--store", store, *place)
    with running(*command) as frozen:
        with minting(pipeline):
            whole(pipeline)
            thread, _ = taking(pipeline)
            left = read_run_file(store)
            assert left is not None
            stopped = [frozen.pid, *(child.pid for child in left.children.values())]
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            thread.join()
        pipeline.restore()
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
        with minting(pipeline), running("restore", store, *place):
            whole(pipeline)
            before = [one.id for one in Store.open(store).entries()]
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
            assert frozen.wait(60) == 2
            assert [one.id for one in Store.open(store).entries()] == before
            whole(pipeline)
    assert {money(pipeline, one) for one in pipeline.snapshots()} == {START}
