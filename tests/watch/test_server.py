"""The server as a program asks it: what it answers, what it refuses, and how it ends."""

import asyncio
import contextlib
import json
import re
import signal
import socket
from collections.abc import AsyncIterator, Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner

from stillframe.cli.app import app
from stillframe.cli.watch import token_for
from stillframe.runtime.network.addresses import Address
from stillframe.store.store import Store
from stillframe.watch.pipeline_target import PipelineTarget
from stillframe.watch.predicate_status import PredicateMonitor
from stillframe.watch.server import BODY_BYTES_MAX, PAGE, serve
from stillframe.watch.system_target import SystemTarget
from stillframe.watch.target import CreateSavepoint, Restore, TriggerSnapshot
from tests.cli.pipelines import resting_shop
from tests.watch.published import REFERENCE, a_store, new_store, publish
from tests.watch.servers import a_command, a_server, a_system, ask, page_of

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with three snapshots, of a system that does not run."""
    return a_store(tmp_path)


def news(link: str, *kinds: str, is_it: Callable[[dict[str, Any]], bool] = bool) -> dict[str, Any]:
    """Listen until each of these kinds of news has come and is as it should be, and return the last
    of each."""
    where = urlsplit(link)
    assert where.hostname is not None
    connection = HTTPConnection(where.hostname, where.port, timeout=60)
    found: dict[str, Any] = {}
    with contextlib.closing(connection):
        connection.request("GET", "/events")
        answer = connection.getresponse()
        assert answer.getheader("Content-Type") == "text/event-stream; charset=utf-8"
        kind = ""
        while not (found.keys() >= {*kinds} and is_it(found)):
            line = answer.readline().decode()
            name, _, rest = line.rstrip("\n").partition(": ")
            if name == "event":
                kind = rest
            elif name == "data":
                found[kind] = json.loads(rest)
    return found


def test_the_files_of_the_page_are_served_and_no_others(store: Path) -> None:
    """No path leads out of their folder."""
    with page_of(store) as link:
        for name in PAGE:
            status, told, body = ask(link, f"/page/{name}")
            assert (status, bool(body)) == (200, True)
            assert told["content-security-policy"]
        assert ask(link, "/")[2] == ask(link, "/page/index.html")[2]
        for path in (
            "/page/../self_contained_page.py",
            "/page/..%2fself_contained_page.py",
            "/page/self_contained_page.py",
            "/page/bar.js",
            "/page//etc/passwd",
            "/page/",
            "/x",
        ):
            assert ask(link, path)[0] == 404


def test_nothing_of_the_page_is_inline_or_from_elsewhere() -> None:
    """So the policy can forbid both."""
    folder = Path(__file__).parent.parent.parent / "src/stillframe/pages/assets"
    text = (folder / "index.html").read_text()
    assert re.findall(r"<script(?![^>]* src=\"/page/)|<style|\son\w+=|style=", text) == []
    for path in folder.glob("*.js"):
        code = path.read_text()
        assert (
            re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", code) == []
        )
        assert re.findall(r"https?://(?!www\.w3\.org/)", code) == []


def of_a_system(path: Path) -> SystemTarget:
    """Return who follows a system with three snapshots."""
    store = Store.open(a_store(path))
    return SystemTarget(store, PredicateMonitor(store, (), REFERENCE), None)


def of_a_pipeline(path: Path) -> PipelineTarget:
    """Return who follows a pipeline with a snapshot."""
    shop = resting_shop(path / "shop.pipeline")
    shop.snapshot("unaligned")
    return PipelineTarget(shop.path)


@pytest.mark.parametrize("make", [of_a_system, of_a_pipeline])
def test_a_page_that_comes_before_anything_was_read_is_told_all(
    make: Callable[[Path], SystemTarget | PipelineTarget], tmp_path: Path
) -> None:
    """Its list stayed empty until another snapshot was published."""

    async def told(listening: AsyncIterator[bytes]) -> dict[str, Any]:
        async for event in listening:
            kind, _, data = event.decode().partition("\n")
            if kind == "event: snapshots":
                return dict(json.loads(data.removeprefix("data: ")))
        raise AssertionError

    async def go() -> dict[str, Any]:
        target = make(tmp_path)
        page = asyncio.ensure_future(
            told(target.stream.subscribe(target.initial_events, target.wake))
        )
        await asyncio.wait([page], timeout=0.2)  # as far as it comes
        following = asyncio.ensure_future(target.run())
        found = await page
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        return found

    found = asyncio.run(go())
    assert found["count"] == len(found["rows"]) > 0


def test_what_is_there_is_told_and_what_is_not_is_said_not_to_be(store: Path) -> None:
    """With a status and a sentence; foreign names make no path."""
    with page_of(store) as link:
        found = news(link, "about", "system", "snapshots", "past")
        assert [row["id"] for row in found["snapshots"]["rows"]] == ["A-3", "A-2", "A-1"]
        assert found["system"]["is_running"] is False
        assert "stillframe run" in found["system"]["explanation"]
        status, _, body = ask(link, "/api/snapshots?before=3")
        assert (status, [row["id"] for row in json.loads(body)["rows"]]) == (200, ["A-2", "A-1"])
        status, _, body = ask(link, "/api/snapshot/A-2")
        assert (status, json.loads(body)["id"]) == (200, "A-2")
        for path in (
            "/api/snapshot/A-9",
            "/api/snapshot/..",
            "/api/snapshot/%2e%2e%2fstore.json",
            "/api/snapshots?before=x",
            "/api/snapshots?before=-1",
            "/api/snapshots?before=" + "9" * 30,
            "/api/snapshots",
        ):
            status, _, body = ask(link, path)
            assert status in (400, 404)
            assert b"Traceback" not in body
        damaged = store / "snapshots" / "A-2" / "processes.parquet"
        damaged.write_bytes(b"nothing")
        status, _, body = ask(link, "/api/snapshot/A-2")
        assert status == 500
        assert "processes.parquet" in json.loads(body)["detail"]


def test_an_action_that_makes_no_sense_is_refused(store: Path) -> None:
    """By its form, its size, and by what it wishes; the reason is told."""
    with page_of(store) as link:
        for body in ({}, {"type": "drop"}, {"type": "take", "more": 1}, {"type": "keep"}, [1]):
            assert ask(link, "/api/action", body)[0] == 400
        assert ask(link, "/api/action", "x" * (BODY_BYTES_MAX + 1))[0] == 400
        assert ask(link, "/api/action", {"type": "take"}, headers={})[0] == 403
        assert ask(link, "/api/action")[0] == 405
        for action in (
            TriggerSnapshot(),
            Restore("A-1"),
            Restore("A-9"),
            CreateSavepoint("A-9", "x"),
            CreateSavepoint("A-1", "../x"),
        ):
            status, _, answer = ask(link, "/api/action", action)
            assert status == 200
            told = json.loads(answer)
            assert told["is_done"] is False
            assert told["sentence"]


def test_off_loopback_there_is_always_a_token(tmp_path: Path) -> None:
    """A new one each time, unless a file holds one."""
    elsewhere = Address.parse("0.0.0.0", port=8641, may_be_any=True)
    first, second = token_for(elsewhere, None), token_for(elsewhere, None)
    assert first is not None
    assert first != second
    assert token_for(Address("127.0.0.1", 8641), None) is None
    assert token_for(Address("::1", 8641), None) is None
    assert token_for(elsewhere, tmp_path / "token") == token_for(elsewhere, tmp_path / "token")


def test_the_token_is_asked_for(store: Path, tmp_path: Path) -> None:
    """It is in the link, once; with a file it stays the same."""
    file = tmp_path / "token"
    with a_server(store, "--token-file", str(file)) as link:
        (token,) = parse_qs(urlsplit(link).query)["token"]
        assert file.read_text().strip() == token
        assert file.stat().st_mode & 0o777 == 0o600
        assert ask(link, "/api/snapshot/A-1", headers={})[0] == 401
        bearer = {"Authorization": f"Bearer {token}"}
        assert ask(link, "/api/snapshot/A-1", headers=bearer)[0] == 200
    assert token_for(Address("127.0.0.1", 8641), file) == token


def test_what_cannot_be_served_says_what_to_do(store: Path, tmp_path: Path) -> None:
    """A port that is taken, a token that is none, a directory that is no store."""
    (tmp_path / "short").write_text("abc")
    (tmp_path / "binary").write_bytes(b"\xff" * 64)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        for arguments, words in (
            ((str(store), "--listen", taken), "give another address or port with --listen"),
            ((str(store), "--token-file", str(tmp_path / "short")), "holds no token"),
            ((str(store), "--token-file", str(tmp_path / "binary")), "holds no token"),
            (
                (str(store), "--token-file", str(tmp_path / "no" / "such")),
                "no/such cannot be read or written: No such file or directory: check",
            ),
            ((str(tmp_path / "nothing"),), "does not exist"),
            ((str(store), "--detect", "nonsense"), "there is no predicate 'nonsense'"),
        ):
            result = CliRunner().invoke(app, ["watch", *arguments])
            assert result.exit_code == 2
            assert words in result.stderr


def test_a_system_is_followed_while_it_runs(tmp_path: Path) -> None:
    """News of it, of its snapshots and their markers; a snapshot is taken on a wish."""
    with a_system(tmp_path, "--every", "never"), page_of(tmp_path / "store") as link:
        told = json.loads(ask(link, "/api/action", TriggerSnapshot("P2", "kept"))[2])
        assert told == {
            "is_done": True,
            "sentence": f"snapshot {told['snapshot']} is kept as 'kept'",
            "snapshot": told["snapshot"],
        }
        assert str(Store.open(tmp_path / "store").savepoints["kept"]) == told["snapshot"]
        found = news(
            link,
            *("about", "system", "timeline", "snapshots", "past"),
            is_it=lambda found: found["system"]["statuses"] == ["running"] * 3,
        )
        assert found["timeline"]["id"] == told["snapshot"]
        assert found["timeline"]["marked_by"]["P2"] is None
        unknown = json.loads(ask(link, "/api/action", TriggerSnapshot("P9"))[2])
        assert (unknown["is_done"], "no process 'P9'" in unknown["sentence"]) == (False, True)


def test_the_command_of_the_page_prints_the_link(tmp_path: Path) -> None:
    """As docs/watch.md shows it, in the directory with the store."""
    text = (Path(__file__).parent.parent.parent / "docs" / "watch.md").read_text()
    block = re.findall(r"^```console\n\$ (.*?)^```$", text, re.DOTALL | re.MULTILINE)[0]
    command, expected = block.split("\n", 1)
    with contextlib.closing(new_store(tmp_path)) as made:
        publish(made, 1)
    (tmp_path / "store").rename(tmp_path / "money")
    port = urlsplit(expected.strip()).port
    with a_command(*command.split()[1:], log=tmp_path / "words", cwd=tmp_path) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:  # somebody has that port: then it says so
            assert f"127.0.0.1:{port}" in (tmp_path / "words").read_text()
        else:
            assert line == expected
            assert ask(line.strip(), "/api/snapshot/A-1")[0] == 200


def test_whoever_says_nothing_is_hung_up_on(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a request, in the middle of its head, and in the head of the next."""
    monkeypatch.setattr("stillframe.watch.server.HEAD_S_MAX", 0.1)
    head = b"GET /page/icon.svg HTTP/1.1\r\nHost: localhost\r\n"

    async def main() -> None:
        opened = Store.open(store)
        target = SystemTarget(opened, PredicateMonitor(opened, (), REFERENCE), None)
        listening = asyncio.get_running_loop().create_future()
        ready, loopback = listening.set_result, Address("127.0.0.1", 0)
        serving = asyncio.ensure_future(serve(target, loopback, token=None, ready=ready))
        port = (await listening).port
        for said in (b"", head, head + b"\r\n" + head):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(said)
            async with asyncio.timeout(60):
                _ = await reader.read()  # it ends, and does not wait for ever
            writer.close()
        signal.raise_signal(signal.SIGTERM)
        await serving

    asyncio.run(main())


def test_a_listener_misses_nothing_that_is_said_while_it_comes(tmp_path: Path) -> None:
    """What is published while the list is read for it comes behind the list."""
    with contextlib.closing(new_store(tmp_path)) as made:
        target = SystemTarget(Store.open(made.path), PredicateMonitor(made, (), REFERENCE), None)

        async def main() -> list[str]:
            await target._read()
            listening = target.stream.subscribe(target.initial_events, target.wake)
            asking = asyncio.ensure_future(anext(listening))
            await asyncio.sleep(0)
            publish(made, 1)
            await target._read()
            told = [await asking]
            while b"A-1" not in told[-1]:
                told.append(await anext(listening))
            return [event.decode() for event in told]

        assert "event: snapshots" in asyncio.run(main())[-1]
