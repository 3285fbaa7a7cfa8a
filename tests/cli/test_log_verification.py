"""``log verify``: verdicts from an event log, with the first message that contradicts."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stillframe.cli.records import why
from stillframe.storage.location import ObjectPath
from stillframe.store.manifest import Manifest, read_manifest
from stillframe.store.sealed_json import seal
from stillframe.store.snapshot_directory import record_of
from stillframe.store.store import Store
from tests.cli.conftest import Call, publish, purses, rows_and_words, state_of
from tests.eventlog.test_remote import copied
from tests.eventlogs import Row, as_stream, messages, write
from tests.shapes import same_shape

pytest.importorskip("pyspark", reason="needs PySpark")

from pyspark.sql import DataFrame

from stillframe.analytics import audit, log_checks, log_events, log_verification
from tests.cli.frames import frame, without_spark

HERE = ("--master", "local[2]")
MARKERS = [Row(1, "recorded", snapshot="A-1"), Row(1, "marker sent", ("A", "B"), snapshot="A-1")]
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


def verdict(snapshot: str | None, epoch: int, *, message_count: int = 0) -> dict[str, Any]:
    """Return what is found of a consistent snapshot, or of the log itself."""
    found = {"epoch": epoch, "snapshot": snapshot, "verdict": "consistent"}
    found |= {"event_count": None if snapshot is None else 2, "message_count": message_count}
    return found | {"missing": [], "faults": [], "gaps": [], "fault_count": 0}


CONTRADICTION: dict[str, Any] = {"source": "A", "target": "B", "what": log_checks.ORPHAN}
CONTRADICTION |= {"first": 2, "last": 2, "count": 1}
WRONG = {"verdict": "inconsistent", "faults": [CONTRADICTION], "fault_count": 1}
MESSAGE = {"epoch": 2, "channel": "A->B", "number": 2, "snapshot": None, "at": None}
LOCATED = [
    MESSAGE | {"kind": "sent", "process": "A", "event": 2},
    MESSAGE | {"kind": "accepted", "process": "B", "event": 2},
]
Find = Callable[..., None]


@pytest.fixture
def find(monkeypatch: pytest.MonkeyPatch) -> Find:
    """Let these verdicts have been found without Spark, and nothing else be wrong with a store."""

    def find(*found: dict[str, Any]) -> None:
        without_spark(monkeypatch)
        monkeypatch.setattr(log_verification, "log_pieces", lambda *_: frame())
        monkeypatch.setattr(log_verification, "channel_cuts", lambda *_: frame())
        monkeypatch.setattr(log_verification, "findings", lambda *_: frame())
        monkeypatch.setattr(log_verification, "verdicts", lambda _: frame(*found))
        monkeypatch.setattr(audit, "invalid_snapshots", lambda *_: {})
        monkeypatch.setattr(log_events, "locate", lambda *_: frame(*LOCATED))

    return find


def test_what_is_wrong_comes_first(call: Call, log: Path, find: Find) -> None:
    """Exit 1, and in which events the message was sent and accepted that contradicts."""
    find(verdict("A-1", 1), verdict(None, 1), verdict("A-1", 2, message_count=1000) | WRONG)
    result = call("log", "verify", log)
    assert result.exit_code == 1, result.output
    rows, words = rows_and_words(result.stdout)
    assert words == [
        (
            "FAIL: snapshot A-1: channel A->B, message 2: accepted inside the cut, not sent inside "
            "it (sent in event A#2; accepted in event B#2)"
        )
    ]
    assert [row[:5] for row in rows] == [
        ["2", "A-1", "inconsistent", "2", "1,000"],
        ["1", "A-1", "consistent", "2", "0"],
        ["1", "(the", "log)", "consistent", "0"],
    ]


def test_a_good_log_is_a_yes_with_a_capped_table(call: Call, log: Path, find: Find) -> None:
    """20 of 31 rows are shown, which is said; JSON has all."""
    find(*(verdict(f"A-{number}", 1) for number in range(1, 31)), verdict(None, 1))
    result = call("log", "verify", log, "--epoch", "1")
    assert result.exit_code == 0, result.output
    rows, words = rows_and_words(result.stdout)
    assert (len(rows), "".join(map(" ".join, rows)).count("consistent")) == (20, 20)
    assert words == ["and 11 more rows (--json has all)", "PASS: 30 snapshots consistent"]
    found = json.loads(call("log", "verify", log, "--epoch", "1", "--json").stdout)
    assert (found["ok"], len(found["snapshots"])) == (True, 31)


def test_a_damaged_manifest_is_a_no_and_hides_no_other_snapshot(
    call: Call, log: Path, money: Path, find: Find
) -> None:
    """Its snapshot is named, whatever epoch it was of, and the others are compared."""
    path = money / "snapshots" / "A-2" / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b"A", b"B", 1))
    find(verdict("A-1", 2), verdict(None, 2))
    result = call("log", "verify", log, "--store", money, "--epoch", "2", "--json")
    assert result.exit_code == 1, result.output
    assert "A-2/manifest.json was changed" in result.stderr
    found = json.loads(result.stdout)
    row = next(r for r in found["snapshots"] if r["snapshot"] == "A-2")
    assert (found["ok"], row["epoch"], row["verdict"]) == (False, None, "inconsistent")
    assert [r["snapshot"] for r in found["snapshots"]] == ["A-1", None, "A-2"]


def test_a_log_may_be_in_an_object_store(call: Call, log: Path, find: Find) -> None:
    """An address names it; Spark's checkpoint is only local or in S3."""
    remote = copied(log, ObjectPath("memory://test-of-the-cli", "log"))
    find(verdict("A-1", 1), verdict(None, 1))
    result = call("log", "verify", remote)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "PASS: 1 snapshot consistent")
    missing = call("log", "verify", remote / "none")
    assert missing.exit_code == 2
    assert f"{remote}/none holds no event log" in missing.stderr
    refused = call("store", "follow", "s", "--checkpoint", remote)
    assert (refused.exit_code, refused.stderr.count("cannot hold a checkpoint")) == (2, 1)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_spark_names_a_message_that_contradicts_with_its_events(
    call: Call, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first epoch is right; in the second a message is received before it is sent."""
    locate = log_events.locate
    located: list[dict[str, Any]] = []

    def locate_and_keep(*asked: Any) -> DataFrame:
        found = locate(*asked)
        located.extend(row.asDict() for row in found.collect())
        return found

    monkeypatch.setattr(log_events, "locate", locate_and_keep)
    result = call("log", "verify", log, "--json", *HERE)
    assert result.exit_code == 1, result.output
    assert "FAIL: snapshot A-1: channel A->B, message 2: accepted inside the cut" in result.stderr
    assert "(sent in event A#2; accepted in event B#2)" in result.stderr
    found = json.loads(result.stdout)["snapshots"]
    assert [(row["epoch"], row["snapshot"], row["verdict"]) for row in found] == [
        (1, "A-1", "consistent"),
        (1, None, "consistent"),
        (2, "A-1", "inconsistent"),
        (2, None, "consistent"),
    ]
    assert found[0]["event_count"] == 2
    same_shape([verdict("A-1", 1), verdict(None, 1), verdict("A-1", 2) | WRONG], found)
    same_shape(LOCATED, located)


def reseal(directory: Path, file: str) -> None:
    """Let the manifest of a snapshot say what a file is now, as if it had been written so."""
    manifest: Manifest = read_manifest(directory, {purses.description.hash: purses.description})
    now = record_of(file, (directory / file).read_bytes())
    files = tuple(now if old.name == file else old for old in manifest.files)
    sealed = seal(msgspec.structs.replace(manifest, files=files))
    (directory / "manifest.json").write_bytes(sealed)


DAMAGES = (
    ("A-3", "channels.parquet", "flip", "channels.parquet was changed"),
    ("A-4", "processes.parquet", "flip", "processes.parquet was changed"),
    ("A-5", "messages.parquet", "delete", "messages.parquet is missing"),
    ("A-6", "messages.parquet", "double", "channel A->B: 15 sent - 10 received = 5, but"),
    ("A-7", "manifest.json", "flip", "manifest.json was changed"),
)


def harm(directory: Path, file: str, how: str) -> None:
    """Damage a file of a snapshot."""
    path = directory / file
    if how == "delete":
        path.unlink()
    elif how == "double":
        table = pq.read_table(path, partitioning=None)
        pq.write_table(pa.concat_tables([table, table.slice(0, 1)]), path)
        reseal(directory, file)
    else:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_what_a_store_says_otherwise_and_its_damage_are_named(
    call: Call, log: Path, money: Path
) -> None:
    """Every byte of what is compared with the log is verified, also what the log does not have; a
    message that was written twice contradicts the books. The store is of another run: what is whole
    is not what the log says, or not in it."""
    store = Store.open_writer(money)
    for number in range(4, 8):
        publish(store, number, state_of(95, "", [1, 1, 1, 1, 1]))
    store.close()
    for snapshot, file, how, _ in DAMAGES:
        harm(money / "snapshots" / snapshot, file, how)
    result = call("log", "verify", log, "--store", money, "--epoch", "1", "--json", *HERE)
    assert result.exit_code == 1, result.output
    found = json.loads(result.stdout)
    assert found["ok"] is False
    rows = {row["snapshot"]: row for row in found["snapshots"]}
    assert {snapshot: row["epoch"] for snapshot, row in rows.items()} == {
        **dict.fromkeys((None, *(f"A-{number}" for number in range(1, 7))), 1),
        "A-7": None,
    }
    assert rows["A-1"]["faults"][0]["what"] == "published with other contents than the log has"
    assert (rows["A-2"]["verdict"], rows["A-2"]["faults"]) == ("incomplete", [])
    for snapshot, _, _, named in DAMAGES:
        assert rows[snapshot]["verdict"] == "inconsistent"
        assert named in rows[snapshot]["faults"][0]["what"]


def test_a_damaged_store_is_a_no_before_spark_starts(call: Call, log: Path, money: Path) -> None:
    """As for 'stillframe verify': what cannot be compared is not consistent."""
    path = money / "store.json"
    path.write_bytes(path.read_bytes().replace(b"A", b"B", 1))
    result = call("log", "verify", log, "--store", money, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["ok"], found["snapshots"]) == (False, [])
    assert "store.json was changed since it was written" in found["verdict"]
    assert "FAIL: " in result.stderr


def test_a_damaged_stream_is_a_no_before_spark_starts(call: Call, log: Path) -> None:
    """The rows after the damaged byte were left out as after a crash, and no file was named."""
    path = next(log.joinpath("e1", "A").glob("*.parquet"))
    stream = as_stream(path)
    content = bytearray(stream.read_bytes())
    _, start, _ = messages(bytes(content))[-2]
    content[start + 8] ^= 0x40
    stream.write_bytes(content)
    result = call("log", "verify", log, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["ok"], found["snapshots"]) == (False, [])
    assert str(stream) in found["verdict"]


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_clock_of_an_event_says_what_happened_before(call: Call, log: Path) -> None:
    """Message 2 was sent in event 2 of A."""
    result = call("log", "clock", log, "B#2", "--epoch", "1", "--json", *HERE)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["clock"] == {"A": 2, "B": 2}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("verify", "LOG", "--epoch", "7"), "has nothing of epoch 7; it has the epochs 1, 2"),
        (("clock", "LOG", "B2"), "'B2' is not an event, such as P1#17"),
    ],
)
def test_what_is_not_there_is_said_before_spark_starts(
    call: Call, log: Path, command: tuple[str, ...], words: str
) -> None:
    """Exit 2, in one sentence."""
    result = call("log", *(str(log) if word == "LOG" else word for word in command))
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())


def test_a_directory_without_a_log_is_refused(call: Call, tmp_path: Path) -> None:
    """With what to do."""
    result = call("log", "verify", tmp_path)
    assert result.exit_code == 2
    assert "holds no event log" in result.stderr


def test_processes_are_named_in_natural_order() -> None:
    """P2 comes before P10."""
    row = {"faults": [], "gaps": [], "missing": ["P10", "P2"], "snapshot": None}
    assert why(row) == "P2, P10 has no log"
