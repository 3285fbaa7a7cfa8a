"""Which fragments are a snapshot together: against what was taken away or changed."""

import random
from pathlib import Path

import msgspec
import pytest

from stillframe.analytics.assembly import classify, drop_duplicates, is_after
from stillframe.analytics.manifests import Group, group_fragments
from stillframe.analytics.snapshot_verdicts import CONSISTENT, INCOMPLETE, INCONSISTENT
from stillframe.errors import UsageError
from stillframe.model import Fragment, ProcessId, Snapshot, SnapshotId
from stillframe.store.fragments import FragmentManifest
from stillframe.store.sealed_json import FORMAT, read_sealed, seal
from tests.analytics import bank
from tests.analytics.chains import make_chains
from tests.fragments import write_fragments
from tests.store import keyed_samples, samples

TIMEOUT_S = 10.0


def recorded_chains(directory: Path, seed: int) -> list[Snapshot]:
    """Return snapshots that are based on each other at random, as they were recorded."""
    recorded: list[Snapshot] = []
    make_chains(directory / "store", seed, took=recorded.append)
    return recorded


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_is_one_if_all_is_there_that_its_processes_recorded(
    tmp_path: Path, seed: int
) -> None:
    """Fragments are lost at random: a snapshot counts exactly if none of its own is, and none of
    those of the same process since which they hold the changes; the process is named."""
    chance = random.Random(seed)
    recorded = recorded_chains(tmp_path, seed)
    lost: set[tuple[SnapshotId, ProcessId]] = set()

    def lose(fragment: Fragment) -> Fragment | None:
        if chance.random() > 0.1:
            return fragment
        lost.add((fragment.snapshot, fragment.state.process))
        return None

    write_fragments(tmp_path / "parts", keyed_samples.DESCRIPTION, recorded, change=lose)
    bases = {
        (snapshot.id, state.process): state.base
        for snapshot in recorded
        for state in snapshot.state.processes
    }

    def is_readable(snapshot: SnapshotId, process: ProcessId) -> bool:
        base = bases[snapshot, process]
        is_there = (snapshot, process) not in lost
        return is_there and (base is None or is_readable(base, process))

    groups = group_fragments(tmp_path / "parts")
    numbers = [group.snapshot.number for group in groups]
    assert numbers == sorted(numbers)
    for group in groups:
        verdict = classify(group, timeout_s=TIMEOUT_S)
        missing = [p for p in ("P", "Q", "T") if not is_readable(group.snapshot, p)]
        assert list(verdict.missing) == missing
        assert verdict.verdict == (INCOMPLETE if missing else CONSISTENT)
        assert all(process in verdict.why for process in missing)
        for process, chain in group.chains.items():
            assert chain[-1].snapshot == group.snapshot
            assert chain[0].base is None
            assert [one.base for one in chain[1:]] == [one.snapshot for one in chain[:-1]]
            assert {one.process for one in chain} == {process}


def test_a_base_of_another_epoch_or_topology_is_none(tmp_path: Path) -> None:
    """Numbers can be given again; changes are never put on what they were not made of."""
    recorded = recorded_chains(tmp_path, 1)
    based = next(s for s in recorded if any(state.base for state in s.state.processes))
    earlier = [snapshot for snapshot in recorded if snapshot.id.number < based.id.number]
    other = msgspec.structs.replace(keyed_samples.DESCRIPTION, shapes={"Bank": "another"})
    for name, epoch, description in (("e", 2, keyed_samples.DESCRIPTION), ("t", 1, other)):
        parts = tmp_path / name
        write_fragments(parts, description, earlier)
        later = msgspec.structs.replace(based, epoch=epoch)
        write_fragments(parts, keyed_samples.DESCRIPTION, [later])
        group = group_fragments(parts)[-1]
        assert group.snapshot == based.id
        verdict = classify(group, timeout_s=TIMEOUT_S)
        assert verdict.verdict == INCOMPLETE
        assert "and its fragment of that snapshot is missing" in verdict.why


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
    for group in group_fragments(tmp_path):
        assert classify(group, timeout_s=TIMEOUT_S).missing == keyed_samples.BANKS


