"""Whole systems in traffic: every snapshot, and every restore, has all the money and no more."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from stillframe.errors import Unavailable, UsageError
from stillframe.model import Abandoned, Reason
from stillframe.pipeline import Pipeline
from stillframe.pipeline.locks import participant_lock
from stillframe.pipeline.log import LogReader
from stillframe.pipeline.pending_snapshot import pending_request
from stillframe.pipeline.service import join
from stillframe.pipeline.snapshot_manifest import Manifest
from tests.pipeline.money import (
    TOTAL,
    Account,
    account,
    amounts,
    diamond,
    leave_behind,
    line,
    money_in,
    money_now,
    records,
    ring,
    running,
)

SNAPSHOT_COUNT = 30


def taken(pipeline: Pipeline, mode: str) -> Manifest:
    """Take a snapshot that must come about."""
    outcome = pipeline.snapshot(mode, timeout_s=30)
    assert isinstance(outcome, Manifest), str(outcome)
    return outcome


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "mode"),
    [(ring, "unaligned"), (diamond, "aligned"), (diamond, "unaligned"), (diamond, "at-least-once")],
)
def test_every_snapshot_in_traffic_has_all_the_money(
    tmp_path: Path, make: Callable[[Path], Pipeline], mode: str
) -> None:
    """30 snapshots of a cycle and of a diamond: states and channels sum up to the total."""
    pipeline = make(tmp_path / "run")
    with running(pipeline):
        found = [taken(pipeline, mode) for _ in range(SNAPSHOT_COUNT)]
    assert [money_in(pipeline, manifest) for manifest in found] == [TOTAL] * SNAPSHOT_COUNT
    if mode == "aligned":
        assert sum(manifest.record_count for manifest in found) == 0
    if mode == "unaligned":
        assert any(manifest.record_count for manifest in found)
    moved = [account(m, p.participant).received_count for m in found for p in m.fragments]
    assert len(set(moved)) > 3  # there was traffic


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["aligned", "unaligned", "at-least-once"])
def test_restores_go_on_with_all_the_money(tmp_path: Path, mode: str) -> None:
    """Back to an early snapshot, on from there, and back to one of the abandoned timeline."""
    pipeline = diamond(tmp_path / "run")
    with running(pipeline):
        first = [taken(pipeline, mode) for _ in range(4)]
    pipeline.restore(str(first[1].snapshot))
    with running(pipeline):
        second = [taken(pipeline, mode) for _ in range(2)]
    for chosen in (first[3], second[0], first[0]):  # the first is of an epoch that was left
        epoch = pipeline.epoch
        pipeline.restore(str(chosen.snapshot))
        assert pipeline.epoch == epoch + 1
        shown = taken(pipeline, "unaligned")
        assert money_in(pipeline, shown) == TOTAL + doubled(pipeline, chosen)
        assert [account(shown, part.participant) for part in shown.fragments] == [
            account(chosen, part.participant) for part in chosen.fragments
        ]
        with running(pipeline):
            later = taken(pipeline, mode)
        assert money_in(pipeline, later) == TOTAL + doubled(pipeline, chosen)
        assert money_now(pipeline) == TOTAL + doubled(pipeline, chosen)
        pipeline.restore(str(second[1].snapshot))


def doubled(pipeline: Pipeline, manifest: Manifest) -> int:
    """Return the money that a restore receives twice: what at-least-once announces."""
    total = 0
    for cut in manifest.channels:
        log = manifest.dataflow.log(cut.log)
        reader = LogReader(pipeline.path, log, manifest.segments[cut.log])
        total += sum(amounts(reader, cut.barrier, cut.position))
    return total


@pytest.mark.slow
def test_a_fork_and_its_original_do_not_see_each_other(tmp_path: Path) -> None:
    """A fork of a cycle runs beside the running original, each with all the money."""
    pipeline = ring(tmp_path / "run")
    with running(pipeline):
        origin = taken(pipeline, "unaligned")
        taken(pipeline, "unaligned")
        # The same name: its snapshots must not take the numbers of the original's.
        fork = pipeline.fork(str(origin.snapshot), tmp_path / "copy" / "run")
        with running(fork):
            both = [(taken(pipeline, "unaligned"), taken(fork, "unaligned")) for _ in range(5)]
    for mine, theirs in both:
        assert money_in(pipeline, mine) == money_in(fork, theirs) == TOTAL
    assert money_now(pipeline) == money_now(fork) == TOTAL
    assert pipeline.epoch == 1
    ids = [str(manifest.snapshot) for manifest in fork.snapshots()]
    assert ids == ["run-1", *(f"run-{number}" for number in range(3, 9))]
    fork.restore(str(both[0][1].snapshot))
    assert money_now(fork) == TOTAL


@pytest.mark.slow
def test_services_leave_and_join_again(tmp_path: Path) -> None:
    """Money stays while services leave, are recorded at rest, and come back."""
    pipeline = ring(tmp_path / "run")
    for _ in range(3):
        with running(pipeline):
            assert money_in(pipeline, taken(pipeline, "unaligned")) == TOTAL
        assert money_now(pipeline) == TOTAL


def test_a_snapshot_of_a_pipeline_at_rest_has_what_lies_on_its_channel(tmp_path: Path) -> None:
    """Nothing runs: states as they were left, and the records that nobody has received."""
    pipeline = line(tmp_path / "run")
    leave_behind(pipeline, 5, 7, 11, received_count=1)
    found = taken(pipeline, "aligned")
    assert account(found, "till").balance == 5
    (cut,) = found.channels
    assert (cut.position, cut.barrier, cut.record_count, cut.duplicate_count) == (1, 3, 2, 0)
    assert money_in(pipeline, found) == TOTAL


def test_a_restore_over_a_running_service_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service is named, and nothing was changed."""
    monkeypatch.setattr("stillframe.pipeline.locks.WAIT_S", 0.05)
    pipeline = line(tmp_path / "run")
    leave_behind(pipeline, 5)
    found = taken(pipeline, "aligned")
    with join("till", pipeline=pipeline.path, state=Account()):
        with pytest.raises(Unavailable, match="till is running"):
            pipeline.restore(str(found.snapshot))
        assert pipeline.epoch == 1
    pipeline.restore(str(found.snapshot))
    assert pipeline.epoch == 2


