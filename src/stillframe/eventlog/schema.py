"""One row for each thing that a process did, in the order in which it did them.

    LOG/e1/P1/events-000001.parquet     the first rows of process P1 in epoch 1
    LOG/e1/P1/events-000002.arrows      what came after them: still being written

An atomic action (``trace.Event``) is a row for each message that it accepted or sent, all with its
number among the actions of the process; or one row of kind `INTERNAL` if there are none. A step of
a snapshot is rows, too: they bear the number of the last action before it.

A file that is being written is a stream of Arrow record batches, which a crash can only cut short;
one that is complete is Parquet. The schema of each says whose it is, and what came before it
(``parts.Span``), so that a file says something by itself.
"""

import pyarrow as pa

ACCEPTED = "accepted"
SENT = "sent"
INTERNAL = "internal"
MARKER_ACCEPTED = "marker accepted"
RECORDED = "recorded"
MARKER_SENT = "marker sent"
KINDS = (ACCEPTED, SENT, INTERNAL, MARKER_ACCEPTED, RECORDED, MARKER_SENT)
"""What a row can be. Those of one step of a snapshot are in this order: the marker that came, if
one did; that the state was recorded, if it was; and the markers that were sent for that."""

SCHEMA = pa.schema(
    [
        pa.field("event", pa.int64()),  # which action of this process, from 1
        pa.field("kind", pa.dictionary(pa.int32(), pa.string())),  # one of KINDS
        pa.field("channel", pa.dictionary(pa.int32(), pa.string())),  # P1->P2; null: on none
        pa.field("number", pa.int64()),  # of the message on its channel; null: no message
        pa.field("snapshot", pa.dictionary(pa.int32(), pa.string())),  # P1-17; null: no step of one
        # When, of a step of a snapshot, else null: it begins when a marker comes or the state is
        # recorded, and sends its markers when that is done.
        pa.field("at", pa.timestamp("us", tz="UTC")),
        # Of a marker that was accepted: the numbers of the messages that were recorded on its
        # channel; null if the process took no part in the snapshot any more.
        pa.field(
            "recorded",
            pa.list_(pa.struct([pa.field("first", pa.int64()), pa.field("count", pa.int64())])),
        ),
    ]
)

ROW_GROUP_COUNT = 2**20
"""So many rows at most are in a row group: who reads a file holds one of them at a time."""