def test_cuts_that_cross_are_told_by_the_clock_of_each_process(tmp_path: Path) -> None:
    """Not by those of several machines, which need not agree."""
    snapshots = [bank.snapshot(number) for number in (1, 2, 3)]
    write_fragments(
        tmp_path,
        bank.TOPOLOGY.description,
        snapshots,
        times=lambda snapshot, process: (1e6 - snapshot.id.number, 1e9),
        moment_s=lambda snapshot, process: {("P3", 2): 0.5}.get(
            (process, snapshot.id.number), float(snapshot.id.number)
        ),
    )
    first, second, third = group_fragments(tmp_path)
    assert is_after(third, first)
    assert is_after(third, second)
    assert not is_after(second, first)


def one_group(
    directory: Path, change: dict[ProcessId, dict[str, object]], *, number: int = 17
) -> Group:
    """Return a snapshot of the small bank in which some fragments say something else."""

    def changed(fragment: Fragment) -> Fragment:
        return msgspec.structs.replace(fragment, **change.get(fragment.state.process, {}))

    write_fragments(directory, bank.TOPOLOGY.description, [bank.snapshot(number)], change=changed)
    (group,) = group_fragments(directory)
    return group


def test_a_message_that_was_recorded_and_not_sent_is_a_contradiction(tmp_path: Path) -> None:
    """The books of the channel are named, with the figures."""
    group = one_group(tmp_path, {"P1": {"sent_counts": {"P2": 21, "P3": 17}}})
    verdict = classify(group, timeout_s=TIMEOUT_S)
    assert verdict.verdict == INCONSISTENT
    assert verdict.why == (
        "channel P1->P2: 21 sent - 17 received = 4, but 5 messages were recorded"
    )


def test_a_message_that_was_accepted_before_it_was_sent_is_a_contradiction(tmp_path: Path) -> None:
    """The target's cut has what the source's has not: an orphan."""
    group = one_group(tmp_path, {"P3": {"sent_counts": {"P1": 16, "P2": 17}}})
    verdict = classify(group, timeout_s=TIMEOUT_S)
    assert verdict.verdict == INCONSISTENT
    assert verdict.why.startswith("channel P3->P1: 16 sent - 17 received = -1")


def test_a_contradiction_is_found_though_a_fragment_is_missing(tmp_path: Path) -> None:
    """What is there is judged: that one is missing must not hide it."""

    def changed(fragment: Fragment) -> Fragment | None:
        if fragment.state.process == "P3":
            return None
        return msgspec.structs.replace(fragment, sent_counts=dict.fromkeys(fragment.sent_counts, 3))

    write_fragments(tmp_path, bank.TOPOLOGY.description, [bank.snapshot(1)], change=changed)
    (group,) = group_fragments(tmp_path)
    verdict = classify(group, timeout_s=TIMEOUT_S)
    assert (verdict.verdict, verdict.missing) == (INCONSISTENT, ("P3",))


def test_a_damaged_fragment_is_missing_and_said_to_be_damaged(tmp_path: Path) -> None:
    """A changed byte costs its snapshot and no other."""
    snapshots = [bank.snapshot(1), bank.snapshot(2)]
    write_fragments(tmp_path, bank.TOPOLOGY.description, snapshots)
    path = tmp_path / "e1" / "P2" / "P1-1" / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"P2"', b'"P9"', 1))
    first, second = (classify(group, timeout_s=TIMEOUT_S) for group in group_fragments(tmp_path))
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
    (group,) = group_fragments(tmp_path)
    verdict = classify(group, timeout_s=TIMEOUT_S)
    assert (verdict.verdict, verdict.missing, verdict.late) == (INCOMPLETE, ("P1",), ())


