"""Operating-system processes that are not our children, distinguished from later ones by their
start.

A number is used again after its process has ended. A process is therefore known by its number, the
moment when it started, the start of the machine, and the PID namespace (man page
pid_namespaces(7)) in which it has its number; and it is ended through a descriptor that is
opened before these four are compared, so that no stranger is ever hit.
"""

import os
import resource
import select
import signal
from pathlib import Path

import msgspec

from stillframe.errors import Unavailable, UsageError
from stillframe.model import ProcessId
from stillframe.topology import Description

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SPACE = Path("/proc/self/ns/pid")
_STATUS = 0
_START_TICKS = 19
"""Where these stand in ``/proc/PID/stat`` behind the program's name; man page proc(5)."""
_STOPPED = b"T"
APART = "in another PID namespace, such as that of another container"
END_TIMEOUT_S = 10.0
PROGRAM_FILE_COUNT = 64
"""Maximum open files of a program of a system, besides those of its processes and channels. Its
event loop, log, fragments and store take up to 32, and the application the rest."""


class OsProcess(msgspec.Struct, frozen=True, omit_defaults=True):
    """One operating-system process of one run of one machine, whose PID namespace is `space`; 0 if
    the release that recorded it did not say."""

    pid: int
    start_ticks: int
    boot_id: str
    space: int = 0


def require_open_files(count: int, what: str) -> None:
    """Let this program, and those that it starts from now on, have `count` files open, because
    `what` needs them. The soft limit is raised if the hard one is enough; otherwise UsageError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= count or soft == resource.RLIM_INFINITY:
        return
    if hard >= count or hard == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return
    raise UsageError(
        f"{what} needs up to {count:,} open files, and the hard limit of this program is "
        f"{hard:,}: raise it with 'ulimit -Hn {count}' in a root shell, with "
        f"'LimitNOFILE={count}' in a systemd unit, or with '--ulimit nofile={count}' in Docker"
    )


def require_channel_files(description: Description, process: ProcessId) -> None:
    """Let this program, and those that it starts from now on, have as many files open as `process`
    needs; else a UsageError."""
    count = description.channel_count(process)
    require_open_files(
        PROGRAM_FILE_COUNT + count, f"process {process}, which has {count:,} channels,"
    )


def identify(pid: int) -> OsProcess | None:
    """Return the process with the number `pid` now; None if there is none."""
    status = _status(pid)
    if status is None:
        return None
    return OsProcess(pid, int(status[_START_TICKS]), _boot_id(), _SPACE.stat().st_ino)


def current_process() -> OsProcess:
    """Return this process."""
    found = identify(os.getpid())
    assert found is not None
    return found


def is_apart(process: OsProcess) -> bool:
    """Return whether `process` has its number in another PID namespace of this machine, as that of
    another container: this program cannot see whether it runs."""
    return process.space not in (0, _SPACE.stat().st_ino) and process.boot_id == _boot_id()


def apart_error(who: str, doubt: str, path: object, again: str) -> Unavailable:
    """Return the error for a process that ``is_apart``. The file `path` records it, `doubt` is what
    it may still do, and `again` what to do when it has ended."""
    return Unavailable(
        f"{who} ran {APART}: whether it still {doubt} cannot be seen from here",
        path=path,
        remedy=f"end it there; once it, or that container, has ended, delete {path} and {again}",
    )


def is_stopped(process: OsProcess) -> bool:
    """Return whether `process` is stopped by a signal (SIGSTOP)."""
    status = _status(process.pid)
    return status is not None and status[_STATUS] == _STOPPED and is_alive(process)


def is_alive(process: OsProcess) -> bool:
    """Return whether `process` has not terminated."""
    descriptor = open_process(process)
    if descriptor is None:
        return False
    os.close(descriptor)
    return True


def open_process(process: OsProcess) -> int | None:
    """Return a descriptor that becomes readable when `process` terminates, and that the caller
    closes; None if it has."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (OSError, OverflowError):  # there is none, or the number is no process's
        return None
    if _is_same(identify(process.pid), process) and not _has_ended(descriptor, timeout_s=0):
        return descriptor
    os.close(descriptor)
    return None


def wait_for(process: OsProcess) -> None:
    """Wait until `process` has terminated."""
    descriptor = open_process(process)
    if descriptor is not None:
        _has_ended(descriptor, timeout_s=None)
        os.close(descriptor)


def kill(process: OsProcess, *, grace_s: float = 0.0) -> None:
    """Kill `process` and wait until it has terminated; it first has `grace_s` seconds to do so on
    SIGTERM. Raises Unavailable if it belongs to another user, or hangs in the kernel."""
    descriptor = open_process(process)
    if descriptor is None:
        return
    try:
        if grace_s:
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            if _has_ended(descriptor, timeout_s=grace_s):
                return
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        has_ended = _has_ended(descriptor, timeout_s=END_TIMEOUT_S)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise Unavailable(
            f"process {process.pid} from an earlier run belongs to another user: end it first "
            f"(kill -9 {process.pid})"
        ) from error
    finally:
        os.close(descriptor)
    if not has_ended:
        raise Unavailable(
            f"process {process.pid} from an earlier run did not exit after SIGKILL: it is probably "
            "blocked on disk I/O; resolve that first"
        )


def _is_same(found: OsProcess | None, process: OsProcess) -> bool:
    if found is not None and not process.space:
        found = msgspec.structs.replace(found, space=0)
    return found == process


def _boot_id() -> str:
    return _BOOT_ID.read_text().strip()


def _has_ended(descriptor: int, *, timeout_s: float | None) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(None if timeout_s is None else timeout_s * 1000))


def _status(pid: int) -> list[bytes] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The program's name stands in brackets and may hold any sign.
    return text.rpartition(b")")[2].split()
