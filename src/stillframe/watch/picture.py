"""What the page shows of a running system, from two looks at it: pure.

Each process tells of its own ends of its channels, each at its own moment. What a channel holds is
therefore told about: what its source had sent less what its target had received.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from stillframe.detect.loss import Number, total
from stillframe.model import Channel, ProcessId
from stillframe.protocol.holdup import Standing
from stillframe.protocol.recorder import Phase
from stillframe.runtime.commands import Observed
from stillframe.runtime.waves import Wave
from stillframe.topology import Description
from stillframe.watch.verdicts import Judged

STATUSES = ("running", "busy", "silent", "starting", "dead", "stopped")
EXACT_MAX = 2**53
"""A browser knows whole numbers up to here exactly."""
RUNNING, BUSY, SILENT, STARTING, DEAD, STOPPED = STATUSES
"""How a process can be."""


def statuses(
    description: Description,
    observed: Observed | None,
    dead: frozenset[ProcessId],
    *,
    unheard: str = STOPPED,
) -> list[str]:
    """Return how each process is.

    Args:
        description: names the processes.
        observed: what was told; None if there is no running system.
        dead: those that have died since the system ran last.
        unheard: how all of them are if `observed` is None.
    """
    if observed is None:
        return [unheard] * len(description.processes)
    return [_status(process, observed, dead) for process in description.processes]


def _status(process: ProcessId, observed: Observed, dead: frozenset[ProcessId]) -> str:
    if not observed.is_running:
        return DEAD if process in dead else STARTING
    standing = observed.standings.get(process)
    if standing is None:
        return SILENT
    return BUSY if standing.is_busy else RUNNING


def channel_columns(
    description: Description, observed: Observed, before: Observed | None
) -> dict[str, list[float | int | None]]:
    """Return for each channel, in the order of `description`, what is known of it.

    Args:
        description: names the channels.
        observed: what was told just now.
        before: what was told the last time, in the same epoch; None if nothing was.

    Returns:
        `sent`: messages sent since the very beginning; `rate`: messages sent in a second;
        `in_transit`: messages sent and not received; `bytes`: sent and not handled; `is_connected`:
        1 or 0. None is what nobody told.
    """
    columns: dict[str, list[float | int | None]] = {
        name: [] for name in ("sent", "rate", "in_transit", "bytes", "is_connected")
    }
    for channel in description.channels:
        sent, received, size, is_connected = _ends(channel, observed.standings)
        rate = None if before is None else _rate(channel, before.standings, observed.standings)
        held = None if sent is None or received is None else max(0, sent - received)
        values = (sent, rate, held, size, is_connected)
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    return columns


def _ends(
    channel: Channel, standings: dict[ProcessId, Standing]
) -> tuple[int | None, int | None, int | None, int | None]:
    source, target = standings.get(channel.source), standings.get(channel.target)
    out = None if source is None else source.outgoing[channel.target]
    into = None if target is None else target.incoming[channel.source]
    ends = [end for end in (out, into) if end is not None]
    return (
        None if out is None else out.count,
        None if into is None else into.count,
        max((end.unhandled_bytes for end in ends), default=None),
        int(all(end.is_connected for end in ends)) if ends else None,
    )


def _rate(
    channel: Channel, before: dict[ProcessId, Standing], now: dict[ProcessId, Standing]
) -> float | None:
    """Return how many messages the source sent in a second, between two moments by its own clock;
    None if it did not answer twice."""
    first, second = before.get(channel.source), now.get(channel.source)
    if first is None or second is None or second.moment_s <= first.moment_s:
        return None
    sent = second.outgoing[channel.target].count - first.outgoing[channel.target].count
    return round(max(0, sent) / (second.moment_s - first.moment_s), 1)


def exactly(totals: Mapping[str, Number]) -> dict[str, Number | str]:
    """Return amounts such that a browser does not round them: large whole numbers as text."""
    return {
        quantity: str(amount) if isinstance(amount, int) and abs(amount) > EXACT_MAX else amount
        for quantity, amount in totals.items()
    }


def judged_document(judged: Judged) -> dict[str, Any]:
    """Return what was found in a snapshot, as the page takes it."""
    document: dict[str, Any] = msgspec.structs.asdict(judged)
    for name in ("totals", "in_channels"):
        document[name] = exactly(document[name])
    return document


def naive_totals(description: Description, observed: Observed) -> dict[str, Number]:
    """Return what one gets who asks all processes what they have, and adds up the answers: not the
    truth, because what is on its way is in nobody's answer, and no two answer at one moment.

    Returns:
        each conserved quantity; nothing if a process did not answer, or cannot say.
    """
    amounts: dict[str, dict[str, Number]] = {}
    for process in description.processes:
        standing = observed.standings.get(process)
        if standing is None or isinstance(standing.quantities, str):
            return {}
        for quantity, amount in standing.quantities.items():
            amounts.setdefault(quantity, {})[process] = amount
    return {quantity: total(places) for quantity, places in amounts.items()}


def quantities_trouble(observed: Observed) -> str:
    """Return why a process cannot say what it has; empty if none has trouble with it."""
    told = (standing.quantities for standing in observed.standings.values())
    return next((text for text in told if isinstance(text, str)), "")


def under_way(observed: Observed) -> list[dict[str, Any]]:
    """Return the snapshots under way: how far each process is, who is awaited, and why."""
    found = []
    for snapshot in observed.under_way:
        recording = {p: s.of(snapshot.snapshot) for p, s in observed.standings.items()}
        found.append(
            {
                "id": str(snapshot.snapshot),
                "initiated_at": snapshot.initiated_at,
                "deadline": snapshot.deadline,
                "missing": snapshot.missing,
                "at_fault": snapshot.at_fault,
                "sentences": snapshot.sentences(observed.now),
                "phases": {p: standing.phase.value for p, standing in recording.items()},
                "awaited": {
                    p: standing.awaited
                    for p, standing in recording.items()
                    if standing.phase is Phase.RECORDING
                },
            }
        )
    return found


def wave_document(wave: Wave) -> dict[str, Any]:
    """Return how the markers of a snapshot went; all times are seconds after it was initiated.

    A process says by its own clock when it recorded its state, so between machines these times are
    as good as their clocks.
    """
    begin = wave.initiated_at
    return {
        "id": str(wave.snapshot),
        "initiated_at": begin,
        "is_published": wave.is_published,
        "took_s": None if wave.ended_at is None else wave.ended_at - begin,
        "cuts": {p: max(0.0, times.cut_at - begin) for p, times in wave.times.items()},
        "marked_by": {p: times.marked_by for p, times in wave.times.items()},
        "came": [
            [source, p, max(0.0, times.cut_at - begin) + after_s]
            for p, times in wave.times.items()
            for source, after_s in times.came_s.items()
        ],
    }
