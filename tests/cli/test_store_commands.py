"""``list``, ``show``, ``verify`` and ``diff`` on a store that the real Store wrote."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from stillframe.cli import run
from stillframe.model import Snapshot, SnapshotId
from stillframe.store.history import NEWER, History, SnapshotAbandoned, SnapshotBegan
from stillframe.store.store import Store
from tests.cli.conftest import Call, publish, rows_and_words, state_of


def json_of(text: str) -> Any:
    """Return the one JSON document that stdout must be."""
    assert text.count("\n") == 1
    return json.loads(text)


def change_a_byte(path: Path) -> None:
    """Change one byte in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def test_list_shows_every_snapshot_with_units(call: Call, money: Path) -> None:
    """One row each, in the order of publishing, and which one a restore goes back to."""
    result = call("list", money)
    rows, words = rows_and_words(result.stdout)
    assert (result.exit_code, result.stderr) == (0, "")
    assert [row[0] for row in rows] == ["A-1", "A-2", "A-3"]
    assert "recorded in" in result.stdout.splitlines()[0]
    assert "20 ms" in " ".join(rows[0])
    assert words == ["3 snapshots; a restore starts from A-3"]


def test_list_writes_json(call: Call, money: Path) -> None:
    """JSON has ids as people write them, and the numbers without rounding."""
    listed = json_of(call("list", money, "--json").stdout)
    assert (listed["epoch"], listed["current"]) == (1, "A-3")
    assert [entry["id"] for entry in listed["snapshots"]] == ["A-1", "A-2", "A-3"]
    assert listed["snapshots"][0]["message_count"] == 5
    assert listed["snapshots"][0]["initiated_at"] == 1000.0


def test_an_empty_store_is_listed_as_empty(call: Call, empty: Path) -> None:
    """No snapshot is no error."""
    result = call("list", empty)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "holds no snapshot yet" in result.stdout
    assert json_of(call("list", empty, "--json").stdout)["snapshots"] == []


def test_show_decodes_states_and_caps_messages(call: Call, money: Path) -> None:
    """States are a table of fields; of five messages three are shown, and it says so."""
    result = call("show", money, "A-1")
    assert result.exit_code == 0
    assert ["process", "balance", "note"] in [line.split() for line in result.stdout.splitlines()]
    assert "11: Coin(amount=1), 12: Coin(amount=1), 13: Coin(amount=1) and 2 more" in result.stdout
    assert "at most 3 of each channel are shown" in result.stdout
    assert "recorded in 20 ms" in result.stdout


def test_the_newest_is_shown_if_none_is_named(call: Call, money: Path, empty: Path) -> None:
    """As in ``verify``; a store without one says so."""
    assert "snapshot A-3: " in call("show", money).stdout
    assert call("show", money, "--books").stdout == call("show", money, "A-3", "--books").stdout
    assert json_of(call("show", money, "--json").stdout)["id"] == "A-3"
    result = call("show", empty)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "holds no snapshot yet: take one" in result.stderr


def test_show_shortens_long_values_only_for_people(call: Call, money: Path) -> None:
    """A table cell ends in dots after 60 characters; JSON has the value whole."""
    assert f"{'x' * 57}..." in call("show", money, "A-2").stdout
    assert "x" * 58 not in call("show", money, "A-2").stdout
    shown = json_of(call("show", money, "A-2", "--json").stdout)
    assert shown["processes"][0] == {
        "process": "A",
        "kind": "Purse",
        "state": {"balance": 95, "note": "x" * 200},
    }


def test_show_writes_channels_as_json(call: Call, money: Path) -> None:
    """Counts, the first messages with their numbers, and how many were left out."""
    channel = json_of(call("show", money, "A-1", "--json").stdout)["channels"][0]
    assert channel["messages"][0] == {"number": 11, "kind": "Coin", "fields": {"amount": 1}}
    assert [message["number"] for message in channel.pop("messages")] == [11, 12, 13]
    assert channel == {
        "channel": "A->B",
        "sent_count": 15,
        "received_count": 10,
        "message_count": 5,
        "messages_left_out_count": 2,
    }


