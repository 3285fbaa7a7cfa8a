"""A pipeline as its users hold it: created by the first to come, with a snapshot now and then."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from stillframe.errors import Damaged, Unavailable, UsageError
from stillframe.model import Abandoned, SnapshotId
from stillframe.pipeline import JoinedService, JoinedTopicService, Pipeline, channel
from stillframe.pipeline.locks import coordinating
from stillframe.pipeline.pipeline import Outcome
from stillframe.pipeline.snapshot_manifest import MANIFEST, snapshot_path
from tests.pipeline.money import Account, changed, leave_behind, line

NUMBERS = pa.schema([("number", pa.int64())])


@dataclass
class Nothing:
    """The state of a service that never joins."""

    count: int = 0


def make(root: Path) -> Pipeline:
    """Make a pipeline, or open it: what every program of it does at its start."""
    return Pipeline.create(
        root,
        services={"one": Nothing, "two": Nothing},
        channels=[channel("numbers", NUMBERS, source="one", targets=["two"])],
    )


def test_programs_start_also_while_a_snapshot_is_under_way(tmp_path: Path) -> None:
    """A pipeline that is there is opened, whoever coordinates at that moment."""
    make(tmp_path / "p")
    with coordinating(tmp_path / "p", "a snapshot"):
        assert make(tmp_path / "p").epoch == 1


def test_programs_that_start_at_once_make_one_pipeline(tmp_path: Path) -> None:
    """Whoever comes first makes it, and all the others open it."""
    begin = threading.Barrier(8)
    made: list[int] = []

    def go() -> None:
        begin.wait()
        made.append(make(tmp_path / "p").epoch)

    threads = [threading.Thread(target=go) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1] * 8


FORKING = """
import os, sys
from pathlib import Path
from stillframe.pipeline.locks import is_running, participant_lock

lock = participant_lock(Path(sys.argv[1]), "one")
assert lock.try_acquire()
here, there = os.pipe()
begun, begin = os.pipe()
if os.fork() == 0:
    os.close(there)
    os.write(begin, b"!")
    os.read(here, 1)  # until the parent is gone
    os._exit(0)
os.read(begun, 1)
lock.release()
print(is_running(Path(sys.argv[1]), "one"))
"""


@pytest.mark.slow
def test_a_forked_process_keeps_no_lock(tmp_path: Path) -> None:
    """What a program forks off does not count as the program: when that lets go, it is gone."""
    done = subprocess.run(
        [sys.executable, "-c", FORKING, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "False\n"


def test_periodic_snapshots_are_told_until_the_body_ends(tmp_path: Path) -> None:
    """One after the other, whatever came of each."""
    told: list[Outcome | Exception] = []
    enough = threading.Event()

    def tell(outcome: Outcome | Exception) -> None:
        told.append(outcome)
        if len(told) == 3:
            enough.set()

    with make(tmp_path / "p").snapshot_every(0.01, timeout_s=0.0, happened=tell):
        assert enough.wait(30)
    assert all(isinstance(outcome, Abandoned) for outcome in told)
    assert [outcome.snapshot.number for outcome in told if isinstance(outcome, Abandoned)] == list(
        range(1, len(told) + 1)
    )


def test_a_broker_that_is_away_is_told_and_another_snapshot_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another program takes a snapshot there is no need for this one. While the broker is
    away, no program takes any."""
    pipeline, take = make(tmp_path / "p"), Pipeline._take
    away, told, enough = Unavailable("no broker"), list[Outcome | Exception](), threading.Event()
    tries: Iterator[Any] = iter([take, mock.Mock(side_effect=away)])

    def tell(outcome: Outcome | Exception) -> None:
        told.append(outcome)
        enough.set()

    def take_next(*arguments: Any, **named: Any) -> Any:
        return next(tries, take)(*arguments, **named)

    monkeypatch.setattr(Pipeline, "_take", take_next)
    with (
        coordinating(pipeline.path, "a snapshot"),
        pipeline.snapshot_every(0.01, timeout_s=0.0, happened=tell),
    ):
        assert enough.wait(30)
    assert told == [away]


def test_periodic_snapshots_do_not_keep_a_program_from_ending(tmp_path: Path) -> None:
    """Not even if the body never ends, as in a notebook."""
    path = make(tmp_path / "p").path
    program = (
        "from stillframe.pipeline import Pipeline\n"
        f"periodic = Pipeline({str(path)!r}).snapshot_every(100, timeout_s=0.0)\n"
        "periodic.__enter__()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_damaged_snapshot_that_keeps_logs_from_being_trimmed_is_told(tmp_path: Path) -> None:
    """Each time, by its id: else the disk would fill up and nobody know why."""
    pipeline = line(tmp_path / "run")
    for _ in range(2):
        leave_behind(pipeline, 1)
        pipeline.snapshot("unaligned")
    changed(snapshot_path(pipeline.path, SnapshotId("run", 1)) / MANIFEST)
    told: list[Outcome | Exception] = []
    enough = threading.Event()

    def tell(outcome: Outcome | Exception) -> None:
        told.append(outcome)
        if isinstance(outcome, Damaged):
            enough.set()

    with pipeline.snapshot_every(0.01, mode="unaligned", keep=1, happened=tell):
        assert enough.wait(30)
    assert "run-1: the manifest is damaged" in str(told[1])
    assert pipeline.keep(1) == [SnapshotId("run", 1)]
    with pytest.raises(UsageError, match="count is -1: give 0 or more"):
        pipeline.keep(-1)


@pytest.mark.parametrize(("interval_s", "keep"), [(0, 1), (-1, 1), (float("nan"), 1), (1, -1)])
def test_periodic_snapshots_with_a_number_out_of_range_are_refused(
    tmp_path: Path, interval_s: float, keep: int
) -> None:
    """At the start of the body: no thread could raise it there."""
    with (
        pytest.raises(UsageError, match=r"(interval_s|keep) is .*: give "),
        make(tmp_path / "p").snapshot_every(interval_s, keep=keep),
    ):
        pytest.fail("the body has begun")


def test_an_error_where_snapshots_are_told_is_not_lost(tmp_path: Path) -> None:
    """It is raised at the end of the body: nobody should think that there were snapshots."""
    told = threading.Event()

    def tell(outcome: Outcome | Exception) -> None:
        told.set()
        raise OSError("no space to note it")

    pipeline = make(tmp_path / "p")
    with (
        pytest.raises(OSError, match="no space to note it"),
        pipeline.snapshot_every(0.01, timeout_s=0.0, happened=tell),
    ):
        assert told.wait(10)


def test_a_service_of_another_kind_than_its_channels_is_refused(tmp_path: Path) -> None:
    """As a type checker took it for that kind."""
    pipeline = line(tmp_path / "run")
    with pytest.raises(UsageError, match="channels of mint are logs: give kind=JoinedService"):
        pipeline.join_service("mint", state=Account(), kind=JoinedTopicService)
    with pipeline.join_service("mint", state=Account(), kind=JoinedService) as me:
        assert type(me) is JoinedService


def test_records_that_are_no_table_are_refused_with_what_to_do(tmp_path: Path) -> None:
    """Such as those of pandas."""
    pipeline = line(tmp_path / "run")
    with (
        pipeline.join_service("mint", state=Account()) as me,
        pytest.raises(UsageError, match=r"takes a pyarrow\.Table, and no list: make one with"),
    ):
        me.append("coins", [1])
