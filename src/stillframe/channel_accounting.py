"""Channel accounting: the messages sent, less those received, are in transit.

On a channel that keeps order, a consistent cut leaves exactly the messages received + 1 .. sent in
flight. This is the one implementation of that rule. Snapshots use it when they are assembled,
written, read and restored (``model``), pipelines for the records in their logs, fragments before
they are merged, and the verification of an event log for all snapshots at once, with arrays for
numbers. It imports nothing of Stillframe, because executors of Spark use it. The audit of a store
does without it on purpose (``analytics.snapshot_verdicts``).
"""

from collections.abc import Iterable
from typing import Any


def balances(sent: Any, received: Any, recorded: Any, first: Any) -> Any:
    """Return whether the recorded messages are exactly those in transit: `recorded` of them without
    a gap, -1 if there were gaps, from number `first` on. All are numbers, or arrays of them."""
    is_recorded = (recorded == sent - received) & ((recorded == 0) | (first == received + 1))
    return (received >= 0) & (received <= sent) & is_recorded


def impossible_counts(
    channel: object, sent: int, received: int, what: str = "messages"
) -> str | None:
    """Return why no consistent cut has these counts of a channel, or None if one can have them.
    They count `what`."""
    if 0 <= received <= sent:
        return None
    return (
        f"channel {channel}: the target had received {received} {what} at its cut, the source "
        f"had sent {sent} at its own"
    )


def imbalance(
    channel: object, sent: int, received: int, recorded: int, what: str = "messages"
) -> str | None:
    """Return what is wrong with the counts of a channel, or None if as much was recorded as was in
    flight."""
    if sent - received == recorded:
        return impossible_counts(channel, sent, received, what)
    return (
        f"channel {channel}: {sent} sent - {received} received = {sent - received}, but {recorded} "
        f"{what} were recorded"
    )


def contradiction(
    channel: object,
    sent: int,
    received: int,
    batches: Iterable[tuple[int, int, int]],
    what: str = "messages",
) -> str | None:
    """Return what is wrong with a channel, or None if its batches are exactly received + 1 .. sent,
    in order. Of each batch they give the first number, and how many it should hold and does."""
    if why := impossible_counts(channel, sent, received, what):
        return why
    expected = received + 1
    for first, count, held in batches:
        if first != expected or held != count:
            return (
                f"channel {channel}: {what} should continue with number {expected}, but a "
                f"batch of {count} begins with {first} and holds {held}"
            )
        expected += count
    return imbalance(channel, sent, received, expected - received - 1, what)
