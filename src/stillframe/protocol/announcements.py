"""When processes may be told that a snapshot was published.

To be told is to know that every process has recorded its part of it: a message from all of them,
though none that any channel carries. A snapshot that is still under way then, and was begun before
the other was complete, could show one process knowing that, and another one not yet where it had
been when it recorded that part: an effect without its cause. So such snapshots are waited for. The
rule costs nothing as long as snapshots do not overlap, and a deadline bounds the wait.
"""

from collections import deque
from collections.abc import Iterable

from stillframe.model import SnapshotId


class Announcements:
    """The snapshots that were published and not announced yet, in the order of publishing."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[SnapshotId, set[SnapshotId]]] = deque()

    def published(self, snapshot: SnapshotId, under_way: Iterable[SnapshotId]) -> list[SnapshotId]:
        """Note that `snapshot` was published; return what to announce now, in this order.

        Args:
            snapshot: what was published.
            under_way: the snapshots of which some part is missing still.
        """
        self._waiting.append((snapshot, set(under_way)))
        return self._ready()

    def ended(self, snapshot: SnapshotId) -> list[SnapshotId]:
        """Note that `snapshot` is not under way any more: every process recorded it, or it was
        given up; return what to announce now, in this order."""
        for _, awaited in self._waiting:
            awaited.discard(snapshot)
        return self._ready()

    def _ready(self) -> list[SnapshotId]:
        ready = []
        while self._waiting and not self._waiting[0][1]:
            ready.append(self._waiting.popleft()[0])
        return ready
