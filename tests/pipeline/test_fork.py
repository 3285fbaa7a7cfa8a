"""A fork has all that its snapshot rests on: it can go back there, and be forked itself."""

import threading
from pathlib import Path

from stillframe.model import Abandoned
from stillframe.pipeline import Pipeline, channel
from stillframe.pipeline.log import LogReader
from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.pending_snapshot import pending_request
from stillframe.pipeline.service import join
from stillframe.pipeline.snapshot_manifest import Manifest
from tests.pipeline.money import SCHEMA, Account, amounts, records


def doubling(path: Path) -> Pipeline:
    """Make a pipeline whose only snapshot, at-least-once, doubles two entries."""
    pipeline = Pipeline.create(
        path,
        services=dict.fromkeys(("left", "right", "till"), Account),
        channels=[
            channel("from-left", SCHEMA, source="left", targets=["till"]),
            channel("from-right", SCHEMA, source="right", targets=["till"]),
        ],
        name="run",
    )
    outcomes: list[Manifest | Abandoned] = []
    thread = threading.Thread(
        target=lambda: outcomes.append(pipeline.snapshot("at-least-once", timeout_s=30))
    )
    with (
        join("left", pipeline=path, state=Account()) as left,
        join("right", pipeline=path, state=Account()) as right,
        join("till", pipeline=path, state=Account()) as till,
    ):
        thread.start()
        while pending_request(path) is None:
            pass
        left.boundary()
        for amount in (5, 7):
            left.append("from-left", records(amount))
            assert till.receive(timeout_s=10) is not None
        right.boundary()
        till.boundary()
        thread.join()
    assert isinstance(outcomes[0], Manifest)
    assert outcomes[0].duplicate_count == 2
    return pipeline


def test_a_fork_has_all_that_the_pipeline_made(tmp_path: Path) -> None:
    """A log without targets is kept whole, also in a fork, up to the barrier of its snapshot."""
    first = Pipeline.create(
        tmp_path / "first",
        services={"till": Account},
        channels=[channel("out", SCHEMA, source="till")],
    )
    with join("till", pipeline=first.path, state=Account()) as till:
        for amount in (5, 7, 11):
            till.append("out", records(amount))
    first.snapshot("unaligned")
    with join("till", pipeline=first.path, state=Account()) as till:
        till.append("out", records(13))
    second = first.fork("first-1", tmp_path / "second")
    third = second.fork("first-1", tmp_path / "third")
    for fork in (second, third):
        metadata = read_metadata(fork.path)
        reader = LogReader(fork.path, metadata.dataflow.log("out"), metadata.segments["out"])
        reader.check_whole(0)
        assert amounts(reader, 0, reader.tail(0)) == [5, 7, 11]


def test_a_fork_of_a_snapshot_with_duplicates_can_be_restored_and_forked(tmp_path: Path) -> None:
    """Its books speak of entries behind the barrier: those are there as well."""
    first = doubling(tmp_path / "first")
    second = first.fork("run-1", tmp_path / "second")
    second.restore()
    third = second.fork("run-1", tmp_path / "third")
    third.restore("run-1")
    assert third.epoch == 5
    with (
        join("left", pipeline=third.path, state=Account()) as left,
        join("till", pipeline=third.path, state=Account()) as till,
    ):
        left.append("from-left", records(9))
        received = till.receive(timeout_s=10)
    assert received is not None
    assert received[1]["amount"].to_pylist() == [9]
