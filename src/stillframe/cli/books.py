"""The books of a snapshot, channel by channel: sent - received = in the channel."""

from typing import Any

from stillframe.cli import output
from stillframe.model import ChannelState, GlobalState

COLUMNS = ("channel", "sent", "received", "in channel")


def books(state: GlobalState) -> list[dict[str, Any]]:
    """Return the books as JSON shows them."""
    return [
        {
            "channel": channel.channel,
            "sent_count": channel.sent_count,
            "received_count": channel.received_count,
            "message_count": channel.message_count,
        }
        for channel in state.channels
    ]


def put_books(state: GlobalState) -> None:
    """Write the books as a table, with their sum."""
    rows = [_row(channel) for channel in state.channels]
    sent = sum(channel.sent_count for channel in state.channels)
    received = sum(channel.received_count for channel in state.channels)
    rows.append(("all", f"{sent:,}", f"{received:,}", f"{state.message_count:,}"))
    output.put_table("books, in messages", COLUMNS, rows)


def _row(state: ChannelState) -> tuple[str, ...]:
    return (
        str(state.channel),
        f"{state.sent_count:,}",
        f"{state.received_count:,}",
        f"{state.message_count:,}",
    )
