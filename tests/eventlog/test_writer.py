"""What a process noted is in the files, row by row, or the files say that it is not."""

import errno
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillframe.errors import Damaged
from stillframe.eventlog import segments, writer
from stillframe.eventlog.reader import Segment, list_segments, read_segment
from stillframe.eventlog.row_encoder import BY_ITSELF, StepRow
from stillframe.eventlog.segments import (
    ACCEPTED,
    INTERNAL,
    MARKER_ACCEPTED,
    MARKER_SENT,
    RECORDED,
    SENT,
)
from stillframe.eventlog.writer import Writer
from stillframe.storage.location import Location
from tests.nightly import examples

Row = tuple[int, str, str | None, int | None, str | None, float | None, Any]

SOURCES, TARGETS = ("P2", "P3", "P4"), ("P2", "P5")


class Logging:
    """A process that notes what it does, and a dumb list of the same."""

    def __init__(self, log: Location, sources: tuple[str, ...], targets: tuple[str, ...]) -> None:
        self.received = {source: 10 * n for n, source in enumerate(sources)}
        self.sent = {target: 7 * n for n, target in enumerate(targets)}
        self.troubles: list[str] = []
        self.event_count = 0
        self.rows: list[Row] = []
        self.writer = Writer(
            log, "P1", 3, received=self.received, sent=self.sent, on_error=self.troubles.append
        )

    def act(self, source: str | None, targets: list[str]) -> None:
        """Take one action: a message from `source` or none, and messages to `targets`."""
        self.event_count += 1
        self.writer.record(BY_ITSELF if source is None else self.writer.accepting[source])
        if source is not None:
            self.received[source] += 1
            self._add(ACCEPTED, f"{source}->P1", self.received[source])
        for target in targets:
            self.writer.record(self.writer.sending[target])
            self.sent[target] += 1
            self._add(SENT, f"P1->{target}", self.sent[target])
        if source is None and not targets:
            self._add(INTERNAL, None, None)

    def step(self, kind: str, channel: str | None, snapshot: str, recorded: Any) -> None:
        """Take a step of a snapshot, of one row."""
        code = BY_ITSELF
        if channel is not None:
            codes = self.writer.accepting if kind == MARKER_ACCEPTED else self.writer.sending
            code = codes[channel]
            channel = f"{channel}->P1" if kind == MARKER_ACCEPTED else f"P1->{channel}"
        self.writer.record_step(StepRow(kind, code, snapshot, self.event_count / 2, recorded))
        self.rows.append(
            (self.event_count, kind, channel, None, snapshot, self.event_count / 2, recorded)
        )

    def hand_over(self) -> None:
        """Hand over what was noted."""
        self.writer.hand_over(self.received, self.sent)

    def _add(self, kind: str, channel: str | None, number: int | None) -> None:
        self.rows.append((self.event_count, kind, channel, number, None, None, None))


def rows_of(part: Segment) -> Iterator[Row]:
    """Yield the rows of a file as the dumb list has them."""
    for table in read_segment(part):
        for row in table.to_pylist():
            at, recorded = row["at"], row["recorded"]
            yield (
                row["event"],
                row["kind"],
                row["channel"],
                row["number"],
                row["snapshot"],
                None if at is None else at.timestamp(),
                None if recorded is None else [(r["first"], r["count"]) for r in recorded],
            )


