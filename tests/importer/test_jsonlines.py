"""Newline-delimited JSON: where things are is said by paths, the rest becomes fields."""

from pathlib import Path

import msgspec
import pytest

from stillframe.errors import NotConsistent, UsageError
from stillframe.importer import jsonlines
from stillframe.importer.jsonlines import JsonPaths, read_json_lines

SEND = {
    "event": ">",
    "node": 0,
    "pkt": {"snd": 0, "rcv": 1, "msg": {"type": "hello"}, "vc": {"0": 1}},
}
RECEIVE = {
    "event": "<",
    "node": 1,
    "pkt": {"snd": 0, "rcv": 1, "msg": {"type": "hello"}, "vc": {"0": 1, "1": 1}},
}


def log(tmp_path: Path, *documents: object) -> Path:
    """Write a log."""
    path = tmp_path / "a.ndjson"
    path.write_bytes(b"\n".join(map(msgspec.json.encode, documents)) + b"\n")
    return path


def test_sends_and_receives_become_messages(tmp_path: Path) -> None:
    """In any order of lines; what has neither host nor clock is passed over and counted."""
    imported = read_json_lines(log(tmp_path, {"N": 2}, RECEIVE, SEND))
    (execution,) = imported.executions
    assert imported.ignored_line_count == 1
    assert execution.hosts == {"P0": "0", "P1": "1"}
    sent, received = execution.trace.lines["P0"][0], execution.trace.lines["P1"][0]
    assert [str(message) for message in sent.sent] == ["P0->P1 #1"]
    assert received.accepted == sent.sent
    assert received.label == "<"
    assert received.fields == {
        "event": "<",
        "node": 1,
        "pkt": {"snd": 0, "rcv": 1, "msg": {"type": "hello"}},
    }


def test_paths_say_where_things_are(tmp_path: Path) -> None:
    """Another tool writes other names; words for sending and receiving work as well as signs."""
    path = log(
        tmp_path,
        {"who": "x", "meta": {"time": {"x": 1}}, "did": "send", "to": "y"},
        {"who": "y", "meta": {"time": {"x": 1, "y": 1}}, "did": "received", "of": "x"},
    )
    paths = JsonPaths.parse("host=who, clock=meta.time, kind=did, source=of, target=to")
    trace = read_json_lines(path, paths=paths).executions[0].trace
    assert [str(channel) for channel in trace.channels] == ["x->y"]
    assert trace.in_transit(trace.end)[trace.channels[0]] == ()


def test_messages_are_implied_if_no_line_states_any(tmp_path: Path) -> None:
    """A log with clocks alone is as good as one in ShiViz form."""
    path = log(
        tmp_path,
        {"node": "x", "pkt": {"vc": {"x": 1}}},
        {"node": "y", "pkt": {"vc": {"x": 1, "y": 1}}},
    )
    assert read_json_lines(path).executions[0].trace.message_count == 1


@pytest.mark.parametrize("value", [[">"], {"<": 1}, 1, True])
@pytest.mark.parametrize("field", ["event", "time", "extra"])
def test_a_field_may_have_any_value(tmp_path: Path, field: str, value: object) -> None:
    """What is neither sending nor receiving by its kind is another event."""
    event = {"node": "x", "pkt": {"vc": {"x": 1}}, field: value}
    trace = read_json_lines(log(tmp_path, event)).executions[0].trace
    assert trace.lines["x"][0].label == (str(value) if field == "event" else "")


