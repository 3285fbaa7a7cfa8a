"""What a coordinator leaves, how often it looks, and for whom it waits."""

import itertools
import shutil
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from stillframe.model import Abandoned, Reason, SnapshotId
from stillframe.pipeline import Pipeline, channel, coordinator, participant_logs, progress, stopped
from stillframe.pipeline.coordinator import ID_FILE
from stillframe.pipeline.locks import participant_lock
from stillframe.pipeline.log import LogWriter
from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.pending_snapshot import PINNED, Request, pending_request, request_path
from stillframe.pipeline.progress import Progress
from stillframe.pipeline.service import join
from stillframe.pipeline.snapshot_manifest import MANIFEST, Manifest, snapshot_path
from stillframe.protocol.aligner import Mode
from stillframe.store.sealed_json import read_sealed
from tests.cli.pipelines import resting_shop
from tests.pipeline.fake_queries import commit
from tests.pipeline.money import SCHEMA, Account, leave_behind, line, records


def test_a_published_snapshot_holds_just_the_manifest_and_the_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came up on the way goes before it has its name, and nobody sees a request without its
    parts: who has recorded would do it again."""
    pipeline = line(tmp_path / "run")
    leave_behind(pipeline, 5)
    seen: list[Request | None] = []
    remove = shutil.rmtree

    def watched(path: Path, **options: Any) -> None:
        seen.append(pending_request(pipeline.path))
        remove(path, **options)

    with join("mint", pipeline=pipeline.path, state=Account()) as mint:

        def leave_a_pin(now: Progress) -> None:
            directory = request_path(pipeline.path, now.snapshot)
            (directory / PINNED / ".sums.0123").mkdir(parents=True)
            (directory / "systems").mkdir()
            monkeypatch.setattr(shutil, "rmtree", watched)
            mint.boundary()

        found = pipeline.snapshot(progress=leave_a_pin)
    assert isinstance(found, Manifest)
    directory = snapshot_path(pipeline.path, found.snapshot)
    assert sorted(path.name for path in directory.iterdir()) == [PINNED, MANIFEST]
    assert list((directory / PINNED).iterdir()) == []
    assert seen
    assert set(seen) == {None}


def test_a_coordinator_that_waits_does_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells how far it is a few times a second, and reads no part again for it."""

    def read(*arguments: object) -> None:
        raise AssertionError("the coordinator has the parts already")

    monkeypatch.setattr(progress, "read_fragment", read)
    pipeline = line(tmp_path / "run")
    leave_behind(pipeline, 5)
    told: list[Progress] = []
    with join("till", pipeline=pipeline.path, state=Account()):
        outcome = pipeline.snapshot(timeout_s=0.3, progress=told.append)
    assert isinstance(outcome, Abandoned)
    assert outcome.missing == ("till",)
    assert 1 <= len(told) <= 3
    assert told[0].recorded.keys() == {"mint"}


