"""Checkpoints of queries in object stores: which files are pinned, and what a crash leaves.

The listings are those that Spark 4.3.0 left in S3, shortened.
"""

import contextlib
import functools
import importlib
import io
import itertools
import json
import secrets
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stillframe.errors import Damaged, StoreError
from stillframe.pipeline import checkpoint
from stillframe.storage import files
from stillframe.storage.files import below
from stillframe.storage.location import Location, ObjectPath, locate
from stillframe.storage.opened import storage_of
from tests.pipeline.test_checkpoint import metadata_naming
from tests.storage.faulty import DEATHS, ONCE, Died, Fault, Request, faulty, nth

DONE = 17
"""The last committed micro-batch; the one after it is planned, and has left state."""
PINNED = 16
MARKERS = ("", "commits/", "offsets/", "state/0/_metadata/", "state/0/0/_metadata/", "state/0/1/")
SAME = {"metadata", "offsets/15", "offsets/16", "commits/16", "sources/0/0"}
SCHEMAS = {"state/0/_metadata/metadata", "state/0/0/_metadata/schema"}


def attempt(partition: int, version: int, number: int = 0) -> str:
    """Return the id of an attempt at a version."""
    return f"0ea{number}-{partition}-{version:04}"


def archive(*names: str) -> bytes:
    """Return a full file of a RocksDB state store that refers to these files."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as opened:
        opened.writestr("metadata", "".join(map(metadata_naming, names)) or "v1\n{}")
        opened.writestr("OPTIONS", b"x" * 4000)
    return file.getvalue()


def base(*, has_attempts: bool) -> dict[str, bytes]:
    """Return what every checkpoint has, by name."""
    found = {"metadata": b'{"id":"one"}', "sources/0/0": b"v1\n0"}
    found |= dict.fromkeys(SCHEMAS, b"schema")
    for batch in range(10, DONE + 2):
        found[f"offsets/{batch}"] = b'v1\n{}\n{"stillframe": {"in": %d}}' % batch
    for batch in range(10, DONE + 1):
        ids = {"0": [[attempt(partition, batch + 1)] for partition in (0, 1)]}
        more = {"nextBatchWatermarkMs": 0, **({"stateUniqueIds": ids} if has_attempts else {})}
        found[f"commits/{batch}"] = b"v2\n" + json.dumps(more).encode()
    return found


def hdfs() -> tuple[dict[str, bytes], set[str]]:
    """The state store of files, format 1."""
    found = base(has_attempts=False)
    for partition in (0, 1):
        for version in range(6, DONE + 3):
            found[f"state/0/{partition}/{version}.delta"] = b"delta"
    found |= dict.fromkeys(("state/0/0/11.snapshot", "state/0/0/16.snapshot"), b"all")
    found |= dict.fromkeys(("state/0/1/10.snapshot", "state/0/1/18.snapshot"), b"all")
    zero = {f"state/0/0/{name}" for name in ("16.snapshot", "16.delta", "17.delta")}
    one = {f"state/0/1/{version}.delta" for version in range(10, 18)}
    return found, zero | one | {"state/0/1/10.snapshot"}


def rocksdb_1() -> tuple[dict[str, bytes], set[str]]:
    """RocksDB, format 1, a full file for each version."""
    found = base(has_attempts=False)
    for partition in (0, 1):
        place = f"state/0/{partition}"
        for version in range(10, DONE + 3):
            own = f"{version:06}-a.sst"
            found[f"{place}/{version}.zip"] = archive("000008-b.sst", own)
            found[f"{place}/SSTs/{own}"] = b"sst"
        found[f"{place}/SSTs/000008-b.sst"] = b"sst"
    names = ("17.zip", "SSTs/000008-b.sst", "SSTs/000017-a.sst")
    return found, {f"state/0/{partition}/{name}" for partition in (0, 1) for name in names}


def rocksdb_1_changelog() -> tuple[dict[str, bytes], set[str]]:
    """RocksDB, format 1, with changes; the other partition has no full file yet."""
    found = base(has_attempts=False)
    for partition in (0, 1):
        for version in range(10, DONE + 3):
            found[f"state/0/{partition}/{version}.changelog"] = b"changes"
    for version in (12, 16, 18):
        found[f"state/0/0/{version}.zip"] = archive(f"{version:06}-a.sst")
        found[f"state/0/0/SSTs/{version:06}-a.sst"] = b"sst"
    own = ("16.zip", "16.changelog", "17.changelog", "SSTs/000016-a.sst")
    one = {f"state/0/1/{version}.changelog" for version in range(10, 18)}
    return found, {f"state/0/0/{name}" for name in own} | one


def rocksdb_2() -> tuple[dict[str, bytes], set[str]]:
    """RocksDB, format 2, with checksums; an abandoned attempt left a full file at 17."""
    found = base(has_attempts=True)
    for partition in (0, 1):
        place = f"state/0/{partition}"
        for version in range(10, DONE + 3):
            name = f"{place}/{version}_{attempt(partition, version)}.zip"
            found[name] = archive(f"{version:06}-a.sst")
            found[f"{name}.crc"] = b"{}"
            found[f"{place}/SSTs/{version:06}-a.sst"] = b"sst"
        name = f"{place}/17_{attempt(partition, 17, 1)}.zip"
        found[name] = archive("000017-abandoned.sst")
        found[f"{name}.crc"] = b"{}"
    return found, {
        f"state/0/{partition}/{name}"
        for partition in (0, 1)
        for full in (f"17_{attempt(partition, 17)}.zip",)
        for name in (full, f"{full}.crc", "SSTs/000017-a.sst")
    }


def rocksdb_2_changelog() -> tuple[dict[str, bytes], set[str]]:
    """RocksDB, format 2, with changes. An abandoned attempt left a full file after the one that
    counts, and changes of the last version. The other partition has stores of a join."""
    found = base(has_attempts=True)
    for partition, place in ((0, "state/0/0"), (1, "state/0/1/left-keyToNumValues")):
        for version in range(10, DONE + 3):
            name = f"{place}/{version}_{attempt(partition, version)}.changelog"
            found |= {name: b"changes", f"{name}.crc": b"{}"}
        for version, number in ((12, 0), (15, 0), (16, 1)):
            name = f"{place}/{version}_{attempt(partition, version, number)}.zip"
            found[name] = archive(f"{version:06}-a.sst")
            found[f"{place}/SSTs/{version:06}-a.sst"] = b"sst"
        found[f"{place}/17_{attempt(partition, 17, 1)}.changelog"] = b"abandoned"
    needed = set()
    for partition, place in ((0, "state/0/0"), (1, "state/0/1/left-keyToNumValues")):
        names = [f"{v}_{attempt(partition, v)}.changelog" for v in (15, 16, 17)]
        needed |= {f"{place}/{name}" for name in (*names, *(f"{n}.crc" for n in names))}
        needed |= {f"{place}/15_{attempt(partition, 15)}.zip", f"{place}/SSTs/000015-a.sst"}
    return found, needed


VARIANTS = [hdfs, rocksdb_1, rocksdb_1_changelog, rocksdb_2, rocksdb_2_changelog]
Variant = Callable[[], tuple[dict[str, bytes], set[str]]]


@pytest.fixture(
    params=[
        "local",
        "memory",
        pytest.param("versitygw_bucket", marks=pytest.mark.nightly(part="storage", only=True)),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """A directory, and a place in an object store; at night also on a real server."""
    if request.param == "local":
        return tmp_path
    if request.param == "memory":
        return in_memory()
    return locate(f"{request.getfixturevalue(request.param)}/shop")


def in_memory() -> ObjectPath:
    """Return a new place in memory."""
    return ObjectPath(f"memory://test-{secrets.token_hex(8)}", "shop")


def write(checkpoint_path: Location, files: dict[str, bytes]) -> Location:
    """Write the files of a checkpoint, and the markers that S3A leaves."""
    storage = storage_of(checkpoint_path)
    for name, content in files.items():
        path = below(checkpoint_path, name)
        if isinstance(path, Path):
            path.parent.mkdir(parents=True, exist_ok=True)
        storage.put(path, content)
    if isinstance(checkpoint_path, ObjectPath):
        for name in MARKERS:
            put_marker(below(checkpoint_path, name))
    return checkpoint_path


def put_marker(path: ObjectPath) -> None:
    """Write an empty object that stands for a directory. On a server its key ends in a slash, which
    obstore removes, also from its listings."""
    if path.root.startswith("memory:"):
        storage_of(path).put(path, b"")
    elif path.key.endswith("/"):
        boto3: Any = importlib.import_module("boto3")
        boto3.client("s3").put_object(
            Bucket=path.root.removeprefix("s3://"), Key=path.key, Body=b""
        )


def content(directory: Location) -> dict[str, bytes]:
    """Return every file below a place, by name."""
    storage = storage_of(directory)
    return {
        str(one.location)[len(str(directory)) + 1 :]: storage.read(one.location, bytes_max=2**20)[0]
        for one in storage.files_below(directory)
    }


@pytest.mark.parametrize("variant", VARIANTS)
def test_exactly_the_files_of_a_micro_batch_are_pinned(place: Location, variant: Variant) -> None:
    """Not those of later ones, of abandoned attempts, or before the newest full file."""
    files, state = variant()
    source, target = write(place / "ck", files), place / "pinned"
    checkpoint.pin(source, PINNED, target)
    needed = SAME | SCHEMAS | state
    assert content(target) == {name: files[name] for name in needed}
    assert checkpoint.pinned_files(target, PINNED) == sorted(needed)
    checkpoint.check_pinned(target, checkpoint.Committed(PINNED, {"in": PINNED}))
    assert checkpoint.agrees(source, target, PINNED)
    # What a query continues from, it can be pinned from again.
    checkpoint.export(target, place / "new", PINNED, {"in": 7})
    exported = content(place / "new")
    assert exported.keys() == needed
    assert {n for n in needed if exported[n] != files[n]} == {"metadata", f"offsets/{PINNED}"}
    assert checkpoint.last_committed(place / "new") == checkpoint.Committed(PINNED, {"in": 7})
    assert checkpoint.contradiction(place / "new") is None
    checkpoint.pin(place / "new", PINNED, place / "again")
    assert content(place / "again") == exported
    assert content(target) == {name: files[name] for name in needed}


def test_the_start_of_a_query_is_pinned_without_a_commit(place: Location) -> None:
    """It had planned its first micro-batch: neither a plan nor a state belongs to the start."""
    files = dict.fromkeys(("metadata", "offsets/0", "sources/0/0", *SCHEMAS), b"v1\n{}")
    write(place / "checkpoint", files)
    checkpoint.pin(place / "checkpoint", checkpoint.START, place / "pinned")
    assert content(place / "pinned").keys() == {"metadata", "sources/0/0"}
    checkpoint.export(place / "pinned", place / "new", checkpoint.START, {})
    assert content(place / "new").keys() == {"metadata", "sources/0/0"}


def test_what_is_read_of_a_checkpoint(place: Location) -> None:
    """Its last micro-batches, and what in it Spark alone cannot have written."""
    source = write(place / "ck", hdfs()[0])
    assert checkpoint.last_committed(source) == checkpoint.Committed(DONE, {"in": DONE})
    assert checkpoint.planned_batch(source) == DONE + 1
    assert checkpoint.contradiction(source) is None
    for name, what in (
        ("metadata", "its metadata is missing"),
        (f"offsets/{DONE + 1}", f"state of micro-batch {DONE + 1}"),
        (f"offsets/{DONE}", "last one planned"),
    ):
        storage_of(source).delete([below(source, name)])
        assert what in str(checkpoint.contradiction(source)), name
        write(place / "ck", {"metadata": b"{}"})
    assert checkpoint.last_committed(place / "none") is None
    assert checkpoint.contradiction(place / "none") is None


def test_attempts_that_are_not_known_are_all_pinned(place: Location) -> None:
    """Spark has deleted the commits: no full file of these ends the search."""
    files, _ = rocksdb_2_changelog()
    for batch in range(10, PINNED):
        del files[f"commits/{batch}"]
    checkpoint.pin(write(place / "ck", files), PINNED, place / "pinned")
    found = content(place / "pinned")
    assert f"state/0/0/10_{attempt(0, 10)}.changelog" in found
    assert f"state/0/0/16_{attempt(0, 16, 1)}.zip" in found
    assert f"state/0/0/17_{attempt(0, 17)}.changelog" in found
    assert f"state/0/0/17_{attempt(0, 17, 1)}.changelog" not in found
    assert f"state/0/0/18_{attempt(0, 18)}.changelog" not in found


def test_between_a_directory_and_an_object_store(tmp_path: Path) -> None:
    """A fork exports into the other one; checksums of Hadoop that do not fit any more stay out."""
    files, state = rocksdb_2()
    plan = f"offsets/.{PINNED}.crc"
    checkpoint.pin(write(tmp_path / "ck", files | {plan: b"crc"}), PINNED, tmp_path / "pinned")
    assert plan in content(tmp_path / "pinned")
    remote = in_memory()
    checkpoint.export(tmp_path / "pinned", remote, PINNED, {"in": 7})
    assert content(remote).keys() == SAME | SCHEMAS | state
    checkpoint.export(remote, tmp_path / "back", PINNED, {"in": 8})
    assert content(tmp_path / "back").keys() == SAME | SCHEMAS | state
    assert checkpoint.last_committed(tmp_path / "back") == checkpoint.Committed(PINNED, {"in": 8})


def test_an_interrupted_attempt_for_another_micro_batch_is_left_out() -> None:
    """The query was killed while it pinned, and ended one more micro-batch before the next try."""
    files, state = rocksdb_1_changelog()
    root = in_memory()
    source = write(root / "ck", files)
    with contextlib.suppress(Died), faulty(root, nth(25, Fault.DEATH_AFTER)):
        checkpoint.pin(source, PINNED - 1, root / "pinned")
    checkpoint.pin(source, PINNED, root / "pinned")
    assert set(checkpoint.pinned_files(root / "pinned", PINNED)) == SAME | SCHEMAS | state


def test_a_missing_file_of_a_pinned_checkpoint_is_damage() -> None:
    """Also one that only a full file names."""
    root = in_memory()
    checkpoint.pin(write(root / "ck", rocksdb_1()[0]), PINNED, root / "pinned")
    for name in ("state/0/0/SSTs/000008-b.sst", f"commits/{PINNED}"):
        storage_of(root).delete([below(root, "pinned", name)])
        with pytest.raises(Damaged, match=f"{name} is missing"):
            checkpoint.pinned_files(root / "pinned", PINNED)


def test_a_failing_storage_is_no_damaged_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has need not be repaired."""
    root = in_memory()
    place = write(root / "ck", rocksdb_1()[0])

    def fail(*_: object, **__: object) -> bytes:
        raise OSError(5, "the object store failed")

    monkeypatch.setattr(type(storage_of(root)), "read", fail)
    with pytest.raises(StoreError, match="the object store failed: check that") as failed:
        checkpoint.last_committed(place)
    assert not isinstance(failed.value, Damaged)


