"""Observations of services are followed as they are stored, and as they are removed."""

import asyncio
import secrets
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from stillframe.cli.watch import _target
from stillframe.errors import UsageError
from stillframe.storage.location import ObjectPath
from stillframe.storage.opened import object_store_of
from stillframe.store.layout import OBSERVATIONS
from stillframe.store.observations import ObservationReader, ObservationWriter
from stillframe.watch.metrics import OBSERVATIONS as METRICS
from stillframe.watch.metrics import MetricSet
from stillframe.watch.observation_target import ObservationTarget
from stillframe.watch.target import Restore, TriggerSnapshot
from tests.watch.heard import Heard
from tests.watch.observed import AT, SECRET, Call, observed, publish, ring
from tests.watch.servers import ask, page_of, served

A, B = "bank-0000000a", "bank-0000000b"


def watching(store: Path, act: Callable[[Heard], Awaitable[None]]) -> Heard:
    """Watch a store while something is done to it."""

    async def go() -> Heard:
        heard = Heard(target := ObservationTarget(ObservationReader(store)))
        following = asyncio.ensure_future(target.run())
        listening = asyncio.ensure_future(heard.listen())
        await heard.until(lambda: "snapshots" in heard.last and "system" in heard.last)
        await act(heard)
        following.cancel()
        await asyncio.gather(following, listening, return_exceptions=True)
        return heard

    return asyncio.run(go())


def newest(heard: Heard) -> object:
    """Return the number of the observation that a page shows."""
    return heard.last.get("observation", {}).get("number")


def samples(metrics: MetricSet) -> dict[tuple[str, ...], float]:
    """Return the values of metrics, by name and labels."""
    return {
        (one.name.removeprefix("stillframe_"), *one.labels.values()): one.value
        for family in metrics.collect()
        for one in family.samples
    }


@pytest.fixture
def seen(tmp_path: Path) -> Path:
    """A store with one observation, of a call."""
    publish(tmp_path / "seen", observed(1, [Call(A, B)]))
    return tmp_path / "seen"


def test_a_new_observation_is_shown_when_it_is_stored(seen: Path) -> None:
    """With its row, and with an event for each change."""

    async def act(heard: Heard) -> None:
        assert newest(heard) == 1
        await asyncio.to_thread(publish, seen, observed(2, [], [A], ("x never answers",)))
        await heard.until(lambda: newest(heard) == 2)
        await asyncio.to_thread(publish, seen, ring(3, [A, B]))
        await heard.until(lambda: newest(heard) == 3)
        await heard.until(lambda: heard.last["snapshots"]["count"] == 3)
        (row,) = heard.last["snapshots"]["rows"]
        assert (row["id"], row["quality"], row["open_count"]) == ("3", "exact", 2)
        assert (await heard.target.snapshot("1"))["number"] == 1

    heard = watching(seen, act)
    assert heard.last["about"] == {"kind": "observations", "store": str(seen)}
    assert heard.sentences == [
        "observation 2 is partial: x never answers",
        "observation 3 is exact",
        f"deadlock in observation 3: {B} waits for {A} waits for {B}",
    ]


def test_retention_may_remove_what_is_shown(seen: Path) -> None:
    """The rows leave the list, and the page keeps the last one until there is another."""

    async def act(heard: Heard) -> None:
        writer = ObservationWriter.open(seen, keep_count=1)
        times = (AT, AT + 1)
        for number in (2, 3):
            writer.publish(observed(number, []), times, writer.ledger)
        writer.remove_old()
        writer.close()
        await heard.until(lambda: newest(heard) == 3)
        await heard.until(lambda: "1" in heard.last["snapshots"]["gone"])
        assert heard.last["snapshots"]["count"] == 1
        (seen / OBSERVATIONS / "3").rename(seen / OBSERVATIONS / ".3.dropped")
        await heard.until(lambda: "3" in heard.last["snapshots"]["gone"])
        await heard.until(lambda: heard.last["system"]["counts"]["exact"] == 0)
        with pytest.raises(UsageError, match="there is no observation 3"):
            await heard.target.snapshot("3")

    assert newest(heard := watching(seen, act)) == 3
    assert heard.sentences == []


def test_observations_in_an_object_store_are_followed() -> None:
    """A poll that finds nothing new is one request: it reads the ledger."""
    place = ObjectPath(f"memory://{secrets.token_hex(8)}", "seen")
    publish(place, observed(1, [Call(A, B)]))
    target = ObservationTarget(ObservationReader(place))

    async def poll_thrice() -> int:
        await target.poll()
        before = object_store_of(place).counts.requests
        await target.poll()
        after = object_store_of(place).counts.requests
        publish(place, observed(2, [Call(A, B)]))
        await target.poll()
        return after - before

    assert asyncio.run(poll_thrice()) == 1
    assert target.summary is not None
    assert target.summary.manifest.number == 2