@pytest.mark.parametrize("arguments", [("show", "--books"), ("verify",)])
def test_books_are_shown_per_channel_and_in_all(
    call: Call, money: Path, arguments: tuple[str, ...]
) -> None:
    """Sent - received = in channel, for each channel and for the sum."""
    command, *options = arguments
    result = call(command, money, "A-1", *options)
    rows, _ = rows_and_words(result.stdout)
    assert result.exit_code == 0
    assert rows[-3:] == [
        ["A->B", "15", "10", "5"],
        ["B->A", "3", "3", "0"],
        ["all", "18", "13", "5"],
    ]
    assert "Purse" not in result.stdout


def test_books_can_be_json(call: Call, money: Path) -> None:
    """``show --books --json`` leaves states and messages out."""
    shown = json_of(call("show", money, "A-1", "--books", "--json").stdout)
    assert "processes" not in shown
    assert "messages" not in shown["channels"][0]
    verified = json_of(call("verify", money, "A-1", "--json").stdout)
    assert verified["channels"] == shown["channels"]


def test_verify_says_yes_to_a_good_store(call: Call, money: Path) -> None:
    """All snapshots are read, and their number and size are told."""
    result = call("verify", money)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("PASS: 3 snapshots, ")
    verified = json_of(call("verify", money, "--json").stdout)
    assert (verified["is_consistent"], verified["snapshot_count"]) == (True, 3)


def test_verify_of_nothing_says_so(call: Call, empty: Path) -> None:
    """An empty store is not damaged."""
    result = call("verify", empty)
    assert result.exit_code == 0
    assert "nothing to verify" in result.stdout


@pytest.mark.parametrize(
    "name", ["processes.parquet", "channels.parquet", "messages.parquet", "manifest.json"]
)
@pytest.mark.parametrize("which", [(), ("A-2",)], ids=["all", "one"])
def test_verify_names_a_damaged_file(
    call: Call, money: Path, name: str, which: tuple[str, ...]
) -> None:
    """A changed byte is a no, exit 1, with the file, in words and in JSON."""
    path = money / "snapshots" / "A-2" / name
    change_a_byte(path)
    result = call("verify", money, *which)
    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout.startswith(f"FAIL: {path}")
    found = json_of(call("verify", money, *which, "--json").stdout)
    assert (found["is_consistent"], found["error"]) == (False, "Damaged")
    assert str(path) in found["detail"]


def test_verify_finds_damage_of_the_store_itself(call: Call, money: Path) -> None:
    """Also ``store.json`` is read byte by byte."""
    change_a_byte(money / "store.json")
    result = call("verify", money)
    assert result.exit_code == 1
    assert result.stdout.startswith(f"FAIL: {money / 'store.json'}")


def test_diff_names_the_field(call: Call, money: Path) -> None:
    """Two snapshots that differ in one field: that field alone is shown, exit 1."""
    result = call("diff", money, "A-1", "A-2")
    assert result.exit_code == 1
    (row,), words = rows_and_words(result.stdout)
    assert row[:2] == ["A", "note"]
    assert words[-1] == "A-1 and A-2 differ in 1 field of processes and 0 channels"
    different = json_of(call("diff", money, "A-1", "A-2", "--json").stdout)
    assert different == {
        "version": 2,
        "is_equal": False,
        "fields": [{"process": "A", "field": "note", "before": "", "after": "x" * 200}],
        "channels": [],
    }


def test_diff_sees_other_messages_behind_the_same_counts(call: Call, money: Path) -> None:
    """A channel with as many messages but not the same ones differs, and that is said."""
    result = call("diff", money, "A-1", "A-3")
    assert result.exit_code == 1
    assert "A->B (other messages)" in result.stdout
    assert "differ in 0 fields of processes and 1 channel" in result.stdout


def test_diff_shows_the_counts_of_channels(call: Call, money: Path) -> None:
    """Sent, received and in channel, before and after."""
    with_one_coin = Store.open_writer(money)
    publish(with_one_coin, 4, state_of(95, "", [1]))
    with_one_coin.close()
    result = call("diff", money, "A-1", "A-4")
    assert rows_and_words(result.stdout)[0] == [["A->B", *"15 11 10 10 5 1".split()]]


def test_diff_of_equal_snapshots_is_empty(call: Call, money: Path) -> None:
    """The same states and messages: exit 0 and no data."""
    result = call("diff", money, "A-1", "A-1")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "record the same states and the same messages" in result.stdout
    assert json_of(call("diff", money, "A-1", "A-1", "--json").stdout)["is_equal"] is True


def damage_the_history(store: Path) -> None:
    """Change the first of two lines of the history of a store."""
    with contextlib.closing(History(store)) as past:
        past.append(SnapshotBegan(SnapshotId("A", 1)))
    path = store / NEWER
    content = path.read_bytes()
    path.write_bytes(content[:30] + bytes([content[30] ^ 1]) + content[31:])


