"""A stream that misses bytes at its end is read up to there; any other damage is reported."""

import io
import subprocess
import sys
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from stillframe.errors import Damaged
from stillframe.eventlog.reader import SegmentHeader, list_segments, read_segment
from stillframe.eventlog.segments import SCHEMA, whole_batches, whole_stream
from stillframe.eventlog.writer import SegmentWriter, pack_segment, pack_segments
from tests.eventlogs import messages

HEADER = SegmentHeader(process="P1", epoch=2, number=1, event_count=0, sent={"P2": 0}, received={})
BATCH_COUNT = 5
BATCH_ROW_COUNT = 2
NAME = r"/e2/P1/events-000001\.arrows"
END = b"\xff\xff\xff\xff\0\0\0\0"


def batch(number: int) -> pa.RecordBatch:
    """Return rows with another snapshot than the batch before: it comes after its dictionary."""
    first = number * BATCH_ROW_COUNT
    rows = [
        {"event": first + n, "kind": "internal", "snapshot": f"P1-{number}"}
        for n in range(1, BATCH_ROW_COUNT + 1)
    ]
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def write(log: Path, span: SegmentHeader = HEADER) -> Path:
    """Write a stream with all batches and its end; return its path."""
    stream = SegmentWriter(log, span)
    for number in range(BATCH_COUNT):
        stream.append(batch(number))
    stream.end()
    return stream.path


def events(log: Path) -> list[int]:
    """Return the numbers of the events in an event log."""
    return [
        n
        for p in list_segments(log)
        for t in read_segment(p)
        for n in t.column("event").to_pylist()
    ]


ALL = list(range(1, BATCH_COUNT * BATCH_ROW_COUNT + 1))


def test_a_changed_byte_in_the_middle_is_not_the_end(tmp_path: Path) -> None:
    """The batches after it were left out, and nothing was reported."""
    path = write(tmp_path)
    third = [start for kind, start, _ in messages(path.read_bytes()) if kind == "record batch"][2]
    content = bytearray(path.read_bytes())
    content[third + 8] ^= 0x40  # in the metadata
    path.write_bytes(content)
    with pytest.raises(Damaged, match=NAME):
        list_segments(tmp_path)


def test_no_changed_byte_loses_rows(tmp_path: Path) -> None:
    """Wherever it is before the last batch: the file is damaged, or has as many rows as before."""
    path = write(tmp_path)
    content = path.read_bytes()
    last = max(start for kind, start, _ in messages(path.read_bytes()) if kind == "record batch")
    said = []
    for place in range(0, last, 5):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            found = list_segments(tmp_path)
        except Damaged as error:
            said.append(str(error))
        else:
            assert [part.row_count for part in found] == [len(ALL)]
    assert len(said) > last / 20
    assert [words for words in said if str(path) not in words] == []


