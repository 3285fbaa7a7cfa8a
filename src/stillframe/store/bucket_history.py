"""The history of a store in an object store.

An object cannot grow, so each write replaces the whole newer one, which is kept short. It is
replaced only if it is as this writer left it: that fences an earlier writer. Lines that no one
waits for are written together, about every second.
"""

import contextlib
import threading
import time
from collections.abc import Callable

from stillframe.errors import Fenced, StoreError
from stillframe.storage.location import ObjectPath
from stillframe.storage.opened import storage_of
from stillframe.storage.owned import OwnedObject
from stillframe.storage.reading import is_there, read_file
from stillframe.store.history import (
    NEWER,
    OLDER,
    READ_BYTES_MAX,
    HistoryEvent,
    HistoryWriter,
    SnapshotBegan,
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
        self._older = store / OLDER
        self._newer = OwnedObject(store / NEWER)
        self._fenced = fenced
        has_older = is_there(self._older)
        older = read_file(self._older, bytes_max=READ_BYTES_MAX) if has_older else b""
        with explain_io_errors(self._path, "read"):
            newer = self._newer.read(bytes_max=READ_BYTES_MAX) or b""
        length = self._load(whole_lines(self._older, older), whole_lines(self._path, newer))
        self._content = newer[:length] or line_of(self._summary(), time.time())
        self._is_dirty = False
        self._writing = threading.Lock()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._write_often, name="history", daemon=True)
        self._thread.start()

    def append(self, event: HistoryEvent) -> None:
        """See ``HistoryWriter``."""
        line = line_of(event, time.time())
        if isinstance(event, SnapshotBegan | SnapshotRemoved | WriterChanged):
            self._write(line, event)
            return
        with self._appending:
            if len(self._content) > KEPT_BYTES_MAX and not self._must_be_known(event):
                raise StoreError(f"{self._path} cannot be written, and no more lines are kept")
            self._content += line
            self._is_dirty = True
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
            with self._appending:
                later = self._content[len(before) :]
                self._content = before + line + later
                self._is_dirty = bool(later)
                if event is not None:
                    self._follow(event)

    def _roll_over(self) -> None:
        """Start a new object. A failure in between leaves all lines in the newer one."""
        with self._appending:
            full, beginning = self._content, line_of(self._summary(), time.time())
        storage_of(self._older).put(self._older, full)
        self._newer.replace(beginning)
        with self._appending:
            self._content = beginning + self._content[len(full) :]