TARGET_LISTS = st.lists(st.sampled_from(TARGETS), max_size=3)
ACTIONS = st.tuples(st.none() | st.sampled_from(SOURCES), TARGET_LISTS)
RANGES = st.none() | st.lists(st.tuples(st.integers(1, 99), st.integers(1, 9)), max_size=2)
SNAPSHOTS = st.sampled_from(["P1-1", "P2-2", "P9-3"])
STEPS = st.one_of(
    st.tuples(st.just(MARKER_ACCEPTED), st.sampled_from(SOURCES), SNAPSHOTS, RANGES),
    st.tuples(st.just(RECORDED), st.none(), SNAPSHOTS, st.none()),
    st.tuples(st.just(MARKER_SENT), st.sampled_from(TARGETS), SNAPSHOTS, st.none()),
)
CHUNKS = st.lists(
    st.tuples(st.lists(ACTIONS | STEPS, max_size=8), st.booleans() | st.just(False)), max_size=8
)


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(
    chunks=CHUNKS, row_count=st.integers(1, 9), group_count=st.integers(1, 5), is_wide=st.booleans()
)
def test_the_files_hold_what_was_noted(
    chunks: list[tuple[list[Any], bool]], row_count: int, group_count: int, is_wide: bool
) -> None:
    """Whatever a process does, the rows are those of a dumb list, in files of any size; what there
    was no room for is missing, and the next file says how much that was."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "STREAM_ROW_COUNT", row_count)
        patch.setattr(writer, "ROW_GROUP_COUNT", group_count)
        patch.setattr(segments, "ROW_GROUP_COUNT", group_count)
        log = Path(folder) / "log"
        logging = Logging(log, SOURCES, TARGETS)
        logging.writer._rows.is_wide = is_wide  # as if there were so many channels
        kept: list[Row] = []
        starts = [(0, dict(logging.received), dict(logging.sent), 0)]
        lost = 0
        for doings, is_too_much in chunks:
            patch.setattr(writer, "BEHIND_COUNT_MAX", -1 if is_too_much else 2**30)
            before = logging.event_count, dict(logging.received), dict(logging.sent)
            logging.rows = []
            for doing in doings:
                if len(doing) == 2:
                    logging.act(*doing)
                else:
                    logging.step(*doing)
            logging.hand_over()
            if is_too_much:
                lost += logging.event_count - before[0]
            elif logging.rows:
                starts.append((*before, lost))
                kept += logging.rows
                lost = 0
        logging.writer.close()
        assert logging.troubles == []
        found = list_segments(log) if log.exists() else []
        assert [row for part in found for row in rows_of(part)] == kept
        assert sum(part.header.lost_count for part in found) == logging.event_count - sum(
            1 for n in {row[0] for row in kept if row[4] is None}
        )
        for part in found:
            span = part.header
            told = (span.event_count, span.received, span.sent, span.lost_count)
            last = (logging.event_count, logging.received, logging.sent, lost)
            assert told in starts or told == last
            assert part.path.suffix == ".parquet"


@pytest.mark.slow
def test_a_process_that_is_killed_leaves_what_it_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was handed over can be read while the file is being written, and whatever is left of
    it: batches that are whole count."""
    monkeypatch.setattr(writer, "JOINED_COUNT_MAX", 1)
    logging = Logging(tmp_path, SOURCES, TARGETS)
    for _ in range(3):
        logging.act("P2", ["P5"])
        logging.hand_over()
    while sum(part.row_count for part in found(tmp_path)) < 6:
        pass
    (part,) = list_segments(tmp_path)
    assert list(rows_of(part)) == logging.rows
    content = Path(str(part.path)).read_bytes()
    logging.writer.close()
    counts = set()
    for size in range(0, len(content), 5):
        copy = tmp_path / "cut" / "e3" / "P1" / "events-000001.arrows"
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content[:size])
        left = [row for part in list_segments(tmp_path / "cut") for row in rows_of(part)]
        assert left == logging.rows[: len(left)]
        counts.add(len(left))
    assert counts == {0, 2, 4}


def found(log: Path) -> list[Segment]:
    """Return the parts; none if nothing was written yet."""
    return list_segments(log) if log.joinpath("e3").exists() else []


def test_the_oldest_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log does not grow without end, and its first file says what was before it."""
    monkeypatch.setattr(writer, "STREAM_ROW_COUNT", 2)
    monkeypatch.setattr(writer, "JOINED_COUNT_MAX", 1)
    monkeypatch.setattr(writer, "SEGMENT_COUNT_MAX", 3)
    logging = Logging(tmp_path, SOURCES, TARGETS)
    for _ in range(10):
        logging.act("P2", ["P5"])
        logging.hand_over()
    logging.writer.close()
    spans = [part.header for part in list_segments(tmp_path)]
    assert [span.number for span in spans] == [8, 9, 10]
    assert spans[0].event_count == 7
    assert spans[0].sent == {"P2": 0, "P5": 14}
    assert spans[0].lost_count == 0


def test_the_oldest_files_go_also_if_one_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be written as Parquet does not let the log grow without end."""

    def cannot(_: Path) -> None:
        raise Damaged("events-000001.arrows")

    monkeypatch.setattr(writer, "pack_segments", cannot)
    monkeypatch.setattr(writer, "STREAM_ROW_COUNT", 2)
    monkeypatch.setattr(writer, "JOINED_COUNT_MAX", 1)
    monkeypatch.setattr(writer, "SEGMENT_COUNT_MAX", 3)
    logging = Logging(tmp_path, SOURCES, TARGETS)
    for _ in range(10):
        logging.act("P2", ["P5"])
        logging.hand_over()
    logging.writer.close()
    assert [part.header.number for part in list_segments(tmp_path)] == [8, 9, 10]
    assert all("events-000001.arrows" in trouble for trouble in logging.troubles)
    assert logging.troubles


