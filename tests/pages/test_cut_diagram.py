"""The events around a cut as an event log has them: what a reader of every row finds."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillframe.eventlog import segments
from stillframe.eventlog.reader import segment_path
from stillframe.eventlog.segments import ACCEPTED, MARKER_ACCEPTED, MARKER_SENT, RECORDED, SENT
from stillframe.eventlog.window import NotInLog, WindowRequest, read_window
from stillframe.model import ChannelState, GlobalState, Snapshot
from stillframe.pages import cut_diagram
from tests import eventlogs
from tests.eventlogs import Log, Row
from tests.nightly import examples
from tests.pages.stored import channel_of, snapshots_of, written


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(seed=st.integers(0, 10**6))
def test_what_is_read_is_what_a_reader_of_all_rows_finds(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every row of the snapshot, the nearest events, the ends of the messages that were wanted, and
    nothing that is not in the log; counts and places of the cuts as counted row by row."""
    directory = tmp_path_factory.mktemp("log")
    log = written(seed, directory)
    for snapshot in snapshots_of(log):
        name = str(snapshot.id)
        wanted = {
            s.channel: [range(s.received_count + 1, s.sent_count + 1)] for s in held(snapshot)
        }
        lanes = read_window(directory, snapshot, WindowRequest(2, wanted))
        assert lanes.keys() == log.keys()
        for process, lane in lanes.items():
            rows = log[process]
            cut = next(i for i, r in enumerate(rows) if r.kind == RECORDED and r.snapshot == name)
            assert lane.event_count == rows[cut].event
            shown = [
                (row.event, row.kind, row.channel, row.number, row.snapshot) for row in lane.rows
            ]
            everything = [
                (r.event, r.kind, r.channel and "->".join(r.channel), r.number, r.snapshot)
                for r in rows
            ]
            assert is_subsequence(shown, everything)
            assert [s for s in shown if s[4] == name] == [e for e in everything if e[4] == name]
            before = [e[0] for e in everything[:cut] if e[4] is None]
            assert {*list(dict.fromkeys(reversed(before)))[:2]} <= {s[0] for s in shown}
            ends = {
                e
                for e in everything
                for state in held(snapshot)
                if e[2] == str(state.channel)
                and e[1] in (SENT, ACCEPTED)
                and e[3] in numbers_of(state)
            }
            assert ends <= {*shown}


def held(snapshot: Snapshot) -> list[ChannelState]:
    """Return the channels that held messages."""
    return [state for state in snapshot.state.channels if state.message_count]


def numbers_of(state: ChannelState) -> range:
    """Return the numbers of the messages that a channel held."""
    return range(state.received_count + 1, state.sent_count + 1)


