"""Every message, frame and file has the bytes that it had when ``wire-2.json`` was recorded; what
is kept in files is read as version 0.1.0 wrote it."""

import json
import typing
from typing import Any

import msgspec
import pytest

from stillframe.protocol import handshake, wire
from stillframe.runtime import control, events
from stillframe.runtime.supervisor import admin_socket
from stillframe.store import history
from stillframe.trace import Step
from tests.golden import recording, travelling

CASES = travelling.cases()
KNOWN: dict[str, str] = json.loads(recording.WIRE.read_text(encoding="utf-8"))
KEPT = ("sealed, ", "history, ", "trace, ", "file, span of an event log")
FORMER: dict[str, str] = {
    name: text
    for name, text in json.loads(recording.WIRE_1.read_text(encoding="utf-8")).items()
    if name.startswith(KEPT)
}


def test_every_example_was_recorded() -> None:
    """None is new, and none is gone."""
    assert [*CASES] == [*KNOWN]


@pytest.mark.parametrize("name", CASES)
def test_bytes_are_what_they_were(name: str) -> None:
    """The example is encoded as it was, and what was encoded is read as the same."""
    case, encoded = CASES[name], travelling.bytes_of(KNOWN[name])
    assert case.encode(case.example) == encoded
    assert case.decode(encoded) == case.example


@pytest.mark.parametrize("name", FORMER)
def test_files_of_version_1_are_read(name: str) -> None:
    """What they held is the same under the names of today."""
    case = CASES[name]
    found = case.decode(travelling.bytes_of(FORMER[name]))
    assert getattr(found, "format", 1) == 1
    assert without_format(found) == without_format(case.example)


def without_format(value: Any) -> Any:
    """Return what a struct holds, but for the version of its format and of those in it."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
        value.pop("format", None)
    if isinstance(value, dict):
        return {key: without_format(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return tuple(map(without_format, value))
    return value


@pytest.mark.parametrize(
    ("union", "examples"),
    [
        (control.FromProcess, travelling.FROM_PROCESS),
        (control.ToProcess, travelling.TO_PROCESS),
        (admin_socket.Request, travelling.REQUESTS),
        (admin_socket.Reply, travelling.ANSWERS),
        (history.HistoryEvent, travelling.HISTORY),
        (Step, travelling.STEPS),
        (events.Event, travelling.TOLD),
    ],
)
def test_there_is_an_example_of_each(union: Any, examples: dict[str, Any]) -> None:
    """A class that is added is added there, too."""
    # Only stores in object stores have it, and the recorded version had none of these.
    later = {history.WriterChanged}
    assert {*map(type, examples.values())} == {*typing.get_args(union)} - later


def test_there_is_an_example_of_each_frame() -> None:
    """Greetings and all others."""
    found = {type(frame) for frame, _ in travelling.FRAMES.values()}
    assert found == {*typing.get_args(wire.Frame), *typing.get_args(handshake.Greeting)}


def test_every_optional_field_has_a_value() -> None:
    """A field that is left out would not be seen to have another name."""
    unseen = {
        f"{type(example).__name__}.{field}"
        for example in _structs(CASES.values())
        for field in example.__struct_fields__
        if getattr(example, field) in (None, (), {}, "", 0, False)
    }
    assert unseen == {
        "Hello.target",  # of the greeting for the coordinator
        "Hello.epoch",
        "Event.is_filled",  # the last release did not write it
        "EndpointStatus.is_connected",
        "EndpointStatus.is_full",
        "Messages.marker",
        "Dataflow.logs",
        "Dataflow.topics",  # a pipeline has one kind of channel here
        "Manifest.data_age_s",  # only with topics
        "Manifest.staleness_s",  # only in mode retained
        "Manifest.topics",
        "OsProcess.space",  # nor this one
        "Segment.first",
        "SegmentHeader.received",
    }


def _structs(value: Any) -> typing.Iterator[Any]:
    if hasattr(value, "__struct_fields__"):
        yield value
        for field in value.__struct_fields__:
            yield from _structs(getattr(value, field))
    elif isinstance(value, dict):
        yield from _structs(value.values())
    elif not isinstance(value, str | bytes) and isinstance(value, typing.Iterable):
        for item in value:
            yield from _structs(item)