def test_a_full_disk_costs_rows_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nothing can be written the process goes on; then a new file says what is missing."""
    monkeypatch.setattr(writer, "RETRY_S", 0.0)
    is_full = threading.Event()
    append = writer.SegmentWriter.append

    def appending(stream: writer.SegmentWriter, batch: pa.RecordBatch) -> None:
        if is_full.is_set():
            stream._is_whole = False
            raise OSError(errno.ENOSPC, "No space left on device")
        append(stream, batch)

    monkeypatch.setattr(writer.SegmentWriter, "append", appending)
    logging = Logging(tmp_path, SOURCES, TARGETS)

    def act_and_wait() -> None:
        logging.act("P2", ["P5"])
        logging.hand_over()
        while logging.writer._thread.done_count < logging.writer._handed_count:
            pass

    act_and_wait()
    is_full.set()
    for _ in range(3):
        act_and_wait()
    is_full.clear()
    act_and_wait()
    logging.writer.close()
    first, second = list_segments(tmp_path)
    assert list(rows_of(first)) == logging.rows[:2]
    assert list(rows_of(second)) == logging.rows[-2:]
    assert (second.header.event_count, second.header.lost_count) == (4, 3)
    assert second.header.sent == {"P2": 0, "P5": 11}
    (trouble,) = logging.troubles
    assert "No space left on device: make room on that disk" in trouble


def test_what_is_lost_at_the_very_end_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file without rows says what nobody could write before the process ended."""
    logging = Logging(tmp_path, SOURCES, TARGETS)
    monkeypatch.setattr(writer, "BEHIND_COUNT_MAX", -1)
    logging.act("P2", [])
    logging.act(None, [])
    logging.hand_over()
    logging.writer.close()
    (part,) = list_segments(tmp_path)
    assert (part.row_count, part.header.event_count, part.header.lost_count) == (0, 2, 2)


def test_a_wrong_count_is_never_written_down(tmp_path: Path) -> None:
    """If what was noted is not what the process did, that is a bug: it is told, and no row says
    what is not so."""
    logging = Logging(tmp_path, SOURCES, TARGETS)
    logging.act("P2", ["P5"])
    logging.sent["P5"] -= 1
    logging.hand_over()
    logging.writer.close()
    (part,) = list_segments(tmp_path)
    assert part.row_count == 0
    assert part.header.sent == {"P2": 0, "P5": 7}
    assert part.header.lost_count > 0
    (trouble,) = logging.troubles
    assert "a bug in stillframe" in trouble


def test_what_an_action_did_that_failed_is_in_the_log(tmp_path: Path) -> None:
    """A process that fails in an action leaves that action, as far as it went."""
    logging = Logging(tmp_path, SOURCES, TARGETS)
    logging.act("P2", ["P5"])
    logging.act("P3", ["P2"])
    logging.writer.close()
    logging.writer.close()
    (part,) = list_segments(tmp_path)
    assert list(rows_of(part)) == logging.rows


def test_a_log_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    """A file of an earlier system stays as it is; that is told, and the process goes on."""
    old = tmp_path / "e3" / "P1" / "events-000001.arrows"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"")
    logging = Logging(tmp_path, SOURCES, TARGETS)
    logging.act("P2", ["P5"])
    logging.hand_over()
    logging.writer.close()
    assert old.read_bytes() == b""
    (trouble,) = logging.troubles
    assert str(old) in trouble
