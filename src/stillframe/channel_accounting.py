"""Channel accounting: the messages sent, less those received, are in flight.

On a channel that keeps order, a consistent cut leaves exactly the messages received + 1 .. sent in
flight. This is the one implementation of that rule. Snapshots use it when they are assembled,
written, read and restored (``model``), fragments before they are merged, and the verification of an
event log for all snapshots at once, with arrays for numbers. It imports nothing, because executors
of Spark use it. The audit of a store does without it on purpose (``analytics.snapshot_verdicts``).
"""

from typing import Any


def balances(sent: Any, received: Any, recorded: Any, first: Any) -> Any:
    """Return whether the recorded messages are exactly those in flight.

    Args:
        sent: how many messages the source had sent at its cut; a number, or an array of them.
        received: how many the target had received at its own.
        recorded: how many were recorded, without a gap between them; -1 if there were gaps.
        first: the number of the first of them.
    """
    is_recorded = (recorded == sent - received) & ((recorded == 0) | (first == received + 1))
    return (received >= 0) & (received <= sent) & is_recorded


def impossible_counts(channel: object, sent: int, received: int) -> str | None:
    """Return why no consistent cut has these counts of a channel, or None if one can have them."""
    if 0 <= received <= sent:
        return None
    return (
        f"channel {channel}: the target had received {received} messages at its cut, the source "
        f"had sent {sent} at its own"
    )


def imbalance(channel: object, sent: int, received: int, recorded: int) -> str | None:
    """Return what is wrong with the counts of a channel, or None if as many messages were recorded
    as were in flight."""
    if sent - received == recorded:
        return impossible_counts(channel, sent, received)
    return (
        f"channel {channel}: {sent} sent - {received} received = {sent - received}, but {recorded} "
        "messages were recorded"
    )
