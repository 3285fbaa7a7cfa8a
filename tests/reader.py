"""A reader of the documents: does in one shell, line by line, what a page says."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(r"^```(console|python)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"`(\S+\.py)`[^\n`]*:\n\n$")
NOISE = re.compile(
    r"snapshots? (was|were) due and skipped|was abandoned|^waiting for |^bash: line \d+: "
)
DEADLINE_S = 60


class Step(NamedTuple):
    """A command, its exit code and what it prints; or a file that is written."""

    command: str
    code: int
    output: str
    file: str = ""


def steps(page: str) -> Iterator[Step]:
    """Yield what a reader does, in order. The line before a program names its file in code."""
    for fence in FENCE.finditer(page):
        language, block = fence.groups()
        if language == "python":
            named = NAMED.search(page, 0, fence.start())
            assert named, f"which file is this? {block}"
            yield Step("", 0, block, named[1])
            continue
        for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, _, output = step.partition("\n")
            command, _, comment = line.partition("  # ")
            yield Step(command, int("exit 1" in comment), output)


def shape(text: str, *masks: tuple[str, str]) -> set[str]:
    """Return the lines with what differs from run to run masked, one of each shape."""
    text = "\n".join(line for line in text.splitlines() if not NOISE.search(line))
    for pattern, instead in (
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? UTC", "TIME"),
        *masks,
        (r"\d[\d,.]*( ms| s| µs| kB| B)?(?![\w-])", "#"),
        (r"-\d+", "-#"),
        (r"messages?\b", "messages"),
        (r"[^\S\n]+|─+", " "),
    ):
        text = re.sub(pattern, instead, text)
    return {line.strip() for line in text.splitlines() if line.strip()}


class Shell:
    """A shell that is given one line after the other, and what it prints.

    Args:
        directory: where it begins.
        variables: of its environment, besides those of ours.
    """

    def __init__(self, directory: Path, **variables: str) -> None:
        ours = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
        path = f"{Path(sys.executable).parent}:{ours['PATH']}"
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=directory,
            env={**ours, "PATH": path, "COLUMNS": "100", "PYTHONPATH": "", **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def do(self, line: str) -> tuple[str, int]:
        """Give it a line; return what was printed until it ended, and its exit code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\nprintf '\\n<end %d>\\n' $?\n")
        self._process.stdin.flush()
        said: list[str] = []
        for answer in self._process.stdout:
            if found := re.fullmatch(r"<end (\d+)>\n", answer):
                return "".join(said).removesuffix("\n"), int(found[1])
            said.append(answer)
        raise AssertionError(f"the shell ended at {line!r}: {''.join(said)}")

    def close(self) -> None:
        """End it and what it started: in order, so that no process is left for a minute."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        for end in (self._process.stdin, self._process.stdout):
            assert end is not None
            end.close()
        self._process.wait()


def follow(
    page: Path,
    shell: Shell,
    directory: Path,
    settle: Callable[[str], None] = lambda command: None,
    instead: Mapping[str, str] | None = None,
) -> Iterator[tuple[Step, str]]:
    """Do what a page says, in a shell that is in `directory`; yield each command when it has ended
    as the page says, with what it printed.

    Args:
        page: the page.
        shell: that is in `directory`.
        directory: where its files go.
        settle: waits for what the page gives some seconds after a command.
        instead: what stands in a command -> what is done instead, for a reader in a hurry.
    """
    for step in steps(page.read_text()):
        if step.file:
            path = directory / step.file
            path.parent.mkdir(exist_ok=True)
            path.write_text(step.output)
            continue
        command = step.command
        for there, here in (instead or {}).items():
            command = command.replace(there, here)
        printed, code = shell.do(command)
        assert code == step.code, (step.command, printed)
        settle(step.command)
        yield step, printed


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Wait for what a page gives a few seconds: a machine may be slower than it expects."""
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, f"not in {DEADLINE_S} s: {what}"
        time.sleep(0.1)
