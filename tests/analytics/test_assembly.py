"""Snapshots of what processes recorded by themselves: the same as a coordinator would publish."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from stillframe.analytics import assemble, assembly
from stillframe.errors import Damaged, StoreError
from stillframe.model import Abandoned, Fragment, Reason, Snapshot, SnapshotId
from stillframe.restore import start_states
from stillframe.runtime.control import OutputDirs
from stillframe.store.fragments import FragmentManifest, Received
from stillframe.store.sealed_json import read_sealed, seal
from stillframe.store.snapshot_directory import publish_directory
from stillframe.store.store import Store
from tests.analytics import bank as transfers
from tests.analytics.chains import make_chains
from tests.fragments import write_fragments
from tests.runtime.local import LocalSystem
from tests.runtime.test_keyed_systems import TOTAL, asyncio_test, balance, bank
from tests.store import keyed_samples, samples

pytestmark = pytest.mark.spark


def verdicts(spark: SparkSession, directory: Path, out: Path, **options: Any) -> dict[str, str]:
    """Assemble, and return the verdicts on what was new."""
    rows = assemble(spark, directory, out, **options).collect()
    assert all((row["verdict"] == "consistent") == (row["why"] == "") for row in rows)
    return {row["snapshot"]: row["verdict"] for row in rows}


def chains(tmp_path: Path, seed: int) -> tuple[Store, list[Snapshot]]:
    """Return a store of snapshots that are based on each other, and what was recorded."""
    recorded: list[Snapshot] = []
    make_chains(tmp_path / "store", seed, took=recorded.append)
    return Store.open(tmp_path / "store"), recorded


def needed(recorded: list[Snapshot], process: str) -> tuple[SnapshotId, set[SnapshotId]]:
    """Return a snapshot on which later parts of a process are based, and all that need it."""
    bases = {
        snapshot.id: next(s.base for s in snapshot.state.processes if s.process == process)
        for snapshot in recorded
    }
    first = next(base for base in bases.values() if base is not None)
    needing = {first}
    for snapshot, base in bases.items():
        if base in needing:
            needing.add(snapshot)
    return first, needing


def check_same(out: Path, store: Store, snapshots: list[SnapshotId]) -> None:
    """Check that `out` holds these snapshots, as the store does, and that each can be read."""
    assembled = Store.open(out)
    assert {entry.id for entry in assembled.entries()} == set(snapshots)
    for snapshot in snapshots:
        assembled.verify(snapshot)
        ours, theirs = assembled.load(snapshot), store.load(snapshot)
        assert ours.state == theirs.state
        assert (ours.epoch, ours.pause_s, ours.capture_s) == (
            *(theirs.epoch, theirs.pause_s, theirs.capture_s),
        )


@pytest.mark.parametrize(("seed", "channel_count"), [(1, 100_000), (2, 3)])
def test_assembled_snapshots_are_what_was_published(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    channel_count: int,
) -> None:
    """Keyed fields of several types, whole and as changes: to the last key; all at a time, or a
    few."""
    monkeypatch.setattr(assembly, "BLOCK_CHANNEL_COUNT", channel_count)
    store, recorded = chains(tmp_path, seed)
    write_fragments(tmp_path / "parts", keyed_samples.DESCRIPTION, recorded)
    found = verdicts(spark, tmp_path / "parts", tmp_path / "out")
    assert found == {str(snapshot.id): "consistent" for snapshot in recorded}
    check_same(tmp_path / "out", store, [snapshot.id for snapshot in recorded])
    assert verdicts(spark, tmp_path / "parts", tmp_path / "out") == {}


def test_relative_paths_begin_here(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where the session was started."""
    write_fragments(tmp_path / "parts", transfers.TOPOLOGY.description, [transfers.snapshot(1)])
    monkeypatch.chdir(tmp_path)
    assert verdicts(spark, Path("parts"), Path("out")) == {"P1-1": "consistent"}


