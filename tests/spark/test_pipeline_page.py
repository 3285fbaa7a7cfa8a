"""The programs and commands of docs/pipeline.md are run, as they stand there."""

import ast
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stillframe.pipeline import Pipeline
from tests.watch.servers import a_server, ask

PAGE = Path(__file__).parent.parent.parent / "docs" / "pipeline.md"
STILLFRAME = Path(sys.executable).with_name("stillframe")
PROGRAM = re.compile(r"^```python\n# (\w+\.py):.*?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SESSION = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def commands() -> list[list[str]]:
    """Return every command of the page as words."""
    lines = [line for block in SESSION.findall(PAGE.read_text()) for line in block.splitlines()]
    return [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]


def start(program: str, directory: Path) -> "subprocess.Popen[str]":
    """Start a program of the page, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, program],
        cwd=directory,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(directory)},
    )


@pytest.mark.slow
@pytest.mark.spark
def test_the_programs_of_the_page_add_up_and_its_commands_work(tmp_path: Path) -> None:
    """The ledger ends with what was sold; each command ends with 0, and the snapshots are there;
    after the restore the same programs go on."""
    for name, text in PROGRAM.findall(PAGE.read_text()):
        (tmp_path / name).write_text(text)
    words = commands()
    assert [command[2] for command in words] == [
        *("snapshot", "savepoint", "list", "status", "shop.pipeline", "restore")
    ]
    assert words[4][1] == "watch"

    def run(command: list[str]) -> None:
        if command[1] == "watch":
            with a_server(tmp_path / command[2]) as link:
                assert ask(link, "/")[0] == 200
                assert b"stillframe_log_lag_records" in ask(link, "/metrics")[2]
            return
        done = subprocess.run(
            [str(STILLFRAME), *command[1:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    for is_again in (False, True):
        programs = [start(name, tmp_path) for name in ("driver.py", "till.py", "ledger.py")]
        driver, till, ledger = programs
        try:
            answer, _ = ledger.communicate(timeout=120)
            assert ast.literal_eval(answer) == {
                "customer-0": 67,
                "customer-1": 67,
                "customer-2": 66,
            }
            assert till.wait(timeout=30) == ledger.returncode == 0
            if not is_again:
                for command in words[:-1]:
                    run(command)
        finally:
            for program in programs:
                if program.poll() is None:
                    os.killpg(program.pid, signal.SIGKILL)
                    program.wait()
                assert program.stdout is not None
                program.stdout.close()
        if not is_again:
            run(words[-1])
    pipeline = Pipeline(tmp_path / "shop.pipeline")
    assert [manifest.name for manifest in pipeline.snapshots()] == [None, "before-1.5"]
    assert pipeline.epoch == 2
    assert driver.returncode == -signal.SIGKILL
