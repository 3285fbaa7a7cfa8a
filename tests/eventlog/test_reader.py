"""Event logs are read back as they were written; what is none is refused by name."""

import re
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stillframe.errors import Damaged, UsageError
from stillframe.eventlog import reader
from stillframe.eventlog.reader import (
    SegmentHeader,
    epochs,
    list_segments,
    read_segment,
    schema_with,
    segment_path,
)
from stillframe.eventlog.segments import SCHEMA

HEADER = SegmentHeader(process="P1", epoch=2, number=1, event_count=0, sent={"P2": 0}, received={})


def write(
    log: Path, span: SegmentHeader, schema: pa.Schema | None = None, row_count: int = 3
) -> Path:
    """Write a file with rows of internal actions, as Parquet; return its path."""
    path = segment_path(log, span, is_complete=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    schema = schema_with(span) if schema is None else schema
    rows = [
        {"event": span.event_count + n, "kind": "internal", "channel": None, "number": None}
        for n in range(1, row_count + 1)
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    return path


def test_files_come_in_order(tmp_path: Path) -> None:
    """By epoch, process and part; of a part that is there twice, the complete file."""
    spans = [
        HEADER,
        msgspec.structs.replace(HEADER, number=2, event_count=3),
        msgspec.structs.replace(HEADER, process="P2"),
        msgspec.structs.replace(HEADER, epoch=10),
    ]
    for span in reversed(spans):
        write(tmp_path, span)
    beside = segment_path(tmp_path, HEADER, is_complete=False)
    beside.write_bytes(b"")
    (beside.parent / ".events-000009.parquet.partial").write_bytes(b"half")
    found = list_segments(tmp_path)
    assert [part.header for part in found] == spans
    assert [(part.row_count, part.row_group_count) for part in found] == [(3, 1)] * 4
    assert epochs(tmp_path) == (2, 10)
    (table,) = read_segment(found[1])
    assert table.schema.equals(SCHEMA)
    assert table.column("event").to_pylist() == [4, 5, 6]


def test_files_that_go_while_they_are_listed_are_an_error_at_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If each list that is made has a file that is gone when it is looked at."""
    write(tmp_path, HEADER)

    def is_gone(path: Path) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr(reader, "open_segment", is_gone)
    with pytest.raises(UsageError, match="change too fast to be listed"):
        list_segments(tmp_path)


def test_a_file_that_has_no_row_yet_is_no_part(tmp_path: Path) -> None:
    """What a crash cut short before it said what it is, is left out."""
    write(tmp_path, HEADER)
    for number, content in enumerate(
        (b"", b"\xff\xff\xff\xff\x30", b"\xff\xff\xff\xff\x30\x01\0\0"), 2
    ):
        path = segment_path(
            tmp_path, msgspec.structs.replace(HEADER, number=number), is_complete=False
        )
        path.write_bytes(content)
    assert [part.header.number for part in list_segments(tmp_path)] == [1]


def test_where_no_log_is_the_reader_says_how_to_get_one(tmp_path: Path) -> None:
    """An empty directory, none at all, or a file."""
    for log in (tmp_path, tmp_path / "none"):
        assert epochs(log) == ()
        with pytest.raises(UsageError, match=r"holds no event log.*--event-log"):
            list_segments(log)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(UsageError, match="is a file"):
        list_segments(file)


@pytest.mark.parametrize(
    "name",
    ["notes.txt", "e0/P1/x", "e2/notes.txt", "e2/P1/events-1.parquet", "e2/P1/events-000001.csv"],
)
def test_foreign_files_are_named(tmp_path: Path, name: str) -> None:
    """What is of no event log is in the way, and its name is told."""
    write(tmp_path, msgspec.structs.replace(HEADER, number=7))
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"foreign")
    with pytest.raises(Damaged, match="move it out of the directory"):
        list_segments(tmp_path)


@pytest.mark.parametrize("ending", ["parquet", "arrows"])
@pytest.mark.parametrize(
    "content", [b"foreign bytes", b"PAR1" * 9, b"\xff\xff\xff\xff\x08\0\0\0" + b"x" * 99]
)
def test_bytes_that_are_no_file_are_refused(tmp_path: Path, ending: str, content: bytes) -> None:
    """A file with the right name and other content is damaged."""
    path = segment_path(tmp_path, HEADER, is_complete=ending == "parquet")
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(Damaged, match="events-000001"):
        list_segments(tmp_path)


@pytest.mark.parametrize(
    "span",
    [
        msgspec.structs.replace(HEADER, process="P2"),
        msgspec.structs.replace(HEADER, epoch=1),
        msgspec.structs.replace(HEADER, number=2),
        msgspec.structs.replace(HEADER, event_count=-1),
        msgspec.structs.replace(HEADER, lost_count=1),
        msgspec.structs.replace(HEADER, sent={"P2": -1}),
        msgspec.structs.replace(HEADER, version=2),
    ],
)
def test_a_file_that_says_what_cannot_be_is_refused(tmp_path: Path, span: SegmentHeader) -> None:
    """A file in another's place, or with counts below nothing."""
    write(tmp_path, HEADER, schema_with(span))
    with pytest.raises(Damaged):
        list_segments(tmp_path)


def test_a_newer_header_is_refused_as_such(tmp_path: Path) -> None:
    """Its names need not be those of today; the sentence is that of the document."""
    page = (Path(__file__).parents[2] / "docs/event-log-format.md").read_text(encoding="utf-8")
    sentence = re.search(r"^    (FILE has format version N, .*)$", page, re.MULTILINE)
    assert sentence
    newer = {reader.HEADER_KEY: b'{"segment":1,"version":2}'}
    path = write(tmp_path, HEADER, SCHEMA.with_metadata(newer))
    with pytest.raises(Damaged) as caught:
        list_segments(tmp_path)
    expected = sentence[1].replace("FILE", str(path)).replace(" N,", f" {reader.VERSION + 1},")
    assert str(caught.value) == expected.replace(" M:", f" {reader.VERSION}:")


def test_a_file_without_a_span_is_refused(tmp_path: Path) -> None:
    """Parquet of somebody else's."""
    write(tmp_path, HEADER, SCHEMA)
    with pytest.raises(Damaged, match="is not part of an event log"):
        list_segments(tmp_path)


def test_columns_of_other_types_are_refused(tmp_path: Path) -> None:
    """The column and its type are named."""
    fields = [pa.field("event", pa.int32()), *list(SCHEMA)[1:]]
    write(tmp_path, HEADER, pa.schema(fields, metadata=schema_with(HEADER).metadata))
    (part,) = list_segments(tmp_path)
    with pytest.raises(Damaged, match="column event is of type int32"):
        list(read_segment(part))


def test_rows_of_an_unknown_kind_are_refused(tmp_path: Path) -> None:
    """A kind is one of those that ``segments.KINDS`` names."""
    path = write(tmp_path, HEADER)
    table = pq.read_table(path).to_pylist()
    rows = [row | {"kind": "dreamt"} for row in table]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema_with(HEADER)), path)
    (part,) = list_segments(tmp_path)
    with pytest.raises(Damaged, match="'dreamt'"):
        list(read_segment(part))


