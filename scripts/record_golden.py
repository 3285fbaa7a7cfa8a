"""Records what ``tests/golden`` reads: a store, an event log, fragments and a pipeline.

    .venv/bin/python scripts/record_golden.py data-2     the data of 0.2.0, and what is in them
    .venv/bin/python scripts/record_golden.py expected   what the commands say of the data of 0.1.0
    .venv/bin/python scripts/record_golden.py spark      what Spark says of them
    .venv/bin/python scripts/record_golden.py wire       the bytes of every message

The data show that what an earlier version wrote can be read. The script of version 0.1.0 recorded
those of 0.1.0, which stay as they are. Run this only when a format changes on purpose, and keep the
old data beside the new ones: ``tests/golden/README.md``.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.golden import recording  # noqa: E402 - found only now

DATA = recording.DATA
SYSTEM = "tests.golden.systems:system"

COMMAND = [sys.executable, "-m", "stillframe"]
OPTIONS = "--every never --timeout 3s --on-incomplete exclude".split()
LIMIT_S = 60


def call(*arguments: object) -> str:
    """Run a command, and return what it wrote."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    print(*arguments, "->", done.returncode, done.stdout.strip()[:80], done.stderr.strip()[:200])
    return done.stdout


def begin(*arguments: object) -> subprocess.Popen[bytes]:
    """Start a command."""
    print(*arguments)
    return subprocess.Popen([*COMMAND, *map(str, arguments)], cwd=ROOT)


def until(holds: Callable[[], object]) -> None:
    """Wait until something holds."""
    for _ in range(10 * LIMIT_S):
        if holds():
            return
        time.sleep(0.1)
    raise TimeoutError


def running(store: Path) -> dict[str, Any]:
    """Return what the system says of itself while it runs."""
    found: dict[str, Any] = json.loads((store / "running.json").read_bytes())
    return found


def child(store: Path, process: str) -> int:
    """Return the pid of a process."""
    pid: int = running(store)["children"][process]["pid"]
    return pid


def snapshot_of(store: Path) -> str:
    """Take a snapshot as soon as the system runs."""
    until(lambda: call("snapshot", store, "--json"))
    time.sleep(0.3)
    return call("list", store, "--json")


def record_small_system(into: Path) -> None:
    """Let a system run, with a chain of snapshots and messages in flight, and stop it in order;
    restore it, and kill all of it."""
    store, log, fragments = into / "store", into / "log", into / "fragments"
    written = ["--event-log", log, "--fragment-dir", fragments]
    supervisor = begin("run", SYSTEM, "--store", store, *written, *OPTIONS)
    until((store / "running.json").exists)
    snapshot_of(store)
    snapshot_of(store)
    call("savepoint", store, "audited", "--snapshot", "A-2")
    with_c_stopped(store)
    supervisor.send_signal(signal.SIGINT)
    supervisor.wait()
    supervisor = begin("restore", store, "audited", *written, *OPTIONS)
    until((store / "running.json").exists)
    snapshot_of(store)
    children = [child(store, process) for process in "ABCD"]
    supervisor.kill()
    supervisor.wait()
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    (store / "running.json").unlink()
    for unneeded in fragments.glob("*/[ABD]"):
        shutil.rmtree(unneeded)  # those of C are of every kind
    shutil.rmtree(fragments / "e2", ignore_errors=True)


def with_c_stopped(store: Path) -> None:
    """Take two snapshots that overlap while C is stopped."""
    os.kill(slow := child(store, "C"), signal.SIGSTOP)
    time.sleep(0.3)
    taking = [begin("snapshot", store, "--initiator", initiator) for initiator in "AB"]
    until(lambda: (store / "history.ndjson").read_text().count("SnapshotBegan") >= 4)
    os.kill(slow, signal.SIGCONT)
    for one in taking:
        one.wait()


def record_with_spark() -> None:
    """Write what Spark says of the store, log and fragments."""
    from stillframe.spark import session  # noqa: PLC0415 - only this needs Java
    from tests import sparks  # noqa: PLC0415
    from tests.golden import on_spark  # noqa: PLC0415

    sparks.configure()
    with mock.patch.dict(session._SETTINGS, sparks.QUICK):  # noqa: SLF001 - as the tests do
        spark = session.spark_session(app_name="golden", master="local[2]")
    with tempfile.TemporaryDirectory() as place:
        root = shutil.copytree(DATA, Path(place) / "data")
        text = json.dumps(on_spark.answers(root), indent=1)
    on_spark.EXPECTED_OF_SPARK.write_text(text + "\n", encoding="utf-8")
    spark.stop()


def without_empty_directories(root: Path) -> None:
    """Remove directories that are empty: a repository keeps none."""
    for directory in sorted(root.rglob("*"), reverse=True):
        if directory.is_dir() and not any(directory.iterdir()):
            directory.rmdir()


def main() -> None:
    """Record data, or what is expected of them, and the checksums of all that is recorded."""
    what = sys.argv[1:]
    if what == ["data-2"]:
        shutil.rmtree(recording.DATA_2, ignore_errors=True)
        recording.DATA_2.mkdir()
        record_small_system(recording.DATA_2)
        recording.make_pipeline(recording.DATA_2 / "shop.pipeline")
        without_empty_directories(recording.DATA_2)
        text = json.dumps(recording.answers_2(recording.DATA_2), indent=1)
        recording.EXPECTED_2.write_text(text + "\n", encoding="utf-8")
    elif what == ["expected"]:
        recording.write_expected()
    elif what == ["spark"]:
        record_with_spark()
    elif what == ["wire"]:
        recording.write_wire()
    else:
        raise SystemExit(__doc__)
    recording.write_checksums()


if __name__ == "__main__":
    main()
