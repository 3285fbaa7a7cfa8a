"""A trace file gives back the trace that was written, or says which line is wrong."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stillframe import tracefile
from stillframe.errors import NotConsistent, UsageError
from stillframe.model import Channel, SnapshotId
from stillframe.trace import Event, MarkerStep, MessageId, Step, Trace, clean_label

PROCESSES = ("P1", "P2", "P3")
TO_P2 = MessageId(Channel("P1", "P2"), 1)
HEADER = '{"stillframe_trace":1,"processes":["P1","P2"],"channels":[]}\n'
MARKER = '{"type":"marker","process":"P%d","snapshot":{"initiator":"P1","number":%d}%s}\n'
TO_SEND = (
    '{"type":"event","process":"P1","sent":'
    '[{"channel":{"source":"P1","target":"%s"},"number":%d}]}\n'
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Return executions with messages, markers and fields."""
    steps: list[Step] = []
    under_way: list[MessageId] = []
    counts: dict[Channel, int] = {}
    markers: set[tuple[int, str, str]] = set()
    recorded: set[tuple[int, str]] = set()
    for process in draw(st.lists(st.sampled_from(PROCESSES), max_size=12)):
        at = draw(st.none() | st.floats(0, 1e9))
        if draw(st.integers(0, 4)) == 0:
            number = draw(st.integers(1, 3))
            due = [marker for marker in sorted(markers) if marker[::2] == (number, process)]
            source = draw(st.sampled_from([None, *(who for _, who, _ in due)]))
            markers.discard((number, source or "", process))
            is_cut = (number, process) not in recorded and draw(st.booleans())
            recorded |= {(number, process)} if is_cut else set()
            markers.add((number, process, PROCESSES[0]))
            snapshot = SnapshotId("P1", number)
            steps.append(MarkerStep(process, snapshot, source, is_cut, PROCESSES[:1], at))
            continue
        waiting = [message for message in under_way if message.channel.target == process]
        accepted = tuple(waiting[: draw(st.integers(0, 2))])
        under_way = [message for message in under_way if message not in accepted]
        sent = []
        for target in draw(st.lists(st.sampled_from(PROCESSES), max_size=2)):
            channel = Channel(process, target)
            counts[channel] = counts.get(channel, 0) + 1
            sent.append(MessageId(channel, counts[channel]))
        under_way += sent
        fields = draw(st.none() | st.dictionaries(st.text(max_size=5), PLAIN, max_size=3))
        label = clean_label(draw(st.text(max_size=5)))
        steps.append(Event(process, label, "receive", accepted, tuple(sent), at, fields))
    return Trace(PROCESSES, steps, [Channel("P3", "P1")])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trace=traces())
def test_what_was_written_is_read(tmp_path: Path, trace: Trace) -> None:
    """Processes, channels and steps come back as they were."""
    path = tmp_path / "a.trace"
    tracefile.write(path, trace)
    again = tracefile.read(path)
    assert again.processes == trace.processes
    assert again.channels == trace.channels
    assert again.steps == trace.steps


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    """A trace that cannot be written leaves the old file, and nothing else."""
    path = tmp_path / "a.trace"
    tracefile.write(path, Trace(["P1"], [Event("P1", "good")]))
    before = path.read_bytes()
    with pytest.raises(UsageError, match="step 2 of the trace, of process P1, cannot be written"):
        tracefile.write(path, Trace(["P1"], [Event("P1"), Event("P1", fields={"x": object()})]))
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.trace"]


