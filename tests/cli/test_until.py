"""``run --until``: a system stops itself as soon as a stable predicate holds."""

import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stillframe.cli import run, supervision
from stillframe.detect.view import SnapshotView
from stillframe.runtime.os_process import current_process
from stillframe.store.store import Store
from tests.cli.conftest import Call

SHORT = ("--every", "50ms", "--duration", "300ms")
LONG = ("--duration", "60s")
"""The end of a system that a predicate does not stop, though it should."""
RALLY = "tests.runtime.programs:rally"


@pytest.mark.slow
def test_it_stops_when_the_predicate_holds(call: Call, tmp_path: Path) -> None:
    """Long before its time is over; the answer is yes, with what was found, and the store can say
    it again."""
    path, table = tmp_path / "dinner", "stillframe.examples.philosophers:table"
    options = ("--every", "100ms", "--until", "deadlock", "--json")
    ended = call("run", table, "--store", path, *options, *LONG)
    assert ended.exit_code == 0, ended.stderr
    judged = json.loads(ended.stdout.splitlines()[-1])
    assert (judged["event"], judged["predicate"]) == ("PredicateEvaluated", "deadlock")
    assert judged["newest"]["verdict"]["holds"] is True
    assert f"yes: deadlock holds in {judged['newest']['snapshot']}: F1 waits for P1" in ended.stderr
    assert call("detect", path, "deadlock").exit_code == 0


@pytest.mark.slow
def test_it_says_no_when_time_is_over(call: Call, tmp_path: Path) -> None:
    """With exit code 1, and what the last snapshot shows."""
    path = tmp_path / "rally"
    ended = call("run", RALLY, "--store", path, "--until", "deadlock", *SHORT)
    assert ended.exit_code == 1
    newest = Store.open(path).entries()[-1].id
    words = f"no: deadlock did not hold in {newest}: no processes keep each other blocked"
    assert words in ended.stdout


def is_first(view: SnapshotView) -> bool:
    """Whether a snapshot is the first: true once, and never again."""
    return view.snapshot.number == 1


was_stopped = threading.Event()


def take_long(view: SnapshotView) -> bool:
    """Think it over for longer than anybody waits."""
    return was_stopped.wait() and bool(view)


@pytest.fixture
def long_predicate() -> Iterator[str]:
    """Name a predicate that has no answer before the test is over."""
    was_stopped.clear()
    yield f"{__name__}:take_long"
    was_stopped.set()


@pytest.mark.slow
def test_a_predicate_that_is_not_stable_is_found_out(call: Call, tmp_path: Path) -> None:
    """By the last snapshot, which is taken when it has held."""
    options = ("--every", "50ms", "--until", f"{__name__}:is_first", "--json")
    ended = call("run", RALLY, "--store", tmp_path / "rally", *options, *LONG)
    assert ended.exit_code == 1
    judged = json.loads(ended.stdout.splitlines()[-1])
    assert (judged["holds"], judged["not_stable"][0]) == (False, "A-1")
    assert "is_first is not stable: it held in snapshot A-1 and not in" in ended.stderr


@pytest.mark.slow
def test_nobody_waits_for_a_predicate_that_takes_long(
    call: Call, long_predicate: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system stops when it is to, and says that there is no answer."""
    monkeypatch.setattr(supervision, "LAST_EVALUATION_S", 0.1)
    options = ("--until", long_predicate, *SHORT)
    ended = call("run", RALLY, "--store", tmp_path / "rally", *options)
    assert ended.exit_code == 1
    assert "take_long was still being evaluated when the system was stopped" in ended.stdout


def test_what_is_no_predicate_is_refused_before_anything_starts(call: Call, tmp_path: Path) -> None:
    """No store is made."""
    options = ("--store", tmp_path / "dinner", "--until", "love")
    result = call("run", "stillframe.examples.philosophers:table", *options)
    assert result.exit_code == 2
    assert "there is no predicate 'love'" in result.stderr
    assert not (tmp_path / "dinner").exists()


def test_a_missing_duckdb_is_reported_before_anything_starts(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system would be stopped by its first snapshot."""
    monkeypatch.setitem(sys.modules, "duckdb", None)
    options = ("--store", tmp_path / "s", "--until", "select 1")
    result = call("run", "stillframe.examples.philosophers:table", *options)
    assert result.exit_code == 2
    assert "stillframe[sql]" in result.stderr
    assert not (tmp_path / "s").exists()


@pytest.mark.slow
def test_a_restore_stops_when_the_predicate_holds(call: Call, tmp_path: Path) -> None:
    """As ``run`` does."""
    path, table = tmp_path / "dinner", "stillframe.examples.philosophers:table"
    assert (
        call("run", table, "--store", path, "--every", "never", "--duration", "1ms").exit_code == 0
    )
    ended = call("restore", path, "--every", "100ms", "--until", "deadlock", *LONG)
    assert ended.exit_code == 0, ended.stderr
    assert "yes: deadlock holds in " in ended.stdout


@pytest.mark.slow
def test_a_restore_says_nothing_of_snapshots_that_it_left_behind(
    call: Call, tmp_path: Path
) -> None:
    """The newest snapshot of the epoch before is not the state of the system any more."""
    path = tmp_path / "rally"
    assert call("run", RALLY, "--store", path, *SHORT).exit_code == 0
    first = str(Store.open(path).entries()[0].id)
    options = ("--every", "never", "--until", "select true", "--duration", "1ms")
    ended = call("restore", path, first, *options)
    assert ended.exit_code == 0, ended.stderr
    newest = Store.open(path).entries()[-1]
    assert newest.epoch == 2
    assert f"holds in {newest.id}" in ended.stdout


def test_what_a_restore_should_stop_at_is_checked_first(
    call: Call, money: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name, and that the system does not run already: a live restore lets it run on."""
    result = call("restore", money, "--until", "love")
    assert result.exit_code == 2
    assert "there is no predicate 'love'" in result.stderr
    monkeypatch.setattr(run, "supervisor_of", lambda _: current_process())
    result = call("restore", money, "--until", "deadlock")
    assert result.exit_code == 2
    assert (
        "is running, and keeps running after a restore: leave out --until, or stop it"
        in result.stderr
    )


def test_a_restore_that_should_stop_is_never_live(
    call: Call, money: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the system was started a moment after this command looked for it."""
    monkeypatch.setattr(run, "ask", lambda *_: pytest.fail("it was restored live"))
    with contextlib.closing(Store.open_writer(money)):
        result = call("restore", money, "--until", "deadlock")
    assert result.exit_code == 2
    assert "is in use" in result.stderr


def test_a_function_is_looked_for_in_this_directory(
    call: Call, money: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python looks beside the installed command, and not here."""
    monkeypatch.chdir(money.parent)
    Path("of_this_directory.py").write_text("def broke(view): return False\n", encoding="utf-8")
    monkeypatch.setattr(run, "supervisor_of", lambda _: current_process())
    result = call("restore", money, "--until", "of_this_directory:broke")
    assert "is running, and keeps running after a restore" in result.stderr
