"""A lease: keeps a second writer out while the first one lives, in storage without locks.

It is an object, and its holder replaces that every few seconds. A program that reads the same
version for as long as the lease lasts takes it over. Clocks of different machines are never
compared. A holder that was frozen does not know for a while that it has lost the lease. So no write
is safe because of a lease. Every write that matters is conditional; the lease only tells the loser
early.
"""

import contextlib
import errno
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from stillframe.errors import Unavailable, text_of
from stillframe.model import DECODING_ERRORS
from stillframe.storage.location import Location
from stillframe.storage.opened import storage_of
from stillframe.storage.remote import unlimited
from stillframe.storage.storage import Changed, Storage, Version

LEASE_S = 10.0
_RENEWALS = 4
"""How often a lease is renewed in its time."""
_BYTES_MAX = 4096
CLOSE_S = 5.0
"""How long closing waits for the storage to take the release. A lease lapses without it, too."""


class _Holder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a lease. `token` is new in each version; `process` names an operating-system
    process of one machine. None holds a lease that was `released`."""

    token: str
    host: str
    pid: int
    process: str
    lease_s: Annotated[float, msgspec.Meta(gt=0, le=60)]
    released: bool = False


class _Watched(NamedTuple):
    """A version of a lease that this program has read repeatedly, from `first_s` to `last_s`."""

    version: Version
    first_s: float
    last_s: float


_watched: dict[tuple[Location, bool], _Watched] = {}
"""What this program saw of leases when it last read them, to take them or only to look."""


class Lease:
    """Held from ``acquire`` or ``try_acquire`` until ``close``. If another program takes it over,
    `lost` is called, in a thread of the lease."""

    def __init__(self, location: Location, *, lost: Callable[[], None]) -> None:
        self._location = location
        self._storage: Storage = storage_of(location)
        self._lost = lost
        self._version: Version | None = None
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._uncertain: set[str] = set()
        self._pid = os.getpid()

    def is_free(self) -> bool:
        """Return whether no living program holds the lease, without waiting. A holder that ended
        without releasing it, on another machine, is noticed only by a program that has asked for as
        long as the lease lasts, and at least once in that time. OSError if the storage fails."""
        found = self._read()
        return found is None or self._has_lapsed(*found, is_taken=False)

    def try_acquire(self) -> bool:
        """Take the lease if it is free; return whether that succeeded. As ``is_free``, but the
        program must have asked at least as often as leases are renewed."""
        found = self._read()
        if found is not None and not self._has_lapsed(*found, is_taken=True):
            return False
        try:
            self._start(None if found is None else found[1])
        except (FileExistsError, Changed):
            return False
        return True

    def watched_version(self) -> Version | None:
        """Return the version of its holder that ``try_acquire`` last saw; None if it saw none."""
        seen = _watched.get((self._location, True))
        return None if seen is None else seen.version

    def acquire(self, in_use: Callable[[str], Unavailable]) -> None:
        """Take the lease, at once if it is free or its holder's process has ended on this machine;
        else wait for as long as the lease lasts. If it is renewed meanwhile, raise what `in_use`
        returns for the holder in words. OSError if the storage fails."""
        found = self._read()
        if found is not None and not (found[0].released or _has_ended(found[0])):
            holder, version = found
            until = time.monotonic() + holder.lease_s
            while time.monotonic() < until:
                time.sleep(holder.lease_s / (2 * _RENEWALS))
                found = self._read()
                if found is not None and found[1] != version and not found[0].released:
                    raise in_use(f"process {found[0].pid} on {found[0].host}")
                if found is None or found[0].released:
                    break
        try:
            self._start(None if found is None else found[1])
        except (FileExistsError, Changed):
            raise in_use("a program that started at the same time") from None

    def close(self) -> None:
        """Release the lease. Closing twice does nothing, nor does it in a forked process: the lease
        is that of its parent."""
        if os.getpid() != self._pid:
            return
        self._closing.set()
        thread, self._thread = self._thread, None
        # `lost` is called in that thread, and may close it.
        if thread is not None and thread is not threading.current_thread():
            release = threading.Thread(
                target=self._release, args=(thread,), name="lease", daemon=True
            )
            release.start()
            release.join(CLOSE_S)

    def _release(self, renewing: threading.Thread) -> None:
        renewing.join()
        if self._version is not None:
            with contextlib.suppress(OSError):
                self._put(self._version, released=True)
            self._version = None

    def _start(self, version: Version | None) -> None:
        self._put(version)
        self._closing.clear()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    def _has_lapsed(self, holder: _Holder, version: Version, *, is_taken: bool) -> bool:
        if holder.released or _has_ended(holder):
            return True
        now, key = time.monotonic(), (self._location, is_taken)
        seen = _watched.get(key)
        # While this program could not look, the holder could perhaps not renew it either.
        pause_s_max = LEASE_S / _RENEWALS if is_taken else LEASE_S
        if seen is None or seen.version != version or now - seen.last_s > pause_s_max:
            seen = _Watched(version, now, now)
        _watched[key] = seen._replace(last_s=now)
        return now - seen.first_s > holder.lease_s

    def _renew(self) -> None:
        while not self._closing.wait(LEASE_S / _RENEWALS):
            try:
                self._put(self._version)
            except (Changed, FileExistsError):
                if self._is_ours():
                    continue
                self._version = None
                self._lost()
                return
            except OSError:
                # The storage is not available. Others cannot take the lease over either.
                continue

    def _is_ours(self) -> bool:
        """Return whether an earlier renewal took effect without an answer, and own it."""
        try:
            found = self._read()
        except OSError as error:
            # Without an answer, the next renewal tells. Any other content is not ours.
            return error.errno != errno.EINVAL
        if found is None or found[0].token not in self._uncertain:
            return False
        self._version = found[1]
        return True

    def _read(self) -> tuple[_Holder, Version] | None:
        try:
            with unlimited():
                content, version = self._storage.read(self._location, bytes_max=_BYTES_MAX)
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(content, type=_Holder), version
        except DECODING_ERRORS as error:
            raise OSError(
                errno.EINVAL,
                f"{self._location} is not a lease ({text_of(error)})",
                str(self._location),
            ) from None

    def _put(self, version: Version | None, *, released: bool = False) -> None:
        token = secrets.token_hex(16)
        self._uncertain.add(token)
        holder = _Holder(
            token=token,
            host=socket.gethostname(),
            pid=os.getpid(),
            process=_process_name(os.getpid()) or "",
            lease_s=LEASE_S,
            released=released,
        )
        content = msgspec.json.encode(holder)
        with unlimited():
            if version is None:
                self._version = self._storage.put_if_absent(self._location, content)
            else:
                self._version = self._storage.replace_if_unchanged(self._location, content, version)
        self._uncertain.clear()


_ENDED = ("Z", "X")
"""States of a process that has ended, but whose parent does not know it yet."""


def _process_name(pid: int) -> str | None:
    """Return what tells a process from all others of this machine, also in other containers and
    after a restart; None if there is none."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        space = Path("/proc/self/ns/pid").stat().st_ino
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = status.rpartition(")")[2].split()
    if fields[0] in _ENDED:
        return None
    start_ticks = fields[19]
    return f"{boot}:{space}:{pid}:{start_ticks}"


def _has_ended(holder: _Holder) -> bool:
    """Return whether the process of a holder ran on this machine, and has ended."""
    own = (_process_name(os.getpid()) or "").split(":")[:2]
    if holder.process.split(":")[:2] != own:
        return False
    return _process_name(holder.pid) != holder.process
