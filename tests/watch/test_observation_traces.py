"""Each observation is one trace, with the calls that are open in it."""

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from stillframe.protocol.calls import CallId
from stillframe.store.observations import ObservationReader
from stillframe.watch import observation_traces
from stillframe.watch.observation_target import ObservationTarget
from stillframe.watch.observation_traces import ATTRIBUTES, ObservationTraces
from tests.watch.endpoint import Endpoint, plain
from tests.watch.observed import AT, SECRET, TOOK_S, Call, observed, publish, ring
from tests.watch.servers import shown

A, B = "bank-0000000a", "bank-0000000b"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    """An endpoint that listens."""
    found = Endpoint()
    with found.open():
        yield found


def traced(endpoint: Endpoint, store: Path, *numbers: int) -> list[Span]:
    """Return the spans of observations of a store, as they are sent."""
    reader = ObservationReader(store)
    with shown(store, otlp=endpoint.url) as target:
        assert isinstance(target, ObservationTarget)
        traces = target._traces
        assert traces is not None
        for number in numbers:
            traces.add(reader.load(number))
        count = sum(1 + reader.manifest(number).open_count for number in numbers)
        endpoint.until(lambda: len(endpoint.spans) >= count)
    return endpoint.spans


def test_each_open_call_has_a_span(tmp_path: Path, endpoint: Endpoint) -> None:
    """From when it began, with its place; nothing of a body or a state is sent."""
    calls = [
        Call(A, B, 1, age_s=3.0),
        Call(B, None, 2, age_s=-5.0, serves=CallId(A, 1)),
        Call(A, B, 3, age_s=None),
        Call(A, B, 4, is_awaited=False),
    ]
    publish(tmp_path / "seen", observed(7, calls, partial=("x never answers",)))
    *parts, root = traced(endpoint, tmp_path / "seen", 7)
    seed = f"observation 7 {AT + 7}"
    assert {span.trace_id.hex() for span in endpoint.spans} == {
        hashlib.sha256(seed.encode()).hexdigest()[:32]
    }
    assert (root.name, root.status.code) == ("observation", Status.STATUS_CODE_OK)
    told = plain(root.attributes)
    assert told.pop("stillframe.observation.bytes") > 0
    assert told == {
        "stillframe.observation.number": 7,
        "stillframe.observation.quality": "partial",
        "stillframe.observation.reasons": ["x never answers"],
        "stillframe.observation.instances": 2,
        "stillframe.observation.open_calls": 3,
        "stillframe.observation.unresolved_calls": 1,
        "stillframe.observation.calls_left_out": 0,
    }
    ended_at = AT + 7 + TOOK_S
    assert [(part.name, part.parent_span_id) for part in parts] == [
        ("call POST /pay", root.span_id)
    ] * 3
    assert len({part.span_id for part in parts}) == 3
    assert [round(part.end_time_unix_nano / 1e9 - ended_at, 3) for part in parts] == [0, 0, 0]
    assert [
        round((part.end_time_unix_nano - part.start_time_unix_nano) / 1e9, 3) for part in parts
    ] == [3.0, 0.0, 0.0]
    assert plain(parts[0].attributes) == {
        "stillframe.call.id": f"{A}#1",
        "stillframe.call.caller": A,
        "stillframe.call.target": "127.0.0.1:8000",
        "stillframe.call.place": "being served",
        "stillframe.call.served_by": B,
    }
    ahead = plain(parts[1].attributes)
    assert ahead["stillframe.call.serving"] == f"{A}#1"
    assert round(ahead["stillframe.call.moved_s"], 3) == -5.0
    assert not any(SECRET.encode() in span.SerializeToString() for span in endpoint.spans)
    known = ATTRIBUTES["observation"] | ATTRIBUTES["call"]
    assert {name for span in endpoint.spans for name in plain(span.attributes)} <= known.keys()


def test_a_deadlock_is_an_error(
    tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That names who waits for whom, also if their calls are too many for spans."""
    publish(tmp_path / "seen", ring(1, [A, B]))
    monkeypatch.setattr(observation_traces, "CALL_COUNT_MAX", 1)
    reader = ObservationReader(tmp_path / "seen")
    with shown(tmp_path / "seen", otlp=endpoint.url) as target:
        assert isinstance(target, ObservationTarget)
        assert target._traces is not None
        target._traces.add(reader.load(1))
        endpoint.until(lambda: len(endpoint.spans) == 2)
    root = endpoint.spans[-1]
    assert root.status.code == Status.STATUS_CODE_ERROR
    assert root.status.message == f"{B} waits for {A} waits for {B}"
    assert plain(root.attributes)["stillframe.observation.calls_left_out"] == 1


class Sent:
    """An exporter that only remembers."""

    is_failing = False
    sent_count = dropped_count = 0

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def put(self, trace: observation_traces.ObservationTrace) -> None:
        """Remember a trace."""
        self.numbers.append(trace.manifest.number)


def test_every_new_observation_is_traced_once(tmp_path: Path) -> None:
    """Those from before the watcher started are not; one that was removed is counted."""
    store = tmp_path / "seen"
    publish(store, observed(1, []))
    exporter = Sent()
    traces = ObservationTraces(exporter)  # type: ignore[arg-type]
    target = ObservationTarget(ObservationReader(store), traces)
    asyncio.run(target.poll())
    publish(store, observed(2, []), observed(3, []))
    (store / "observations" / "2" / "calls.parquet").write_bytes(b"")
    asyncio.run(target.poll())
    asyncio.run(target.poll())
    assert exporter.numbers == [3]
    assert (traces.traced_count, traces.missed_count) == (1, 1)
    names = {family.name for family in asyncio.run(target.metrics()).collect()}
    assert "stillframe_traced_observations_missed" in names
