"""What the watcher of a system remembers from look to look for its metrics."""

import time

from stillframe.runtime.commands import Observed
from stillframe.store.manifest import Entry
from stillframe.watch.measured import ChannelsMeasured, SnapshotsMeasured
from stillframe.watch.metrics import Watching

SYSTEM, STORE = "system", "store"
"""What the watcher may have trouble with, besides judging and sending."""


class Measuring:
    """Counts what it is told.

    Attributes:
        snapshots: figures of what was published.
        channels: how many messages there were.
        troubles: what may go wrong, and whether it does.
        looked_at: when the watcher looked last.
    """

    def __init__(self) -> None:
        self.snapshots = SnapshotsMeasured()
        self.channels = ChannelsMeasured()
        self.troubles = {SYSTEM: False, STORE: False}
        self.looked_at = 0.0
        self._began_at = time.time()
        self._look_count = 0
        self._look_s = 0.0

    def looked(self, observed: Observed | None, look_s: float, *, is_trouble: bool) -> None:
        """Learn what the system said just now, and how long that took; None: it does not run, or
        cannot be asked, which is trouble."""
        self._look_count += 1
        self._look_s = look_s
        self.looked_at = time.time()
        self.troubles[SYSTEM] = is_trouble
        if observed is not None:
            self.channels.take(observed)

    def read(self, entries: list[Entry], *, is_new: bool, is_trouble: bool) -> None:
        """Learn of snapshots in the store, which are not new if they were there when the watcher
        began, and whether there was trouble."""
        self.troubles[STORE] = is_trouble
        for entry in entries:
            self.snapshots.take(entry, is_new=is_new)

    def watching(self, page_count: int, **troubles: bool) -> Watching:
        """Return how the watcher is.

        Args:
            page_count: how many pages listen.
            troubles: what else may go wrong, and whether it does.
        """
        return Watching(
            began_at=self._began_at,
            look_count=self._look_count,
            looked_at=self.looked_at,
            look_s=self._look_s,
            page_count=page_count,
            troubles=self.troubles | troubles,
        )
