"""What only goes up, since the watcher began: of snapshots, and of messages on channels.

What a system counts goes back when it is taken back to a snapshot. Prometheus would take that for a
restart from nothing, and a rate would leap: so what is told is added up here, from look to look.
"""

from typing import NamedTuple

from stillframe.model import Channel
from stillframe.protocol.holdup import ChannelEnd
from stillframe.runtime.commands import Observed
from stillframe.store.manifest import Entry
from stillframe.topology import Description
from stillframe.watch.families import Families, Histogram


class SnapshotsMeasured:
    """Figures of the snapshots that were published.

    Attributes:
        last: the one that was published last.
    """

    def __init__(self) -> None:
        self.last: Entry | None = None
        self._duration = Histogram("snapshot_duration_seconds")
        self._pause = Histogram("snapshot_pause_seconds")
        self._capture = Histogram("snapshot_capture_seconds")
        self._size = Histogram("snapshot_size_bytes")
        self._messages = Histogram("snapshot_messages")

    def take(self, entry: Entry, *, is_new: bool) -> None:
        """Learn of a snapshot; one that is not new was there when the watcher began."""
        if self.last is None or entry.sequence > self.last.sequence or entry.id == self.last.id:
            self.last = entry
        if is_new:
            self._duration.take(entry.completed_at - entry.initiated_at)
            self._pause.take(entry.pause_s)
            self._capture.take(entry.capture_s)
            self._size.take(entry.bytes)
            self._messages.take(entry.message_count)

    def tell(self, families: Families) -> None:
        """Say what is known."""
        for histogram in (self._duration, self._pause, self._capture, self._size, self._messages):
            families.put_histogram(histogram)
        if (last := self.last) is None:
            return
        families.put("last_snapshot_number", last.id.number)
        families.put("last_snapshot_timestamp_seconds", last.completed_at)
        families.put("last_snapshot_duration_seconds", last.completed_at - last.initiated_at)
        families.put("last_snapshot_pause_seconds", last.pause_s)
        families.put("last_snapshot_capture_seconds", last.capture_s)
        families.put("last_snapshot_size_bytes", last.bytes)
        families.put("last_snapshot_messages", last.message_count)


class Rise:
    """How much a count has gone up since it was looked at first; it may go back."""

    def __init__(self) -> None:
        self.total = 0
        self._epoch = 0
        self._count: int | None = None

    def take(self, epoch: int, count: int) -> None:
        """Learn how far it is. What it did between the last look at an epoch and the first at the
        next is not known, and left out."""
        if self._count is not None and epoch == self._epoch:
            self.total += max(0, count - self._count)
        self._epoch, self._count = epoch, count


class ChannelNow(NamedTuple):
    """What is known of one channel: None is what nobody told just now."""

    sent: int
    received: int
    in_transit: int | None
    unhandled_bytes: int | None
    is_connected: bool | None


class ChannelsMeasured:
    """How many messages were sent and received on each channel."""

    def __init__(self) -> None:
        self._sent: dict[Channel, Rise] = {}
        self._received: dict[Channel, Rise] = {}

    def take(self, observed: Observed) -> None:
        """Learn what the processes said."""
        for process, standing in observed.standings.items():
            for target, end in standing.outgoing.items():
                _learn(self._sent, Channel(process, target), observed.epoch, end)
            for source, end in standing.incoming.items():
                _learn(self._received, Channel(source, process), observed.epoch, end)

    def now(self, description: Description, observed: Observed | None) -> dict[Channel, ChannelNow]:
        """Return what is known of each channel of which anything is."""
        standings = {} if observed is None else observed.standings
        found = {}
        for channel in description.channels:
            if channel not in self._sent and channel not in self._received:
                continue
            source, target = standings.get(channel.source), standings.get(channel.target)
            out = None if source is None else source.outgoing.get(channel.target)
            into = None if target is None else target.incoming.get(channel.source)
            ends = [end for end in (out, into) if end is not None]
            found[channel] = ChannelNow(
                self._sent.get(channel, Rise()).total,
                self._received.get(channel, Rise()).total,
                None if out is None or into is None else max(0, out.count - into.count),
                max((end.unhandled_bytes for end in ends), default=None),
                all(end.is_connected for end in ends) if ends else None,
            )
        return found


def _learn(rises: dict[Channel, Rise], channel: Channel, epoch: int, end: ChannelEnd) -> None:
    rises.setdefault(channel, Rise()).take(epoch, end.count)
