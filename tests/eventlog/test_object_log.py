"""A log in an object store has the rows of one on a disk, whatever the object store does."""

import errno
import itertools
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stillframe.eventlog import object_segments, window, writer
from stillframe.eventlog.reader import Segment, list_segments
from stillframe.eventlog.segments import MARKER_ACCEPTED, RECORDED
from stillframe.model import Channel
from stillframe.storage.location import Location, ObjectPath
from stillframe.storage.opened import object_store_of
from stillframe.storage.storage import Version
from tests.eventlog.test_writer import SOURCES, TARGETS, Logging, rows_of
from tests.storage.faulty import DEATHS, Fault, faulty, nth


@pytest.fixture
def log(bucket: ObjectPath, monkeypatch: pytest.MonkeyPatch) -> ObjectPath:
    """The place of a log in an empty object store; nothing waits before it writes again."""
    monkeypatch.setattr(object_segments, "PUT_S", 0.0)
    monkeypatch.setattr(object_segments, "RETRY_S", 0.0)
    return bucket / "money.log"


@pytest.fixture
def logging(log: ObjectPath) -> Logging:
    """A process that writes it."""
    return Logging(log, SOURCES, TARGETS)


def wait(logging: Logging) -> None:
    """Wait until everything that was handed over is written or lost."""
    thread = logging.writer._thread
    while thread.is_alive() and thread.done_count < logging.writer._handed_count:
        pass


def act_and_wait(logging: Logging) -> None:
    """Take an action of two rows, which are written then."""
    logging.act("P2", ["P5"])
    logging.hand_over()
    wait(logging)


def names(log: ObjectPath) -> list[str]:
    """Return the objects of the log, by name."""
    return [one.location.name for one in object_store_of(log).files_below(log)]


def rows(log: Location) -> list[Any]:
    """Return all rows of the log."""
    return [row for segment in list_segments(log) for row in rows_of(segment)]


def headers(log: Location) -> list[tuple[int, int]]:
    """Return how many actions are before each segment, and how many of them are lost."""
    return [(s.header.event_count, s.header.lost_count) for s in list_segments(log)]


Method = Callable[..., Version]


def let_fail(
    monkeypatch: pytest.MonkeyPatch, log: ObjectPath, when: Callable[[str, ObjectPath], str | None]
) -> None:
    """Let a write fail: ``before`` it takes effect or ``after``, if `when` says so of the name of
    the method and the place."""
    store = object_store_of(log)
    methods: dict[str, Method] = {"put": store.put, "put_if_absent": store.put_if_absent}
    for name, method in methods.items():

        def failing(
            place: ObjectPath, content: bytes, name: str = name, do: Method = method
        ) -> Version:
            how = when(name, place)
            if how == "before":
                raise OSError(errno.EIO, "the object store failed: it does not answer", str(place))
            version = do(place, content)
            if how == "after":
                raise OSError(errno.EIO, "the object store failed: it does not answer", str(place))
            return version

        monkeypatch.setattr(store, name, failing)


def test_it_is_that_of_a_disk(log: ObjectPath, logging: Logging, tmp_path: Path) -> None:
    """The same rows and headers, in one complete segment."""
    local = Logging(tmp_path, SOURCES, TARGETS)
    for one in (logging, local):
        for number in range(40):
            one.act("P2" if number % 3 else None, ["P5", "P2"][: number % 4])
            one.step("marker accepted", "P3", f"P1-{number + 1}", [(1, 2)])
            if number % 7 == 0:
                one.hand_over()
        one.writer.close()
    assert rows(log) == rows(tmp_path) == logging.rows
    (here,), (there,) = list_segments(log), list_segments(tmp_path)
    assert (here.header, here.row_count) == (there.header, there.row_count)
    assert names(log) == ["events-000001.parquet"]
    assert logging.troubles == []


def test_the_open_segment_is_readable_and_grows(log: ObjectPath, logging: Logging) -> None:
    """Each time its bytes so far replace it."""
    for _ in range(3):
        act_and_wait(logging)
        assert rows(log) == logging.rows
        assert names(log) == ["events-000001.arrows"]
    logging.writer.close()
    assert rows(log) == logging.rows
    assert names(log) == ["events-000001.parquet"]