def test_a_restore_waits_for_who_is_just_leaving(tmp_path: Path) -> None:
    """A query that was told to stop lets go of its place a moment later."""
    pipeline = line(tmp_path / "run")
    leave_behind(pipeline, 5)
    found = taken(pipeline, "aligned")
    lock = participant_lock(pipeline.path, "till")
    assert lock.try_acquire()
    leaving = threading.Timer(0.1, lock.release)
    leaving.start()
    pipeline.restore(str(found.snapshot))
    assert pipeline.epoch == 2
    leaving.join()


def test_an_aligned_snapshot_of_a_cycle_is_refused(tmp_path: Path) -> None:
    """The cycle is shown, and the mode that works is named."""
    pipeline = ring(tmp_path / "run")
    for mode in ("aligned", "at-least-once"):
        with pytest.raises(UsageError, match=r"a -> b -> c -> a .*use mode unaligned"):
            pipeline.snapshot(mode)


def test_a_deadline_names_the_straggler_and_its_barriers_are_stepped_over(tmp_path: Path) -> None:
    """A service that never comes to a boundary is named; the next snapshot takes no notice."""
    pipeline = line(tmp_path / "run")
    with join("mint", pipeline=pipeline.path, state=(state := Account(balance=TOTAL))) as mint:
        taking: list[Manifest | Abandoned] = []
        thread = threading.Thread(
            target=lambda: taking.append(pipeline.snapshot(timeout_s=0.2)), daemon=True
        )
        with join("till", pipeline=pipeline.path, state=Account()):
            thread.start()
            while pending_request(pipeline.path) is None:
                pass
            mint.boundary()
            thread.join()
        (outcome,) = taking
        assert isinstance(outcome, Abandoned)
        assert (outcome.reason, outcome.missing) == (Reason.DEADLINE, ("till",))
        assert "till has reached its barrier" in outcome.detail
        state.balance -= 5
        mint.append("coins", records(5))
    found = taken(pipeline, "aligned")
    assert (found.snapshot.number, money_in(pipeline, found)) == (2, TOTAL)
    with join("till", pipeline=pipeline.path, state=Account()) as till:
        (log, table) = next(iter(till))
        assert (log, table["amount"].to_pylist()) == ("coins", [5])
