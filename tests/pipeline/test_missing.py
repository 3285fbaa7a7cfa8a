"""An entry that is missing in the middle of a log is no end of it: whoever would stop there says
which one, and no snapshot rests on it."""

import threading
from pathlib import Path

import pytest

from stillframe.errors import Damaged
from stillframe.model import Abandoned, Reason
from stillframe.pipeline import Pipeline
from stillframe.pipeline.log import LogReader, LogWriter
from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.participant_logs import QueryParticipant
from stillframe.pipeline.service import join
from stillframe.pipeline.snapshot_manifest import Manifest
from tests.cli.pipelines import commit, make_shop, sales
from tests.pipeline.money import TOTAL, Account, leave_behind, line, money_now, records


def reader_of(pipeline: Pipeline, log: str = "coins") -> LogReader:
    """Return a new reader of a channel."""
    metadata = read_metadata(pipeline.path)
    return LogReader(pipeline.path, metadata.dataflow.log(log), metadata.segments[log])


@pytest.mark.parametrize("missing", [0, 2, 3, 8])
def test_a_gap_is_found_wherever_it_is(tmp_path: Path, missing: int) -> None:
    """Also one that the search for the tail steps over; from behind it the log is whole."""
    pipeline = line(tmp_path / "run")
    leave_behind(pipeline, *range(10))
    path = reader_of(pipeline).entry_path(missing)
    whole = path.read_bytes()
    path.unlink()
    for position in range(missing + 1):
        with pytest.raises(Damaged, match=rf"{path} is missing.*copy.*restore"):
            reader_of(pipeline).check_whole(position)
    reader_of(pipeline).check_whole(missing + 1)
    path.write_bytes(whole)
    reader_of(pipeline).check_whole(0)


def test_a_gap_in_an_older_epoch_is_found(tmp_path: Path) -> None:
    """What comes before the present epoch must all be there, even if nothing was appended in it."""
    pipeline = line(tmp_path / "run")
    leave_behind(pipeline, 1, 2, 3)
    pipeline.snapshot("unaligned")
    pipeline.restore()
    reader_of(pipeline).check_whole(0)
    path = reader_of(pipeline).entry_path(2)
    path.unlink()
    with pytest.raises(Damaged, match=f"{path} is missing"):
        reader_of(pipeline).check_whole(0)


def test_items_that_are_appended_meanwhile_are_no_gap(tmp_path: Path) -> None:
    """A reader that knew an earlier tail finds nothing missing, nor one of an empty log."""
    pipeline = line(tmp_path / "run")
    reader = reader_of(pipeline)
    reader.check_whole(0)
    writer = LogWriter(pipeline.path, pipeline.dataflow.log("coins"), read_metadata(pipeline.path))
    writer.append(records(1))
    assert reader.tail(0) == 1
    writer.append(records(2))
    writer.append(records(3))
    reader.check_whole(0)
    assert reader.tail(0) == 3


def test_a_service_does_not_join_before_a_gap(tmp_path: Path) -> None:
    """It would wait there for ever; when the file is back it joins where it stood."""
    pipeline = line(tmp_path / "run")
    leave_behind(pipeline, 5, 7, 11, received_count=1)
    path = reader_of(pipeline).entry_path(1)
    whole = path.read_bytes()
    path.unlink()
    with (
        pytest.raises(Damaged, match=f"{path} is missing"),
        join("till", pipeline=pipeline.path, state=Account()),
    ):
        pass
    path.write_bytes(whole)
    with join("till", pipeline=pipeline.path, state=Account()) as till:
        received = till.receive(timeout_s=10)
    assert received is not None
    assert received[1]["amount"].to_pylist() == [7]


def test_a_query_does_not_begin_before_a_gap(tmp_path: Path) -> None:
    """A run with availableNow would end there as if it had read everything."""
    shop = make_shop(tmp_path / "shop.pipeline")
    writer = LogWriter(shop.path, shop.dataflow.log("totals"), read_metadata(shop.path))
    writer.append(sales(1))
    writer.append(sales(2))
    assert QueryParticipant(shop.path, "audit")._committed() == (None, {"totals": 0})
    path = reader_of(shop, "totals").entry_path(0)
    path.unlink()
    with pytest.raises(Damaged, match=f"{path} is missing"):
        QueryParticipant(shop.path, "audit")
    commit(shop, 0, 1)
    assert QueryParticipant(shop.path, "audit")._committed() == (0, {"totals": 1})


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_no_snapshot_rests_on_a_missing_item(tmp_path: Path, missing: int) -> None:
    """It is given up with the item's path, though the service that has still to read it runs, knows
    from its source where the barrier is, and records."""
    pipeline = line(tmp_path / "run")
    leave_behind(pipeline, 5, 7, 11, 13, received_count=1)
    outcomes: list[Manifest | Abandoned] = []
    thread = threading.Thread(target=lambda: outcomes.append(pipeline.snapshot("unaligned")))
    with join("till", pipeline=pipeline.path, state=Account()) as till:
        path = reader_of(pipeline).entry_path(missing)
        kept = path.read_bytes()
        path.unlink()
        thread.start()
        while thread.is_alive():
            till.boundary()
    assert isinstance(outcomes[0], Abandoned)
    assert outcomes[0].reason is Reason.NOT_CONSISTENT
    assert f"{path} is missing" in outcomes[0].detail
    path.write_bytes(kept)
    assert money_now(pipeline) == TOTAL


def test_no_snapshot_is_taken_of_a_resting_service_before_a_gap(tmp_path: Path) -> None:
    """It stands where the log ends for it: the error names the entry, and nothing is published."""
    pipeline = line(tmp_path / "run")
    leave_behind(pipeline, 5, 7, 11, received_count=1)
    path = reader_of(pipeline).entry_path(1)
    path.unlink()
    with pytest.raises(Damaged, match=f"{path} is missing"):
        pipeline.snapshot("unaligned")
    assert pipeline.snapshots() == []