def is_subsequence(some: Sequence[object], every: Sequence[object]) -> bool:
    """Return whether `some` of the rows are in `every`, in the same order."""
    rest = iter(every)
    return all(any(one == other for other in rest) for one in some)


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(seed=st.integers(0, 10**6))
def test_the_picture_holds_the_steps_and_the_messages_on_the_channels(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """One step for each marker and each cut, in a possible order; the log never contradicts a
    snapshot that was counted from it; what is drawn as held was held."""
    directory = tmp_path_factory.mktemp("log")
    log = written(seed, directory)
    for snapshot in snapshots_of(log):
        picture = cut_diagram.load(snapshot, directory)
        assert picture.contradictions == []
        name = str(snapshot.id)
        markers = [r for rows in log.values() for r in rows if r.kind == MARKER_ACCEPTED]
        assert len(picture.steps) == 1 + sum(row.snapshot == name for row in markers)
        assert picture.steps[0]["process"] == snapshot.id.initiator
        recorded = {
            (str(state.channel), number)
            for state in snapshot.state.channels
            for number in numbers_of(state)
        }
        drawn = {
            (str(arrow.message.channel), arrow.message.number)
            for arrow in picture.diagram.messages
            if arrow.role.value == "caught"
        }
        assert drawn <= recorded
        if len(recorded) <= 4:
            assert drawn == recorded
        assert not any(arrow.role.value == "orphan" for arrow in picture.diagram.messages)
        for dot in picture.diagram.dots:
            cut = next(
                row.event
                for row in log[dot.position.process]
                if row.kind == RECORDED and row.snapshot == name
            )
            assert dot.is_recorded == (dot.position.index <= cut)


@pytest.mark.parametrize("change", ["sent", "received"])
def test_a_log_that_contradicts_is_named(tmp_path: Path, change: str) -> None:
    """The channel, with both numbers."""
    for seed in range(50):
        directory = tmp_path / str(seed)
        log = written(seed, directory)
        for snapshot in snapshots_of(log):
            states = [s for s in snapshot.state.channels if s.received_count]
            if not states:
                continue
            wrong = changed(snapshot, states[0], change)
            found = cut_diagram.load(wrong, directory).contradictions
            assert any(str(states[0].channel) in sentence for sentence in found), (seed, found)
            return
    raise AssertionError("no log had a message that was received before a cut")


def changed(snapshot: Snapshot, state: ChannelState, change: str) -> Snapshot:
    """Return a snapshot that counts one message more, or one that was received less."""
    sent = state.sent_count + (change == "sent")
    received = state.received_count - (change == "received")
    other = channel_of(state.channel.source, state.channel.target, sent, received)
    channels = tuple(
        other if each.channel == state.channel else each for each in snapshot.state.channels
    )
    return Snapshot(snapshot.id, 1, 1.0, 2.0, GlobalState(snapshot.state.processes, channels))


def test_a_cut_that_is_not_in_the_log_is_said(tmp_path: Path) -> None:
    """The picture is then of what the store knows, and the note says which process is missing."""
    log = written(3, tmp_path)
    snapshot = snapshots_of(log)[0]
    for file in (tmp_path / "e1" / "P1").iterdir():
        file.unlink()
    with pytest.raises(NotInLog, match="does not contain the cut of P1"):
        cut_diagram.load_from_log(snapshot, tmp_path)
    picture = cut_diagram.load(snapshot, tmp_path)
    assert "does not contain the cut of P1" in picture.note
    assert (picture.steps, picture.diagram.dots) == ([], ())


def long_log(count: int) -> Log:
    """Return a log in which P0 sends so many messages to P1, with a snapshot after half of them."""
    there, back, half = ("P0", "P1"), ("P1", "P0"), count // 2
    sent = [Row(n, SENT, there, n) for n in range(1, count + 1)]
    accepted = [Row(n, ACCEPTED, there, n) for n in range(1, count + 1)]
    first = [Row(half, RECORDED, snapshot="P0-1"), Row(half, MARKER_SENT, there, snapshot="P0-1")]
    second = [
        Row(half, MARKER_ACCEPTED, there, snapshot="P0-1", recorded=()),
        Row(half, RECORDED, snapshot="P0-1"),
        Row(half, MARKER_SENT, back, snapshot="P0-1"),
    ]
    last = Row(half + 3, MARKER_ACCEPTED, back, snapshot="P0-1", recorded=())
    return {
        "P0": [*sent[:half], *first, *sent[half : half + 3], last, *sent[half + 3 :]],
        "P1": [*accepted[:half], *second, *accepted[half:]],
    }


def test_of_a_long_log_little_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups around the cut, in all columns; of the others none, or only whose steps they
    are."""
    log = long_log(10_000)
    for name, rows in log.items():
        for part, begin in enumerate(range(0, len(rows), 2000), 1):
            span = eventlogs.span_of(log, name, 1, part, begin)
            path = segment_path(tmp_path, span, is_complete=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            table = eventlogs.table_of(rows[begin : begin + 2000])
            eventlogs.write_part(path, span, table, 100)
    read: list[int] = []
    tables = segments.read_rows

    looked_at: list[int] = []

    def counted(path: Path, numbers: list[int], columns: list[str]) -> Iterator[pa.Table]:
        for table in tables(path, numbers, columns):
            (read if len(columns) > 2 else looked_at).append(table.num_rows)
            yield table

    monkeypatch.setattr(segments, "read_rows", counted)
    monkeypatch.setattr("stillframe.eventlog.window.CONTEXT_ROWS", 20)
    picture = cut_diagram.load(snapshots_of(log)[0], tmp_path)
    assert (picture.contradictions, len(picture.steps)) == ([], 3)
    assert sum(read) <= 2 * 3 * 100
    assert sum(looked_at) <= 2 * 2000
