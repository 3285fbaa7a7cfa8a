"""The commands on a store in an object store answer as on a directory."""

import json
import secrets
import socket
from pathlib import Path

import pytest

from stillframe.storage import object_store
from stillframe.storage import remote as requests
from tests.cli.conftest import Call
from tests.s3_servers import S3Server, at_night, use
from tests.storage import fake_hdfs


@pytest.fixture(params=["memory", "fake_hdfs", *at_night("hdfs")])
def remote(
    call: Call, money: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> str:
    """The address of a copy of the store."""
    address = f"memory://{secrets.token_hex(8)}/money"
    if request.param == "fake_hdfs":
        fake_hdfs.use(monkeypatch)
        address = f"hdfs://fake-{secrets.token_hex(8)}/money"
    elif request.param == "hdfs":
        address = f"{request.getfixturevalue('hdfs')}/money"
    result = call("store", "copy", money, address)
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith(f"to {address}\n")
    assert result.stdout.startswith("copied 3 snapshots, ")
    return address


@pytest.mark.parametrize(
    "command",
    ["show {} A-1", "verify {}", "verify {} A-2", "diff {} A-1 A-2", "detect {} loss"],
)
@pytest.mark.parametrize("how", [(), ("--json",)])
def test_answers_are_those_of_the_directory(
    call: Call, money: Path, remote: str, command: str, how: tuple[str, ...]
) -> None:
    """With the address in place of the path."""
    there = call(*command.format(remote).split(), *how)
    here = call(*command.format(money).split(), *how)
    assert there.exit_code == here.exit_code
    as_there = here.stdout.replace(str(money), remote)
    assert [line for line in there.stdout.splitlines() if "opened the store" not in line] == (
        as_there.splitlines()
    )


def test_the_events_are_those_of_the_directory(call: Call, money: Path, remote: str) -> None:
    """Besides those of who opened the store."""
    there = json.loads(call("events", remote, "--json").stdout)["history"]
    here = json.loads(call("events", money, "--json").stdout)["history"]
    assert [one for one in there if one["event"] != "WriterChanged"] == here
    call("savepoint", remote, "first", "--snapshot", "A-1")
    assert "another program opened the store for writing" in call("events", remote).stdout


def test_the_list_says_what_it_cost(call: Call, money: Path, remote: str) -> None:
    """Requests, bytes and seconds of this command."""
    there, here = call("list", remote), call("list", money)
    assert there.stdout == here.stdout
    assert "the list took " in there.stderr
    assert " requests to the object store, " in there.stderr
    document = json.loads(call("list", remote, "--json").stdout)
    assert document["store"] == remote
    assert document["snapshots"][0]["directory"] == f"{remote}/snapshots/A-1"
    assert document["requests"]["requests"] > 3
    assert document["requests"]["received_bytes"] > 0
    assert "requests" not in json.loads(call("list", money, "--json").stdout)


def test_savepoints_and_deletion(call: Call, remote: str) -> None:
    """They last for the next command."""
    assert call("savepoint", remote, "first", "--snapshot", "A-1").exit_code == 0
    assert call("delete", remote, "A-2").exit_code == 0
    listed = json.loads(call("list", remote, "--json").stdout)["snapshots"]
    assert [(one["id"], one["savepoints"]) for one in listed] == [("A-1", ["first"]), ("A-3", [])]
    assert call("verify", remote).exit_code == 0


def test_a_copy_back_is_the_store(call: Call, money: Path, remote: str, tmp_path: Path) -> None:
    """And a second copy to the same place is refused."""
    result = call("store", "copy", remote, tmp_path / "back", "--json")
    assert json.loads(result.stdout)["snapshot_count"] == 3
    assert call("list", tmp_path / "back").stdout == call("list", money).stdout
    again = call("store", "copy", remote, tmp_path / "back")
    assert (again.exit_code, "is a store already" in again.stderr) == (2, True)


def test_pages_and_pictures(call: Call, remote: str, tmp_path: Path) -> None:
    """``view`` writes them to local files."""
    for name in ("a.html", "a.svg"):
        result = call("view", remote, "--out", tmp_path / name)
        assert result.exit_code == 0, result.output
        assert (tmp_path / name).stat().st_size > 1000


@pytest.mark.parametrize("option", ["--store", "--event-log", "--fragment-dir", "--pipeline"])
def test_no_system_is_run_in_the_memory_of_a_command(
    call: Call, tmp_path: Path, option: str
) -> None:
    """Nothing could continue it, and its processes would not see what is there."""
    places = {"--store": str(tmp_path / "store"), option: "memory://box/money"}
    words = [word for pair in places.items() for word in pair]
    result = call("run", "tests.calm:bank", *words)
    assert result.exit_code == 2
    assert "memory://box/money is in the memory of this command, and is lost" in result.stderr
    assert not (tmp_path / "store").exists()


def test_what_is_not_there_is_a_sentence(call: Call) -> None:
    """As of a directory."""
    result = call("list", "memory://nothing/there")
    assert result.exit_code == 2
    assert "memory://nothing/there does not exist: give the directory" in result.stderr


@pytest.mark.parametrize("how", [(), ("--json",)])
def test_a_list_says_what_it_waits_for(
    call: Call, monkeypatch: pytest.MonkeyPatch, how: tuple[str, ...]
) -> None:
    """Of a server that takes connections and never answers, before the error of that."""
    monkeypatch.setattr(requests, "NOTICE_S", 0.05)
    monkeypatch.setattr(object_store, "SILENT_S", 0.3)
    monkeypatch.setattr(requests, "REPEAT_S", 0.2)
    address = f"s3://{secrets.token_hex(8)}"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        use(S3Server(silent.getsockname()[1]), monkeypatch)
        result = call("list", f"{address}/store", *how)
    notice, error = result.stderr.splitlines()
    assert notice == f"waiting for {address}: it has not answered yet; Ctrl-C ends this command"
    assert "it did not answer in time" in error
    assert result.exit_code == 2