def test_the_state_of_who_waits_at_rest_is_not_read_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be long, and others slow: whether it died is known from its first reading."""
    pipeline = line(tmp_path / "run")
    leave_behind(pipeline, 5)
    read: list[Path] = []

    def counted(path: Path, kind: type[Any]) -> Any:
        read.append(path)
        return read_sealed(path, kind)

    monkeypatch.setattr(stopped, "read_sealed", counted)
    with join("mint", pipeline=pipeline.path, state=Account()):
        read.clear()
        assert isinstance(pipeline.snapshot(timeout_s=0.2), Abandoned)
    assert [path.stem for path in read] == ["till"]


def test_a_service_that_is_just_being_started_is_waited_for(tmp_path: Path) -> None:
    """Whoever starts everything at once gets the first snapshot as well."""
    pipeline = line(tmp_path / "run")
    outcomes: list[Manifest | Abandoned] = []
    thread = threading.Thread(target=lambda: outcomes.append(pipeline.snapshot(timeout_s=30)))
    thread.start()
    while pending_request(pipeline.path) is None and thread.is_alive():
        pass
    leave_behind(pipeline, 5)
    thread.join()
    assert isinstance(outcomes[0], Manifest), outcomes


def test_the_deadline_names_who_has_not_joined(tmp_path: Path) -> None:
    """Also if it is not the one whom the others wait for."""
    pipeline = line(tmp_path / "run")
    with join("mint", pipeline=pipeline.path, state=Account()):
        outcome = pipeline.snapshot(timeout_s=0.1)
    assert isinstance(outcome, Abandoned)
    assert (outcome.reason, outcome.missing) == (Reason.DEADLINE, ("mint", "till"))
    assert "service till has not joined: start it" in outcome.detail


class SlowQuery:
    """Simulates a query and its clock. A micro-batch reads one entry in 50 s. The clock advances by
    5 s at each poll of the coordinator. After `batch_count` micro-batches the query hangs."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, batch_count: int) -> None:
        coins = channel("coins", SCHEMA, source="till", targets=["sums"])
        sums = channel("sums", SCHEMA, source="sums")
        self.pipeline = Pipeline.create(
            path, services={"till": Account}, queries=["sums"], channels=[coins, sums]
        )
        with join("till", pipeline=path, state=Account()) as till:
            for amount in range(5):
                till.append("coins", records(amount))
        self._batch_count = batch_count
        self._began_at = self.now = time.time()
        self.deadlines: set[float] = set()
        clock = mock.Mock(
            wraps=time, time=lambda: self.now, monotonic=lambda: self.now, sleep=self._turn
        )
        monkeypatch.setattr(coordinator, "time", clock)
        monkeypatch.setattr(participant_logs, "time", clock)

    def snapshot(self) -> Manifest | Abandoned:
        """Take one while the query runs."""
        lock = participant_lock(self.pipeline.path, "sums")
        assert lock.acquire()
        try:
            return self.pipeline.snapshot(timeout_s=60, progress=self._look)
        finally:
            lock.release()

    def _look(self, progress: Progress) -> None:
        self.deadlines.add(progress.deadline_at)

    def _turn(self, _: float) -> None:
        self.now += 5
        batch = int((self.now - self._began_at) // 50) - 1
        if 0 <= batch < self._batch_count:
            commit(self.pipeline.path, "sums", batch, {"coins": batch + 1})
            query = participant_logs.QueryParticipant(self.pipeline.path, "sums")
            query.at_boundary(query.tails())


def test_a_query_with_a_backlog_is_waited_for_as_long_as_it_comes_closer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its five micro-batches before the barrier take four times the timeout. The query, which reads
    on from a barrier whose deadline has passed, is held at this one all the time."""
    slow = SlowQuery(tmp_path / "slow", monkeypatch, 5)
    outcome = slow.snapshot()
    assert isinstance(outcome, Manifest), outcome
    assert 245 <= outcome.completed_at - outcome.initiated_at <= 260
    assert outcome.fragment("sums").positions == {"coins": 5}


def test_a_query_that_comes_no_closer_is_named_with_its_backlog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timeout counts from its last step."""
    slow = SlowQuery(tmp_path / "slow", monkeypatch, 2)
    outcome = slow.snapshot()
    assert isinstance(outcome, Abandoned)
    assert (outcome.reason, outcome.missing) == (Reason.DEADLINE, ("sums",))
    assert outcome.detail == (
        "sums has not recorded: it is 3 entries before its barrier on coins; no step for 65.0 s"
    )
    # No more often than twice in each timeout.
    assert len(slow.deadlines) == 3


def test_a_service_that_died_ends_a_snapshot_at_once(tmp_path: Path) -> None:
    """Its state is gone; waiting for its barrier, or until the deadline, would bring nothing."""
    pipeline = line(tmp_path / "run")
    leave_behind(pipeline, 5)
    with pytest.raises(ZeroDivisionError), join("till", pipeline=pipeline.path, state=Account()):
        raise ZeroDivisionError
    with join("mint", pipeline=pipeline.path, state=Account()):
        outcome = pipeline.snapshot(timeout_s=60)
    assert isinstance(outcome, Abandoned)
    assert (outcome.reason, outcome.missing) == (Reason.NOT_AT_REST, ("till",))


def test_moments_come_at_intervals_and_leave_room_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """From one to the next, whatever was done meanwhile; what was missed is not made up for, and
    others get a little time also if each takes longer than the interval."""
    clock = [100.0]
    monkeypatch.setattr(coordinator, "time", mock.Mock(wraps=time, monotonic=lambda: clock[0]))

    def wait(seconds: float) -> bool:
        clock[0] += seconds
        return clock[0] > 130

    begun = []
    for _ in coordinator.periodically(2.0, wait):
        begun.append(round(clock[0] - 100, 3))
        clock[0] += 7.0 if len(begun) == 3 else 0.5
    assert begun[:5] == [2.0, 4.0, 6.0, 13.05, 15.05]
    clock[0] = 100.0
    begun.clear()
    for _ in coordinator.periodically(0.01, wait):
        begun.append(round(clock[0] - 100, 3))
        clock[0] += 10.0
    assert begun == [0.05, 10.1, 20.15]


def test_a_clock_that_is_set_back_delays_no_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is set back after the snapshot began."""
    pipeline, now = line(tmp_path / "run"), time.time()
    times = itertools.chain([now], itertools.repeat(now - 3600))
    monkeypatch.setattr(coordinator, "time", mock.Mock(wraps=time, time=lambda: next(times)))
    until = time.monotonic() + 10

    def check(_: object) -> None:
        assert time.monotonic() < until

    outcome = pipeline.snapshot(timeout_s=0.1, progress=check)
    assert isinstance(outcome, Abandoned)
    assert outcome.reason is Reason.DEADLINE


def test_a_damaged_counter_does_not_stop_snapshots(tmp_path: Path) -> None:
    """The next number is above every published snapshot and every barrier, wherever the damage."""
    pipeline = resting_shop(tmp_path / "shop")
    first = pipeline.snapshot()
    assert isinstance(first, Manifest)
    path = pipeline.path / ID_FILE
    content = path.read_bytes()
    last = first.snapshot.number
    for position in range(0, len(content), 7):
        path.write_bytes(
            content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]
        )
        found = pipeline.snapshot()
        assert isinstance(found, Manifest)
        assert found.snapshot.number > last
        last = found.snapshot.number
    following = pipeline.snapshot()
    assert isinstance(following, Manifest)
    assert following.snapshot.number == last + 1


@pytest.mark.parametrize("content", [b"{}", None], ids=["damaged", "missing"])
def test_barriers_count_where_the_counter_says_nothing(
    tmp_path: Path, content: bytes | None
) -> None:
    """A snapshot that was abandoned left its barrier: its number is not used again."""
    pipeline = line(tmp_path / "run")
    metadata = read_metadata(pipeline.path)
    writer = LogWriter(pipeline.path, pipeline.dataflow.log("coins"), metadata)
    writer.append_barrier(SnapshotId(metadata.name, 9), Mode.ALIGNED)
    if content is not None:
        (pipeline.path / ID_FILE).write_bytes(content)
    with join("mint", pipeline=pipeline.path, state=Account()):
        abandoned = pipeline.snapshot(timeout_s=0.1)
    assert isinstance(abandoned, Abandoned)
    assert abandoned.snapshot.number > 9