def test_one_that_is_removed_while_it_is_read_is_left_out(
    seen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The poll goes on with the others."""
    publish(seen, observed(2, []))
    target = ObservationTarget(ObservationReader(seen))
    numbers = target.store.numbers

    def then_removed() -> list[int]:
        found = numbers()
        shutil.rmtree(seen / OBSERVATIONS / "2", ignore_errors=True)
        return found

    monkeypatch.setattr(target.store, "numbers", then_removed)
    asyncio.run(target.poll())
    monkeypatch.undo()
    assert target.summary is None
    assert not target.polls.errors["store"]
    asyncio.run(target.poll())
    assert target.summary is not None
    assert target.summary.manifest.number == 1
    assert not target.polls.errors["store"]


def test_a_damaged_observation_and_a_missing_store_are_named(seen: Path) -> None:
    """What was shown before stays, and the list has the others."""

    async def act(heard: Heard) -> None:
        await asyncio.to_thread(publish, seen, observed(2, []))
        await heard.until(lambda: newest(heard) == 2)
        (seen / OBSERVATIONS / "2").rename(seen / OBSERVATIONS / ".2.partial")
        (seen / OBSERVATIONS / ".2.partial" / "manifest.json").write_bytes(b"{}")
        (seen / OBSERVATIONS / ".2.partial").rename(seen / OBSERVATIONS / "3")
        await heard.until(lambda: heard.last["system"]["counts"]["unreadable"] == 1)
        assert newest(heard) == 2
        assert "manifest.json" in heard.last["system"]["explanation"]
        shutil.rmtree(seen)
        await heard.until(lambda: "was deleted or moved" in heard.last["system"]["explanation"])

    heard = watching(seen, act)
    assert sum("manifest.json" in sentence for sentence in heard.sentences) == 1


def test_an_empty_store_is_watched(tmp_path: Path) -> None:
    """Until it has an observation."""
    ObservationWriter.open(tmp_path).close()

    async def act(heard: Heard) -> None:
        assert heard.last["system"]["explanation"].endswith("holds no observation yet")
        await asyncio.to_thread(publish, tmp_path, observed(1, []))
        await heard.until(lambda: newest(heard) == 1)

    assert watching(tmp_path, act).last["system"]["explanation"] == ""


def test_metrics_are_those_of_the_newest_observation(seen: Path) -> None:
    """And of the store; every metric of observations has a value. What was there before the first
    poll makes no event."""
    calls = [Call(A, B, 1), Call(A, None, 2, age_s=7.0), Call(B, A, 3, is_awaited=False)]
    publish(seen, observed(2, calls, partial=("x never answers",)))
    target = ObservationTarget(ObservationReader(seen))
    found = samples(asyncio.run(target.metrics()))
    assert not target.events
    assert [found["store_observations", q] for q in ("exact", "partial", "not exact")] == [1, 1, 0]
    assert found["last_observation_number",] == 2
    assert found["last_observation_timestamp_seconds",] == AT + 2.25
    assert found["last_observation_exact",] == found["predicate_holds", "deadlock"] == 0
    assert found["observed_instances", "bank"] == 2
    assert found["open_calls", "being served"] == found["open_calls", "request in transit"] == 1
    assert found["oldest_open_call_seconds",] == 7.0
    assert (found["unresolved_calls", "not awaited"], found["unresolved_calls", "late"]) == (1, 0)
    accepted = [
        found["listed_timed_out_calls", word] for word in ("yes", "no", "unknown", "settled")
    ]
    assert (accepted, found["timed_out_calls_total",]) == ([1, 0, 0, 0], 1)
    assert found["observed_amount", "EUR", "in_open_calls"] == 2
    assert found["conserved_amount", "EUR"] == 202
    assert METRICS.keys() <= {name for name, *_ in found}
    publish(seen, ring(3, [A, B]))
    found = samples(asyncio.run(ObservationTarget(ObservationReader(seen)).metrics()))
    assert found["predicate_holds", "deadlock"] == 1


def test_the_page_is_served_like_every_other(seen: Path) -> None:
    """With a token, if one is required; it has no action, and no comparison."""
    with page_of(seen) as link:
        status, _, body = ask(link, "/api/snapshot/1")
        assert (status, msgspec.json.decode(body)["kind"]) == (200, "observation")
        assert SECRET.encode() not in body
        assert b"stillframe_store_observations" in ask(link, "/metrics")[2]
        assert msgspec.json.decode(ask(link, "/api/snapshots?before=9")[2])["rows"][0]["id"] == "1"
        assert b"stillframe diff" in ask(link, "/api/comparison/1/1")[2]
        assert ask(link, "/api/snapshot/9")[0] == 400
        for action in ({"type": "take"}, {"type": "restore", "snapshot": "1"}):
            assert b"cannot be restored" in ask(link, "/api/action", action)[2]
        assert ask(link, "/events", headers={"Origin": "http://elsewhere"})[0] == 403
    with served(ObservationTarget(ObservationReader(seen)), token="t" * 20) as link:
        assert ask(link, "/metrics")[0] == ask(link, "/api/snapshot/1")[0] == 401


@pytest.mark.parametrize(
    ("predicates", "reference", "log"),
    [(["loss"], None, None), ([], "m:t", None), ([], None, Path("log"))],
)
def test_options_for_systems_are_refused(
    seen: Path, predicates: list[str], reference: str | None, log: Path | None
) -> None:
    """The error says what to leave out."""
    with (
        pytest.raises(UsageError, match="leave out --detect"),
        _target(seen, predicates, reference, log, None),
    ):
        pass


def test_nothing_is_done_to_services(seen: Path) -> None:
    """They are for looking."""
    target = ObservationTarget(ObservationReader(seen))
    for action in (TriggerSnapshot(), Restore("1")):
        with pytest.raises(UsageError, match="stillframe observe"):
            asyncio.run(target.perform(action))