def test_a_step_that_is_too_long_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not be read again is not written."""
    monkeypatch.setattr(tracefile, "LINE_BYTES_MAX", 100)
    with pytest.raises(UsageError, match=r"step 1 .*, of process P1, takes .* may have 1"):
        tracefile.write(tmp_path / "a.trace", Trace(["P1"], [Event("P1", "x" * 100)]))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "line 1: .*; this is not a trace file: create one with 'stillframe trace import"),
        ('{"N": 5}\n', "line 1: .*stillframe_trace.*; this is not a trace file"),
        (HEADER.replace(":1,", ":2,"), "has format version 2, and this release reads version 1"),
        (HEADER.replace("P2", "no name"), "line 1: 'no name' cannot name a process"),
        (HEADER.replace("[]", '[{"source":"P1","target":"X"}]'), "line 1: channel P1->X has an"),
        (HEADER.replace('"P2"', '"P1"'), "line 1: it names two processes P1"),
        pytest.param(
            HEADER.replace("P2", "x" * 3_000_000), "line 1: 'x{400,500}….{0,200}$", id="long"
        ),
        (HEADER + TO_SEND % ("P2", 0), "line 2: it has a message with a number below 1"),
        (HEADER + TO_SEND % ("x\\ny", 1), r"line 2: it names processes .*: x\\ny"),
        (HEADER + MARKER % (1, -1, ""), "line 2: 'P1--1' is not a snapshot id"),
        (
            HEADER + MARKER % (2, 1, ',"source":"P1"'),
            "line 2: a marker of P1-1 arrives from P1 to P2, but none is in transit there",
        ),
        (
            HEADER + MARKER % (1, 1, ',"targets":["P2"]') + MARKER % (2, 1, ',"source":"P1"') * 2,
            "line 4: a marker of P1-1 arrives from P1 to P2, but none is in transit there",
        ),
        (
            HEADER + MARKER % (1, 1, ',"is_cut":true') * 2,
            "line 3: P1 records its state for P1-1, for the second time",
        ),
        (HEADER + "{\n", "line 2: .*; write the file again from its source"),
        (HEADER + '{"type":"other"}\n', "line 2: .*other"),
        (HEADER + '{"type":"event","process":7}\n', "line 2: .*process"),
        (HEADER + '{"type":"event","process":"P1"}\n\n', "line 3: "),
        (
            HEADER
            + '{"type":"marker","process":"P1","snapshot":{"initiator":"P1","number":1},'
            + '"targets":["X"]}\n',
            "line 2: it names processes that are not in this trace: X",
        ),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, sentence: str) -> None:
    """File, line, what is wrong, and what to do."""
    path = tmp_path / "a.trace"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=rf"a\.trace.*{sentence}"):
        tracefile.read(path)


def test_steps_that_no_execution_has_are_refused(tmp_path: Path) -> None:
    """A message that is accepted but was never sent; the file is named."""
    path = tmp_path / "a.trace"
    tracefile.write(path, Trace(["P1", "P2"], [Event("P1", sent=(TO_P2,))]))
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"sent"', '"accepted"').replace('process":"P1"', 'process":"P2"'))
    with pytest.raises(NotConsistent, match=r"a\.trace: event P2#1 accepts message P1->P2 #1 be"):
        tracefile.read(path)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("LINE_BYTES_MAX", 20, "line 1: it has more than 20"),
        ("PROCESS_COUNT_MAX", 1, "more than 1"),
    ],
)
def test_sizes_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: int, sentence: str
) -> None:
    """A file that asks for too much is refused before it gets it."""
    path = tmp_path / "a.trace"
    path.write_text(HEADER, encoding="utf-8")
    monkeypatch.setattr(tracefile, name, value)
    with pytest.raises(UsageError, match=sentence):
        tracefile.read(path)


def test_labels_are_cleaned(tmp_path: Path) -> None:
    """Whoever made the file cannot forge lines on a terminal with them."""
    path = tmp_path / "a.trace"
    tracefile.write(path, Trace(["P1"], [Event("P1", "a\nyes: all is well")]))
    assert tracefile.read(path).lines["P1"][0].label == "a\\nyes: all is well"


def test_a_trace_does_not_replace_what_it_is_made_from(tmp_path: Path) -> None:
    """The log is still there."""
    path = tmp_path / "a.log"
    path.write_text("log", encoding="utf-8")
    with pytest.raises(UsageError, match="the input: give another output file"):
        tracefile.write(path, Trace(["P1"], []), inputs=[path])
    assert path.read_text(encoding="utf-8") == "log"


@pytest.mark.parametrize("are_implied", [True, False])
def test_a_file_keeps_whether_its_messages_are_implied(tmp_path: Path, are_implied: bool) -> None:
    """With a key that says so either way."""
    path = tmp_path / "a.trace"
    tracefile.write(path, Trace(["P1"], [Event("P1")], are_messages_implied=are_implied))
    assert tracefile.read(path).are_messages_implied is are_implied
    written = json.loads(path.read_text(encoding="utf-8").splitlines()[0])
    assert written["are_messages_implied"] is are_implied


def test_a_file_of_0_1_0_may_have_implied_messages_if_it_was_imported(tmp_path: Path) -> None:
    """It does not say so, but has neither handlers, as of scripts, nor markers, as of systems."""
    golden = Path(__file__).parent / "golden" / "data"
    assert tracefile.read(golden / "imported.trace").are_messages_implied
    assert not tracefile.read(golden / "lecture.trace").are_messages_implied
    path = tmp_path / "a.trace"
    tracefile.write(path, Trace(["P1"], [Event("P1"), MarkerStep("P1", SnapshotId("P1", 1))]))
    path.write_text(path.read_text(encoding="utf-8").replace(',"are_messages_implied":false', ""))
    assert not tracefile.read(path).are_messages_implied