@pytest.mark.parametrize("run", [None, {"first": 1, "count": None}, {"first": None, "count": 1}])
def test_recorded_messages_without_numbers_are_refused(
    tmp_path: Path, run: dict[str, int | None] | None
) -> None:
    """Arrow reported a failed conversion, without the name of the file."""
    path = write(tmp_path, HEADER)
    rows = [row | {"recorded": [run]} for row in pq.read_table(path).to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows, schema=schema_with(HEADER)), path)
    (part,) = list_segments(tmp_path)
    with pytest.raises(Damaged, match=r"events-000001.*column recorded"):
        list(read_segment(part))


def write_stream(log: Path, *batches: pa.RecordBatch) -> None:
    """Write a file that is not complete yet."""
    path = segment_path(log, HEADER, is_complete=False)
    path.parent.mkdir(parents=True)
    schema = batches[0].schema.with_metadata(schema_with(HEADER).metadata)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
        for batch in batches:
            stream.write_batch(batch)


def test_what_stands_at_an_empty_place_is_not_looked_at(tmp_path: Path) -> None:
    """Arrow does not validate the index of a null, but uses it when it unifies the dictionaries of
    two batches: a large one crashed the process."""
    rows = [
        {"event": number, "kind": "internal", "snapshot": snapshot}
        for number, snapshot in enumerate(("P1-1", None, "P1-2"), 1)
    ]
    first, second = (pa.RecordBatch.from_pylist(some, SCHEMA) for some in (rows[:1], rows[1:]))
    column = second.column("snapshot")
    validity, _ = column.indices.buffers()
    indices = pa.py_buffer(np.array([2**31 - 1, 0], np.int32))
    wild = pa.DictionaryArray.from_arrays(
        pa.Array.from_buffers(pa.int32(), 2, [validity, indices]), column.dictionary
    )
    place = SCHEMA.get_field_index("snapshot")
    write_stream(tmp_path, first, second.set_column(place, SCHEMA.field("snapshot"), wild))
    (part,) = list_segments(tmp_path)
    (table,) = read_segment(part)
    assert table.column("snapshot").to_pylist() == ["P1-1", None, "P1-2"]


def test_a_stream_of_other_columns_is_refused(tmp_path: Path) -> None:
    """The error names its columns."""
    write_stream(tmp_path, pa.RecordBatch.from_pylist([{"event": 1}]))
    with pytest.raises(Damaged, match="it has other columns: event: int64"):
        list_segments(tmp_path)


def test_groups_of_too_many_rows_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader holds a bounded number of rows."""
    write(tmp_path, HEADER)
    monkeypatch.setattr("stillframe.eventlog.segments.ROW_GROUP_COUNT", 2)
    (part,) = list_segments(tmp_path)
    with pytest.raises(Damaged, match="3 rows in a group"):
        list(read_segment(part))
