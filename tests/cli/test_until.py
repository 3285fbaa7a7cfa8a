"""``run --until``: a system stops itself as soon as a stable predicate holds."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stillframe.detect.view import View
from stillframe.store.store import Store
from tests.cli.conftest import Call

ROOT = Path(__file__).parent.parent.parent


def run(topology: str, store: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a topology of the examples until the predicate of the options holds, or time is over."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "stillframe", "run", f"examples.philosophers:{topology}"),
            *("--store", str(store), "--every", "100ms", *options),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_it_stops_when_the_predicate_holds(tmp_path: Path) -> None:
    """Without any other end; the answer is yes, with what was found, and the store can say it
    again."""
    ended = run("table", tmp_path / "dinner", "--until", "deadlock", "--json")
    assert ended.returncode == 0, ended.stderr
    judged = json.loads(ended.stdout.splitlines()[-1])
    assert (judged["event"], judged["predicate"]) == ("Judged", "deadlock")
    assert judged["newest"]["verdict"]["holds"] is True
    assert f"yes: deadlock holds in {judged['newest']['snapshot']}: F1 waits for P1" in ended.stderr


@pytest.mark.slow
def test_it_says_no_when_time_is_over(tmp_path: Path) -> None:
    """With exit code 1, and what the last snapshot shows."""
    path = tmp_path / "dinner"
    ended = run("polite_table", path, "--until", "deadlock", "--for", "1s")
    assert ended.returncode == 1
    newest = Store.open(path).entries()[-1].id
    words = f"no: deadlock did not hold in {newest}: no processes keep each other blocked"
    assert words in ended.stderr


def is_first(view: View) -> bool:
    """Whether a snapshot is the first: true once, and never again."""
    return view.snapshot.number == 1


def take_long(view: View) -> bool:
    """Think it over for longer than anybody waits."""
    return threading.Event().wait(600) and bool(view)


@pytest.mark.slow
def test_a_predicate_that_is_not_stable_is_found_out(tmp_path: Path) -> None:
    """By the last snapshot, which is taken when it has held."""
    ended = run("polite_table", tmp_path / "dinner", "--until", f"{__name__}:is_first", "--json")
    assert ended.returncode == 1
    judged = json.loads(ended.stdout.splitlines()[-1])
    assert (judged["holds"], judged["not_stable"][0]) == (False, "F1-1")
    assert "is_first is not stable: it held in snapshot F1-1 and not in" in ended.stderr


@pytest.mark.slow
def test_nobody_waits_for_a_predicate_that_takes_long(tmp_path: Path) -> None:
    """The system stops when it is to, and says that there is no answer."""
    options = ("--until", f"{__name__}:take_long", "--for", "1s")
    ended = run("polite_table", tmp_path / "dinner", *options)
    assert ended.returncode == 1
    assert "take_long was still being asked when the system was stopped" in ended.stderr


def test_what_is_no_predicate_is_refused_before_anything_starts(call: Call, tmp_path: Path) -> None:
    """No store is made."""
    options = ("--store", tmp_path / "dinner", "--until", "love")
    result = call("run", "examples.philosophers:table", *options)
    assert result.exit_code == 2
    assert "there is no predicate 'love'" in result.stderr
    assert not (tmp_path / "dinner").exists()
