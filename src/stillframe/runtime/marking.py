"""When the markers of snapshots came to one process: noted as they come, told with its part."""

import time

from stillframe.model import MarkerTimes, ProcessId, SnapshotId


class _Noted:
    """What was noted of one snapshot."""

    def __init__(self, marked_by: ProcessId | None) -> None:
        self.cut_at = time.time()
        self.moment_s = time.perf_counter()
        self.marked_by = marked_by
        self.came_s = {} if marked_by is None else {marked_by: 0.0}


class Marking:
    """The marker times of the snapshots that a process is recording."""

    def __init__(self) -> None:
        self._noted: dict[SnapshotId, _Noted] = {}

    def step(self, snapshot: SnapshotId, source: ProcessId | None, *, is_cut: bool) -> None:
        """Note a step of the process in a snapshot: the marker of `source` came, or it initiated;
        `is_cut` if it records its state now."""
        if is_cut:
            self._noted[snapshot] = _Noted(source)
        elif source is not None and (noted := self._noted.get(snapshot)) is not None:
            noted.came_s[source] = time.perf_counter() - noted.moment_s

    def take(self, snapshot: SnapshotId) -> MarkerTimes | None:
        """Return what was noted of a snapshot, and forget it."""
        noted = self._noted.pop(snapshot, None)
        return None if noted is None else MarkerTimes(noted.cut_at, noted.marked_by, noted.came_s)

    def settle(self, last_number: int) -> None:
        """Forget every snapshot up to `last_number`."""
        for snapshot in tuple(self._noted):
            if snapshot.number <= last_number:
                del self._noted[snapshot]