@pytest.mark.parametrize("bit", range(32))
def test_no_changed_length_of_a_message_loses_rows(bit: int, tmp_path: Path) -> None:
    """A length that reaches past the end of the file is no end if a whole message follows."""
    path = write(tmp_path)
    content = path.read_bytes()
    for _, start, _ in messages(path.read_bytes())[:-2]:
        changed = bytearray(content)
        changed[start + 4 + bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        with pytest.raises(Damaged, match=NAME):
            list_segments(tmp_path)


def test_bytes_that_are_missing_at_the_end_are_a_crash(tmp_path: Path) -> None:
    """Cut anywhere, the batches before that are read."""
    path = write(tmp_path)
    content = path.read_bytes()
    found = messages(path.read_bytes())
    ends = [end for kind, _, end in found if kind == "record batch"]
    edges = [size for _, _, end in found for size in (end - 1, end)]
    for size in (*edges, *range(0, len(content), 29)):
        path.write_bytes(content[:size])
        whole_count = sum(end <= size for end in ends)
        assert events(tmp_path) == ALL[: BATCH_ROW_COUNT * whole_count]
        assert len(list_segments(tmp_path)) == (size >= found[0][2])


@pytest.mark.parametrize("count", [1, 3, 4, 8, 5000])
def test_zeros_after_a_message_are_the_end(count: int, tmp_path: Path) -> None:
    """A file system may leave them when the power fails."""
    path = write(tmp_path)
    content = path.read_bytes()
    ends = [end for kind, _, end in messages(path.read_bytes()) if kind == "record batch"]
    for whole_count, end in enumerate(ends, 1):
        path.write_bytes(content[:end] + bytes(count))
        assert events(tmp_path) == ALL[: BATCH_ROW_COUNT * whole_count]
    path.write_bytes(bytes(count))
    assert list_segments(tmp_path) == []


def test_zeros_in_the_middle_are_damage(tmp_path: Path) -> None:
    """Batches follow them."""
    path = write(tmp_path)
    content = path.read_bytes()
    for _, start, end in messages(path.read_bytes())[1:-1]:
        for stop in (start + 4, start + 8, end):
            path.write_bytes(content[:start] + bytes(stop - start) + content[stop:])
            with pytest.raises(Damaged, match=NAME):
                list_segments(tmp_path)


@pytest.mark.parametrize(
    "more",
    [b"x", END + b"x", END + END, bytes(4096) + b"x", b"\xff" * 9],
    ids=["a byte", "an end and a byte", "two ends", "zeros and a byte", "ones"],
)
def test_bytes_after_the_end_are_no_crash(more: bytes, tmp_path: Path) -> None:
    """Nothing is written after the end of a stream."""
    path = write(tmp_path)
    path.write_bytes(path.read_bytes() + more)
    with pytest.raises(Damaged, match=NAME):
        list_segments(tmp_path)


def test_a_whole_last_batch_that_cannot_be_read_is_damage(tmp_path: Path) -> None:
    """No byte is missing: no crash left it so."""
    path = write(tmp_path)
    _, start, end = messages(path.read_bytes())[-1]
    content = bytearray(path.read_bytes()[:end])
    content[start + 8] ^= 0x40
    path.write_bytes(content)
    with pytest.raises(Damaged, match=NAME):
        list_segments(tmp_path)


class _Growing(io.BytesIO):
    """A file to which the rest is appended when a reader has found its end."""

    def __init__(self, content: bytes, size: int) -> None:
        super().__init__(content[:size])
        self._rest = content[size:]

    def read(self, size: int | None = -1) -> bytes:
        """Return what was there, then append."""
        found = super().read(size)
        if size is not None and len(found) < size and self._rest:
            place = self.tell()
            self.seek(0, io.SEEK_END)
            self.write(self._rest)
            self.seek(place)
            self._rest = b""
        return found


def test_a_stream_that_grows_while_it_is_read_is_not_damaged(tmp_path: Path) -> None:
    """What was appended after the reader had found the end may be left out, but is no damage."""
    path = write(tmp_path)
    content = path.read_bytes()
    for size in range(messages(path.read_bytes())[0][2], len(content), 5):
        stream = whole_stream(pa.PythonFile(_Growing(content, size), "r"))
        assert stream is not None
        found = [n for b in whole_batches(stream, path) for n in b.column("event").to_pylist()]
        assert found == ALL[: len(found)]


def damage(path: Path) -> bytes:
    """Change a byte in the middle of a stream; return its content."""
    _, start, _ = messages(path.read_bytes())[-2]
    content = bytearray(path.read_bytes())
    content[start + 8] ^= 0x40
    path.write_bytes(content)
    return bytes(content)


def test_a_damaged_stream_is_not_packed(tmp_path: Path) -> None:
    """It was shortened, and the original removed; now it stays as it is, alone."""
    path = write(tmp_path)
    content = damage(path)
    with pytest.raises(Damaged, match=NAME):
        pack_segment(path)
    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_a_stream_that_was_cut_short_is_packed(tmp_path: Path) -> None:
    """As far as its batches are whole."""
    path = write(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    pack_segment(path)
    assert list(path.parent.iterdir()) == [path.with_suffix(".parquet")]
    assert events(tmp_path) == ALL[:-BATCH_ROW_COUNT]


def test_a_damaged_stream_keeps_no_other_from_being_packed(tmp_path: Path) -> None:
    """The first one was in the way of all that came after it."""
    first, second = write(tmp_path), write(tmp_path, msgspec.structs.replace(HEADER, number=2))
    damage(first)
    with pytest.raises(Damaged, match=NAME):
        pack_segments(first.parent)
    assert sorted(first.parent.iterdir()) == [first, second.with_suffix(".parquet")]


def test_a_stream_is_read_without_numpy() -> None:
    """Only analytics need it, and it is not installed with the package alone."""
    program = (
        "import sys; sys.modules['numpy'] = None\n"
        "from pathlib import Path\n"
        "from stillframe.eventlog.reader import list_segments, read_segment\n"
        "streams = [s for s in list_segments(Path(sys.argv[1])) if s.path.suffix == '.arrows']\n"
        "print(len(streams), sum(t.num_rows for s in streams for t in read_segment(s)) > 0)\n"
    )
    log = Path(__file__).parent.parent / "golden" / "data" / "log"
    done = subprocess.run(
        [sys.executable, "-c", program, str(log)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("5 True\n", "")
