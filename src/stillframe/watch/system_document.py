"""The document of a running system's page, from two polls of the system: pure.

Each process reports its own ends of its channels, each at its own moment. The number of messages
in transit is therefore approximate: those that the source had sent, less those that the target had
received.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from stillframe.detect.predicate import Number, total
from stillframe.model import Channel, ProcessId
from stillframe.protocol.recorder import Phase
from stillframe.protocol.stragglers import ProcessStatus
from stillframe.runtime.coordinator.snapshot_monitor import SnapshotTimeline
from stillframe.runtime.supervisor.admin_socket import SystemStatus
from stillframe.topology import Description
from stillframe.watch.predicate_status import PredicateStatus

STATUSES = ("running", "busy", "silent", "starting", "dead", "stopped")
RUNNING, BUSY, SILENT, STARTING, DEAD, STOPPED = STATUSES
"""The statuses of a process."""
EXACT_MAX = 2**53
"""The largest whole number that a browser represents exactly."""


class ChannelStatus(NamedTuple):
    """The status of one channel; None is a value that no process reported."""

    sent: int | None
    received: int | None
    in_transit: int | None
    unhandled_bytes: int | None
    is_connected: bool | None

    @classmethod
    def of(cls, channel: Channel, answers: Mapping[ProcessId, ProcessStatus]) -> "ChannelStatus":
        """Return what both ends of a channel report."""
        source, target = answers.get(channel.source), answers.get(channel.target)
        out = None if source is None else source.outgoing.get(channel.target)
        into = None if target is None else target.incoming.get(channel.source)
        ends = [end for end in (out, into) if end is not None]
        return cls(
            None if out is None else out.count,
            None if into is None else into.count,
            None if out is None or into is None else max(0, out.count - into.count),
            max((end.unhandled_bytes for end in ends), default=None),
            all(end.is_connected for end in ends) if ends else None,
        )


def process_statuses(
    description: Description,
    status: SystemStatus | None,
    dead: frozenset[ProcessId],
    *,
    unreachable: str = STOPPED,
) -> list[str]:
    """Return the status of each process, given the answer of the system and those that died since
    it last ran; without an answer all have the status `unreachable`."""
    if status is None:
        return [unreachable] * len(description.processes)
    statuses = []
    for process in description.processes:
        answer = status.statuses.get(process)
        if not status.is_running:
            statuses.append(DEAD if process in dead else STARTING)
        elif answer is None:
            statuses.append(SILENT)
        else:
            statuses.append(BUSY if answer.is_busy else RUNNING)
    return statuses


def channel_columns(
    description: Description, status: SystemStatus, before: SystemStatus | None
) -> dict[str, list[float | int | None]]:
    """Return the status of each channel, given the last answer and the one before it. `sent` are
    the messages since the very start, `rate` those per second, and `in_transit` the present ones.
    `bytes` are sent and not handled; `is_connected` is 1 or 0. None is a value that no process
    reported."""
    columns: dict[str, list[float | int | None]] = {
        name: [] for name in ("sent", "rate", "in_transit", "bytes", "is_connected")
    }
    for channel in description.channels:
        now = ChannelStatus.of(channel, status.statuses)
        rate = None if before is None else _rate(channel, before.statuses, status.statuses)
        is_connected = None if now.is_connected is None else int(now.is_connected)
        values = (now.sent, rate, now.in_transit, now.unhandled_bytes, is_connected)
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    return columns


def _rate(
    channel: Channel, before: dict[ProcessId, ProcessStatus], now: dict[ProcessId, ProcessStatus]
) -> float | None:
    """Return messages per second by the source's own clock; None if it did not answer twice."""
    first, second = before.get(channel.source), now.get(channel.source)
    if first is None or second is None or second.moment_s <= first.moment_s:
        return None
    sent = second.outgoing[channel.target].count - first.outgoing[channel.target].count
    return round(max(0, sent) / (second.moment_s - first.moment_s), 1)


def exact_amounts(totals: Mapping[str, Number]) -> dict[str, Number | str]:
    """Return amounts that a browser does not round: large whole numbers as text."""
    return {
        quantity: str(amount) if isinstance(amount, int) and abs(amount) > EXACT_MAX else amount
        for quantity, amount in totals.items()
    }


def predicate_document(status: PredicateStatus) -> dict[str, Any]:
    """Return the predicates of a snapshot as the page shows them."""
    document: dict[str, Any] = msgspec.structs.asdict(status)
    for name in ("totals", "in_channels"):
        document[name] = exact_amounts(document[name])
    return document


def naive_totals(description: Description, status: SystemStatus) -> dict[str, Number]:
    """Return the sums of what all processes report; nothing if one did not answer. They are not
    the true totals: no answer includes what is in transit, and no two are of the same moment."""
    amounts: dict[str, dict[str, Number]] = {}
    for process in description.processes:
        answer = status.statuses.get(process)
        if answer is None or isinstance(answer.quantities, str):
            return {}
        for quantity, amount in answer.quantities.items():
            amounts.setdefault(quantity, {})[process] = amount
    return {quantity: total(places) for quantity, places in amounts.items()}


def quantities_error(status: SystemStatus) -> str:
    """Return why a process cannot tell its conserved amounts; empty if all can."""
    reported = (answer.quantities for answer in status.statuses.values())
    return next((text for text in reported if isinstance(text, str)), "")


def pending_snapshots(status: SystemStatus) -> list[dict[str, Any]]:
    """Return the pending snapshots: the phase of each process, the stragglers, and why."""
    found = []
    for snapshot in status.pending:
        recording = {p: a.of(snapshot.snapshot) for p, a in status.statuses.items()}
        found.append(
            {
                "id": str(snapshot.snapshot),
                "initiated_at": snapshot.initiated_at,
                "deadline": snapshot.deadline,
                "missing": snapshot.missing,
                "stragglers": snapshot.at_fault,
                "sentences": snapshot.sentences(status.now),
                "phases": {p: state.phase.value for p, state in recording.items()},
                "waits_for": {
                    p: state.awaited
                    for p, state in recording.items()
                    if state.phase is Phase.RECORDING
                },
            }
        )
    return found


def timeline_document(timeline: SnapshotTimeline) -> dict[str, Any]:
    """Return the marker timeline of a snapshot; all times are seconds after it was initiated. A
    process reports by its own clock when it recorded its state, so between machines these times are
    as accurate as their clocks."""
    start = timeline.initiated_at
    return {
        "id": str(timeline.snapshot),
        "initiated_at": start,
        "is_published": timeline.is_published,
        "duration_s": None if timeline.ended_at is None else timeline.ended_at - start,
        "cuts": {p: max(0.0, times.cut_at - start) for p, times in timeline.times.items()},
        "marked_by": {p: times.marked_by for p, times in timeline.times.items()},
        "arrivals": [
            [source, p, max(0.0, times.cut_at - start) + after_s]
            for p, times in timeline.times.items()
            for source, after_s in times.came_s.items()
        ],
    }
