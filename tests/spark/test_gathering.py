"""Which fragments are a snapshot together: against what was taken away or changed."""

import random
from pathlib import Path

import msgspec
import pytest

from stillframe.errors import UsageError
from stillframe.model import Fragment, ProcessId, Snapshot, SnapshotId
from stillframe.spark.gathering import Group, gather, in_order, judge
from stillframe.spark.soundness import CONSISTENT, INCOMPLETE, INCONSISTENT
from tests.fragments import write_fragments
from tests.spark import bank
from tests.spark.chains import make_chains
from tests.store import keyed_samples, samples

TIMEOUT_S = 10.0


def recorded_chains(directory: Path, seed: int) -> list[Snapshot]:
    """Return snapshots that are based on each other at random, as they were recorded."""
    recorded: list[Snapshot] = []
    make_chains(directory / "store", seed, took=recorded.append)
    return recorded


@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_is_assembled_if_all_is_there_that_it_takes(tmp_path: Path, seed: int) -> None:
    """Fragments are lost at random: a snapshot counts exactly if none of its own is, and none of
    what it is based on; each comes after that, and those that lack something name the process."""
    chance = random.Random(seed)
    recorded = recorded_chains(tmp_path, seed)
    lost: set[tuple[SnapshotId, ProcessId]] = set()

    def lose(fragment: Fragment) -> Fragment | None:
        if chance.random() > 0.1:
            return fragment
        lost.add((fragment.snapshot, fragment.state.process))
        return None

    write_fragments(tmp_path / "parts", keyed_samples.DESCRIPTION, recorded, change=lose)
    by_id = {snapshot.id: snapshot for snapshot in recorded}

    def is_readable(snapshot: SnapshotId) -> bool:
        states = by_id[snapshot].state.processes
        return not any((snapshot, state.process) in lost for state in states) and all(
            is_readable(state.base) for state in states if state.base is not None
        )

    groups = {group.snapshot: group for group in gather(tmp_path / "parts")}
    judged = {s: judge(group, timeout_s=TIMEOUT_S) for s, group in groups.items()}
    for snapshot, judgement in judged.items():
        missing = tuple(sorted(process for s, process in lost if s == snapshot))
        assert judgement.missing == missing
        assert judgement.verdict == (INCOMPLETE if missing else CONSISTENT)
        assert all(process in judgement.why for process in missing)
    good = [groups[s] for s, judgement in judged.items() if judgement.verdict == CONSISTENT]
    chance.shuffle(good)
    ordered, broken = in_order(good, {})
    assert {group.snapshot for group in ordered} == {s for s in by_id if is_readable(s)}
    assert {group.snapshot for group in good} == {g.snapshot for g in ordered} | broken.keys()
    seen: set[SnapshotId] = set()
    for group in ordered:
        assert set(group.bases.values()) <= seen
        seen.add(group.snapshot)


def test_what_is_there_already_is_a_base_if_it_is_of_the_same_topology(tmp_path: Path) -> None:
    """A store may have what a later fragment is based on; of another topology it is none."""
    recorded = recorded_chains(tmp_path, 1)
    based = next(s for s in recorded if any(state.base for state in s.state.processes))
    bases = {state.base for state in based.state.processes if state.base is not None}
    write_fragments(tmp_path / "parts", keyed_samples.DESCRIPTION, [based])
    (group,) = gather(tmp_path / "parts")
    topology = keyed_samples.DESCRIPTION.hash
    assert in_order([group], dict.fromkeys(bases, topology)) == ([group], {})
    for there in ({}, dict.fromkeys(bases, "of another")):
        ordered, broken = in_order([group], there)
        assert ordered == []
        assert f"what changed since {min(bases)}" in broken[based.id]


def test_fragments_that_are_based_on_each_other_in_a_ring_are_none(tmp_path: Path) -> None:
    """Nobody writes such; somebody may put such there."""
    ids = [SnapshotId("P", number) for number in (1, 2)]
    recorded = [
        keyed_samples.snapshot_of(
            number,
            [
                keyed_samples.part(b, keyed_samples.nothing(), keyed_samples.nothing(), base)
                for b in keyed_samples.BANKS
            ],
        )
        for number, base in ((1, ids[1]), (2, ids[0]))
    ]
    write_fragments(tmp_path, keyed_samples.DESCRIPTION, recorded)
    ordered, broken = in_order(gather(tmp_path), {})
    assert ordered == []
    assert broken.keys() == set(ids)


def one_group(
    directory: Path, change: dict[ProcessId, dict[str, object]], *, number: int = 17
) -> Group:
    """Return a snapshot of the small bank in which some fragments say something else."""

    def changed(fragment: Fragment) -> Fragment:
        return msgspec.structs.replace(fragment, **change.get(fragment.state.process, {}))

    write_fragments(directory, bank.TOPOLOGY.description, [bank.snapshot(number)], change=changed)
    (group,) = gather(directory)
    return group


def test_a_message_that_was_recorded_and_not_sent_is_a_contradiction(tmp_path: Path) -> None:
    """The books of the channel are named, with the figures."""
    group = one_group(tmp_path, {"P1": {"sent_counts": {"P2": 21, "P3": 17}}})
    judgement = judge(group, timeout_s=TIMEOUT_S)
    assert judgement.verdict == INCONSISTENT
    assert judgement.why == (
        "channel P1->P2: 21 sent - 17 received = 4, but 5 messages were recorded"
    )


