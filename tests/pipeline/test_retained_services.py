"""Cuts in mode retained with services that keep their states in memory: a shop with one query.

till --orders--> first --totals--> books
till -------------direct-----------> books
"""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from stillframe.errors import Damaged, UsageError
from stillframe.model import Abandoned, Reason
from stillframe.pipeline import Manifest, Pipeline, channel, kafka_channel, retained
from stillframe.pipeline.locks import participant_lock
from stillframe.pipeline.log import LogEntry, LogReader
from stillframe.pipeline.metadata import checkpoint_path, read_metadata
from stillframe.protocol.aligner import Mode
from tests.pipeline.fake_queries import SCHEMA, commit, log_writer, write
from tests.spark.flows import wait_until

WAIT_S = 60.0


@dataclass
class Till:
    """The state of what sends numbers."""

    sent: int = 0


@dataclass
class Books:
    """The state of what counts them."""

    read: int = 0


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    """The shop. The till has sent three numbers, and the query has read two of them."""
    made = Pipeline.create(
        tmp_path / "shop.pipeline",
        queries=["first"],
        services={"till": Till, "books": Books},
        channels=[
            channel("orders", SCHEMA, source="till", targets=["first"]),
            channel("totals", SCHEMA, source="first", targets=["books"]),
            channel("direct", SCHEMA, source="till", targets=["books"]),
        ],
    )
    send(made, 3)
    write(log_writer(made, "totals"), 0)
    commit(made.path, "first", 0, {"orders": 2})
    return made


def send(pipeline: Pipeline, count: int) -> None:
    """Let the till send `count` numbers on both channels, and leave."""
    with pipeline.join_service("till", state=(till := Till())) as me:
        for _ in range(count):
            for name in ("orders", "direct"):
                me.append(name, pa.table({"n": [till.sent]}, schema=SCHEMA))
            till.sent += 1
            me.boundary()


def read(pipeline: Pipeline, count: int) -> None:
    """Let the books read `count` numbers, and leave."""
    with pipeline.join_service("books", state=(books := Books())) as me:
        for _ in range(count):
            me.receive()
            books.read += 1


def state_of(manifest: Manifest, name: str) -> dict[str, Any]:
    """Return the fields of a service in a snapshot."""
    recorded = manifest.fragment(name).service
    assert recorded is not None
    return recorded.fields()


def overtaken(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, then: Callable[[], None] = lambda: None
) -> Manifest | Abandoned:
    """Take a snapshot. Before its cut is looked for, the till has sent more, and the query has read
    it; `then` happens."""
    read(pipeline, 1)
    find = retained.record

    def after_more(*arguments: Any) -> retained.RetainedCut | retained.NotFound:
        send(pipeline, 1)
        commit(pipeline.path, "first", 1, {"orders": 5})
        then()
        return find(*arguments)

    monkeypatch.setattr(retained, "record", after_more)
    return pipeline.snapshot("retained")


