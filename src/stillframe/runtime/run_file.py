"""The run file ``running.json`` of a store, by which a running system is found on this machine.

Only the owner may read it: it holds the secret of the run. For a store in an object store, which
others may read, it is in a directory of the user.
"""

import contextlib
import hashlib
import os
import socket
import tempfile
from pathlib import Path

import msgspec

from stillframe.durable_files import no_wait, partial_path, shell_command, write_new
from stillframe.errors import StoreError, Unavailable, UsageError, text_of
from stillframe.model import DECODING_ERRORS, ProcessId
from stillframe.protocol.wire import check_version
from stillframe.runtime.network.addresses import Address
from stillframe.runtime.os_process import (
    APART,
    OsProcess,
    current_process,
    is_alive,
    is_apart,
    is_stopped,
)
from stillframe.storage.location import Location, ObjectPath
from stillframe.store.layout import explain_io_errors

FILE = "running.json"
VERSION_BEFORE_IT_WAS_WRITTEN = 2
"""The version of the protocol of a program that does not say which it speaks."""
_BYTES_MAX = 2**20
_COMMANDS = "commands"
_COMMANDS_PREFIX = "stillframe-"
_TMPDIR_LENGTH_MAX = 70
_WITHOUT_HOME = "set XDG_STATE_HOME to a directory of this machine that this user may write"


