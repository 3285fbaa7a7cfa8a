"""The books of the channels of a snapshot: what is wrong with them, in words.

Executors of a cluster use it: it needs no more than Arrow.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

Books = Mapping[str, Any]
"""The books of one channel: source, target, is_expected, record_count, sent_count, received_count,
message_count, batched_count, row_count, number_count, number_min and number_max."""

_CHANNEL = ["source", "target"]


def _explained(books: Books) -> str:
    """Say what is wrong with a channel whose books do not balance."""
    channel = f"channel {books['source']}->{books['target']}"
    if not books["is_expected"]:
        return f"{channel} is recorded, but the system has no such channel"
    if books["record_count"] != 1:
        return f"{channel} is recorded {books['record_count']} times, not once"
    return f"{channel}: {_figures(books)}"


def contradiction(
    expected: Iterable[tuple[str, str]], channels: pa.Table, messages: pa.Table
) -> str | None:
    """Return what is wrong with the first channel of a snapshot whose books do not balance.

    Args:
        expected: source and target of each channel that the system has.
        channels: of one snapshot, with all columns of its counts and `encoded`.
        messages: of the same, with source, target and number.
    """
    known = set(expected)
    recorded = _by_channel(
        _with_batched(channels),
        [(name, "max") for name in (*_COUNTS, "batched_count")] + [("sent_count", "count")],
    )
    rows = _by_channel(
        messages,
        [("number", how) for how in ("count", "count_distinct", "min", "max")],
    )
    for channel in sorted({*known, *recorded, *rows}):
        of_one, caught = recorded.get(channel, {}), rows.get(channel, {})
        books = {
            "source": channel[0],
            "target": channel[1],
            "is_expected": channel in known,
            "record_count": of_one.get("sent_count_count", 0),
            **{name: of_one.get(f"{name}_max") for name in (*_COUNTS, "batched_count")},
            "row_count": caught.get("number_count", 0),
            "number_count": caught.get("number_count_distinct", 0),
            "number_min": caught.get("number_min"),
            "number_max": caught.get("number_max"),
        }
        if not _is_balanced(books):
            return _explained(books)
    return None


_COUNTS = ("sent_count", "received_count", "message_count")


def _with_batched(channels: pa.Table) -> pa.Table:
    batched = [
        sum(batch["count"] for batch in batches)
        for batches in channels.column("encoded").to_pylist()
    ]
    counts = channels.select([*_CHANNEL, *_COUNTS])
    return counts.append_column("batched_count", pa.array(batched, pa.int64()))


def _by_channel(
    table: pa.Table, figures: list[tuple[str, str]]
) -> dict[tuple[str, str], dict[str, Any]]:
    plain = table.cast(
        pa.schema(
            [
                pa.field(field.name, pa.string() if field.name in _CHANNEL else field.type)
                for field in table.schema
            ]
        )
    )
    grouped = plain.group_by(_CHANNEL, use_threads=False).aggregate(figures)
    return {(row["source"], row["target"]): row for row in grouped.to_pylist()}


def _is_balanced(books: Books) -> bool:
    if not books["is_expected"] or books["record_count"] != 1:
        return False
    count, received, sent = books["message_count"], books["received_count"], books["sent_count"]
    return bool(
        received >= 0
        and count >= 0
        and sent - received == count == books["batched_count"]
        and books["row_count"] == count == books["number_count"]
        and (count == 0 or (books["number_min"], books["number_max"]) == (received + 1, sent))
    )


def _figures(books: Books) -> str:
    """Say what is wrong with the books of a channel that is recorded once."""
    sent, received, count = books["sent_count"], books["received_count"], books["message_count"]
    if not 0 <= received <= sent:
        return (
            f"the target had received {received} messages at its cut, the source had sent {sent} "
            "at its own"
        )
    balance = f"{sent} sent - {received} received = {sent - received}"
    if sent - received != count:
        return f"{balance}, but {count} messages were recorded"
    if books["batched_count"] != count:
        return f"{balance}, but its batches hold {books['batched_count']} messages"
    if books["row_count"] != count:
        return f"{balance}, but messages.parquet holds {books['row_count']}"
    return (
        f"its messages should be the numbers {received + 1} to {sent}, but messages.parquet holds "
        f"{books['number_count']} different ones, from {books['number_min']} to "
        f"{books['number_max']}"
    )
