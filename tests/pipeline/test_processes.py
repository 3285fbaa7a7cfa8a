"""Services as operating-system processes, which are killed while snapshots are taken."""

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
from stillframe.pipeline.locks import is_running
from stillframe.pipeline.snapshot_manifest import Manifest
from tests.nightly import by_night
from tests.pipeline.money import STOP, TOTAL, diamond, money_in, money_now, ring

HERE = Path(__file__).parents[2]
TAKE = (
    "import sys; from stillframe.pipeline import Pipeline\n"
    "pipeline = Pipeline(sys.argv[1])\n"
    "while True: print(pipeline.snapshot('unaligned').snapshot, flush=True)"
)


POLL_S = 0.002
SNAPSHOT_COUNT = by_night(30, check=8)
KILLED_AFTER = by_night((0, 1, 2, 0, 3, 1), check=(0, 1, 2))
"""How many snapshots each coordinator takes before it is killed in the next."""


@contextmanager
def processes(pipeline: Pipeline) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Run every service in a process of its own while the body runs."""
    (pipeline.path / STOP).unlink(missing_ok=True)
    names, pause = pipeline.dataflow.participants, threading.Event()
    programs = {
        name: subprocess.Popen(
            [sys.executable, "-m", "tests.pipeline.money", str(pipeline.path), name],
            cwd=HERE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in names
    }
    try:
        while not all(is_running(pipeline.path, name) for name in names):
            failed = [name for name, program in programs.items() if program.poll()]
            assert not failed, [programs[name].communicate()[1] for name in failed]
            pause.wait(POLL_S)
        yield programs
        (pipeline.path / STOP).touch()
        for program in programs.values():
            _, errors = program.communicate(timeout=60)
            assert program.returncode in (0, -signal.SIGKILL), errors
    finally:
        for program in programs.values():
            program.kill()
            program.communicate()


def taken(pipeline: Pipeline, mode: str) -> Manifest:
    """Take a snapshot that must come about."""
    outcome = pipeline.snapshot(mode, timeout_s=30)
    assert isinstance(outcome, Manifest), str(outcome)
    return outcome


@pytest.mark.slow
@pytest.mark.nightly(part="soak")
def test_a_diamond_of_processes_keeps_its_money(tmp_path: Path) -> None:
    """Aligned snapshots of four processes, one that was killed, and a restore after that."""
    pipeline = diamond(tmp_path / "run")
    with processes(pipeline) as programs:
        found = [taken(pipeline, "aligned") for _ in range(SNAPSHOT_COUNT)]
        programs["left"].kill()
        programs["left"].wait()
        outcome = pipeline.snapshot("aligned", timeout_s=30)
        assert isinstance(outcome, Abandoned)
        assert outcome.missing == ("left",)
        assert "left died" in outcome.detail
        for program in programs.values():
            program.kill()
    assert [money_in(pipeline, manifest) for manifest in found] == [TOTAL] * SNAPSHOT_COUNT
    pipeline.restore(str(found[7].snapshot))
    with processes(pipeline):
        assert money_in(pipeline, taken(pipeline, "aligned")) == TOTAL
    assert money_now(pipeline) == TOTAL


@pytest.mark.slow
@pytest.mark.nightly(part="soak")
def test_a_coordinator_may_be_killed_at_any_moment(tmp_path: Path) -> None:
    """The next snapshot comes about, and no number is published twice."""
    pipeline = ring(tmp_path / "run")
    with processes(pipeline):
        taken(pipeline, "unaligned")
        said: list[str] = []
        pause = threading.Event()
        for snapshot_count in KILLED_AFTER:
            program = subprocess.Popen(
                [sys.executable, "-c", TAKE, str(pipeline.path)],
                stdout=subprocess.PIPE,
                text=True,
                cwd=HERE,
            )
            assert program.stdout is not None
            said += [program.stdout.readline().strip() for _ in range(snapshot_count)]
            while not any((pipeline.path / "pending").iterdir()):
                assert program.poll() is None
                pause.wait(POLL_S)
            program.kill()
            program.communicate()
            said.append(str(taken(pipeline, "unaligned").snapshot))
    found = pipeline.snapshots()
    ids = [str(manifest.snapshot) for manifest in found]
    assert len(set(said)) == len(said)
    assert set(said) <= set(ids)
    assert [money_in(pipeline, manifest) for manifest in found] == [TOTAL] * len(found)
    pipeline.restore(said[2])
    assert money_now(pipeline) == TOTAL