class RunFile(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses of a running system, and the processes that remain if its supervisor has died.

    `coordinator` is its address, for processes that join or reconnect, and `has_tls` says whether
    they need certificates. `commands` is the path of the admin socket. `directory` identifies the
    store in the file system: a copy of the store has this file too, and is another store.
    `children` are the processes that were started on this machine, `pipeline` is the directory of
    the pipeline that the system is part of, and `snapshot_s` the timeout of a snapshot in seconds.
    `protocol_version` is the version that all of them speak.
    """

    supervisor: OsProcess
    directory: str
    epoch: int
    topology_hash: str
    coordinator: Address
    has_tls: bool
    secret: bytes
    commands: str
    children: dict[ProcessId, OsProcess]
    pipeline: str | None
    snapshot_s: float = 0.0
    protocol_version: int = VERSION_BEFORE_IT_WAS_WRITTEN


def make_socket_dir() -> tempfile.TemporaryDirectory[str]:
    """Make the directory of the admin socket; the caller removes it."""
    # The path of a socket may have about a hundred bytes, wherever TMPDIR leads.
    is_long = len(tempfile.gettempdir()) > _TMPDIR_LENGTH_MAX
    short = "/tmp" if is_long else None  # noqa: S108 - a directory of our own is made in it
    return tempfile.TemporaryDirectory(prefix=_COMMANDS_PREFIX, dir=short)


def socket_path(directory: str) -> Path:
    """Return the path of the admin socket in `directory`."""
    return Path(directory) / _COMMANDS


def listen_for_commands(directory: str) -> socket.socket:
    """Return the admin socket in `directory`, which listens: what connects from now on is kept
    until it is served."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        listener.bind(str(socket_path(directory)))
        listener.listen()
    except BaseException:
        listener.close()
        raise
    return listener


def remove_socket(system: RunFile) -> None:
    """Remove the admin socket of a supervisor that died, and its directory if nothing of others is
    in it."""
    path = Path(system.commands)
    if path.name == _COMMANDS and path.parent.name.startswith(_COMMANDS_PREFIX):
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            remove_last_words(path.parent)
            path.parent.rmdir()


def remove_last_words(directory: Path) -> None:
    """Remove why processes of an ended epoch failed, which they wrote into a directory.

    It is that of the admin socket. The next process with such a number has not written it.
    """
    with contextlib.suppress(OSError):
        for path in directory.iterdir():
            if path.name.isdecimal():
                path.unlink(missing_ok=True)


def run_file_path(store: Location) -> Path:
    """Return the path of the run file of a store."""
    if not isinstance(store, ObjectPath):
        return store / FILE
    try:
        home = os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()
    except RuntimeError as error:
        raise UsageError(
            f"this user has no home directory for the run file of the system on {store}",
            path=store,
            remedy=_WITHOUT_HOME,
        ) from error
    name = hashlib.sha256(str(store).encode()).hexdigest()[:32]
    return Path(home, "stillframe", name) / FILE


def write_run_file(store: Location, system: RunFile) -> None:
    """Write the run file, readable by the owner alone, in one step; raises a StoreError if the disk
    is full or failed, and then the former one is still there."""
    path = run_file_path(store)
    partial = partial_path(path)
    with explain_io_errors(path, "written"):
        if isinstance(store, ObjectPath):
            try:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            except OSError as error:
                raise StoreError(
                    f"the directory {path.parent} for the run file of the system on {store} could "
                    f"not be made: {error.strerror}",
                    path=path.parent,
                    remedy=_WITHOUT_HOME,
                ) from error
        partial.unlink(missing_ok=True)
        write_new(partial, msgspec.json.encode(system), mode=0o600)
        partial.rename(path)


def remove_run_file(store: Location) -> None:
    """Remove the run file that this program wrote. That of another one stays: its processes may
    run, and the next supervisor must find them."""
    with contextlib.suppress(Unavailable):
        system = read_run_file(store)
        if system is not None and system.supervisor == current_process():
            run_file_path(store).unlink()


def find_running(store: Location) -> RunFile:
    """Return where the system of `store` can be reached. Raises Unavailable if it is not running,
    or stopped by a signal, and Refused if it speaks another version of the protocol, with what to
    do."""
    system = read_run_file(store)
    if system is None:
        raise Unavailable(
            f"no system is running on the store {store}",
            path=store,
            remedy="start one with 'stillframe run', or continue from a snapshot with "
            "'stillframe restore'",
        )
    if is_apart(system.supervisor):
        raise Unavailable(
            f"the system on the store {store} was started {APART}, where its supervisor is process "
            f"{system.supervisor.pid}",
            path=store,
            remedy="call this command there; if that namespace has ended, continue with "
            f"'{shell_command('resume', store)}'",
        )
    if not is_alive(system.supervisor):
        again = " and the options --listen, --tls and --external of its start"
        raise Unavailable(
            f"no system is running on the store {store}: its supervisor, process "
            f"{system.supervisor.pid}, died; start a new one with "
            f"'{shell_command('resume', store)}'{again if system.has_tls else ''}",
            path=store,
        )
    if is_stopped(system.supervisor):
        raise Unavailable(
            f"the system on the store {store} cannot answer: {_explain_stopped(system.supervisor)}"
        )
    check_version(system.protocol_version, f"the system on the store {store}")
    return system


def supervisor_of(store: Location) -> OsProcess | None:
    """Return the supervisor of the system of `store`, None if it has none, or that has ended.

    It takes no commands while the system starts or ends. One that ``is_apart`` may have ended.
    """
    try:
        system = read_run_file(store)
    except Unavailable:
        return None
    if system is None or not (is_alive(system.supervisor) or is_apart(system.supervisor)):
        return None
    return system.supervisor


def describe_owner(store: Location) -> str:
    """Return why `store` is in use, for an error message; "" if unknown."""
    try:
        system = read_run_file(store)
    except Unavailable:
        system = None
    if system is None:
        return ""
    supervisor = system.supervisor
    if is_apart(supervisor):
        return f"its supervisor runs {APART}, as process {supervisor.pid}: stop it there first"
    if not is_alive(supervisor):
        return ""
    if is_stopped(supervisor):
        return _explain_stopped(supervisor)
    return f"its supervisor, process {supervisor.pid}, is running: stop it first"


def _explain_stopped(supervisor: OsProcess) -> str:
    pid = supervisor.pid
    return (
        f"its supervisor, process {pid}, was stopped by a signal: continue it (kill -CONT "
        f"{pid}), or kill it first (kill -9 {pid})"
    )


def read_run_file(store: Location) -> RunFile | None:
    """Return the system of `store`; None if the last one was stopped in order. For a caller that
    has the store open for writing, no supervisor runs: that of the system died. Raises Unavailable
    if the run file cannot be read."""
    path = run_file_path(store)
    try:
        with open(path, "rb", opener=no_wait) as file:
            encoded = file.read(_BYTES_MAX + 1)
        system = msgspec.json.decode(encoded, type=RunFile)
        return system if system.directory == identity(store) else None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, *DECODING_ERRORS) as error:
        raise Unavailable(
            f"{path} cannot be read: {text_of(error)}; if no process of the system runs, delete it"
        ) from error


def identity(store: Location) -> str:
    """Return what tells the directory of a store from every other on this machine."""
    if isinstance(store, ObjectPath):
        return str(store)
    status = store.stat()
    return f"{status.st_dev}:{status.st_ino}"
