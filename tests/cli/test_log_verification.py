"""``spark verify``: verdicts from an event log, with the first message that contradicts."""

import json
import random
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stillframe.store.contents import record_of
from stillframe.store.manifest import Manifest, read_manifest
from stillframe.store.seal import seal
from tests.cli.conftest import Call, purses
from tests.eventlogs import Row, write

pytest.importorskip("pyspark", reason="needs PySpark")
HERE = ("--master", "local[2]")
MARKERS = [
    Row(1, "recorded", snapshot="A-1"),
    Row(1, "marker sent", ("A", "B"), snapshot="A-1"),
]
RIGHT = {
    "A": [Row(1, "sent", ("A", "B"), 1), *MARKERS, Row(2, "sent", ("A", "B"), 2)],
    "B": [
        Row(1, "accepted", ("A", "B"), 1),
        Row(1, "marker accepted", ("A", "B"), snapshot="A-1", recorded=()),
        Row(1, "recorded", snapshot="A-1"),
        Row(1, "marker sent", ("B", "A"), snapshot="A-1"),
        Row(2, "accepted", ("A", "B"), 2),
    ],
}
RIGHT["A"].append(Row(2, "marker accepted", ("B", "A"), snapshot="A-1", recorded=()))
ORPHAN = RIGHT | {
    "B": [RIGHT["B"][0], RIGHT["B"][4], *(row._replace(event=2) for row in RIGHT["B"][1:4])]
}
"""Message 2 is accepted before the cut of B, and sent after that of A."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """An event log in which snapshot A-1 is consistent in epoch 1 and is not in epoch 2."""
    chance = random.Random(1)
    write(RIGHT, tmp_path / "log", 1, chance)
    write(ORPHAN, tmp_path / "log", 2, chance)
    return tmp_path / "log"


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_message_that_contradicts_is_named_with_its_events(call: Call, log: Path) -> None:
    """Exit 1, the inconsistent snapshot first, and in which events it was sent and accepted."""
    result = call("spark", "verify", log, *HERE)
    assert result.exit_code == 1, result.output
    assert "no: snapshot A-1: channel A->B, message 2: accepted inside the cut" in result.stderr
    assert "(sent in event A#2; accepted in event B#2)" in result.stderr
    rows = [line.split() for line in result.stdout.splitlines()]
    verdicts = [row[:3] for row in rows if row[1:2] == ["A-1"]]
    assert verdicts == [["2", "A-1", "inconsistent"], ["1", "A-1", "consistent"]]


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_one_epoch_can_be_verified_alone_and_as_json(call: Call, log: Path) -> None:
    """In the first epoch nothing is wrong."""
    result = call("spark", "verify", log, "--epoch", "1", "--json", *HERE)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["ok"]
    assert [row["verdict"] for row in found["snapshots"]] == ["consistent", "consistent"]
    assert found["snapshots"][0]["event_count"] == 2
    assert "yes: 1 snapshot consistent" in result.stderr


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_what_a_store_says_otherwise_is_named(call: Call, log: Path, money: Path) -> None:
    """The store is of another run: its snapshots are not what the log says, or not in it."""
    result = call("spark", "verify", log, "--epoch", "1", "--store", money, *HERE)
    assert result.exit_code == 1
    assert "published otherwise than the log says" in result.output
    assert "A-2" in result.stdout


def reseal(directory: Path, file: str) -> None:
    """Let the manifest of a snapshot say what a file is now, as if it had been written so."""
    manifest: Manifest = read_manifest(directory, {purses.description.hash: purses.description})
    now = record_of(file, (directory / file).read_bytes())
    files = tuple(now if old.name == file else old for old in manifest.files)
    sealed = seal(msgspec.structs.replace(manifest, files=files))
    (directory / "manifest.json").write_bytes(sealed)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("file", "harm", "named"),
    [
        ("channels.parquet", "flip", "A-2: the store: channels.parquet was changed"),
        ("processes.parquet", "flip", "A-2: the store: processes.parquet was changed"),
        ("messages.parquet", "delete", "A-2: the store: messages.parquet is missing"),
        ("messages.parquet", "double", "channel A->B: 15 sent - 10 received = 5, but"),
    ],
)
def test_damage_to_the_store_is_named(
    call: Call, log: Path, money: Path, file: str, harm: str, named: str
) -> None:
    """Every byte of what is compared with the log is verified, also what the log does not have; a
    message that was written twice contradicts the books."""
    directory = money / "snapshots" / "A-2"
    path = directory / file
    if harm == "delete":
        path.unlink()
    elif harm == "double":
        table = pq.read_table(path, partitioning=None)
        pq.write_table(pa.concat_tables([table, table.slice(0, 1)]), path)
        reseal(directory, file)
    else:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    result = call("spark", "verify", log, "--store", money, "--json", *HERE)
    assert result.exit_code == 1, result.output
    found = json.loads(result.stdout)
    row = next(r for r in found["snapshots"] if (r["epoch"], r["snapshot"]) == (1, "A-2"))
    assert (found["ok"], row["verdict"]) == (False, "inconsistent")
    assert named in f"A-2: the store: {row['faults'][0]['what']}"


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_damaged_manifest_is_a_no_and_hides_no_other_snapshot(
    call: Call, log: Path, money: Path
) -> None:
    """Its snapshot is named, whatever epoch it was of, and the others are compared."""
    path = money / "snapshots" / "A-2" / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b"A", b"B", 1))
    arguments = ("spark", "verify", log, "--store", money, "--epoch", "2", *HERE)
    result = call(*arguments, "--json")
    assert result.exit_code == 1, result.output
    found = json.loads(result.stdout)
    row = next(r for r in found["snapshots"] if r["snapshot"] == "A-2")
    assert (found["ok"], row["epoch"], row["verdict"]) == (False, None, "inconsistent")
    assert "manifest.json was changed" in row["faults"][0]["what"]
    assert {r["snapshot"] for r in found["snapshots"]} == {"A-1", "A-2", None}
    result = call(*arguments)
    assert (result.exit_code, "A-2/manifest.json was changed" in result.output) == (1, True)


def test_a_damaged_store_is_a_no_before_spark_starts(call: Call, log: Path, money: Path) -> None:
    """As for 'stillframe verify': what cannot be compared is not consistent."""
    path = money / "store.json"
    path.write_bytes(path.read_bytes().replace(b"A", b"B", 1))
    result = call("spark", "verify", log, "--store", money, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["ok"], found["snapshots"]) == (False, [])
    assert "store.json was changed since it was written" in found["verdict"]
    assert "no: " in result.stderr


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_clock_of_an_event_says_what_happened_before(call: Call, log: Path) -> None:
    """Message 2 was sent in event 2 of A."""
    result = call("spark", "verify", log, "--clock", "B#2", "--epoch", "1", "--json", *HERE)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["clock"] == {"A": 2, "B": 2}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--epoch", "7"), "has nothing of epoch 7; it has the epochs 1, 2"),
        (("--clock", "B2"), "'B2' names no event: they look like P1#17"),
    ],
)
def test_what_is_not_there_is_said_before_spark_starts(
    call: Call, log: Path, options: tuple[str, str], words: str
) -> None:
    """Exit 2, in one sentence."""
    result = call("spark", "verify", log, *options)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())


def test_a_directory_without_a_log_is_refused(call: Call, tmp_path: Path) -> None:
    """With what to do."""
    result = call("spark", "verify", tmp_path)
    assert result.exit_code == 2
    assert "holds no event log" in result.stderr