def test_late_fragments_are_named_and_count(tmp_path: Path) -> None:
    """Late is what was complete after the time-out, counted from the first recorded state."""
    at = {"P1": (100.0, 100.5), "P2": (100.2, 110.0), "P3": (100.1, 110.01)}
    write_fragments(
        tmp_path,
        bank.TOPOLOGY.description,
        [bank.snapshot(1)],
        times=lambda snapshot, process: at[process],
    )
    (group,) = group_fragments(tmp_path)
    verdict = classify(group, timeout_s=10.0)
    assert (verdict.verdict, verdict.late) == (CONSISTENT, ("P3",))
    assert (group.recorded_at, group.completed_at) == (100.0, 110.01)


def test_fragments_of_different_runs_are_no_snapshot(tmp_path: Path) -> None:
    """A system that began anew counts epochs and snapshots from 1 again."""
    for process, run in (("A", "first"), ("B", "second"), ("T", "second")):
        write_fragments(
            tmp_path,
            samples.DESCRIPTION,
            [samples.snapshot_of(1)],
            run=run,
            change=lambda f, of=process: f if f.state.process == of else None,  # type: ignore[misc]
        )
    (group,) = group_fragments(tmp_path)
    verdict = classify(group, timeout_s=TIMEOUT_S)
    assert verdict.verdict == INCONSISTENT
    assert "of different runs of the system" in verdict.why


def test_what_a_newer_version_wrote_costs_its_snapshot_alone(tmp_path: Path) -> None:
    """And so does what cannot be read."""
    snapshots = [samples.snapshot_of(1), samples.snapshot_of(2)]
    write_fragments(tmp_path, samples.DESCRIPTION, snapshots)
    path = tmp_path / "e1" / "B" / "A-1" / "manifest.json"
    manifest = read_sealed(path, FragmentManifest)
    path.write_bytes(seal(msgspec.structs.replace(manifest, format=FORMAT + 1)))
    first, second = (classify(group, timeout_s=TIMEOUT_S) for group in group_fragments(tmp_path))
    assert (first.verdict, first.missing) == (INCOMPLETE, ("B",))
    assert f"has format {FORMAT + 1}" in first.why
    assert second.verdict == CONSISTENT


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
    (group,) = group_fragments(tmp_path)
    verdict = classify(group, timeout_s=TIMEOUT_S)
    assert verdict.verdict == INCONSISTENT
    assert "of different topologies" in verdict.why


def test_of_a_number_that_two_epochs_gave_the_later_one_counts(tmp_path: Path) -> None:
    """A snapshot has one number in a store; the other is told where it can go."""
    for epoch in (1, 2):
        write_fragments(tmp_path, samples.DESCRIPTION, [samples.snapshot_of(1, epoch=epoch)])
    write_fragments(tmp_path, samples.DESCRIPTION, [samples.snapshot_of(2)])
    outcomes = drop_duplicates([classify(g, timeout_s=9.0) for g in group_fragments(tmp_path)])
    found = {(one.group.epoch, one.group.snapshot.number): one for one in outcomes}
    assert {key: one.verdict for key, one in found.items()} == {
        (1, 1): INCOMPLETE,
        (1, 2): CONSISTENT,
        (2, 1): CONSISTENT,
    }
    assert "epoch 2 used the same number: assemble this one with --epoch 1" in (found[1, 1].why)
    assert [classify(g, timeout_s=9.0).verdict for g in group_fragments(tmp_path, epoch=1)] == [
        CONSISTENT
    ] * 2


def test_an_empty_directory_says_how_to_fill_it(tmp_path: Path) -> None:
    """Nothing there is wrong usage, and no verdict."""
    with pytest.raises(UsageError, match="holds no fragments: write them with"):
        group_fragments(tmp_path)
    write_fragments(tmp_path, samples.DESCRIPTION, [samples.snapshot_of(1)])
    with pytest.raises(UsageError, match="holds no fragments of epoch 3"):
        group_fragments(tmp_path, epoch=3)
