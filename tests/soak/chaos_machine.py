"""A machine of its own for a soak: network, file system, clock and process ids that nobody shares.

Linux namespaces make it, which needs root; everything in it is gone with its first process. So the
network can be cut, the disk filled and the clock set without anybody else's noticing.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parent.parent.parent
DISK_BYTES = 48 * 2**20
_INSIDE = "STILLFRAME_CHAOS_INSIDE"
_CLOCK = Path("/mnt/clock")
_DISK = Path("/mnt/disk")
_FAKETIME = "*/faketime/libfaketime.so.1"


def missing() -> str | None:
    """Return what is missing on this machine to make such a one, with what to do; None if
    nothing is."""
    if os.geteuid() != 0:
        return "only root can make a network and a file system of its own: run it as root"
    if not list(Path("/usr/lib").glob(_FAKETIME)):
        return "libfaketime is missing: install it (on Debian: apt-get install faketime)"
    for program, package in (("unshare", "util-linux"), ("ip", "iproute2"), ("ss", "iproute2")):
        if not any((Path(place) / program).exists() for place in os.get_exec_path()):
            return f"{program} is missing: install it (on Debian: apt-get install {package})"
    made = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, check=False)
    return None if made.returncode == 0 else f"no namespaces here: {made.stderr.decode().strip()}"


def is_inside() -> bool:
    """Return whether this program runs in a machine of its own already."""
    return _INSIDE in os.environ


def enter(module: str, arguments: Sequence[str]) -> NoReturn:
    """Replace this program by ``python -m module arguments`` in a machine of its own."""
    namespaces = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    program = (sys.executable, "-m", module, *arguments)
    os.environ[_INSIDE] = "1"
    sys.stdout.flush()
    os.execvp("unshare", ["unshare", *namespaces, *program])


class Machine:
    """The machine that this program is alone in."""

    def __init__(self) -> None:
        _run("ip", "link", "set", "lo", "up")
        _run("mount", "-t", "tmpfs", "tmpfs", "/mnt")
        # libfaketime leaves a file there for each process that was killed.
        _run("mount", "-t", "tmpfs", "tmpfs", "/dev/shm")
        _DISK.mkdir()
        _run("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(_DISK))
        self.disk = _DISK
        self.set_clock(0)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of programs that live by this machine's clock."""
        (library,) = Path("/usr/lib").glob(_FAKETIME)
        return {
            **os.environ,
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(_CLOCK),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "PYTHONUNBUFFERED": "1",
        }

    def set_clock(self, ahead_s: int) -> None:
        """Set the wall clock so many seconds ahead of the true time, or behind."""
        partial = _CLOCK.with_suffix(".new")
        partial.write_text(f"{ahead_s:+d}\n")
        partial.replace(_CLOCK)

    def fill_disk(self) -> None:
        """Leave no byte free."""
        with (self.disk / "filler").open("wb", buffering=0) as file:
            try:
                while file.write(bytes(4096)):
                    pass
            except OSError:
                pass

    def free_disk(self) -> None:
        """Take back what filled the disk."""
        (self.disk / "filler").unlink(missing_ok=True)

    def set_network(self, *, is_up: bool) -> None:
        """Cut the network, or mend it; connections are not told."""
        _run("ip", "link", "set", "lo", "up" if is_up else "down")

    def reset_connections(self) -> None:
        """Break every connection: both ends are told."""
        _run("ss", "--kill", "--tcp", "state", "established")

    def processes(self, words: str) -> list[int]:
        """Return the ids of the processes whose command line holds `words`."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue  # it has just ended
            if words in line and not (path / "stat").read_text().rpartition(")")[2].startswith(
                " Z"
            ):
                found.append(int(path.name))
        return sorted(found)


def send(pid: int, number: signal.Signals) -> bool:
    """Send a signal; False if that process has ended already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
