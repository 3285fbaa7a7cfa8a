"""The measurement of a check's CPU time (``scripts/cpu.py``), run as the check runs it."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import budget, cpu

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
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_ignored_signals_are_not_handed_on(number: int) -> None:
    """A program in the background, or under nohup, survives the signal, which ends what it runs:
    tests of Ctrl-C pass there too. The terminal does not reach what it runs."""
    program = f"""import signal, sys
from scripts import cpu
signal.signal({number:d}, signal.SIG_IGN)
sys.exit(cpu.main())
"""
    command = f"kill -{number:d} $PPID; ps -o pid=,sid= $$; kill -{number:d} $$"
    run = subprocess.run(
        [sys.executable, "-c", program, "sh", "-c", command],
        cwd=PROGRAM.parent.parent,
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.returncode == 128 + number
    pid, session = run.stdout.split()
    assert pid == session


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Path, Path]:
    """Return where the recorded and the measured costs are read; there are none."""
    baseline, measured = tmp_path / "baseline.json", tmp_path / "measured.json"
    monkeypatch.setattr(cpu, "BASELINE", baseline)
    monkeypatch.setattr(cpu, "MEASURED", measured)
    return baseline, measured


def test_costs_are_completed(costs: tuple[Path, Path]) -> None:
    """Orphans count for their file, and what is in no file counts as well; of a run that cannot be
    compared there is no unit, and without what pytest wrote there is nothing to complete."""
    _, measured = costs
    cpu.keep(9.0, {"a": 1.0}, 0.5)
    assert not measured.exists()
    for unit_s, unit in ((None, {}), (0.5, {"unit_s": 0.5})):
        measured.write_text(json.dumps({"cpu_s": {"a": 5.0, "c": 1.0}}))
        cpu.keep(9.0, {"a": 1.04, "b": 0.5}, unit_s)
        figures = {"a": 6.0, "b": 0.5, "c": 1.0, "everything else": 1.5}
        assert cpu.read(measured) == unit | {"cpu_s": figures}


def test_files_that_grew_are_named(costs: tuple[Path, Path]) -> None:
    """The ones that grew most first; new ones grew from nothing; noise is left out. On a machine
    that needs twice the time for a calibration, twice the time is no growth."""
    before = {"unit_s": 0.1, "cpu_s": {"a": 5.0, "b": 5.0, "c": 9.0}}
    now = {"unit_s": 0.2, "cpu_s": {"a": 12.0, "b": 18.0, "c": 2.0, "d": 16.0}}
    assert cpu.grown(before, now) == ["  d: 0.0 s -> 16.0 s", "  b: 10.0 s -> 18.0 s"]
    assert cpu.growth(before, now) == pytest.approx(24 / 19)


def test_only_the_budget_judges(
    costs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """It fails above its limit and names what grew, and without figures of a whole check."""
    baseline, measured = costs
    assert budget.main() == 2
    baseline.write_text(json.dumps({"unit_s": 0.1, "cpu_s": {"a": 10.0}}))
    measured.write_text(json.dumps({"cpu_s": {"a": 10.0}}))
    assert budget.main() == 2
    assert "run ./check first" in capsys.readouterr().err
    for seconds, code in ((25.9, 0), (26.1, 1)):
        measured.write_text(json.dumps({"unit_s": 0.2, "cpu_s": {"a": seconds}}))
        assert budget.main() == code
        assert "a: 20.0 s -> 2" in cpu.comparison()[2]
    assert "a: 20.0 s -> 26.1 s" in capsys.readouterr().err


@pytest.mark.slow
def test_the_unit_is_what_a_calibration_needs() -> None:
    """A command is measured in units, and the measurement does not count itself."""
    _, used_s, said = measure("true")
    assert used_s < BURN_S
    units, unit_ms = re.search(r"= ([\d,]+) units of ([\d.]+) ms", said).groups()  # type: ignore[union-attr]
    assert float(units) == pytest.approx(1000 * used_s / float(unit_ms), abs=1)
    assert float(unit_ms) > 1
