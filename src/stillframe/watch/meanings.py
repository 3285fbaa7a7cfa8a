"""Every metric that there is, and what it means: what is not here is not told.

Names follow Prometheus: base units last, and `_total` behind what only goes up.
"""

from typing import NamedTuple

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"

_SPAN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_PAUSE_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
_BYTES = tuple(float(4**power) for power in range(6, 18))
_COUNTS = (0.0, 1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6, 1e7)


class Meaning(NamedTuple):
    """What a metric is.

    Attributes:
        kind: what of it Prometheus may compute.
        unit: of its values; for people, and for those formats that have a place for it.
        words: what it says.
        labels: what tells its series apart.
        bounds: the upper bounds of the buckets of a histogram.
    """

    kind: str
    unit: str
    words: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


_BY_PROCESS, _BY_CHANNEL = ("process",), ("source", "target")

SYSTEM = {
    "up": Meaning(GAUGE, "0 or 1", "Every process runs and every channel is connected."),
    "epoch": Meaning(GAUGE, "number", "How often the system has started, or started again."),
    "restores_total": Meaning(
        COUNTER, "restores", "The system began an epoch from a snapshot, for whatever reason."
    ),
    "takeovers_total": Meaning(
        COUNTER, "takeovers", "A new supervisor went on with the processes of a dead one."
    ),
    "processes": Meaning(
        GAUGE,
        "processes",
        "How many are running, busy, silent, starting, dead or stopped.",
        ("status",),
    ),
    "channels": Meaning(GAUGE, "channels", "How many there are."),
    "left_out": Meaning(
        GAUGE,
        "processes or channels",
        "How many have no series of their own, because there are too many; those of channels are "
        "added up in a series without source and target.",
        ("kind",),
    ),
}
PROCESSES = {
    "process_up": Meaning(GAUGE, "0 or 1", "It answered when it was asked.", _BY_PROCESS),
    "process_busy": Meaning(
        GAUGE, "0 or 1", "It answered in the middle of an atomic action.", _BY_PROCESS
    ),
    "process_silent": Meaning(
        GAUGE,
        "0 or 1",
        "It did not answer within 0.5 s, or nothing of the system did.",
        _BY_PROCESS,
    ),
    "process_awaited": Meaning(
        GAUGE, "0 or 1", "Its part of a snapshot under way is missing.", _BY_PROCESS
    ),
    "process_holds_up": Meaning(
        GAUGE, "0 or 1", "It is why a part of a snapshot under way is missing.", _BY_PROCESS
    ),
    "process_deaths_total": Meaning(
        COUNTER,
        "deaths",
        "It died, and the system went back; without a process: of those that are left out or gone.",
        _BY_PROCESS,
    ),
}
CHANNELS = {
    "channel_sent_messages_total": Meaning(
        COUNTER, "messages", "Sent by the source since the watcher looked first.", _BY_CHANNEL
    ),
    "channel_received_messages_total": Meaning(
        COUNTER, "messages", "Received by the target since the watcher looked first.", _BY_CHANNEL
    ),
    "channel_in_transit_messages": Meaning(
        GAUGE, "messages", "Sent and not received; about, as both ends are asked.", _BY_CHANNEL
    ),
    "channel_unhandled_bytes": Meaning(
        GAUGE, "bytes", "Sent and not handled, as the end says that knows of more.", _BY_CHANNEL
    ),
    "channel_connected": Meaning(GAUGE, "0 or 1", "Both ends say so.", _BY_CHANNEL),
}
SNAPSHOTS = {
    "snapshots_begun_total": Meaning(COUNTER, "snapshots", "Given a number, each try its own."),
    "snapshots_published_total": Meaning(COUNTER, "snapshots", "Published in the store."),
    "snapshots_abandoned_total": Meaning(
        COUNTER, "snapshots", "Given up; nothing of them was published.", ("reason",)
    ),
    "snapshots_under_way": Meaning(GAUGE, "snapshots", "Begun, and not ended."),
    "oldest_snapshot_under_way_seconds": Meaning(
        GAUGE, "seconds", "For how long the oldest snapshot has been under way; 0 if none is."
    ),
    "awaited_processes": Meaning(
        GAUGE, "processes", "How many have a part missing of any snapshot under way."
    ),
    "snapshot_duration_seconds": Meaning(
        HISTOGRAM, "seconds", "From the beginning until the last part was in.", (), _SPAN_S
    ),
    "snapshot_pause_seconds": Meaning(
        HISTOGRAM, "seconds", "The longest that any process stood still for it.", (), _PAUSE_S
    ),
    "snapshot_capture_seconds": Meaning(
        HISTOGRAM, "seconds", "The longest until the part of a process was encoded.", (), _SPAN_S
    ),
    "snapshot_size_bytes": Meaning(
        HISTOGRAM, "bytes", "All its Parquet files together.", (), _BYTES
    ),
    "snapshot_messages": Meaning(HISTOGRAM, "messages", "Caught on channels.", (), _COUNTS),
    "last_snapshot_number": Meaning(GAUGE, "number", "Of the last published snapshot."),
    "last_snapshot_timestamp_seconds": Meaning(
        GAUGE, "seconds", "When the last published snapshot was complete, since 1970."
    ),
    "last_snapshot_duration_seconds": Meaning(GAUGE, "seconds", "Of the last published snapshot."),
    "last_snapshot_pause_seconds": Meaning(GAUGE, "seconds", "Of the last published snapshot."),
    "last_snapshot_capture_seconds": Meaning(GAUGE, "seconds", "Of the last published snapshot."),
    "last_snapshot_size_bytes": Meaning(GAUGE, "bytes", "Of the last published snapshot."),
    "last_snapshot_messages": Meaning(GAUGE, "messages", "Of the last published snapshot."),
    "store_snapshots": Meaning(GAUGE, "snapshots", "How many are in the store."),
    "store_savepoints": Meaning(GAUGE, "savepoints", "How many are kept under a name."),
}
FINDINGS = {
    "predicate_holds": Meaning(
        GAUGE, "0 or 1", "What it said of the last snapshot that was judged.", ("predicate",)
    ),
    "conserved_amount": Meaning(
        GAUGE, "as declared", "All there is of it in the last snapshot judged.", ("quantity",)
    ),
    "conserved_in_channels_amount": Meaning(
        GAUGE, "as declared", "What of that was on channels.", ("quantity",)
    ),
    "judged_snapshot_number": Meaning(GAUGE, "number", "Of the last snapshot that was judged."),
    "judged_snapshot_timestamp_seconds": Meaning(
        GAUGE, "seconds", "When the last snapshot that was judged was complete, since 1970."
    ),
}
WATCHER = {
    "build_info": Meaning(GAUGE, "1", "The version of Stillframe.", ("version",)),
    "watch_start_timestamp_seconds": Meaning(GAUGE, "seconds", "When it began, since 1970."),
    "watch_looks_total": Meaning(COUNTER, "looks", "It asked the running system how it is."),
    "watch_last_look_timestamp_seconds": Meaning(
        GAUGE, "seconds", "When it asked the last time, since 1970."
    ),
    "watch_look_duration_seconds": Meaning(GAUGE, "seconds", "How long the last answer took."),
    "watch_pages": Meaning(GAUGE, "pages", "How many are open and listen."),
    "watch_trouble": Meaning(
        GAUGE,
        "0 or 1",
        "It cannot ask the system that should run, read the store, judge the last snapshot, or "
        "send traces.",
        ("about",),
    ),
}
TRACES = {
    "traced_snapshots_total": Meaning(
        COUNTER, "snapshots", "A trace was made of them, with or without the way of their markers."
    ),
    "traced_snapshots_missed_total": Meaning(
        COUNTER,
        "snapshots",
        "Ended since the watcher began, and the system knew no more how their markers went.",
    ),
    "spans_total": Meaning(
        COUNTER, "spans", "Taken by the endpoint (sent), or given up (dropped).", ("outcome",)
    ),
}

