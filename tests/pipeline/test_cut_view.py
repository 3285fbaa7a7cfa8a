"""A snapshot as predicates see it, and the predicates that are built in, over channels on disk."""

import contextlib
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from stillframe.errors import ApplicationError, UsageError
from stillframe.model import SnapshotId
from stillframe.pipeline import Manifest, Pipeline, PipelineView, channel
from stillframe.pipeline.cut_view import (
    amounts_in,
    asking,
    deadlock,
    loss_against,
    termination,
)
from stillframe.pipeline.pending_snapshot import SystemCut
from stillframe.store.store import Store
from tests.store import samples

NUMBERS = pa.schema([("n", pa.int64())])


@dataclass
class Account:
    """What a service owns."""

    balance: int = 0


def pipeline_of(path: Path, *edges: str) -> Pipeline:
    """Return a pipeline of services with these channels, each named by its two ends, as ``ab``.
    Each service has run."""
    names = {end for edge in edges for end in edge}
    pipeline = Pipeline.create(
        path,
        services=dict.fromkeys(names, Account),
        channels=[channel(edge, NUMBERS, source=edge[0], targets=[edge[1]]) for edge in edges],
    )
    for name in names:
        with pipeline.join_service(name, state=Account()):
            pass
    return pipeline


def send(pipeline: Pipeline, edge: str, *numbers: int) -> None:
    """Let the source of a channel take numbers out of its account and append them."""
    account = Account()
    with pipeline.join_service(edge[0], state=account) as me:
        for number in numbers:
            account.balance -= number
            me.append(edge, pa.table({"n": [number]}, schema=NUMBERS))


def receive(pipeline: Pipeline, name: str, count: int) -> None:
    """Let a service put the numbers of so many records into its account."""
    account = Account()
    with pipeline.join_service(name, state=account) as me:
        for _ in range(count):
            _, table = next(iter(me))
            account.balance += sum(table["n"].to_pylist())


def view_of(pipeline: Pipeline) -> PipelineView:
    """Return the view of a new snapshot."""
    taken = pipeline.snapshot("unaligned", timeout_s=10)
    assert isinstance(taken, Manifest)
    return pipeline.view(taken.snapshot)


def amounts(view: PipelineView) -> dict[str, int]:
    """Return the money in each account, and that on the way from it."""
    found = {name: next(view.states(name))["balance"] for name in view.dataflow.services}
    for name, target in view.channels:
        found[name] = sum(row["n"] for row in view.in_flight(name, target))
    return found


def test_states_and_records_in_flight_are_seen(tmp_path: Path) -> None:
    """Of a service its fields; of a log its columns."""
    pipeline = pipeline_of(tmp_path / "p", "ab")
    send(pipeline, "ab", 3, 4, 5)
    receive(pipeline, "b", 1)
    view = view_of(pipeline)
    assert view.channels == [("ab", "b")]
    assert list(view.in_flight("ab")) == [{"n": 4}, {"n": 5}]
    assert view.in_flight_count("ab", "b") == 2
    assert [*view.states("a"), *view.states("b")] == [{"balance": -12}, {"balance": 3}]


def test_what_is_not_there_cannot_be_seen(tmp_path: Path) -> None:
    """The error names what there is."""
    view = view_of(pipeline_of(tmp_path / "p", "ab"))
    for name, target, words in (
        ("ab", "a", "name a target of channel ab; it has b"),
        ("ba", None, "there are: ab"),
    ):
        with pytest.raises(UsageError, match=words):
            view.in_flight(name, target)
    with pytest.raises(UsageError, match="no participant 'c'"):
        view.states("c")


def test_a_pipeline_has_terminated_when_nothing_is_in_flight(tmp_path: Path) -> None:
    """Else it is said where how much is."""
    pipeline = pipeline_of(tmp_path / "p", "ab", "bc")
    send(pipeline, "ab", 3, 4)
    verdict = termination(view_of(pipeline))
    assert (verdict.holds, verdict.sentence) == (False, "records in flight: ab to b 2")
    receive(pipeline, "b", 2)
    verdict = termination(view_of(pipeline))
    assert (verdict.holds, verdict.sentence) == (True, "no record is in flight")