@pytest.mark.parametrize("limit", ["SEGMENT_BYTES", "SEGMENT_S"])
def test_a_segment_stays_small(
    limit: str, log: ObjectPath, logging: Logging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or all its bytes would be sent again each time. A full one is sent only once."""
    monkeypatch.setattr(object_segments, limit, 0)
    for _ in range(3):
        act_and_wait(logging)
    assert names(log) == [f"events-00000{n}.parquet" for n in (1, 2, 3)]
    assert rows(log) == logging.rows
    assert headers(log) == [(0, 0), (1, 0), (2, 0)]
    logging.writer.close()


def test_a_process_writes_seldom(
    log: ObjectPath, logging: Logging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it hands over: all of it is in the next write."""
    is_pausing, goes_on = threading.Event(), threading.Event()
    places: list[str] = []

    def pause(_: object) -> None:
        is_pausing.set()
        goes_on.wait()

    monkeypatch.setattr(object_segments.ObjectSegments, "pause", pause)
    let_fail(monkeypatch, log, lambda name, place: places.append(place.name))
    logging.act("P2", ["P5"])
    logging.hand_over()
    is_pausing.wait()
    for _ in range(50):
        logging.act("P2", ["P5"])
        logging.hand_over()
    assert places == ["events-000001.arrows"]
    goes_on.set()
    wait(logging)
    assert rows(log) == logging.rows
    assert len(places) <= 1 + 50 // writer.JOINED_COUNT_MAX
    logging.writer.close()


def test_the_oldest_segments_go(
    log: ObjectPath, logging: Logging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log does not grow without end."""
    monkeypatch.setattr(object_segments, "SEGMENT_BYTES", 0)
    monkeypatch.setattr(object_segments, "SEGMENT_COUNT_MAX", 3)
    for _ in range(10):
        act_and_wait(logging)
    logging.writer.close()
    assert names(log) == ["events-000008.parquet", "events-000009.parquet", "events-000010.parquet"]
    assert headers(log)[0] == (7, 0)


def test_a_stream_next_to_its_complete_segment_counts_no_more(
    log: ObjectPath, logging: Logging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may die between the two, or may not delete."""
    store = object_store_of(log)
    delete = store.delete

    def refuse(_: object) -> None:
        raise PermissionError(errno.EACCES, "the credentials do not allow it", str(log))

    monkeypatch.setattr(store, "delete", refuse)
    act_and_wait(logging)
    monkeypatch.setattr(object_segments, "SEGMENT_BYTES", 0)
    act_and_wait(logging)
    assert names(log) == ["events-000001.arrows", "events-000001.parquet"]
    assert rows(log) == logging.rows
    act_and_wait(logging)
    assert rows(log) == logging.rows
    (trouble,) = logging.troubles
    assert "the credentials do not allow it: check the credentials" in trouble
    monkeypatch.setattr(store, "delete", delete)
    act_and_wait(logging)
    assert "events-000001.arrows" not in names(log)
    logging.writer.close()


def let_fail_while(
    monkeypatch: pytest.MonkeyPatch, log: ObjectPath
) -> tuple[threading.Event, threading.Event]:
    """Let every request fail while the first event is set; the second one says that one did."""
    is_down, has_failed = threading.Event(), threading.Event()

    def when(_: str, __: ObjectPath) -> str | None:
        if is_down.is_set():
            has_failed.set()
            return "before"
        return None

    let_fail(monkeypatch, log, when)
    return is_down, has_failed


def test_an_object_store_that_fails_for_a_while_costs_nothing(
    log: ObjectPath, logging: Logging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows wait in memory, and the failure is reported once."""
    is_down, has_failed = let_fail_while(monkeypatch, log)
    act_and_wait(logging)
    is_down.set()
    for _ in range(20):
        logging.act("P2", ["P5"])
        logging.hand_over()
    has_failed.wait()
    is_down.clear()
    wait(logging)
    logging.writer.close()
    assert rows(log) == logging.rows
    assert headers(log) == [(0, 0)]
    (trouble,) = logging.troubles
    assert "it does not answer: check that the object store is available" in trouble


def test_rows_that_have_no_room_are_lost_and_counted(
    log: ObjectPath, logging: Logging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limited number of rows waits in memory, and the process continues."""
    monkeypatch.setattr(writer, "BEHIND_COUNT_MAX", 10)
    is_down, has_failed = let_fail_while(monkeypatch, log)
    is_down.set()
    for _ in range(20):
        logging.act("P2", ["P5"])
        logging.hand_over()
    has_failed.wait()
    is_down.clear()
    wait(logging)
    act_and_wait(logging)
    logging.writer.close()
    assert rows(log) == logging.rows[:10] + logging.rows[-2:]
    assert headers(log) == [(0, 0), (20, 15)]
    assert len(logging.troubles) == 1


@pytest.mark.parametrize("size", [0, 10**6])
def test_a_lost_answer_is_no_second_segment(
    size: int, log: ObjectPath, logging: Logging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object may be there although the write failed: of a stream, and of a complete segment."""
    monkeypatch.setattr(object_segments, "SEGMENT_BYTES", size)
    failed: list[str] = []

    def when(name: str, place: ObjectPath) -> str | None:
        if place.name in failed or name == "put":
            return None
        failed.append(place.name)
        return "after"

    let_fail(monkeypatch, log, when)
    act_and_wait(logging)
    act_and_wait(logging)
    logging.writer.close()
    assert failed
    assert rows(log) == logging.rows
    assert sum(lost for _, lost in headers(log)) == 0


@pytest.mark.parametrize("ending", ["arrows", "parquet"])
def test_a_log_that_is_there_is_not_written_over(
    ending: str, log: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object of another system stays unchanged. The process reports it and continues."""
    monkeypatch.setattr(object_segments, "SEGMENT_BYTES", 0 if ending == "parquet" else 10**6)
    place = log / "e3" / "P1" / f"events-000001.{ending}"
    object_store_of(log).put(place, b"other")
    told = threading.Event()
    logging = Logging(log, SOURCES, TARGETS)

    def on_error(text: str) -> None:
        logging.troubles.append(text)
        told.set()

    logging.writer._thread._on_error = on_error
    logging.act("P2", ["P5"])
    logging.hand_over()
    told.wait()
    logging.writer.close()
    assert object_store_of(log).read(place, bytes_max=9)[0] == b"other"
    assert names(log) == [place.name]
    (trouble,) = logging.troubles
    assert f"{place}: it exists already: another program has written there" in trouble


def test_the_last_rows_are_tried_once_more_at_the_end(
    log: ObjectPath, logging: Logging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object store may be back, although the log would have waited before it tried again."""
    monkeypatch.setattr(object_segments, "RETRY_S", 3600.0)
    has_failed = threading.Event()

    def when(_: str, __: ObjectPath) -> str | None:
        how = None if has_failed.is_set() else "before"
        has_failed.set()
        return how

    let_fail(monkeypatch, log, when)
    logging.act("P2", ["P5"])
    logging.hand_over()
    has_failed.wait()
    logging.act("P2", ["P5"])
    logging.writer.close()
    assert rows(log) == logging.rows
    assert headers(log) == [(0, 0)]
    assert len(logging.troubles) == 1


def test_the_end_does_not_wait_for_the_object_store(
    log: ObjectPath, logging: Logging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process ends although it fails."""
    monkeypatch.setattr(object_segments, "RETRY_S", 3600.0)
    let_fail(monkeypatch, log, lambda name, place: "before")
    logging.act("P2", ["P5"])
    logging.hand_over()
    logging.writer.close()
    assert not logging.writer._thread.is_alive()
    assert len(logging.troubles) == 1
    assert names(log) == []


@pytest.mark.parametrize("fault", DEATHS)
def test_a_death_at_any_request_leaves_all_rows_that_were_written(
    fault: Fault, bucket: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a stream is written or replaced, while a segment is completed, and before its stream is
    deleted: what was written before can be read, and nothing else."""
    monkeypatch.setattr(object_segments, "PUT_S", 0.0)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    counts = set()
    for number in itertools.count(1):
        log = bucket / secrets.token_hex(8)
        with faulty(log, nth(number, fault)) as requests:
            logging = Logging(log, SOURCES, TARGETS)
            for size in (10**6, 10**6, 0, 0):
                monkeypatch.setattr(object_segments, "SEGMENT_BYTES", size)
                written = len(logging.rows)
                act_and_wait(logging)
                if requests.is_dead:
                    break
            else:
                written = len(logging.rows)
            logging.writer.close()
        found = rows(log) if names(log) else []
        assert found == logging.rows[: len(found)]
        assert written <= len(found) <= written + 2
        counts.add(len(found))
        if not requests.is_dead:
            break
    assert counts >= {2, 4, 6, 8}
    assert number == 6  # a stream, a longer one, a segment, a deletion, a segment


def test_a_complete_segment_is_opened_once(
    log: ObjectPath, logging: Logging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that lists a log again and again reads only what is new. A stream is read each
    time, and so is a segment whose size is another one, in a new log at the same place."""
    monkeypatch.setattr(object_segments, "SEGMENT_BYTES", 0)
    for _ in range(3):
        act_and_wait(logging)
    first = list_segments(log)
    monkeypatch.setattr(object_segments, "SEGMENT_BYTES", 10**6)
    act_and_wait(logging)
    with faulty(log) as requests:
        assert list_segments(log)[:3] == first
    opened = [Path(one.key).name for one in requests.sent if one.method == "get"]
    assert opened == ["events-000004.arrows"]
    logging.writer.close()
    object_store_of(log).delete(one.path for one in list_segments(log))
    other = Logging(log, SOURCES, TARGETS)
    for _ in range(5):
        other.act("P3", ["P2", "P5"])
    other.hand_over()
    other.writer.close()
    assert rows(log) == other.rows
    assert [segment.row_count for segment in list_segments(log)] == [15]


def state_of(channel: Channel, sent: int, received: int) -> Any:
    """Return the state of a channel, as far as a window looks at it."""
    return SimpleNamespace(channel=channel, sent_count=sent, received_count=received)


@pytest.mark.parametrize("at", [0, 1, 17, 38, 39])
def test_few_segments_are_read_to_show_a_cut(
    at: int, log: ObjectPath, logging: Logging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, and wherever it is."""
    monkeypatch.setattr(object_segments, "SEGMENT_BYTES", 0)
    monkeypatch.setattr(window, "CONTEXT_ROWS", 8)
    channels: list[Any] = []
    for number in range(40):
        if number == at:
            logging.step(RECORDED, None, "P1-1", None)
            for source in SOURCES:
                logging.step(MARKER_ACCEPTED, source, "P1-1", [])
            channels = [
                *(state_of(Channel("P1", name), count, 0) for name, count in logging.sent.items()),
                *(state_of(Channel(n, "P1"), 0, count) for n, count in logging.received.items()),
            ]
        act_and_wait(logging)
    logging.writer.close()
    assert len(names(log)) == 40
    state = SimpleNamespace(processes=[SimpleNamespace(process="P1")], channels=channels)
    snapshot: Any = SimpleNamespace(id="P1-1", epoch=3, state=state, excluded=())
    with faulty(log) as requests:
        lane = window.read_window(log, snapshot, window.WindowRequest(2, {}))["P1"]
    assert [row.event for row in lane.rows if row.kind == RECORDED] == [at]
    found = {row.event for row in lane.rows if row.snapshot is None}
    assert found == {*range(max(1, at - 1), min(40, at + 2) + 1)}
    assert len({request.key for request in requests.sent if request.method == "get"}) < 18


def test_what_is_lost_at_the_very_end_is_said(
    log: ObjectPath, logging: Logging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment without rows records how many actions were lost at the end."""
    monkeypatch.setattr(writer, "BEHIND_COUNT_MAX", -1)
    logging.act("P2", [])
    logging.hand_over()
    logging.writer.close()
    segments: list[Segment] = list_segments(log)
    assert [segment.row_count for segment in segments] == [0]
    assert headers(log) == [(1, 1)]