_BY_PARTICIPANT, _BY_QUERY, _BY_READER = ("participant",), ("query",), ("log", "target")
PIPELINES = {
    "participant_up": Meaning(GAUGE, "0 or 1", "A program runs it.", _BY_PARTICIPANT),
    "participant_awaited": Meaning(
        GAUGE, "0 or 1", "Its part of the snapshot under way is missing.", _BY_PARTICIPANT
    ),
    "participant_holds_up": Meaning(
        GAUGE,
        "0 or 1",
        "It has its barriers, or none to wait for, and is awaited.",
        _BY_PARTICIPANT,
    ),
    "query_last_batch_number": Meaning(
        GAUGE, "number", "Of its last committed micro-batch.", _BY_QUERY
    ),
    "query_last_batch_timestamp_seconds": Meaning(
        GAUGE, "seconds", "When it committed that, since 1970.", _BY_QUERY
    ),
    "log_appended_records": Meaning(
        GAUGE, "records", "In it since the pipeline was made; a restore takes it back.", ("log",)
    ),
    "log_read_records": Meaning(
        GAUGE,
        "records",
        "Read by a target: committed by a query, or said by a service.",
        _BY_READER,
    ),
    "log_behind_records": Meaning(GAUGE, "records", "What that target has to read.", _BY_READER),
    "log_behind_items": Meaning(
        GAUGE, "items", "In how many items of the log, barriers among them.", _BY_READER
    ),
}

SECTIONS = {
    "The system": SYSTEM,
    "Processes": PROCESSES,
    "Channels": CHANNELS,
    "Snapshots": SNAPSHOTS,
    "What was found in them": FINDINGS,
    "The watcher": WATCHER,
    "Pipelines": PIPELINES,
    "Traces, with `--otlp`": TRACES,
}
MEANINGS = {name: meaning for section in SECTIONS.values() for name, meaning in section.items()}
"""By the name without `stillframe_`, which all have in front."""