def test_what_comes_late_is_added_the_next_time(spark: SparkSession, tmp_path: Path) -> None:
    """And with it what is based on it; what was there stays as it is."""
    store, recorded = chains(tmp_path, 3)
    ids = [snapshot.id for snapshot in recorded]
    late, lacking = needed(recorded, "Q")
    assert 1 < len(lacking) < len(ids)

    def in_time(fragment: Fragment) -> Fragment | None:
        is_late = fragment.snapshot == late and fragment.state.process == "Q"
        return None if is_late else fragment

    parts, out = tmp_path / "parts", tmp_path / "out"
    write_fragments(parts, keyed_samples.DESCRIPTION, recorded, change=in_time)
    rows = {row["snapshot"]: row for row in assemble(spark, parts, out).collect()}
    assert all(rows[str(s)]["missing"] == ["Q"] for s in lacking)
    assert {s for s in ids if rows[str(s)]["verdict"] == "incomplete"} == lacking
    assert all(f"since {late}, and" in rows[str(s)]["why"] for s in lacking - {late})
    check_same(out, store, [s for s in ids if s not in lacking])
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.parquet")}

    write_fragments(
        parts,
        keyed_samples.DESCRIPTION,
        [snapshot for snapshot in recorded if snapshot.id == late],
        change=lambda fragment: fragment if fragment.state.process == "Q" else None,
        times=lambda snapshot, process: (snapshot.initiated_at, snapshot.initiated_at + 60.0),
    )
    rows = {row["snapshot"]: row for row in assemble(spark, parts, out).collect()}
    assert rows.keys() == set(map(str, lacking))
    assert {row["verdict"] for row in rows.values()} == {"consistent"}
    assert rows[str(late)]["late"] == ["Q"]
    check_same(out, store, ids)
    assert before.items() <= {p: p.stat().st_mtime_ns for p in out.rglob("*.parquet")}.items()


def test_a_changed_byte_costs_what_needs_it(spark: SparkSession, tmp_path: Path) -> None:
    """It is found while the tables are put together, is named with the process, and leaves nothing
    behind."""
    store, recorded = chains(tmp_path, 1)
    broken, lacking = needed(recorded, "P")
    parts, out = tmp_path / "parts", tmp_path / "out"
    write_fragments(parts, keyed_samples.DESCRIPTION, recorded)
    path = next((parts / "e1" / "P" / str(broken)).glob("Bank_accounts.*.parquet"))
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    rows = {row["snapshot"]: row for row in assemble(spark, parts, out).collect()}
    for row in (rows[str(snapshot)] for snapshot in lacking):
        assert row["why"].startswith(f"{path} was changed since it was written")
        assert (row["verdict"], row["missing"]) == ("incomplete", ["P"])
        assert row["fragment_count"] == 2
    good = [snapshot.id for snapshot in recorded if snapshot.id not in lacking]
    assert good
    check_same(out, store, good)
    assert {p.name for p in (out / "snapshots").iterdir()} == set(map(str, good))


