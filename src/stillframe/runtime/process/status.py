"""What a process says of itself when the coordinator asks: who holds a snapshot up, and how much it
has sent and received."""

import time
from collections import Counter

from stillframe.detect.evaluate import conserved
from stillframe.errors import ApplicationError
from stillframe.model import SnapshotId
from stillframe.protocol.stragglers import (
    NAME_CHARS_MAX,
    QUANTITY_COUNT_MAX,
    TEXT_CHARS_MAX,
    EndpointStatus,
    ProcessStatus,
    RecordingStatus,
)
from stillframe.runtime import control
from stillframe.runtime.process.endpoints import HOLD_BYTES, OutgoingEndpoint
from stillframe.runtime.process.host import Delivery, Host

QUICK_S = 0.002
"""A process that says so quickly what it has is asked as often as somebody looks, in seconds."""
REST = 100
"""Another is left alone for so many times as long as it took."""


def process_status(host: Host, asked: control.StatusRequest) -> ProcessStatus:
    """Return how far the process of `host` is with snapshots, and how its channels are.

    Nothing is kept for this while nobody asks.
    """
    unhandled: Counter[str] = Counter()
    for item in host.mailbox:
        if isinstance(item, Delivery):
            unhandled[item.incoming.source] += len(item.batch.encoded)
    received = host.recorder.received_counts
    return ProcessStatus(
        is_busy=host.is_busy,
        snapshots=tuple(_recording(host, snapshot) for snapshot in asked.snapshots),
        incoming={
            source: EndpointStatus(incoming.is_connected, unhandled[source], count=received[source])
            for source, incoming in host.incoming.items()
        },
        outgoing={t: _end(outgoing, is_held=host.is_held) for t, outgoing in host.outgoing.items()},
        quantities=_quantities(host) if asked.has_quantities else {},
        moment_s=time.monotonic(),
    )


def _recording(host: Host, snapshot: SnapshotId) -> RecordingStatus:
    return RecordingStatus(
        snapshot,
        host.recorder.phase(snapshot),
        host.recorder.awaited(snapshot),
        host.captures.age_s(snapshot),
    )


def _end(outgoing: OutgoingEndpoint, *, is_held: bool) -> EndpointStatus:
    size = outgoing.session.unacknowledged_bytes
    is_full = is_held and not outgoing.is_on_cycle and size >= HOLD_BYTES
    return EndpointStatus(outgoing.is_connected, size, is_full, outgoing.sent_count)


def _quantities(host: Host) -> dict[str, int | float] | str:
    """Return what the process has at this moment, which is not that of any other; or why it cannot
    say. Whatever its method does, being looked at must not end a process, nor keep it busy."""
    began_s = time.perf_counter()
    if began_s < host.quantities_from_s:
        wait_s = host.quantities_from_s - began_s
        return (
            f"process {host.process}: conserved() takes so long that it is asked again in "
            f"{wait_s:.0f} s only"
        )
    try:
        answer = _asked(host)
    except ApplicationError as error:
        answer = str(error)
    except Exception as error:
        answer = f"process {host.process}: conserved(): {type(error).__name__}: {error}"
    took_s = time.perf_counter() - began_s
    if took_s > QUICK_S:
        host.quantities_from_s = began_s + took_s * REST
    return answer if isinstance(answer, dict) else answer[:TEXT_CHARS_MAX]


def _asked(host: Host) -> dict[str, int | float] | str:
    found = conserved(host.subject, f"process {host.process}", None)
    if len(found) > QUANTITY_COUNT_MAX or any(len(name) > NAME_CHARS_MAX for name in found):
        return (
            f"process {host.process}: it names {len(found):,} conserved quantities: at most "
            f"{QUANTITY_COUNT_MAX} are shown, with names of at most {NAME_CHARS_MAX} characters"
        )
    return {str(name): _plain(amount) for name, amount in found.items()}


def _plain(amount: float) -> int | float:
    """Return a number as it can travel: whole numbers have 64 bits."""
    if isinstance(amount, int) and abs(amount) < 2**63:
        return int(amount)
    return float(amount)
