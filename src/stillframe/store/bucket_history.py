"""The history of a store in an object store.

An object cannot grow, so each write replaces the whole newer one, which is kept short. It is
replaced only if it is as this writer left it: that fences an earlier writer. Lines that no one
waits for are written together, about every second.
"""

import contextlib
import secrets
import threading
import time
from collections.abc import Callable

import msgspec

from stillframe.errors import Fenced, StoreError
from stillframe.model import SnapshotId
from stillframe.storage.location import ObjectPath
from stillframe.storage.owned import OwnedObject
from stillframe.store.history import (
    NEWER,
    OLDER,
    READ_BYTES_MAX,
    HistoryEvent,
    HistoryWriter,
    SnapshotAbandoned,
    SnapshotBegan,
    SnapshotPublished,
    SnapshotRemoved,
    WriterChanged,
    line_of,
    whole_lines,
)
from stillframe.store.layout import explain_io_errors

FILE_BYTES_MAX = 2**16
"""Size after which a new object is started: all of it is sent with each line."""
KEPT_BYTES_MAX = 2**19
"""Maximum size while the object store is not available."""
WRITE_INTERVAL_S = 1.0
"""Interval between writes of lines that no one waits for."""


class BucketHistory(HistoryWriter):
    """The history of a store in an object store; `fenced` is called if another
    program has written it."""

    def __init__(self, store: ObjectPath, *, fenced: Callable[[], None]) -> None:
        super().__init__(store)
        self._older = OwnedObject(store / OLDER)
        self._newer = OwnedObject(store / NEWER)
        self._fenced = fenced
        with explain_io_errors(self._path, "read"):
            older = self._older.read(bytes_max=READ_BYTES_MAX) or b""
            newer = self._newer.read(bytes_max=READ_BYTES_MAX) or b""
        lines = whole_lines(self._older.location, older)
        self._whole_older = older[: sum(length for _, length in lines)]
        length = self._load(lines, whole_lines(self._path, newer))
        self._held: dict[SnapshotId, list[bytes]] = {}
        self._content = newer[:length] or line_of(self._summary(), time.time())
        self._is_dirty = False
        self._writing = threading.Lock()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_often, name="history", daemon=True)
        self._thread.start()

    def take_over(self) -> None:
        """Let no earlier writer change the history from here on. Fenced if one has, since this was
        read: read it again."""
        claim = WriterChanged(secrets.token_hex(16))
        self.append(claim)
        # Also the older object, which an earlier writer may be about to replace.
        with explain_io_errors(self._path, "written"):
            self._older.replace(self._whole_older + line_of(claim, time.time()))

    def hold(self, snapshot: SnapshotId) -> None:
        """Write no end of a snapshot until its ``release``: whether it is published is not known,
        so the next writer must find it pending."""
        with self._appending:
            self._held.setdefault(snapshot, [])

    def release(self, snapshot: SnapshotId) -> None:
        """Write the end of a snapshot that was held."""
        with self._appending:
            self._content += b"".join(self._held.pop(snapshot, ()))
            self._is_dirty = True
        self._wake.set()

    def append(self, event: HistoryEvent) -> None:
        """See ``HistoryWriter``."""
        line = line_of(event, time.time())
        if isinstance(event, SnapshotBegan | SnapshotRemoved | WriterChanged):
            self._write(line, event)
            return
        with self._appending:
            if len(self._content) > KEPT_BYTES_MAX and not self._must_be_known(event):
                raise StoreError(f"{self._path} cannot be written, and no more lines are kept")
            held = None
            if isinstance(event, SnapshotPublished | SnapshotAbandoned):
                held = self._held.get(event.snapshot)
            if held is None:
                self._content += line
                self._is_dirty = True
            else:
                held.append(line)
            self._follow(event)
        self._wake.set()

    def close(self) -> None:
        """See ``HistoryWriter``."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._wake.set()
        self._thread.join()
        if self._is_dirty:
            # If that fails, the next writer finds out how the snapshots ended.
            with contextlib.suppress(StoreError):
                self._write()

    def _write_often(self) -> None:
        while not self._closing.is_set():
            self._wake.wait()
            self._closing.wait(WRITE_INTERVAL_S)
            self._wake.clear()
            try:
                if self._is_dirty:
                    self._write()
            except Fenced:
                return
            except StoreError:
                self._wake.set()

    def _write(self, line: bytes = b"", event: HistoryEvent | None = None) -> None:
        """Write what was appended, and a last line; after an error that line is in no later
        write."""
        with self._writing:
            try:
                with explain_io_errors(self._path, "written"):
                    if len(self._content) > FILE_BYTES_MAX:
                        self._roll_over()
                    with self._appending:
                        before = self._content
                    self._newer.replace(before + line)
            except Fenced:
                self._fenced()
                raise
            except StoreError:
                if isinstance(event, SnapshotBegan | SnapshotRemoved):
                    # The line may be there all the same. Without another write, readers and the
                    # next writer would act on what this one takes for not done.
                    self._is_dirty = True
                    self._wake.set()
                raise
            with self._appending:
                later = self._content[len(before) :]
                self._content = before + line + later
                self._is_dirty = bool(later)
                if event is not None:
                    self._follow(event)

    def _roll_over(self) -> None:
        """Start a new object. A failure in between leaves all lines in the newer one."""
        with self._appending:
            full, summary = self._content, self._summary()
            pending = (*summary.pending, *self._held)
            summary = msgspec.structs.replace(summary, pending=pending)
            beginning = line_of(summary, time.time())
        self._older.replace(full)
        self._newer.replace(beginning)
        with self._appending:
            self._content = beginning + self._content[len(full) :]