def with_system(view: PipelineView, path: Path, *services: str) -> PipelineView:
    """Return a view in which services are processes of a system, whose snapshot has 5 messages in
    transit."""
    with contextlib.closing(Store.create(path, description=samples.DESCRIPTION)) as store:
        samples.publish(store, 1)
    manifest = view._manifest
    changed = {
        name: msgspec.structs.replace(manifest.fragment(name), system="A") for name in services
    }
    fragments = tuple(changed.get(one.participant, one) for one in manifest.fragments)
    cut = SystemCut(name="A", store=str(path), snapshot=SnapshotId("A", 1))
    found = msgspec.structs.replace(manifest, fragments=fragments, systems=(cut,))
    return PipelineView(view._root, found)


def test_a_pipeline_with_a_message_over_tcp_has_not_terminated(tmp_path: Path) -> None:
    """What a process receives over TCP can lead to records."""
    view = view_of(pipeline_of(tmp_path / "p", "ab"))
    assert termination(view).holds
    verdict = termination(with_system(view, tmp_path / "store", "a"))
    assert (verdict.holds, verdict.sentence) == (False, "messages in transit over TCP: 5")


def test_a_process_of_a_system_is_not_deadlocked(tmp_path: Path) -> None:
    """It may receive a message over TCP, or act after a time: a pipeline does not see that."""
    view = view_of(pipeline_of(tmp_path / "p", "ab", "ba"))
    assert deadlock(view).holds
    assert not deadlock(with_system(view, tmp_path / "store", "a")).holds


def test_a_closed_cycle_without_a_record_is_deadlocked(tmp_path: Path) -> None:
    """One record anywhere in it can move all of it; what only waits for it is named as well."""
    pipeline = pipeline_of(tmp_path / "p", "ab", "ba", "bc")
    verdict = deadlock(view_of(pipeline))
    assert verdict.holds
    assert verdict.sentence == "a waits for b waits for a; waiting for them: c"
    send(pipeline, "ba", 1)
    verdict = deadlock(view_of(pipeline))
    assert (verdict.holds, verdict.sentence) == (
        False,
        "no queries or services wait for each other's records forever",
    )


def test_a_record_behind_a_deadlock_changes_nothing(tmp_path: Path) -> None:
    """The cycle stays where it is, whatever others still have to read."""
    pipeline = pipeline_of(tmp_path / "p", "ab", "ba", "bc")
    send(pipeline, "bc", 1)
    assert deadlock(view_of(pipeline)).sentence == "a waits for b waits for a"


def test_a_cycle_with_an_input_is_not_deadlocked(tmp_path: Path) -> None:
    """As long as what writes the input can move; if that waits forever itself, all do."""
    fed = pipeline_of(tmp_path / "fed", "xa", "ab", "ba")
    assert not deadlock(view_of(fed)).holds
    chained = pipeline_of(tmp_path / "chained", "xy", "yx", "xa", "ab", "ba")
    verdict = deadlock(view_of(chained))
    assert verdict.holds
    assert "x waits for y waits for x" in verdict.sentence


def test_money_is_lost_or_it_is_not(tmp_path: Path) -> None:
    """What is in an account or on its way is not lost."""
    pipeline = pipeline_of(tmp_path / "p", "ab")
    expected = amounts_in(view_of(pipeline), amounts, "m:amounts")
    loss = loss_against(expected, amounts, "m:amounts")
    send(pipeline, "ab", 3, 4)
    receive(pipeline, "b", 1)
    view = view_of(pipeline)
    assert not loss(view).holds
    lost = loss_against({"amounts": {"a": 5}}, amounts, "m:amounts")(view)
    assert (lost.holds, lost.sentence) == (True, "5 amounts lost: a -7, b 3, ab 4")


def test_a_function_of_the_user_is_asked(tmp_path: Path) -> None:
    """Its errors, and answers of another kind, are named."""
    view = view_of(pipeline_of(tmp_path / "p", "ab"))
    assert asking(lambda seen: not seen.in_flight_count("ab"), "m:empty")(view).holds
    with pytest.raises(ApplicationError, match="m:empty returned 0"):
        asking(lambda seen: seen.in_flight_count("ab"), "m:empty")(view)  # type: ignore[arg-type,return-value]
    with pytest.raises(ApplicationError, match="m:a raised ZeroDivisionError"):
        amounts_in(view, lambda _: 1 // 0, "m:a")
    for wrong in (5, {"a": float("nan")}, {1: 1}, {"a": True}):
        with pytest.raises(ApplicationError, match="names of places and finite numbers"):
            amounts_in(view, lambda _, found=wrong: found, "m:a")  # type: ignore[misc]
