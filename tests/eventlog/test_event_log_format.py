"""A reader that knows nothing but ``docs/event-log-format.md`` reads what Stillframe reads."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stillframe.errors import Damaged
from stillframe.eventlog import reader
from stillframe.eventlog.segments import SCHEMA
from stillframe.eventlog.writer import SegmentWriter, pack_segments
from tests.eventlog import format_reader
from tests.eventlog.test_streams import HEADER, batch
from tests.golden import recording

Rows = list[dict[str, Any]]


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
        assert header is not None
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


def write_stream(log: Path) -> Path:
    """Write a stream of two batches, each after its dictionary, and its end; return its path."""
    stream = SegmentWriter(log, HEADER)
    for number in range(2):
        stream.append(batch(number))
    stream.end()
    return stream.path


def of_stillframe(log: Path) -> Rows | None:
    """Return all rows of a log; None if it is damaged."""
    try:
        segments = reader.list_segments(log)
        return [row for s in segments for t in reader.read_segment(s) for row in t.to_pylist()]
    except Damaged:
        return None


def of_document(path: Path) -> Rows | None:
    """Return the same as the reader of the document finds it."""
    try:
        return format_reader.read(path)[1]
    except format_reader.NotReadable:
        return None


def test_a_stream_that_was_cut_short_is_read_up_to_its_last_batch(tmp_path: Path) -> None:
    """Wherever it was cut, and if zeros follow: both readers find the same rows."""
    path = write_stream(tmp_path)
    content, all_rows = path.read_bytes(), of_document(path)
    assert all_rows is not None
    assert all_rows == of_stillframe(tmp_path)
    found = set()
    for size in range(len(content) + 1):
        zeros = bytes(8) if size % 16 == 0 else b""
        path.write_bytes(content[:size] + zeros)
        rows = of_document(path)
        if rows is None:
            assert zeros
            assert of_stillframe(tmp_path) is None
            continue
        assert rows == all_rows[: len(rows)]
        assert sum(one.row_count for one in reader.list_segments(tmp_path)) == len(rows)
        found.add(len(rows))
    assert found == {0, 2, 4}


def test_a_stream_with_a_changed_byte_is_damaged_or_has_all_rows(tmp_path: Path) -> None:
    """Both readers call the same streams damaged. A stream has no checksums: the rows of others may
    differ, but before the last batch no row is left out."""
    path = write_stream(tmp_path)
    content = path.read_bytes()
    damaged_count = 0
    for place in [*range(0, len(content) - 8, 7), *range(len(content) - 8, len(content))]:
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        rows = of_document(path)
        assert rows == of_stillframe(tmp_path), place
        damaged_count += rows is None
    assert damaged_count > len(content) / 14


def test_a_length_that_cannot_be_is_no_beginning_of_a_message(tmp_path: Path) -> None:
    """A negative one is damage; one that no memory holds is that of a message cut short."""
    path = write_stream(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"\x80")
    assert of_document(path) is of_stillframe(tmp_path) is None
    body = (120).to_bytes(8, "little")
    start = content.rindex(format_reader.CONTINUATION, 0, -8)
    place = content.index(body, start)
    path.write_bytes(content[:place] + (2**54).to_bytes(8, "little") + content[place + 8 :])
    assert of_document(path) == of_stillframe(tmp_path)
    assert len(of_document(path) or ()) == 2


def test_a_changed_byte_of_a_page_of_parquet_is_damage(tmp_path: Path) -> None:
    """Both readers verify the checksums of pages; what remains readable has the same rows."""
    stream = write_stream(tmp_path)
    pack_segments(stream.parent)
    path = stream.with_suffix(".parquet")
    content = path.read_bytes()
    rows = of_document(path)
    assert rows is not None
    assert len(rows) == 4
    assert rows == of_stillframe(tmp_path)
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    damaged_count = 0
    for place in range(4, footer, 2):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        read = of_document(path)
        assert read in (None, rows), place
        assert read == of_stillframe(tmp_path), place
        damaged_count += read is None
    assert damaged_count > (footer - 4) / 4


def test_columns_are_nullable_in_the_schema(tmp_path: Path) -> None:
    """One that is declared otherwise is another column to both readers."""
    schema = pa.schema([SCHEMA.field(0).with_nullable(False), *[*SCHEMA][1:]])
    path = tmp_path / "e2" / "P1" / "events-000001.arrows"
    path.parent.mkdir(parents=True)
    with pa.ipc.new_stream(path, schema.with_metadata(reader.schema_with(HEADER).metadata)) as out:
        out.write_batch(pa.RecordBatch.from_arrays(batch(0).columns, schema=schema))
    assert of_document(path) is of_stillframe(tmp_path) is None