@pytest.mark.parametrize("command", ["restore", "resume"])
def test_a_damaged_line_of_the_history_keeps_no_supervisor_back(
    call: Call, money: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """It is named behind the first line, which says that the command supervises the system; then
    the system is started, but its code is another."""
    damage_the_history(money)
    monkeypatch.setattr(run, "_reference_of", lambda _: "stillframe.examples.bank:bank")
    result = call(command, money)
    first, second, *rest = result.stderr.splitlines()
    assert first == f"this command supervises the system of {money} until it is stopped"
    assert second.startswith("warning: line 1 of ")
    assert second.endswith("it is not needed to continue from a snapshot")
    assert "the code differs from that of the store" in " ".join(rest)
    assert result.exit_code == 2


def test_history_shows_what_a_damaged_line_does_not_hide(call: Call, money: Path) -> None:
    """The line is named, with exit code 1; the others are shown, in JSON too."""
    damage_the_history(money)
    result = call("events", money)
    assert result.exit_code == 1, result.output
    event, count, damage = result.stdout.splitlines()
    assert (event.rpartition("  ")[2], count) == ("snapshot A-1 began", "1 event")
    assert damage.startswith("FAIL: line 1 of ")
    shown = call("events", money, "--json")
    assert shown.exit_code == 1
    found = json_of(shown.stdout)
    assert [event["event"] for event in found["history"]] == ["SnapshotBegan"]
    assert [one["detail"].partition(" was")[0] for one in found["damaged"]] == [
        f"line 1 of {money / NEWER}"
    ]


def test_history_shows_a_reason_that_a_newer_version_knows(call: Call, money: Path) -> None:
    """Its name is all that is known of it."""
    with contextlib.closing(History(money)) as past:
        past.append(SnapshotAbandoned(SnapshotId("A", 9), "ECLIPSE", ("B",), "it was dark"))
    result = call("events", money)
    assert result.exit_code == 0, result.output
    assert "snapshot A-9 was abandoned: ECLIPSE; it was dark\n" in result.stdout


def test_a_damaged_manifest_hides_no_other_snapshot(call: Call, money: Path) -> None:
    """The good ones are listed, the damaged one is named, and the exit code is 1."""
    path = money / "snapshots" / "A-2" / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b"A", b"B", 1))
    result = call("list", money)
    assert result.exit_code == 1, result.output
    assert [row[0] for row in rows_and_words(result.stdout)[0]] == ["A-1", "A-3"]
    assert "A-2/manifest.json was changed since it was written" in result.stdout
    listed = json_of(call("list", money, "--json").stdout)
    assert [entry["id"] for entry in listed["snapshots"]] == ["A-1", "A-3"]
    assert [one["id"] for one in listed["damaged"]] == ["A-2"]


@pytest.mark.parametrize(
    "arguments", [("show", "STORE", "A-9"), ("verify", "STORE", "A-9"), ("delete", "STORE", "A-9")]
)
def test_a_damaged_manifest_does_not_hide_a_mistyped_id(
    call: Call, money: Path, arguments: tuple[str, ...]
) -> None:
    """The error is about the id that was given, and says which there are, also the damaged one."""
    (money / "snapshots" / "A-1" / "manifest.json").write_bytes(b"")
    result = call(*(money if word == "STORE" else word for word in arguments))
    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert "there is no snapshot A-9 in the store" in said
    assert "there are A-1, A-2, A-3" in said


def test_list_marks_restore_points(call: Call, money: Path) -> None:
    """A snapshot that overlapped the one before is none."""
    with contextlib.closing(Store.open_writer(money)) as store:
        at = store.entries()[-1].initiated_at
        identity = SnapshotId("B", 4)
        state = state_of(95, "", [1])
        store.publish(Snapshot(identity, store.epoch, at, at + 5, state))
    *lines, _ = call("list", money).stdout.splitlines()
    column = lines[0].index("restore point")
    marks = [line[column : column + len("restore point")].strip() for line in lines[2:]]
    assert marks == ["yes", "yes", "yes", "no"]
    listed = json_of(call("list", money, "--json").stdout)
    assert [entry["is_restore_point"] for entry in listed["snapshots"]] == [True] * 3 + [False]
    assert listed["current"] == "A-3"
