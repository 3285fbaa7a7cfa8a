"""``run --until``: a system stops itself as soon as a stable predicate holds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stillframe.store.store import Store
from tests.cli.conftest import Call

ROOT = Path(__file__).parent.parent.parent


def run(topology: str, store: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a topology of the examples until the predicate of the options holds, or time is over."""
    return subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "stillframe.cli.app",
                "run",
                f"examples.philosophers:{topology}",
            ),
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
    assert f"no: deadlock did not hold in {newest}: nobody is blocked for ever" in ended.stderr


def test_what_is_no_predicate_is_refused_before_anything_starts(call: Call, tmp_path: Path) -> None:
    """No store is made."""
    options = ("--store", tmp_path / "dinner", "--until", "love")
    result = call("run", "examples.philosophers:table", *options)
    assert result.exit_code == 2
    assert "there is no predicate 'love'" in result.stderr
    assert not (tmp_path / "dinner").exists()
