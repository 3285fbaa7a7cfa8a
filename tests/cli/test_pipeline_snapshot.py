"""``pipeline snapshot`` and ``savepoint``: the id, the stragglers, and an end at any moment."""

import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from rich.console import Console
from typer.testing import Result

from stillframe.cli import output, pipeline
from stillframe.pipeline import Pipeline, coordinator
from stillframe.pipeline.progress import Progress
from stillframe.pipeline.service import join
from tests.cli.conftest import Call
from tests.cli.pipelines import Books, Till, add_up, make_shop, sales

ROOT = Path(__file__).parent.parent.parent


def test_a_snapshot_is_taken_and_described(call: Call, shop: Pipeline) -> None:
    """The id goes to stdout; mode, epoch, records in transit and times to stderr."""
    result = call("pipeline", "snapshot", shop.path, "--mode", "unaligned")
    assert (result.exit_code, result.stdout) == (0, "shop-1\n")
    assert "snapshot shop-1: unaligned, epoch 1, 3 records in transit, recorded" in result.stderr
    assert "published after" in result.stderr
    assert "twice" not in result.stderr


def test_a_savepoint_has_a_name(call: Call, shop: Pipeline) -> None:
    """It is told in words and in JSON, and a second one of that name is refused."""
    result = call("pipeline", "savepoint", shop.path, "gold", "--json")
    published = json.loads(result.stdout)["published"]
    assert (published["id"], published["name"], published["mode"]) == ("shop-1", "gold", "aligned")
    assert (published["record_count"], published["duplicate_count"]) == (3, 0)
    assert "savepoint gold, snapshot shop-1: aligned" in result.stderr
    again = call("pipeline", "savepoint", shop.path, "gold")
    assert (again.exit_code, again.stdout) == (2, "")
    assert "the savepoint 'gold' already exists" in again.stderr


@pytest.mark.slow
def test_a_snapshot_that_is_given_up_names_the_straggler(call: Call, shop: Pipeline) -> None:
    """A service that is busy and never ends its action: exit 1, who was missing and why."""
    with join("till", pipeline=shop.path, state=Till()):
        result = call("pipeline", "snapshot", shop.path, "--timeout", "1s")
        found = json.loads(
            call("pipeline", "snapshot", shop.path, "--timeout", "1s", "--json").stdout
        )
    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout.startswith("FAIL: snapshot shop-1 was abandoned: the deadline passed")
    assert "missing: audit, books, till; till has not recorded" in " ".join(result.stdout.split())
    assert found["published"] is None
    assert found["abandoned"]["reason"] == "DEADLINE"
    assert found["abandoned"]["missing"] == ["audit", "books", "till"]
    assert shop.snapshots() == []