def test_a_message_that_was_accepted_before_it_was_sent_is_a_contradiction(tmp_path: Path) -> None:
    """The target's cut has what the source's has not: an orphan."""
    group = one_group(tmp_path, {"P3": {"sent_counts": {"P1": 16, "P2": 17}}})
    judgement = judge(group, timeout_s=TIMEOUT_S)
    assert judgement.verdict == INCONSISTENT
    assert judgement.why.startswith("channel P3->P1: 16 sent - 17 received = -1")


def test_a_contradiction_is_found_though_a_fragment_is_missing(tmp_path: Path) -> None:
    """What is there is judged: that one is missing must not hide it."""

    def changed(fragment: Fragment) -> Fragment | None:
        if fragment.state.process == "P3":
            return None
        return msgspec.structs.replace(fragment, sent_counts=dict.fromkeys(fragment.sent_counts, 3))

    write_fragments(tmp_path, bank.TOPOLOGY.description, [bank.snapshot(1)], change=changed)
    (group,) = gather(tmp_path)
    judgement = judge(group, timeout_s=TIMEOUT_S)
    assert (judgement.verdict, judgement.missing) == (INCONSISTENT, ("P3",))


def test_a_damaged_fragment_is_missing_and_said_to_be_damaged(tmp_path: Path) -> None:
    """A changed byte costs its snapshot and no other."""
    snapshots = [bank.snapshot(1), bank.snapshot(2)]
    write_fragments(tmp_path, bank.TOPOLOGY.description, snapshots)
    path = tmp_path / "e1" / "P2" / "P1-1" / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"P2"', b'"P9"', 1))
    first, second = (judge(group, timeout_s=TIMEOUT_S) for group in gather(tmp_path))
    assert (first.verdict, first.missing) == (INCOMPLETE, ("P2",))
    assert f"{path} was changed since it was written" in first.why
    assert second.verdict == CONSISTENT


def test_a_snapshot_of_which_nothing_can_be_read_is_incomplete(tmp_path: Path) -> None:
    """Then nobody knows who is missing besides."""
    write_fragments(
        tmp_path,
        bank.TOPOLOGY.description,
        [bank.snapshot(1)],
        change=lambda fragment: fragment if fragment.state.process == "P1" else None,
    )
    (tmp_path / "e1" / "P1" / "P1-1" / "manifest.json").write_bytes(b"{}")
    (group,) = gather(tmp_path)
    judgement = judge(group, timeout_s=TIMEOUT_S)
    assert (judgement.verdict, judgement.missing, judgement.late) == (INCOMPLETE, ("P1",), ())


def test_late_fragments_are_named_and_count(tmp_path: Path) -> None:
    """Late is what was complete after the time-out, counted from the first recorded state."""
    at = {"P1": (100.0, 100.5), "P2": (100.2, 110.0), "P3": (100.1, 110.01)}
    write_fragments(
        tmp_path,
        bank.TOPOLOGY.description,
        [bank.snapshot(1)],
        times=lambda snapshot, process: at[process],
    )
    (group,) = gather(tmp_path)
    judgement = judge(group, timeout_s=10.0)
    assert (judgement.verdict, judgement.late) == (CONSISTENT, ("P3",))
    assert (group.recorded_at, group.completed_at) == (100.0, 110.01)


def test_fragments_of_different_topologies_are_no_snapshot(tmp_path: Path) -> None:
    """Somebody brought together what does not belong together."""
    write_fragments(
        tmp_path,
        samples.DESCRIPTION,
        [samples.snapshot_of(1)],
        change=lambda fragment: fragment if fragment.state.process == "A" else None,
    )
    other = msgspec.structs.replace(samples.DESCRIPTION, shapes={"Account": "another"})
    write_fragments(
        tmp_path,
        other,
        [samples.snapshot_of(1)],
        change=lambda fragment: fragment if fragment.state.process != "A" else None,
    )
    (group,) = gather(tmp_path)
    judgement = judge(group, timeout_s=TIMEOUT_S)
    assert judgement.verdict == INCONSISTENT
    assert "of different topologies" in judgement.why


def test_a_number_that_two_epochs_gave_is_refused_until_one_is_chosen(tmp_path: Path) -> None:
    """A snapshot has one number in a store."""
    for epoch in (1, 2):
        write_fragments(tmp_path, samples.DESCRIPTION, [samples.snapshot_of(1, epoch=epoch)])
    with pytest.raises(UsageError, match="A-1 is in the epochs 1 and 2: take one of them with --e"):
        gather(tmp_path)
    assert [group.epoch for group in gather(tmp_path, epoch=2)] == [2]
    assert gather(tmp_path, epoch=2, without={SnapshotId("A", 1)}) == []


def test_an_empty_directory_says_how_to_fill_it(tmp_path: Path) -> None:
    """Nothing there is wrong usage, and no verdict."""
    with pytest.raises(UsageError, match="holds no fragments: let a system write them with"):
        gather(tmp_path)
    write_fragments(tmp_path, samples.DESCRIPTION, [samples.snapshot_of(1)])
    with pytest.raises(UsageError, match="holds no fragments of epoch 3"):
        gather(tmp_path, epoch=3)
