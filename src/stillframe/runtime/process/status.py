"""Status reports: which channels block a snapshot, and how much was sent and received."""

import time
from collections import Counter

from stillframe.detect.view import conserved
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
"""A ``conserved()`` that takes no longer is called for each request, in seconds."""
REST = 100
"""A slower one is not called again for this many times as long as it took."""


def process_status(host: Host, request: control.StatusRequest) -> ProcessStatus:
    """Return the status of a process; nothing is kept for it between requests."""
    unhandled: Counter[str] = Counter()
    for item in host.mailbox:
        if isinstance(item, Delivery):
            unhandled[item.incoming.source] += len(item.batch.encoded)
    received = host.recorder.received_counts
    return ProcessStatus(
        is_busy=host.is_busy,
        snapshots=tuple(_recording(host, snapshot) for snapshot in request.snapshots),
        incoming={
            source: EndpointStatus(incoming.is_connected, unhandled[source], count=received[source])
            for source, incoming in host.incoming.items()
        },
        outgoing={
            t: _end(outgoing, is_blocked=host.is_blocked) for t, outgoing in host.outgoing.items()
        },
        quantities=_quantities(host) if request.has_quantities else {},
        moment_s=time.monotonic(),
    )


def _recording(host: Host, snapshot: SnapshotId) -> RecordingStatus:
    return RecordingStatus(
        snapshot,
        host.recorder.phase(snapshot),
        host.recorder.awaited(snapshot),
        host.captures.age_s(snapshot),
    )


def _end(outgoing: OutgoingEndpoint, *, is_blocked: bool) -> EndpointStatus:
    size = outgoing.session.unacknowledged_bytes
    is_full = is_blocked and not outgoing.is_on_cycle and size >= HOLD_BYTES
    return EndpointStatus(outgoing.is_connected, size, is_full, outgoing.sent_count)


def _quantities(host: Host) -> dict[str, int | float] | str:
    """Return the conserved quantities at this moment, or why they are unknown. Whatever its method
    does, a request must neither fail a process nor keep it busy."""
    began_s = time.perf_counter()
    if began_s < host.quantities_from_s:
        wait_s = host.quantities_from_s - began_s
        return (
            f"process {host.process}: conserved() takes so long that it is asked again in "
            f"{wait_s:.0f} s only"
        )
    try:
        answer = _conserved_quantities(host)
    except ApplicationError as error:
        answer = str(error)
    except Exception as error:
        answer = f"process {host.process}: conserved(): {type(error).__name__}: {error}"
    took_s = time.perf_counter() - began_s
    if took_s > QUICK_S:
        host.quantities_from_s = began_s + took_s * REST
    return answer if isinstance(answer, dict) else answer[:TEXT_CHARS_MAX]


def _conserved_quantities(host: Host) -> dict[str, int | float] | str:
    found = conserved(host.subject, f"process {host.process}", None)
    if len(found) > QUANTITY_COUNT_MAX or any(len(name) > NAME_CHARS_MAX for name in found):
        return (
            f"process {host.process}: it names {len(found):,} conserved quantities: at most "
            f"{QUANTITY_COUNT_MAX} are shown, with names of at most {NAME_CHARS_MAX} characters"
        )
    return {str(name): _plain(amount) for name, amount in found.items()}


def _plain(amount: float) -> int | float:
    """Return a number as it can be sent: integers have 64 bits."""
    if isinstance(amount, int) and abs(amount) < 2**63:
        return int(amount)
    return float(amount)