@pytest.mark.parametrize("name", ["processes", "channels", "messages"])
def test_tables_that_are_of_another_process_are_found(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """Also behind a seal that fits them: manifest and tables must say the same."""
    write_fragments(tmp_path / "parts", transfers.TOPOLOGY.description, [transfers.snapshot(1)])
    there = tmp_path / "parts" / "e1"
    mine, theirs = (there / process / "P1-1" for process in ("P2", "P3"))
    records = {r.name: r for r in read_sealed(theirs / "manifest.json", FragmentManifest).files}
    manifest = read_sealed(mine / "manifest.json", FragmentManifest)
    file = f"{name}.parquet"
    (mine / file).write_bytes((theirs / file).read_bytes())
    forged = tuple(records[file] if r.name == file else r for r in manifest.files)
    (mine / "manifest.json").write_bytes(seal(msgspec.structs.replace(manifest, files=forged)))
    rows = assemble(spark, tmp_path / "parts", tmp_path / "out").collect()
    assert [(row["verdict"], row["missing"]) for row in rows] == [("incomplete", ["P2"])]
    assert f"{mine / file} is not a table of a store" in rows[0]["why"]


def test_counts_that_both_ends_forge_are_found(spark: SparkSession, tmp_path: Path) -> None:
    """They balance, and the tables say something else."""
    write_fragments(tmp_path / "parts", transfers.TOPOLOGY.description, [transfers.snapshot(1)])
    for process in ("P1", "P3"):
        path = tmp_path / "parts" / "e1" / process / "P1-1" / "manifest.json"
        manifest = read_sealed(path, FragmentManifest)
        more = {"P3": manifest.sent.get("P3", 0) + 2**50} if process == "P1" else {}
        of_one = manifest.received.get("P1", Received(0, 0))
        taken = {"P1": Received(of_one.count + 2**50, 0)} if process == "P3" else {}
        forged = msgspec.structs.replace(
            manifest, sent=manifest.sent | more, received=manifest.received | taken
        )
        path.write_bytes(seal(forged))
    rows = assemble(spark, tmp_path / "parts", tmp_path / "out").collect()
    assert [(row["verdict"], row["missing"]) for row in rows] == [("incomplete", ["P3"])]


def test_after_a_crash_it_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has its name is whole; the rest is made again."""
    parts, out = tmp_path / "parts", tmp_path / "out"
    snapshots = [samples.snapshot_of(number) for number in (1, 2, 3)]
    write_fragments(parts, samples.DESCRIPTION, snapshots)

    def fail_at_second(directory: Path) -> None:
        if directory.name == "A-2":
            raise OSError(28, "No space left on device")
        publish_directory(directory)

    monkeypatch.setattr(assembly, "publish_directory", fail_at_second)
    with pytest.raises(StoreError, match="No space left on device"):
        assemble(spark, parts, out)
    assert [str(entry.id) for entry in Store.open(out).entries()] == ["A-1"]
    Store.open(out).verify(SnapshotId("A", 1))
    monkeypatch.undo()
    assert verdicts(spark, parts, out) == {"A-2": "consistent", "A-3": "consistent"}
    for snapshot in snapshots:
        assert Store.open(out).load(snapshot.id).state == snapshot.state


def test_a_lost_topology_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    """Without it nobody knows what the fragments are parts of."""
    write_fragments(tmp_path / "parts", samples.DESCRIPTION, [samples.snapshot_of(1)])
    (path,) = (tmp_path / "parts" / "topologies").iterdir()
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(Damaged, match=f"{path} was changed since it was written"):
        assemble(spark, tmp_path / "parts", tmp_path / "out")
    path.unlink()
    rows = assemble(spark, tmp_path / "parts", tmp_path / "out").collect()
    assert [row["verdict"] for row in rows] == ["incomplete"]
    assert "belongs to a topology that is not in" in rows[0]["why"]


@pytest.mark.slow
def test_what_a_coordinator_could_not_publish_is_a_snapshot(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its disk is full; the processes recorded their parts, and all money is in them. A system goes
    on from there."""
    parts, out = tmp_path / "parts", tmp_path / "out"

    async def run() -> SnapshotId:
        traces = OutputDirs(fragments=str(parts))
        async with LocalSystem(bank(), tmp_path, traces=traces) as system:
            await system.take()
            publish = system.store.publish

            def full(snapshot: Snapshot) -> Any:
                raise StoreError("the disk is full")

            system.store.publish = full  # type: ignore[method-assign]
            outcome = await system.try_to_take("B")
            assert isinstance(outcome, Abandoned)
            assert outcome.reason is Reason.NOT_PUBLISHED
            system.store.publish = publish  # type: ignore[method-assign]
            await system.take("C")
            return outcome.snapshot

    given_up: list[SnapshotId] = []

    async def main() -> None:
        given_up.append(await run())

    asyncio_test(main)
    found = verdicts(spark, parts, out)
    assert set(found.values()) == {"consistent"}
    assert len(found) == 3
    assert str(given_up[0]) not in {str(e.id) for e in Store.open(tmp_path / "store").entries()}
    store = Store.open(out)
    snapshot = store.load(given_up[0])
    assert balance(snapshot) == TOTAL
    starts = start_states(snapshot, store.description)

    async def go_on() -> None:
        async with LocalSystem(bank(), tmp_path / "again", starts=starts) as system:
            assert balance(await system.take()) == TOTAL

    asyncio_test(go_on)
