"""A coordinator that was killed must not hold anybody up for ever."""

import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from stillframe.durable_files import replace_durably
from stillframe.model import SnapshotId
from stillframe.pipeline import Pipeline, channel
from stillframe.pipeline.log import LogWriter
from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.participant_logs import OVERDUE_S
from stillframe.pipeline.pending_snapshot import FRAGMENTS, REQUEST, Request, request_path
from stillframe.pipeline.service import join
from stillframe.protocol.aligner import Mode
from stillframe.store.sealed_json import seal

NUMBERS = pa.schema([("number", pa.int64())])


@dataclass
class Nothing:
    """A service without a state of its own."""

    count: int = 0


def test_nobody_waits_at_the_barrier_of_a_coordinator_that_is_gone(tmp_path: Path) -> None:
    """Held at one barrier while the other never comes, a service reads on once the deadline is
    long past, although the request is still there."""
    pipeline = Pipeline.create(
        tmp_path / "two",
        services={"left": Nothing, "right": Nothing, "sum": Nothing},
        channels=[
            channel("from-left", NUMBERS, source="left", targets=["sum"]),
            channel("from-right", NUMBERS, source="right", targets=["sum"]),
        ],
    )
    metadata = read_metadata(pipeline.path)
    log = LogWriter(pipeline.path, metadata.dataflow.log("from-left"), metadata)
    snapshot = SnapshotId(metadata.name, 1)
    directory = request_path(pipeline.path, snapshot)
    (directory / FRAGMENTS).mkdir(parents=True)

    def ask(deadline_at: float) -> None:
        request = Request(
            snapshot=snapshot,
            epoch=1,
            mode=Mode.ALIGNED,
            name=None,
            initiated_at=0.0,
            deadline_at=deadline_at,
        )
        replace_durably(directory / REQUEST, seal(request))

    ask(time.time() + 60)
    log.append_barrier(snapshot, Mode.ALIGNED)
    log.append(pa.table({"number": [1]}, schema=NUMBERS))
    with join("sum", pipeline=pipeline.path, state=Nothing()) as me:
        assert me.receive(timeout_s=0) is None
        ask(time.time() - OVERDUE_S - 1)
        received = me.receive(timeout_s=0)
    assert received is not None
    assert received[1]["number"].to_pylist() == [1]