@pytest.mark.parametrize("name", ["17.zip", "SSTs/000017-a.sst"])
@pytest.mark.parametrize("count", [4, 5])
def test_files_that_spark_deletes_meanwhile_are_looked_for_again(
    monkeypatch: pytest.MonkeyPatch, name: str, count: int
) -> None:
    """Five times: then the error says which setting keeps them."""
    root = in_memory()
    source = write(root / "ck", rocksdb_1()[0])
    gone = below(source, "state/0/0", name)
    storage = storage_of(gone)
    kept, _ = storage.read(gone, bytes_max=2**20)
    looks = []

    def deleted_before(pairs: list[tuple[Location, Location]]) -> None:
        looks.append(len(pairs))
        if len(looks) <= count:
            storage.delete([gone])
        try:
            files.copy_all(pairs)
        finally:
            storage.put(gone, kept)

    monkeypatch.setattr("stillframe.pipeline.checkpoint.copy_all", deleted_before)
    if count < 5:
        checkpoint.pin(source, PINNED, root / "pinned")
        assert checkpoint.pinned_files(root / "pinned", PINNED)
    else:
        with pytest.raises(StoreError, match=r"spark\.sql\.streaming\.minBatchesToRetain"):
            checkpoint.pin(source, PINNED, root / "pinned")


