"""The verdict on one snapshot, as a task comes to it: with Arrow and nothing else of ours."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyspark", reason="needs PySpark")

from stillframe.analytics.snapshot_verdicts import Expected, verdict_for
from stillframe.analytics.verdict_stream import InputSplit, VerdictReader
from stillframe.storage.reading import read_hashed
from stillframe.store.outcomes import PUBLISHED, OutcomeCursor, SnapshotOutcome
from tests.analytics import bank

ROOT = Path(__file__).parent.parent.parent
WITHOUT_MSGSPEC = """
import json, sys
from pathlib import Path

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "msgspec":
            raise ImportError("an executor has none")

sys.meta_path.insert(0, Block())
import stillframe.analytics.verdict_stream
from stillframe.analytics.snapshot_verdicts import Expected, Topology, verdict_for, to_batch

directories, (*head, topologies) = json.load(sys.stdin)
known = {
    name: Topology(processes, [tuple(channel) for channel in channels], *files)
    for name, (processes, channels, *files) in topologies.items()
}
batch = to_batch([verdict_for(Path(each), Expected(*head, known)) for each in directories])
for row in batch.to_pylist():
    print(row["snapshot"], row["verdict"], row["message_count"])
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with two snapshots."""
    return bank.make_store(tmp_path / "store", snapshot_count=2)


def split_of(store: Path) -> InputSplit:
    """Return what a task is to judge: both snapshots."""
    endings = tuple(SnapshotOutcome(snapshot=f"P1-{number}", how=PUBLISHED) for number in (1, 2))
    end = msgspec.to_builtins(OutcomeCursor(outcomes=endings))
    (split,) = VerdictReader({"store": str(store)}).partitions({}, end)
    assert isinstance(split, InputSplit)
    return split


def expected_of(store: Path) -> Expected:
    """Return what is expected of the snapshots of a store."""
    return split_of(store).expected


def forge(store: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest of P1-2, and seal it as if it had been written so."""
    path = store / "snapshots" / "P1-2" / "manifest.json"
    content = json.loads(path.read_bytes())["content"]
    change(content)
    encoded = json.dumps(content, separators=(",", ":"))
    digest = hashlib.sha256(encoded.encode()).hexdigest()
    path.write_text(f'{{"content":{encoded},"hash":"{digest}"}}')


def test_a_task_needs_no_more_than_arrow(store: Path) -> None:
    """What tasks do, in a program that finds no msgspec."""
    split = split_of(store)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MSGSPEC],
        input=json.dumps([split.directories, split.expected]).encode(),
        check=True,
        capture_output=True,
        env={"PYTHONPATH": str(ROOT / "src")},
    )
    assert done.stdout.decode().strip() == "P1-1 consistent 5\nP1-2 consistent 5"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda m: m.update(topology="0" * 64), "belongs to a store with another topology"),
        (lambda m: m.update(format=3), "has format 3, and this version of Stillframe knows 2: use"),
        (lambda m: m.update(epoch="1"), "has invalid content: epoch is '1'"),
        (lambda m: m.update(sequence=2**70), "has invalid content: sequence is"),
        (lambda m: m.update(published_at=1e300), "has invalid content"),
        (lambda m: m.pop("files"), "has invalid content: 'files'"),
        (lambda m: m["files"][0].update(name="../../x"), "lists files other than processes"),
        (lambda m: m["files"][0].update(bytes=-1), "has more than the -1 bytes that it may have"),
        (lambda m: m["snapshot"].update(number=3), "belongs to snapshot P1-3"),
    ],
)
def test_a_forged_manifest_is_refused(
    store: Path, change: Callable[[dict[str, Any]], object], named: str
) -> None:
    """It is named, whatever is in it; nothing outside of the snapshot is read."""
    expected = expected_of(store)
    forge(store, change)
    row = verdict_for(store / "snapshots" / "P1-2", expected)
    assert row["verdict"] == "inconsistent"
    assert named in row["why"]


def test_what_was_removed_meanwhile_is_incomplete(store: Path) -> None:
    """A snapshot that is gone is no damage."""
    expected = expected_of(store)
    (store / "snapshots" / "P1-2").rename(store / "snapshots" / ".P1-2.dropped")
    row = verdict_for(store / "snapshots" / "P1-2", expected)
    assert (row["verdict"], row["why"]) == ("incomplete", "it was deleted before it could be read")


def test_a_manifest_that_is_replaced_meanwhile_is_read_again(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot that was made whole while it was read is judged as it is now."""
    expected = expected_of(store)
    directory = store / "snapshots" / "P1-2"
    manifest = directory / "manifest.json"
    now = manifest.read_bytes()
    forge(store, lambda m: m["files"][0].update(hash="0" * 64))

    def replaced(path: Path, byte_count: int, digest: str) -> bytes:
        manifest.write_bytes(now)
        return read_hashed(path, byte_count, digest)

    monkeypatch.setattr("stillframe.analytics.snapshot_verdicts.read_hashed", replaced)
    assert verdict_for(directory, expected)["verdict"] == "consistent"
