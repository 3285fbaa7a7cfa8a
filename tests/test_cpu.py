"""The measurement of a check's CPU time (``scripts/cpu.py``), run as the check runs it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import cpu

PROGRAM = Path(__file__).parent.parent / "scripts" / "cpu.py"
BURN_S = 0.3
BURN = f"import time\nwhile time.process_time() < {BURN_S}: pass\n"


def measure(*arguments: str) -> tuple[int, float, str]:
    """Run the program; return its exit code, the CPU seconds it printed, and all it printed."""
    run = subprocess.run(
        [sys.executable, str(PROGRAM), *arguments], capture_output=True, text=True, check=False
    )
    line = next(line for line in run.stderr.splitlines() if line.startswith("cpu: "))
    return run.returncode, float(line.split()[1]), run.stderr


def test_children_of_a_killed_parent_are_counted() -> None:
    """A parent that is killed before it waits takes nothing with it."""
    leave_a_child = """sh -c '"$0" -c "$1" & kill -9 $$' "$0" "$1"; exit 3"""
    code, used_s, _ = measure("sh", "-c", leave_a_child, sys.executable, BURN)
    assert code == 3
    assert used_s >= BURN_S


def test_exit_codes_are_those_of_the_command() -> None:
    """Also for one that a signal ended."""
    assert measure("false")[0] == 1
    assert measure("sh", "-c", "kill -9 $$")[0] == 137


@pytest.mark.slow
def test_too_much_cpu_time_fails(tmp_path: Path) -> None:
    """A command that succeeds fails above the limit, and not below."""
    burn = (sys.executable, "-c", BURN)
    code, _, said = measure("--limit", str(BURN_S / 60 / 2), *burn)
    assert code == 1
    assert "more than the limit" in said
    assert measure("--limit", "5", *burn)[0] == 0


@pytest.mark.slow
def test_children_of_a_killed_parent_belong_to_their_test_file() -> None:
    """The file that their environment names; those that name none belong to none."""
    program = """import sys
from scripts import cpu
cpu.adopt_orphans()
with cpu.Orphans() as orphans:
    cpu.run(sys.argv[1:], orphans)
    cpu.end_orphans(orphans)
print(*(f"{file} {used_s}" for file, used_s in orphans.used_s.items()), sep="\\n")
"""
    leave = (
        """PYTEST_CURRENT_TEST="tests/a.py::t (call)" "$0" -c "$1" & "$0" -c "$1" & kill -9 $$"""
    )
    run = subprocess.run(
        [sys.executable, "-c", program, "sh", "-c", leave, sys.executable, BURN],
        capture_output=True,
        text=True,
        check=True,
        cwd=PROGRAM.parent.parent,
        env={**os.environ, "PYTEST_CURRENT_TEST": ""},
    )
    ((file, used_s),) = map(str.split, run.stdout.splitlines())
    assert file == "tests/a.py"
    assert float(used_s) >= BURN_S


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    ("trap", "answer"),
    [("echo asked; exit", "asked\n"), ("", "")],
    ids=["ends when asked", "ignores it"],
)
def test_a_signal_ends_all_descendants(number: int, trap: str, answer: str) -> None:
    """Orphans too: they have the time to end in order, and are killed if they do not."""
    program = f"""import signal, sys
from scripts import cpu
signal.signal({number:d}, signal.SIG_DFL)
cpu.ORPHAN_WAIT_S = {10.0 if trap else 0.1}
sys.exit(cpu.main())
"""
    orphan = f"trap '{trap}' TERM; cat <&3 & echo $$ $!; wait"
    leave_an_orphan = """sh -c 'sh -c "$0" &' "$0" 3<&0; cat"""
    with subprocess.Popen(
        [sys.executable, "-c", program, "sh", "-c", leave_an_orphan, orphan],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=PROGRAM.parent.parent,
    ) as run:
        assert run.stdout is not None
        pids = run.stdout.readline().split()
        run.send_signal(number)
        run.wait()
        left = [pid for pid in pids if Path("/proc", pid).exists()]
        said, _ = run.communicate()  # what is left ends with its input
    assert len(pids) == 2
    assert not left
    assert said == answer
    assert run.returncode == -number


@pytest.mark.slow
def test_nohup_is_respected() -> None:
    """A program that was told to ignore the end of its terminal continues."""
    program = """import signal, sys
from scripts import cpu
signal.signal(signal.SIGHUP, signal.SIG_IGN)
sys.exit(cpu.main())
"""
    run = subprocess.run(
        [sys.executable, "-c", program, "sh", "-c", "kill -HUP $PPID; exit 3"],
        cwd=PROGRAM.parent.parent,
        check=False,
    )
    assert run.returncode == 3


def test_what_orphans_used_is_added(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """To the figures that pytest wrote; without them to nothing."""
    measured = tmp_path / "costs.json"
    monkeypatch.setattr(cpu, "MEASURED", measured)
    cpu.add_to_files({"a": 1.0})
    assert not measured.exists()
    measured.write_text(json.dumps({"a": 5.0, "c": 1.0}))
    cpu.add_to_files({"a": 1.04, "b": 2.0})
    assert json.loads(measured.read_text()) == {"a": 6.0, "b": 2.0, "c": 1.0}


def test_files_that_grew_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The ones that grew most first; new ones grew from nothing; noise is left out."""
    baseline, measured = tmp_path / "baseline", tmp_path / "measured"
    monkeypatch.setattr(cpu, "BASELINE", baseline)
    monkeypatch.setattr(cpu, "MEASURED", measured)
    baseline.write_text(json.dumps({"a": 5.0, "b": 5.0, "c": 9.0}))
    measured.write_text(json.dumps({"a": 6.0, "b": 9.0, "c": 1.0, "d": 8.0}))
    assert cpu.grown() == ["  d: 0.0 s -> 8.0 s", "  b: 5.0 s -> 9.0 s"]
