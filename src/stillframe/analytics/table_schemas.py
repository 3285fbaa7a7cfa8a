"""The columns that the tables of a store have in Spark."""

from stillframe.columns import Column
from stillframe.store.columns import merged_columns
from stillframe.topology import Description

PROCESSES_SCHEMA = (
    "snapshot STRING, "  # P1-17
    "process STRING, "  # which process
    "kind STRING, "  # its class
    "encoded BINARY"  # its state as a MessagePack map; the fields follow as columns
)
CHANNELS_SCHEMA = (
    "snapshot STRING, "
    "source STRING, "  # the process that sends
    "target STRING, "  # the process that receives
    "sent_count BIGINT, "  # at the cut of the source
    "received_count BIGINT, "  # at the cut of the target
    "message_count BIGINT, "  # how many were on the channel
    "encoded ARRAY<STRUCT<first: BIGINT, count: BIGINT, encoded: BINARY>>"  # as they travelled
)
MESSAGES_SCHEMA = (
    "snapshot STRING, "
    "source STRING, "
    "target STRING, "
    "number BIGINT, "  # of the message on its channel, from 1
    "kind STRING"  # its class; the fields follow as columns
)
SQL_TYPES = {
    "bool": "BOOLEAN",
    "int": "BIGINT",
    "float": "DOUBLE",
    "text": "STRING",
    "bytes": "BINARY",
    "time": "TIMESTAMP",
    "json": "STRING",
}
"""Kind of column (``Column.kind``) -> its type in Spark."""


def processes_schema(description: Description) -> str:
    """Return the columns of the states of a system."""
    return PROCESSES_SCHEMA + field_schema(description.states)


def messages_schema(description: Description) -> str:
    """Return the columns of the messages of a system that a snapshot caught on channels."""
    return MESSAGES_SCHEMA + field_schema(description.messages)


def field_schema(classes: dict[str, tuple[Column, ...]]) -> str:
    """Return the columns of the fields of some classes, as they go on after others in a schema."""
    return "".join(
        f", `{column.name}` {SQL_TYPES[column.kind]}" for column in merged_columns(classes)
    )