def deaths(root: ObjectPath, act: Callable[[], None]) -> Iterator[int]:
    """Let `act` die at each of its requests, before and after it; yield after each death."""
    for fault in DEATHS:
        for number in itertools.count(1):
            with faulty(root, nth(number, fault)) as requests, contextlib.suppress(Died):
                act()
            if number > len(requests.sent):
                break
            yield number


def _every_third(fault: Fault, request: Request) -> Fault | None:
    return fault if request.number % 3 == 1 else None


@pytest.mark.parametrize("variant", [hdfs, rocksdb_2_changelog])
def test_a_pin_that_dies_at_any_request_can_be_repeated(variant: Variant) -> None:
    """Nothing is taken for complete that is not."""
    files, state = variant()
    root = in_memory()
    source, targets = write(root / "ck", files), itertools.count()
    target = root / "pinned-0"

    def act() -> None:
        nonlocal target
        target = root / f"pinned-{next(targets)}"
        checkpoint.pin(source, PINNED, target)

    count = 0
    for _ in deaths(root, act):
        count += 1
        checkpoint.pin(source, PINNED, target)
        assert set(content(target)) == SAME | SCHEMAS | state
    assert count > 2 * len(state)
    for fault in ONCE:
        with faulty(root, functools.partial(_every_third, fault)):
            act()
        assert set(content(target)) == SAME | SCHEMAS | state


def test_an_export_that_dies_at_any_request_changes_no_snapshot() -> None:
    """The next one goes into another place."""
    files, state = rocksdb_2()
    root = in_memory()
    pinned, targets = root / "pinned", itertools.count()
    checkpoint.pin(write(root / "ck", files), PINNED, pinned)
    before = content(pinned)

    def act() -> None:
        checkpoint.export(pinned, root / f"new-{next(targets)}", PINNED, {"in": 7})

    for _ in deaths(root, act):
        assert content(pinned) == before
    assert set(content(root / f"new-{next(targets) - 1}")) == SAME | SCHEMAS | state
