"""``pipeline status``: who has recorded, who is awaited, and what is left of a dead coordinator."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stillframe.pipeline.progress
from stillframe.cli import pipeline as commands
from stillframe.cli.pipeline import LINE_COUNT_MAX, progress_lines
from stillframe.model import SnapshotId
from stillframe.pipeline import Pipeline, coordinator
from stillframe.pipeline.coordinator import clear_pending
from stillframe.pipeline.pending_snapshot import REQUEST, Request, request_path
from stillframe.pipeline.progress import Awaited, AwaitedChannel, Progress, progress_of
from stillframe.pipeline.service import JoinedService, join
from stillframe.protocol.aligner import Mode
from stillframe.store.sealed_json import seal
from tests.cli.conftest import Call, rows_and_words
from tests.cli.pipelines import Till


@contextlib.contextmanager
def waiting(shop: Pipeline, *, timeout_s: float = 60) -> Iterator[JoinedService]:
    """Take a snapshot that waits for the till, which is in the middle of an action."""
    is_begun = threading.Event()
    with join("till", pipeline=shop.path, state=Till()) as till:
        thread = threading.Thread(
            target=shop.snapshot,
            kwargs={"timeout_s": timeout_s, "progress": lambda now: is_begun.set()},
        )
        thread.start()
        assert is_begun.wait(10)
        yield till
        till.boundary()
        thread.join(10)
        assert not thread.is_alive()


def leave_request(shop: Pipeline) -> None:
    """Leave what a coordinator leaves that was killed."""
    begun_at = time.time() - 100
    request = Request(
        snapshot=SnapshotId("shop", 7),
        epoch=1,
        mode=Mode.ALIGNED,
        name=None,
        initiated_at=begun_at,
        deadline_at=begun_at + 60,
    )
    directory = request_path(shop.path, request.snapshot)
    directory.mkdir(parents=True)
    (directory / REQUEST).write_bytes(seal(request))


def test_nothing_under_way_is_no_error(call: Call, shop: Pipeline) -> None:
    """Exit 0 and no data, with ``--watch``, too; in JSON there is no snapshot."""
    for options in ((), ("--watch",)):
        result = call("pipeline", "status", shop.path, *options)
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout == "no snapshot is pending\n"
        found = call("pipeline", "status", shop.path, "--json", *options)
        assert json.loads(found.stdout) == {"version": 2, "snapshot": None, "warnings": []}


def test_everybody_awaited_is_shown(call: Call, shop: Pipeline) -> None:
    """For what it waits and since when; the stragglers are the ones that could go on."""
    with waiting(shop):
        result = call("pipeline", "status", shop.path)
        found = json.loads(call("pipeline", "status", shop.path, "--json").stdout)
    assert result.exit_code == 0
    rows, (words,) = rows_and_words(result.stdout)
    assert [" ".join(row).split(" 20")[0] for row in rows] == [
        "audit waits for the barrier on totals (from books)",
        "books waits for the barrier on sales (from till)",
        "till has not recorded",
    ]
    assert words.startswith("snapshot shop-1, aligned, begun ")
    assert "ago: 0 of 3 have recorded" in words
    assert (found["snapshot"], found["mode"], found["stragglers"]) == (
        "shop-1",
        "aligned",
        ["till"],
    )
    assert found["awaiting"][1]["channels"] == [
        {"log": "sales", "source": "till", "position": 0, "barrier": None}
    ]


@pytest.mark.parametrize("publishing_s", [0.0, 0.3])
def test_watching_ends_when_it_is_published(
    call: Call, shop: Pipeline, monkeypatch: pytest.MonkeyPatch, publishing_s: float
) -> None:
    """``--watch`` follows the snapshot to its end, also while it is on its way to its place."""
    watch, clear = commands._watch, coordinator._clear_all_but_the_cut

    def clear_slowly(directory: Path) -> None:
        time.sleep(publishing_s)
        clear(directory)

    monkeypatch.setattr(coordinator, "_clear_all_but_the_cut", clear_slowly)
    with waiting(shop) as till:

        def go_on_and_watch(pipeline: Pipeline, first: Progress) -> None:
            till.boundary()
            watch(pipeline, first)

        monkeypatch.setattr(commands, "_watch", go_on_and_watch)
        result = call("pipeline", "status", shop.path, "--watch", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout) == {"version": 2, "snapshot": "shop-1", "is_published": True}
    assert result.stderr == "snapshot shop-1 is published\n"


@pytest.mark.slow
def test_watching_says_that_it_was_given_up(call: Call, shop: Pipeline) -> None:
    """That is a no: exit 1."""
    with waiting(shop, timeout_s=1):
        result = call("pipeline", "status", shop.path, "--watch")
    assert (result.exit_code, result.stderr) == (1, "")
    assert result.stdout == "FAIL: snapshot shop-1 was abandoned\n"


def test_what_a_killed_coordinator_left_is_told(call: Call, shop: Pipeline) -> None:
    """Behind the deadline, with nobody at it: nobody watches for ever, the next one clears it."""
    leave_request(shop)
    shown = call("pipeline", "status", shop.path)
    assert shown.exit_code == 0
    watched = call("pipeline", "status", shop.path, "--watch")
    assert watched.exit_code == 1
    for result in (shown, watched):
        assert "FAIL: the program that took snapshot shop-7 has terminated" in result.stdout
    assert call("pipeline", "snapshot", shop.path).exit_code == 0
    assert call("pipeline", "status", shop.path).stdout == "no snapshot is pending\n"


def test_moving_lines_are_capped() -> None:
    """So many awaited are shown as fit, and the count of the others."""
    begun_at = 1_000.0
    awaited = Awaited("books", begun_at + 2, (AwaitedChannel("sales", "till", 4, 9),))
    progress = Progress(
        snapshot=SnapshotId("shop", 3),
        mode=Mode.UNALIGNED,
        initiated_at=begun_at,
        deadline_at=begun_at + 60,
        recorded={"till": begun_at + 1, "audit": begun_at + 1},
        awaiting=(awaited,),
    )
    assert progress_lines(progress, begun_at + 5) == [
        "snapshot shop-3, unaligned, begun 5.00 s ago: 2 of 3 have recorded (audit, till)",
        f"  {awaited.sentence()}, for 3.00 s",
    ]
    many = msgspec.structs.replace(progress, awaiting=(awaited,) * (LINE_COUNT_MAX + 4))
    assert progress_lines(many, begun_at + 5)[-1] == "  and 4 more are awaited"
    assert len(progress_lines(many, begun_at + 5)) == 1 + LINE_COUNT_MAX + 1


def test_a_snapshot_that_ends_while_it_is_read_is_over(
    call: Call, shop: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What vanished meanwhile is neither damage nor somebody who has not recorded."""
    leave_request(shop)

    def read_too_late(*arguments: Any) -> Progress:
        clear_pending(shop.path)
        return progress_of(*arguments)

    monkeypatch.setattr(stillframe.pipeline.progress, "progress_of", read_too_late)
    result = call("pipeline", "status", shop.path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "no snapshot is pending\n"