@pytest.mark.slow
def test_a_service_that_never_ran_is_named(call: Call, tmp_path: Path) -> None:
    """Without its state there is no snapshot; the words say what to start."""
    fresh = make_shop(tmp_path / "fresh.pipeline")
    result = call("pipeline", "snapshot", fresh.path, "--timeout", "1s")
    assert result.exit_code == 1
    assert "service till has not joined: start it" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--mode", "sometimes"], "'sometimes' is not one of 'aligned', 'unaligned'"),
        (["--timeout", "5"], "--timeout '5' is not a duration"),
    ],
)
def test_wrong_options_are_named(
    call: Call, shop: Pipeline, arguments: list[str], says: str
) -> None:
    """What cannot be meant ends with 2, and no snapshot is begun."""
    result = call("pipeline", "snapshot", shop.path, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr
    assert not (shop.path / "last-snapshot.json").exists()


def test_a_second_snapshot_at_the_same_time_is_refused(call: Call, shop: Pipeline) -> None:
    """Only one is under way: exit 2, and the first goes on."""
    refusals: list[Result] = []
    with join("till", pipeline=shop.path, state=Till()) as till:

        def ask_again(_: Progress) -> None:
            refusals.append(call("pipeline", "snapshot", shop.path))
            till.boundary()

        shop.snapshot(progress=ask_again)
    assert refusals[0].exit_code == 2
    assert "a snapshot is not possible now" in refusals[0].stderr
    assert [str(manifest.snapshot) for manifest in shop.snapshots()] == ["shop-1"]


@pytest.mark.slow
def test_a_terminal_shows_who_is_awaited(
    call: Call, shop: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it lasts the lines say who has recorded and who has not."""
    terminal = io.StringIO()
    words = Console(file=terminal, force_terminal=True, width=100, highlight=False)
    monkeypatch.setattr(output, "words", lambda: words)
    with join("till", pipeline=shop.path, state=Till()):
        result = call("pipeline", "snapshot", shop.path, "--timeout", "2s")
    assert result.exit_code == 1
    assert "0 of 3 have recorded" in terminal.getvalue()
    assert "books waits for the barrier on sales (from till), for" in terminal.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_ending_the_command_gives_the_snapshot_up(shop: Pipeline, number: signal.Signals) -> None:
    """Nothing stays under way, and everybody reads on past the barriers that are there already."""
    terminal, end = pty.openpty()
    with join("till", pipeline=shop.path, state=Till()) as till:
        command = subprocess.Popen(
            [sys.executable, "-m", "stillframe", "pipeline", "snapshot", shop.path, "--json"],
            stdout=subprocess.PIPE,
            stderr=end,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm"},
        )
        os.close(end)
        seen = b""
        while b"0 of 3 have recorded" not in seen:
            seen += os.read(terminal, 4096)
        with join("books", pipeline=shop.path, state=Books()):
            till.boundary()
            while b"1 of 3 have recorded" not in seen:
                seen += os.read(terminal, 4096)
            command.send_signal(number)
            out, _ = command.communicate()
        abandoned = json.loads(out)["abandoned"]
        assert (command.returncode, abandoned["reason"]) == (1, "interrupted")
        assert (abandoned["snapshot"], abandoned["missing"]) == ("shop-1", ["audit", "books"])
        while b"no participant is delayed" not in seen:
            seen += os.read(terminal, 4096)
        os.close(terminal)
        assert shop.status() is None
        assert list((shop.path / "pending").iterdir()) == []
        till.append("sales", sales(8))
    assert add_up(shop, 3) == 5 + 6 + 7 + 8
    assert str(shop.snapshot().snapshot) == "shop-2"


def test_an_end_just_after_the_request_leaves_nothing(
    call: Call, shop: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when nobody has been asked yet, the request is taken back."""
    ask = coordinator._ask

    def interrupted(*arguments: Any) -> None:
        ask(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(coordinator, "_ask", interrupted)
    result = call("pipeline", "snapshot", shop.path)
    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout == (
        "FAIL: the snapshot was abandoned: interrupted; no participant is delayed\n"
    )
    assert shop.status() is None


def test_an_end_just_after_publishing_is_a_yes(
    call: Call, shop: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is published is told as published, however the command ended."""
    publish = coordinator._publish

    def interrupted(*arguments: Any, **options: Any) -> None:
        publish(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(coordinator, "_publish", interrupted)
    result = call("pipeline", "snapshot", shop.path)
    assert (result.exit_code, result.stdout) == (0, "shop-1\n")


def test_of_snapshots_so_many_are_kept(call: Call, shop: Pipeline) -> None:
    """``--keep`` deletes older ones after the new one is there, and no savepoint."""
    call("pipeline", "savepoint", shop.path, "gold")
    for _ in range(3):
        assert call("pipeline", "snapshot", shop.path, "--keep", "2").exit_code == 0
    assert [str(manifest.snapshot) for manifest in shop.snapshots()] == [
        "shop-1",
        "shop-3",
        "shop-4",
    ]


def test_a_damaged_snapshot_that_keeps_logs_is_told(call: Call, shop: Pipeline) -> None:
    """It stays, and whoever drops others hears that the logs stay with it."""
    for _ in range(2):
        call("pipeline", "snapshot", shop.path)
    (shop.path / "snapshots" / "shop-1" / "manifest.json").write_bytes(b"{}")
    result = call("pipeline", "snapshot", shop.path, "--keep", "1")
    assert (result.exit_code, result.stdout) == (0, "shop-3\n")
    assert "shop-1: the manifest is damaged" in result.stderr
    dropped = call("pipeline", "delete", shop.path, "--keep", "0")
    assert "shop-1: the manifest is damaged" in dropped.stderr


def test_periodic_snapshots_go_on_after_an_error(
    call: Call, shop: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is, it is said; the next one may be a good one."""
    waits: list[int] = []
    way = shop.path / "pending"

    def wait(_: float) -> None:
        waits.append(len(shop.snapshots()))
        if len(waits) == 2:
            way.rmdir()
            way.write_text("in the way")
        if len(waits) == 3:
            way.unlink()
        if len(waits) == 4:
            raise KeyboardInterrupt

    # Other threads, such as those of a Spark session, keep the real clock.
    clock = mock.Mock(wraps=time, sleep=wait)
    monkeypatch.setattr(pipeline, "time", clock)
    result = call("pipeline", "snapshot", shop.path, "--every", "1m")
    assert (result.exit_code, result.stdout) == (0, "shop-1\nshop-2\n")
    assert "pending" in result.stderr
    assert waits == [0, 1, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_snapshots_are_taken_until_the_command_is_ended(
    shop: Pipeline, tmp_path: Path, number: signal.Signals
) -> None:
    """With ``--every`` each is told on a line of its own; one that is given up does not end it, and
    the end is no failure."""
    words = tmp_path / "words.txt"
    with (
        words.open("w", encoding="utf-8") as stderr,
        subprocess.Popen(
            [
                *(sys.executable, "-m", "stillframe", "pipeline", "snapshot", shop.path),
                *("--every", "20ms", "--timeout", "500ms", "--keep", "2", "--json"),
            ],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        ) as command,
    ):
        lines = command.stdout
        assert lines is not None
        while json.loads(next(lines))["published"] is None:
            pass
        with join("till", pipeline=shop.path, state=Till()):
            while json.loads(next(lines))["abandoned"] is None:
                pass
        for _ in range(4):
            while json.loads(next(lines))["published"] is None:
                pass
        command.send_signal(number)
        lines.read()
    assert command.returncode == 0
    assert "FAIL: snapshot shop-" in words.read_text(encoding="utf-8")
    # The end may have come between a snapshot and what is dropped after it.
    assert len(shop.snapshots()) in (2, 3)
    assert shop.status() is None
