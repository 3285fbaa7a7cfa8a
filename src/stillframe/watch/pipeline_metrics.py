"""The metrics of a pipeline, from the last look at it."""

from stillframe.model import SnapshotId
from stillframe.watch.families import Families
from stillframe.watch.pipeline_look import Look
from stillframe.watch.pipeline_picture import runs
from stillframe.watch.pipeline_shelf import PipelineShelf


def tell_pipeline(families: Families, look: Look, shelf: PipelineShelf) -> None:
    """Say what is known of a pipeline; `shelf` has its snapshots, and is asked for the last."""
    families.put("up", all(runs(look, name) for name in look.participants))
    families.put("epoch", look.head.epoch)
    awaiting = () if look.progress is None else look.progress.awaiting
    awaited = {one.participant for one in awaiting}
    at_fault = set() if look.progress is None else {o.participant for o in look.progress.culprits}
    for name, participant in look.participants.items():
        families.put("participant_up", runs(look, name), name)
        families.put("participant_awaited", name in awaited, name)
        families.put("participant_holds_up", name in at_fault, name)
        if name in look.head.dataflow.queries:
            families.put("query_last_batch_number", participant.batch, name)
            families.put("query_last_batch_timestamp_seconds", participant.since, name)
    for name, log in look.logs.items():
        families.put("log_appended_records", log.records, name)
        for target, reading in log.readings.items():
            families.put("log_read_records", reading.records, name, target)
            if reading.records is not None:
                families.put("log_behind_records", log.records - reading.records, name, target)
            if reading.position is not None:
                families.put("log_behind_items", log.items - reading.position, name, target)
    families.put("snapshots_under_way", 0 if look.progress is None else 1)
    since = look.at if look.progress is None else look.progress.initiated_at
    families.put("oldest_snapshot_under_way_seconds", max(0.0, look.at - since))
    families.put("store_snapshots", len(shelf.ids))
    if shelf.ids:
        _tell_last(families, shelf, shelf.ids[-1])


def _tell_last(families: Families, shelf: PipelineShelf, snapshot: SnapshotId) -> None:
    for row in shelf.rows([snapshot]):
        families.put("last_snapshot_number", row["number"])
        if "trouble" not in row:
            families.put("last_snapshot_timestamp_seconds", row["completed_at"])
            families.put("last_snapshot_duration_seconds", row["duration_s"])
            families.put("last_snapshot_size_bytes", row["bytes"])
            families.put("last_snapshot_messages", row["message_count"])
