"""A process's captures with a coordinator that puts its parts together, and no event loop."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from stillframe.keyed import Keyed
from stillframe.model import Fragment, ProcessState, SnapshotId
from stillframe.runtime import control
from stillframe.runtime.control import ChunkBuffer
from stillframe.runtime.process import state_capture
from stillframe.runtime.process.fragment_recorder import FragmentRecorder
from stillframe.runtime.process.state_capture import StateCapture
from stillframe.state_codec import StateCodec

S1, S2 = SnapshotId("P", 1), SnapshotId("P", 2)
ROW_COUNT = 2_000


@dataclass
class Books:
    """A keyed field and another."""

    accounts: Keyed[int, int] = field(default_factory=Keyed)
    note: str = ""


@dataclass
class Note:
    """No keyed field."""

    note: str = ""


class Recording:
    """A process's captures, and a coordinator that puts its parts together."""

    def __init__(
        self,
        books: Any,
        scheduler: Any = None,
        *,
        sink: FragmentRecorder | None = None,
        base: SnapshotId | None = None,
    ) -> None:
        self.books = books
        self.ready: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self.parts: dict[SnapshotId, Fragment] = {}
        self.refused: dict[SnapshotId, str] = {}
        self._pieces = ChunkBuffer()
        self.captures = StateCapture(
            "P",
            codec=StateCodec(type(books)),
            subject=books,
            base=base,
            loop=scheduler or cast(Any, self),
            report=self._hear,
        )
        self.captures.sink = sink

    def call_soon(self, callback: Callable[..., Any], /, *args: Any) -> None:
        """Call when the test lets it."""
        self.ready.append((callback, args))

    def add_reader(self, fd: int, callback: Callable[..., Any], /, *args: Any) -> None:
        """Refuse: there is no loop."""
        raise NotImplementedError

    def remove_reader(self, fd: int, /) -> None:
        """Nothing to do."""

    def go_on(self) -> bool:
        """Take one slice; False if nothing is left to do."""
        if self.ready:
            callback, args = self.ready.popleft()
            callback(*args)
        return bool(self.ready)

    def cut(self, snapshot: SnapshotId, *, is_immediate: bool = False) -> None:
        """Record the state, and let the recorder be done at once."""
        state = self.captures.begin(snapshot, is_immediate=is_immediate)
        self.captures.record_cut(snapshot, None, 0.25)
        self.captures.recorded(Fragment(snapshot, state, {}, ()))

    def _hear(self, message: control.FromProcess) -> None:
        match message:
            case control.FragmentRows() | control.FragmentChunk():
                self._pieces.add("P", message)
            case control.FragmentComplete(fragment):
                self.parts[fragment.snapshot] = self._pieces.complete(fragment)
            case control.SnapshotDeclined(snapshot, detail):
                self.refused[snapshot] = detail

    def state(self, snapshot: SnapshotId) -> ProcessState:
        """Return what the coordinator has of it."""
        return self.parts[snapshot].state


def accounts(state: ProcessState) -> dict[int, int]:
    """Return the rows that were recorded."""
    rows: dict[int, int] = {}
    for some in state.keyed["accounts"].rows:
        keys = msgspec.msgpack.decode(some.keys)
        rows.update(zip(keys, msgspec.msgpack.decode(some.values), strict=True))
    return rows


def note(state: ProcessState) -> str:
    """Return the field that is not keyed."""
    return str(msgspec.msgpack.decode(state.encoded)["note"])


def filled(row_count: int = ROW_COUNT, text: str = "") -> Books:
    """Return books with so many rows, all 0."""
    return Books(Keyed(dict.fromkeys(range(row_count), 0)), text)


class TimedRecording(Recording):
    """One in which time passes only with keys: a microsecond for each."""

    def __init__(self, books: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now_s = 0.0
        names = ("thread_time", "perf_counter", "time")
        clock = SimpleNamespace(**dict.fromkeys(names, lambda: self._now_s))
        monkeypatch.setattr(state_capture, "time", clock)
        super().__init__(books)

    def _hear(self, message: control.FromProcess) -> None:
        if isinstance(message, control.FragmentRows):
            self._now_s += message.rows.count / 1e6
        super()._hear(message)
