"""Records what ``tests/golden`` reads: a store, an event log, fragments, traces and a pipeline.

    .venv/bin/python scripts/record_golden.py data       the data that need no Spark, anew
    .venv/bin/python scripts/record_golden.py spark      a pipeline with a query; what Spark says
    .venv/bin/python scripts/record_golden.py data-2     the data of 0.2.0, and what is in them
    .venv/bin/python scripts/record_golden.py expected   what the commands say of the data
    .venv/bin/python scripts/record_golden.py wire       the bytes of every message

The data show that what an earlier version wrote can be read. So run this only when a format changes
on purpose, and keep the old data beside the new ones: ``tests/golden/README.md``.
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


def call(*arguments: object, environment: dict[str, str] | None = None) -> str:
    """Run a command, and return what it wrote."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=ROOT,
        env=environment,
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


def snapshot_of(store: Path, *options: str) -> str:
    """Take a snapshot as soon as the system runs."""
    until(lambda: call("snapshot", store, "--json", *options))
    time.sleep(0.3)
    return call("list", store, "--json")


def record_system(into: Path) -> None:
    """Let a system run, be restored, die and be taken over; then kill all of it."""
    store, log, fragments = into / "store", into / "log", into / "fragments"
    written = ["--event-log", log, "--fragment-dir", fragments]
    supervisor = begin("run", SYSTEM, "--store", store, *written, *OPTIONS)
    until((store / "running.json").exists)
    snapshot_of(store)
    snapshot_of(store)
    call("savepoint", store, "audited", "--snapshot", "A-2")
    with_c_stopped(store, overlapping=True)
    with_c_stopped(store, overlapping=False)
    # One without D, which has no channels.
    os.kill(lone := child(store, "D"), signal.SIGSTOP)
    call("snapshot", store)
    os.kill(lone, signal.SIGCONT)
    call("restore", store, "audited")
    snapshot_of(store)
    call("savepoint", store, "after-the-restore")
    call("delete", store, "A-1")
    os.kill(child(store, "B"), signal.SIGKILL)
    until(lambda: "ProcessDied" in (store / "history.ndjson").read_text())
    time.sleep(1)
    snapshot_of(store, "--initiator", "B")
    supervisor.kill()
    supervisor.wait()
    supervisor = begin("resume", store, *written, *OPTIONS)
    until(lambda: "TakenOver" in (store / "history.ndjson").read_text())
    snapshot_of(store)
    children = [child(store, process) for process in "ABCD"]
    supervisor.kill()
    supervisor.wait()
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    for pattern in ("e[23]", "e1/*/A-4", "e1/*/A-6"):
        for unneeded in fragments.glob(pattern):
            shutil.rmtree(unneeded)  # those that stay are of every kind


def record_small_system(into: Path) -> None:
    """Let a system run, with a chain of snapshots and messages in flight, and stop it in order;
    restore it, and kill all of it."""
    store, log, fragments = into / "store", into / "log", into / "fragments"
    written = ["--log", log, "--fragments", fragments]
    supervisor = begin("run", SYSTEM, "--store", store, *written, *OPTIONS)
    until((store / "running.json").exists)
    snapshot_of(store)
    snapshot_of(store)
    call("savepoint", store, "audited", "--of", "A-2")
    with_c_stopped(store, overlapping=True)
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


def record_migrated(into: Path) -> None:
    """Run a system, change its code, and restore it."""
    store = into / "migrated"
    former = {**os.environ, "STILLFRAME_GOLDEN_FORMER": "yes"}
    options = ["--every", "never", "--duration", "300ms"]
    reference = "tests.golden.systems:growing"
    call("run", reference, "--store", store, *options, environment=former)
    call("restore", store, "--migrate", *options)


def with_c_stopped(store: Path, *, overlapping: bool) -> None:
    """Take two snapshots that overlap, or one that is abandoned, while C is stopped."""
    os.kill(slow := child(store, "C"), signal.SIGSTOP)
    time.sleep(0.3)
    if overlapping:
        taking = [begin("snapshot", store, "--initiator", initiator) for initiator in "AB"]
        until(lambda: (store / "history.ndjson").read_text().count("SnapshotBegan") >= 4)
        os.kill(slow, signal.SIGCONT)
        for one in taking:
            one.wait()
    else:
        call("snapshot", store)
        os.kill(slow, signal.SIGCONT)
        time.sleep(1)


def record_traces(into: Path) -> None:
    """Write a trace from the log of another system, one of a script, and the script."""
    call("trace", "import", "examples/bakery.log", "--out", into / "imported.trace")
    call("sim", "lecture", "--trace", into / "lecture.trace")
    shutil.copyfile(ROOT / "src/stillframe/sim/runs/lecture.run", into / "lecture.run")


def record_pipeline(into: Path) -> None:
    """Make a pipeline of two services and a query of which there is what Spark leaves."""
    recording.make_pipeline(into / "shop.pipeline")


def record_with_spark() -> None:
    """Make a pipeline with a query, and write what Spark says of the store, log and fragments."""
    from stillframe.spark import session  # noqa: PLC0415 - only this needs Java
    from tests import sparks  # noqa: PLC0415
    from tests.golden import on_spark  # noqa: PLC0415

    sparks.configure()
    with mock.patch.dict(session._SETTINGS, sparks.QUICK):  # noqa: SLF001 - as the tests do
        spark = session.spark_session(app_name="golden", master="local[2]")
    with tempfile.TemporaryDirectory() as place:
        root = shutil.copytree(DATA, Path(place) / "data")
        made = root / "counted.pipeline"
        shutil.rmtree(made, ignore_errors=True)
        on_spark.make_counted(spark, made)
        shutil.copytree(made, DATA / made.name, dirs_exist_ok=True)
        text = json.dumps(on_spark.answers(root), indent=1)
    on_spark.EXPECTED_OF_SPARK.write_text(text + "\n", encoding="utf-8")
    spark.stop()
    without_empty_directories(DATA)


def without_empty_directories(root: Path) -> None:
    """Remove directories that are empty: a repository keeps none."""
    for directory in sorted(root.rglob("*"), reverse=True):
        if directory.is_dir() and not any(directory.iterdir()):
            directory.rmdir()


def main() -> None:
    """Record data, or what is expected of them, and the checksums of all that is recorded."""
    what = sys.argv[1:]
    if what == ["data"]:
        shutil.rmtree(DATA, ignore_errors=True)
        DATA.mkdir()
        record_system(DATA)
        record_migrated(DATA)
        record_traces(DATA)
        record_pipeline(DATA)
        without_empty_directories(DATA)
    elif what == ["data-2"]:
        shutil.rmtree(recording.DATA_2, ignore_errors=True)
        recording.DATA_2.mkdir()
        record_small_system(recording.DATA_2)
        record_pipeline(recording.DATA_2)
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