def test_a_query_that_has_read_past_a_recording_is_taken_at_an_older_micro_batch(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of the service ends at its barrier, also after a restore."""
    taken = overtaken(pipeline, monkeypatch)
    assert isinstance(taken, Manifest), taken
    assert taken.last_batches == {"first": 0}
    assert (taken.barriers["orders"], taken.barriers["direct"]) == (3, 3)
    assert state_of(taken, "till") == {"sent": 3}
    pipeline.restore(str(taken.snapshot))
    rows = [row for one in pipeline.records("orders") for row in one.records.to_pylist()]
    assert [row["n"] for row in rows] == [0, 1, 2]
    with pipeline.join_service("till", state=(till := Till())):
        assert till.sent == 3


def test_a_running_service_records_before_it_reads_what_follows(pipeline: Pipeline) -> None:
    """What another service appends after its own recording is behind the barrier, and not read."""
    counted = threading.Event()

    def write_when_recorded() -> None:
        wait_until(lambda: (found := pipeline.status()) is not None and "till" in found.recorded)
        send(pipeline, 2)
        counted.set()

    taken: list[Manifest | Abandoned] = []
    threads = [
        threading.Thread(target=write_when_recorded),
        threading.Thread(target=lambda: taken.append(pipeline.snapshot("retained"))),
    ]
    with pipeline.join_service("books", state=(books := Books())) as me:
        for thread in threads:
            thread.start()
        assert counted.wait(WAIT_S)
        while books.read < 6:
            me.receive()
            books.read += 1
    for thread in threads:
        thread.join()
    (manifest,) = taken
    assert isinstance(manifest, Manifest), manifest
    assert state_of(manifest, "till") == {"sent": 3}
    cuts = {(cut.log, cut.target): cut for cut in manifest.channels}
    assert cuts["direct", "books"].position <= cuts["direct", "books"].barrier == 3
    received = sum(sum(cuts[log, "books"].received_counts) for log in ("direct", "totals"))
    assert state_of(manifest, "books") == {"read": received}


def test_it_waits_for_a_query_that_runs_and_has_not_committed(pipeline: Pipeline) -> None:
    """A service has read what the query wrote; the cut is there as soon as it is committed."""
    write(log_writer(pipeline, "totals"), 1)
    read(pipeline, 5)
    lock = participant_lock(pipeline.path, "first")
    assert lock.try_acquire()
    later = threading.Timer(0.3, commit, (pipeline.path, "first", 1, {"orders": 3}))
    later.start()
    taken = pipeline.snapshot("retained")
    later.join()
    lock.release()
    assert isinstance(taken, Manifest), taken
    assert taken.last_batches == {"first": 1}
    assert state_of(taken, "books") == {"read": 5}


def test_a_query_that_died_before_it_committed_is_named(pipeline: Pipeline) -> None:
    """There is no cut before it is started again."""
    write(log_writer(pipeline, "totals"), 1)
    read(pipeline, 5)
    taken = pipeline.snapshot("retained")
    assert isinstance(taken, Abandoned)
    assert (taken.reason, taken.missing) == (Reason.NOT_AT_REST, ("first",))
    assert taken.detail == (
        "service books has read on channel totals from micro-batch 1 of first, and the newest that "
        "can be in a cut is 0, because query first has not committed more: start it if it does not "
        "run, and take another snapshot"
    )


def test_a_query_that_has_not_read_a_log_is_named(pipeline: Pipeline) -> None:
    """It was not started with ``start_query``, which refuses it; the reason has the channel."""
    commit(pipeline.path, "first", 1, {})
    read(pipeline, 1)
    taken = pipeline.snapshot("retained")
    assert isinstance(taken, Abandoned)
    assert taken.detail == (
        "query first is declared to read the channel orders, but its micro-batch 1 has not read "
        "that log: read every declared channel (stillframe.spark.read_channels)"
    )


def test_a_query_that_runs_and_never_commits_ends_the_search_at_the_deadline(
    pipeline: Pipeline,
) -> None:
    """The reason names the service that has read too much, and the query."""
    write(log_writer(pipeline, "totals"), 1)
    read(pipeline, 5)
    lock = participant_lock(pipeline.path, "first")
    assert lock.try_acquire()
    taken = pipeline.snapshot("retained", timeout_s=0.5)
    lock.release()
    assert isinstance(taken, Abandoned)
    assert taken.missing == ("books",)
    assert "because query first has not committed more" in taken.detail


def test_a_service_in_a_long_action_is_named(pipeline: Pipeline) -> None:
    """It is the only one that is waited for."""
    with pipeline.join_service("books", state=Books()):
        taken = pipeline.snapshot("retained", timeout_s=0.3)
    assert isinstance(taken, Abandoned)
    assert (taken.reason, taken.missing) == (Reason.DEADLINE, ("books",))
    assert taken.detail.startswith("books has not recorded; no step for ")


def test_a_query_that_retains_too_little_for_a_slow_service_is_named(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that it retains follows from what another service did after its own recording."""

    def forget() -> None:
        commit(pipeline.path, "first", 2, {"orders": 5})
        for part in ("commits", "offsets"):
            (checkpoint_path(pipeline.path, 1, "first") / part / "0").unlink()

    taken = overtaken(pipeline, monkeypatch, forget)
    assert isinstance(taken, Abandoned)
    assert taken.missing == ("first",)
    assert taken.detail == (
        "before all services had recorded their states, query first read so much that follows from "
        "what till wrote after its recording that it retains nothing from before: raise "
        f"{retained.RETAIN} of it, or end the actions of the services sooner"
    )


def test_what_is_still_to_be_read_is_not_looked_at(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an object store each entry of a backlog is a request."""
    read(pipeline, 1)
    looked: list[int] = []
    entry = LogReader.entry

    def look(reader: LogReader, number: int) -> LogEntry:
        looked.append(number)
        return entry(reader, number)

    monkeypatch.setattr(retained, "record", lambda *_: retained.NotFound("first", "enough"))
    monkeypatch.setattr(LogReader, "entry", look)
    pipeline.snapshot("retained")
    few = len(looked)
    send(pipeline, 40)
    looked.clear()
    pipeline.snapshot("retained")
    assert len(looked) <= few


def test_services_with_logs_and_with_topics_are_in_one_pipeline(tmp_path: Path) -> None:
    """Those with topics have versions, those with logs record when they are asked; not both."""
    servers = "localhost:9092"

    def made(*targets: str) -> Pipeline:
        return Pipeline.create(
            tmp_path / "-".join(targets),
            queries=["first"],
            services={"till": Till, "books": Books},
            channels=[
                channel("orders", SCHEMA, source="till", targets=["first"]),
                kafka_channel(
                    "totals", topic="totals", servers=servers, source="first", targets=targets
                ),
            ],
        )

    flow = made("books").dataflow
    assert (flow.versioned, flow.in_memory) == (("books", "first"), ("till",))
    assert flow.default_mode is Mode.RETAINED
    assert read_metadata(tmp_path / "books").batches.keys() == {"books", "first"}
    with pytest.raises(
        UsageError,
        match="channels totals and orders: the service till cannot use a topic of Kafka and a log",
    ):
        made("till")


@pytest.mark.parametrize("is_continued", [True, False])
def test_a_plan_that_is_gone_is_looked_for_again_if_its_query_has_gone_on(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, *, is_continued: bool
) -> None:
    """In an object store the next run of a query deletes the checkpoint of the one before, perhaps
    after it was listed. If nothing has changed, the checkpoint is damaged."""

    def gone(query: object) -> None:
        monkeypatch.undo()
        if is_continued:
            commit(pipeline.path, "first", 1, {"orders": 3})
        raise Damaged("the plan cannot be read")

    read(pipeline, 1)
    monkeypatch.setattr("stillframe.pipeline.retained._Query.read_ahead", gone)
    with contextlib.nullcontext() if is_continued else pytest.raises(Damaged, match="the plan"):
        taken = pipeline.snapshot("retained")
        assert isinstance(taken, Manifest), taken
        assert taken.last_batches == {"first": 1}
