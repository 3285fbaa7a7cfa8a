"""A reader that knows nothing but ``docs/event-log-format.md`` reads what Stillframe reads."""

from collections import Counter
from pathlib import Path

import pytest

from stillframe.eventlog import reader
from tests.eventlog import format_reader
from tests.golden import recording


@pytest.fixture(params=["0.1.0", "0.2.0"])
def log(request: pytest.FixtureRequest) -> Path:
    """Logs of complete segments, and of some that killed processes left."""
    return (recording.DATA if request.param == "0.1.0" else recording.DATA_2) / "log"


def test_the_document_suffices(log: Path) -> None:
    """The same segments with the same rows."""
    found = format_reader.segments(log)
    known = {
        (one.header.epoch, one.header.process, one.header.number): one
        for one in reader.list_segments(log)
    }
    assert found.keys() == known.keys()
    assert {path.suffix for path in found.values()} == {".parquet", ".arrows"}
    for place, path in found.items():
        rows = [row for table in reader.read_segment(known[place]) for row in table.to_pylist()]
        assert format_reader.read(path)[1] == rows


def test_numbers_continue_those_of_the_header(log: Path) -> None:
    """Of the messages on each channel, and of the actions."""
    for path in format_reader.segments(log).values():
        header, rows = format_reader.read(path)
        counts = Counter[tuple[str, str]]()
        for row in rows:
            if row["number"] is None or row["kind"] not in ("sent", "accepted"):
                continue
            source, target = row["channel"].split("->")
            is_sent = row["kind"] == "sent"
            before = header["sent"][target] if is_sent else header["received"][source]
            counts[row["kind"], row["channel"]] += 1
            assert row["number"] == before + counts[row["kind"], row["channel"]]
        events = sorted({row["event"] for row in rows if row["snapshot"] is None})
        first = header["event_count"] + 1
        assert events == [*range(first, first + len(events))]
