"""What a running system leaves in its store for others to find it: ``running.json``.

Only the owner may read it: it holds the secret of the run.
"""

import contextlib
import os
from pathlib import Path

import msgspec

from stillframe.errors import DECODING_ERRORS, Unavailable
from stillframe.runtime.addresses import Address

FILE = "running.json"
_BYTES_MAX = 64 * 2**10


class RunningSystem(msgspec.Struct, frozen=True):
    """Where a running system can be reached.

    `coordinator` is where it listens, for processes that join, and `has_tls` whether they need
    certificates; `commands` is the path of the socket that takes commands, for people. `directory`
    is the store itself, as the file system knows it: a copy of the store has this file as well, and
    is another store.
    """

    pid: int
    directory: str
    epoch: int
    topology_hash: str
    coordinator: Address
    has_tls: bool
    secret: bytes
    commands: str


def announce(store: Path, system: RunningSystem) -> None:
    """Write where `system` can be reached, readable by the owner alone, in one step."""
    partial = store / f".{FILE}.partial"
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(system))
    partial.rename(store / FILE)


def withdraw(store: Path) -> None:
    """The system is no longer running."""
    (store / FILE).unlink(missing_ok=True)


def find(store: Path) -> RunningSystem:
    """Return where the system of `store` can be reached.

    Raises:
        Unavailable: it is not running, with what to do.
    """
    path = store / FILE
    try:
        encoded = path.read_bytes()[: _BYTES_MAX + 1]
        system = msgspec.json.decode(encoded, type=RunningSystem)
        with contextlib.suppress(PermissionError):  # it is there, and somebody else's
            os.kill(system.pid, 0)
        if system.directory == identity(store):
            return system
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
        pass
    except (OSError, OverflowError, *DECODING_ERRORS) as error:
        raise Unavailable(f"{path} cannot be read: {error}; if nothing runs, delete it") from error
    raise Unavailable(
        f"no system is running on the store {store}: start it with 'stillframe run' or, "
        "to go on from a snapshot, with 'stillframe restore'"
    )


def identity(store: Path) -> str:
    """Return what tells the directory of a store from every other on this machine."""
    status = store.stat()
    return f"{status.st_dev}:{status.st_ino}"
