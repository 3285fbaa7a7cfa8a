"""What a process says of itself when the coordinator asks who holds a snapshot up."""

from collections import Counter
from collections.abc import Iterable

from stillframe.model import SnapshotId
from stillframe.protocol.holdup import ChannelEnd, RecordingStanding, Standing
from stillframe.runtime.ends import HOLD_BYTES, Outgoing
from stillframe.runtime.host import Delivery, Host


def standing_of(host: Host, snapshots: Iterable[SnapshotId]) -> Standing:
    """Return how far the process of `host` is with `snapshots`, and how its channels are.

    Nothing is kept for this while nobody asks.
    """
    unhandled: Counter[str] = Counter()
    for item in host.mailbox:
        if isinstance(item, Delivery):
            unhandled[item.incoming.source] += len(item.batch.encoded)
    return Standing(
        is_busy=host.is_busy,
        snapshots=tuple(_recording(host, snapshot) for snapshot in snapshots),
        incoming={
            source: ChannelEnd(incoming.is_connected, unhandled[source])
            for source, incoming in host.incoming.items()
        },
        outgoing={t: _end(outgoing, is_held=host.is_held) for t, outgoing in host.outgoing.items()},
    )


def _recording(host: Host, snapshot: SnapshotId) -> RecordingStanding:
    return RecordingStanding(
        snapshot,
        host.recorder.phase(snapshot),
        host.recorder.awaited(snapshot),
        host.captures.age_s(snapshot),
    )


def _end(outgoing: Outgoing, *, is_held: bool) -> ChannelEnd:
    size = outgoing.session.unacknowledged_bytes
    is_full = is_held and not outgoing.is_on_cycle and size >= HOLD_BYTES
    return ChannelEnd(outgoing.is_connected, size, is_full)