@pytest.mark.parametrize("text", ["", "host", "host=", "what=x", "host=a,host=b", "host=a,,"])
def test_wrong_paths_are_named(text: str) -> None:
    """The sentence says how paths are written and which there are."""
    with pytest.raises(UsageError, match=r"write NAME=PATH,.*host, clock, kind, source, target"):
        JsonPaths.parse(text)


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ([1], "line 2: it is no JSON object"),
        (
            {"node": "x"},
            (
                "line 2: it has no clock at 'pkt.vc', which every event needs; it has 'node': "
                "give its path with --json"
            ),
        ),
        ({"pkt": {"vc": {"x": 1}}}, "line 2: it has no host at 'node', which every event needs"),
        (
            {"node": [], "pkt": {"vc": {}}},
            "line 2: its host at 'node' is neither a string nor a number",
        ),
        ({"node": True, "pkt": {"vc": {}}}, "line 2: its host at 'node' is neither a string"),
        ({"node": "x", "pkt": {"vc": {"x": "1"}}}, "line 2: at 'pkt.vc' it has no vector clock"),
        ({"node": "x", "pkt": {"vc": 7}}, "line 2: at 'pkt.vc' it has no vector clock"),
        ({"node": "x", "pkt": {"vc": {"x": 1}}, "event": "<"}, "but has no source at 'pkt.snd'"),
        ({"node": "x", "pkt": {"vc": {"x": 1}}, "event": ">"}, "but has no target at 'pkt.rcv'"),
    ],
)
def test_a_line_that_cannot_be_an_event_is_named(
    tmp_path: Path, document: object, sentence: str
) -> None:
    """File and line, what is missing, and where it was looked for."""
    with pytest.raises(UsageError, match=sentence):
        read_json_lines(log(tmp_path, SEND, document))


@pytest.mark.parametrize("line", [b"{", b"\xff", b"[" * 100_000, b'{"a": 1} {"a": 2}'])
def test_a_line_that_is_no_json_is_named(tmp_path: Path, line: bytes) -> None:
    """Whatever the bytes are, the answer is a sentence with the line."""
    path = tmp_path / "a.ndjson"
    path.write_bytes(b"\n" + line + b"\n")
    with pytest.raises(
        UsageError, match=r"a\.ndjson, line 2: it (is malformed JSON|begins a JSON array)"
    ):
        read_json_lines(path)


def test_a_line_that_is_too_long_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines are bounded, so that a file without line ends does not take all memory."""
    monkeypatch.setattr(jsonlines, "LINE_BYTES_MAX", 64)
    with pytest.raises(UsageError, match="line 1: it has more than 64 bytes"):
        read_json_lines(log(tmp_path, SEND))


def test_a_contradiction_names_line_and_host(tmp_path: Path) -> None:
    """The same sentences as for text."""
    with pytest.raises(NotConsistent, match=r"^a\.ndjson, line 1, host '1': the clock has 1 for"):
        read_json_lines(log(tmp_path, RECEIVE))


@pytest.mark.parametrize(
    ("documents", "sentence"),
    [
        ([], "^a.ndjson is empty: there is no event in it"),
        (
            [{"N": 2}],
            "a.ndjson has no event: no line has host at 'node' and clock at 'pkt.vc'; give",
        ),
    ],
)
def test_a_log_without_an_event_says_why(
    tmp_path: Path, documents: list[object], sentence: str
) -> None:
    """It is empty, or things are elsewhere."""
    with pytest.raises(UsageError, match=sentence):
        read_json_lines(log(tmp_path, *documents))


def test_it_is_known_whether_messages_are_stated(tmp_path: Path) -> None:
    """From clocks alone nobody knows of a message that never came."""
    silent = {"node": "x", "pkt": {"vc": {"x": 1}}}
    for document, is_stated in ((silent, False), (SEND, True)):
        (execution,) = read_json_lines(log(tmp_path, document)).executions
        assert execution.trace.are_messages_implied is not is_stated


def test_physical_time_that_runs_backwards_is_reported(tmp_path: Path) -> None:
    """A number or a text, where the paths say."""
    path = log(
        tmp_path,
        SEND | {"meta": {"at": 2}},
        {"event": "x", "node": 0, "pkt": {"vc": {"0": 2}}, "meta": {"at": "1.5"}},
    )
    assert read_json_lines(path).executions[0].warnings == ()
    (warning,) = read_json_lines(path, paths=JsonPaths(time="meta.at")).executions[0].warnings
    assert warning.startswith("a.ndjson, host '0': physical time runs backwards at 1 of 2 events")
    (warning,) = read_json_lines(path, paths=JsonPaths(time="meta")).executions[0].warnings
    assert warning.startswith(
        "a.ndjson, line 1: the physical time \"{'at': 2}\" has an unknown form"
    )


def test_several_files_have_the_events_of_one_execution(tmp_path: Path) -> None:
    """Such as one of each host."""
    one = log(tmp_path, SEND).rename(tmp_path / "0.ndjson")
    imported = read_json_lines(one, log(tmp_path, {"N": 2}, RECEIVE))
    assert imported.executions[0].trace.message_count == 1
    assert imported.ignored_line_count == 1
