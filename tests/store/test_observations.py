"""Observations in a directory: as they were, or a named error; one writer, and few of them."""

import base64
import contextlib
import errno
import hashlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pytest

from stillframe.errors import Damaged, NotConsistent, StoreError, Unavailable, UsageError
from stillframe.protocol.activities import InstanceState, service_of
from stillframe.protocol.calls import (
    Baseline,
    CallId,
    CallLedger,
    CallPlace,
    Located,
    Observation,
    OpenCall,
)
from stillframe.store import snapshot_directory
from stillframe.store.layout import LEDGER, OBSERVATIONS, OBSERVATIONS_HEAD
from stillframe.store.manifest import MANIFEST
from stillframe.store.observation_tables import (
    CALLS,
    FAREWELLS,
    FILES,
    INSTANCES,
    STATES,
    UNRESOLVED,
    unresolved_of,
)
from stillframe.store.observations import OLDER as OLD
from stillframe.store.observations import ObservationReader, ObservationWriter
from stillframe.store.sealed_json import OBSERVATION_FORMAT
from stillframe.store.store import Store
from tests.cli.conftest import purses
from tests.store.observation_samples import TIMES, filled, has_every_kind, observed, rewrite

KIND, SEED, RICH = "leaves", 112, 5
"""In observation RICH of this system there are calls of every kind, and a farewell."""
NUMBERS = [1, 5, 6, 7, 8]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of observations that no test changes."""
    path = tmp_path_factory.mktemp("observations") / "seen"
    filled(path, KIND, SEED).close()
    return path


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    """A store of observations."""
    return shutil.copytree(original, tmp_path / "seen")


@contextlib.contextmanager
def opened(path: Path, keep_count: int = 1000) -> Iterator[ObservationWriter]:
    """Open a store for writing while the body runs."""
    with contextlib.closing(ObservationWriter.open(path, keep_count=keep_count)) as writer:
        yield writer


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        (KIND, SEED),
        ("outside", 13),
        ("restarts", 1),
        ("broken streams", 2),
        ("overflow", 1),
        ("returns", 1),
    ],
)
def test_an_observation_is_read_as_it_was_taken(kind: str, seed: int, tmp_path: Path) -> None:
    """Each of its parts, and the ledger with it; all of them stand up to verification."""
    observations, ledger = observed(kind, seed)
    filled(tmp_path, kind, seed).close()
    with opened(tmp_path) as store:
        assert [store.load(one.number).observation for one in observations] == [*observations]
        assert store.verify_all(lambda manifest, count: None) == len(observations)
        assert (store.number, store.ledger) == (observations[-1].number, ledger)
        manifest = store.load(store.newest()).manifest
        assert (manifest.initiated_at, manifest.completed_at) == TIMES


def test_the_samples_have_calls_of_every_kind() -> None:
    """Otherwise the tests would show less than they say."""
    observations, _ = observed(KIND, SEED)
    assert has_every_kind(tuple(one for one in observations if one.number == RICH))


def test_sql_sums_the_states(path: Path) -> None:
    """The numbers of a field are in one column."""
    where = path / OBSERVATIONS / str(RICH) / STATES
    query = f"select sum(number) from '{where}' where field = 'balance'"
    with duckdb.connect() as database:
        [(total,)] = database.execute(query).fetchall()
    observation = ObservationReader(path).load(RICH).observation
    states = [one.state.encoded for one in observation.fragments.values()]
    assert total == sum(msgspec.msgpack.decode(state)["balance"] for state in states)


def test_the_fate_of_a_call_is_said_in_words(path: Path) -> None:
    """Of one that took effect although its answer did not arrive, by whom it was accepted."""
    observation = ObservationReader(path).load(RICH).observation
    found = {(one.kind, one.place): one for one in unresolved_of(observation)}
    answered = found["not awaited", CallPlace.ANSWERED]
    assert (
        answered.known
        == f"was accepted by {answered.instance} and answered; the answer did not arrive"
    )
    late = found["late", CallPlace.ANSWERED]
    assert late.known.endswith("an earlier observation had found it not accepted")
    assert {one.kind for one in unresolved_of(observation)} == {
        "not awaited",
        "late",
        "duplicate",
        "orphan",
    }


@pytest.mark.parametrize(
    ("instance", "service"),
    [("pay-1a2b3c4d", "pay"), ("a-b-00000000", "a-b"), ("A-1", "A-1"), ("-1a2b3c4d", "")],
)
def test_a_service_is_named_by_its_instances(instance: str, service: str) -> None:
    """Its name is theirs without the eight digits at the end."""
    assert service_of(instance) == service


OLDER = {"format", "number", "initiated_at", "completed_at", "is_exact", "baseline", "files"}
OLDER |= {"instance_count", "open_count", "unresolved_count", "partial", "disconnected", "unknown"}
OLDER |= {"not_accepted", "lost", "created", "forgotten_count", "settled_calls", "settled_answers"}


def resealed(path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change the content of a sealed file; its hash is right then."""
    content = msgspec.json.encode(change(msgspec.json.decode(path.read_bytes())["content"]))
    digest = hashlib.sha256(content).hexdigest().encode()
    path.write_bytes(b'{"content":%b,"hash":"%b"}' % (content, digest))


def test_an_archive_of_an_older_version_is_continued(tmp_path: Path) -> None:
    """It is read as it was. The next observation begins a baseline. It is not exact while instances
    are away, because they could not say goodbye."""
    observations, _ = observed("losses", 3)
    filled(tmp_path, "losses", 3).close()
    number = observations[0].number
    manifest = tmp_path / OBSERVATIONS / str(number) / MANIFEST
    resealed(
        manifest, lambda now: {name: now[name] for name in now if name in OLDER} | {"format": 2}
    )
    known = {"disconnected": {"A-1": {}, "B-1": {}}, "retired": {"B-1"}, "baseline": 7}
    ledger = base64.b64encode(msgspec.msgpack.encode(known)).decode()
    resealed(tmp_path / LEDGER, lambda now: now | {"format": 2, "ledger": ledger})
    with opened(tmp_path) as store:
        found = store.verify(number)
        assert found.observation.since == Baseline(observations[0].baseline)
        assert found.manifest.is_exact == observations[0].is_exact
        assert (store.ledger.next_baseline, [*store.ledger.gone]) == (Baseline(0, OLD), ["A-1"])
        store.store_ledger(store.ledger)
    resealed(tmp_path / LEDGER, lambda now: now | {"format": OBSERVATION_FORMAT + 1})
    with pytest.raises(StoreError, match=r"has format 5, and this version of Stillframe knows 4"):
        ObservationWriter.open(tmp_path)


# --- damage

STORED = [OBSERVATIONS_HEAD, LEDGER, *(f"{OBSERVATIONS}/{RICH}/{n}" for n in (MANIFEST, *FILES))]


def changed(path: Path) -> None:
    """Change a byte in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncated(path: Path) -> None:
    """Cut the last byte off."""
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [changed, truncated, Path.unlink])
@pytest.mark.parametrize("name", STORED)
def test_damage_is_found_and_named(name: str, damage: Callable[[Path], None], path: Path) -> None:
    """In every file, with what to do about it."""
    damage(path / name)
    with pytest.raises((Damaged, UsageError)) as caught, opened(path) as store:
        store.verify(RICH)
    assert str(path / name) in str(caught.value) or name == OBSERVATIONS_HEAD
    assert "put" in str(caught.value) or "give an empty" in str(caught.value)


def without_first(name: str, kept: Callable[[dict[str, Any]], bool]) -> Callable[..., None]:
    """Return a change that removes the first row of a table that is not to be kept."""

    def change(tables: dict[str, pa.Table]) -> None:
        rows = tables[name].to_pylist()
        index = next(index for index, row in enumerate(rows) if not kept(row))
        tables[name] = pa.Table.from_pylist(rows[:index] + rows[index + 1 :], tables[name].schema)

    return change


def test_a_call_that_is_missing_is_named(path: Path) -> None:
    """Its caller has recorded it."""
    rewrite(path, RICH, without_first(CALLS, lambda row: not row["is_awaited"]))
    with pytest.raises(NotConsistent, match=r"call \S+#\d+ is open in its fragment and is not in"):
        ObservationReader(path).verify(RICH)


def test_a_settled_call_must_have_been_settled(path: Path) -> None:
    """One that its caller does not await any more is missing, too, unless the manifest has it."""
    rewrite(path, RICH, without_first(CALLS, lambda row: bool(row["is_awaited"])))
    with pytest.raises(NotConsistent, match=r"call \S+#\d+ is open in its fragment and is not in"):
        ObservationReader(path).verify(RICH)


@pytest.mark.parametrize("kind", ["duplicate", "orphan", "late"])
def test_an_answer_that_is_missing_is_named(kind: str, path: Path) -> None:
    """Its sender has recorded it."""
    rewrite(path, RICH, without_first(UNRESOLVED, lambda row: row["kind"] != kind))
    with pytest.raises(NotConsistent, match=r"answer \d+ of .* is in its fragment and in no call"):
        ObservationReader(path).verify(RICH)


def test_a_call_that_is_listed_twice_is_named(path: Path) -> None:
    """Its amounts would count twice."""

    def change(tables: dict[str, pa.Table]) -> None:
        tables[CALLS] = pa.concat_tables([tables[CALLS], tables[CALLS].slice(0, 1)])

    rewrite(path, RICH, change)
    with pytest.raises(NotConsistent, match="is listed twice"):
        ObservationReader(path).verify(RICH)


def moved(place: CallPlace) -> Callable[[dict[str, pa.Table]], None]:
    """Return a change that puts a call that was answered somewhere else."""

    def change(tables: dict[str, pa.Table]) -> None:
        rows = tables[CALLS].to_pylist()
        row = next(row for row in rows if row["place"] == CallPlace.ANSWERED.value)
        located = msgspec.msgpack.decode(row["encoded"], type=Located)
        row["encoded"] = msgspec.msgpack.encode(msgspec.structs.replace(located, place=place))
        row["place"] = place.value
        tables[CALLS] = pa.Table.from_pylist(rows, tables[CALLS].schema)

    return change


@pytest.mark.parametrize("place", [CallPlace.REQUESTED, CallPlace.SERVED, CallPlace.UNKNOWN])
def test_a_call_must_be_where_the_fragments_have_it(place: CallPlace, path: Path) -> None:
    """A call that was answered is nowhere else."""
    rewrite(path, RICH, moved(place))
    with pytest.raises(NotConsistent, match=f"is listed as '{place.value}'"):
        ObservationReader(path).verify(RICH)


EDITED = [
    (name, column)
    for name, columns in {
        INSTANCES: (
            "observation",
            "service",
            "sent_count",
            "call_count",
            "served_count",
            "held",
            "conserved",
        ),
        STATES: ("instance", "service", "field", "value", "number"),
        CALLS: ("call", "caller", "target", "name", "place", "is_awaited", "began_at", "deadline"),
        UNRESOLVED: ("call", "instance", "target", "name", "place", "known", "amounts"),
        FAREWELLS: ("instance", "service", "sent_count", "call_count", "served_count"),
    }.items()
    for column in columns
]


@pytest.mark.parametrize(("name", "column"), EDITED)
def test_an_edited_column_is_named(name: str, column: str, path: Path) -> None:
    """Although every hash is right: the bytes that were recorded say something else."""

    def change(tables: dict[str, pa.Table]) -> None:
        rows = tables[name].to_pylist()
        value = rows[0][column]
        rows[0][column] = {str: "edited", int: 7_000, bool: not value, float: 0.25}.get(
            type(value), 0.5 if column in ("number", "deadline") else "edited"
        )
        tables[name] = pa.Table.from_pylist(rows, tables[name].schema)

    rewrite(path, RICH, change)
    with pytest.raises(NotConsistent, match=f"{name}: column {column} differs") as caught:
        ObservationReader(path).verify(RICH)
    assert "use another observation" in str(caught.value)


@pytest.mark.parametrize(
    ("members", "error"),
    [
        ({"is_exact": True}, "is_exact of manifest.json differs"),
        ({"baseline": 99}, "baseline of manifest.json is 99"),
        ({"open_count": 0}, "open_count of manifest.json differs"),
        ({"unresolved_count": 0}, "unresolved_count of manifest.json differs"),
        ({"settled_calls": (CallId("A-1", 1),)}, "settled_calls of manifest.json differs"),
        ({"settled_answers": (("A-1", "B-2", 1),)}, "settled_answers of manifest.json differs"),
    ],
)
def test_a_manifest_must_follow_from_the_files(
    members: dict[str, Any], error: str, path: Path
) -> None:
    """Although its hash is right."""
    rewrite(path, RICH, **members)
    with pytest.raises(NotConsistent, match=error):
        ObservationReader(path).verify(RICH)


def test_a_cut_that_is_not_consistent_is_found(path: Path) -> None:
    """No instance has accepted a message that was sent after the cut."""
    observations, ledger = observed(KIND, SEED)
    [seen] = (one for one in observations if one.number == RICH)
    name, other, *_ = seen.fragments
    ahead = msgspec.structs.replace(seen.fragments[other], highest_accepted={name: 10_000})
    cut = msgspec.structs.replace(seen, number=99, fragments=seen.fragments | {other: ahead})
    with opened(path) as store:
        store.publish(cut, TIMES, ledger)
        with pytest.raises(NotConsistent, match=f"message .* of {name} at its cut"):
            store.verify(99)


def replaced(
    observation: Observation, where: Callable[[Located], bool], **members: Any
) -> Observation:
    """Return an observation in which the first such call is another one."""
    index = next(index for index, one in enumerate(observation.calls) if where(one))
    calls = list(observation.calls)
    calls[index] = msgspec.structs.replace(calls[index], **members)
    return msgspec.structs.replace(observation, calls=tuple(calls))


def with_another_record(seen: Observation) -> Observation:
    """The record of a caller differs from that in its fragment."""
    record = msgspec.structs.replace(seen.calls[0].record, target="elsewhere:80")
    return replaced(seen, lambda one: True, record=record)


def with_another_answer(seen: Observation) -> Observation:
    """The record of an instance that has accepted a call differs from that in its fragment."""
    call = next(one for one in seen.calls if one.served)
    [(name, served), *rest] = call.served
    other = msgspec.structs.replace(served, brought={"EUR": 1_000})
    return replaced(seen, lambda one: one is call, served=((name, other), *rest))


def with_an_outside_call(seen: Observation) -> Observation:
    """A call is outside although its target has answered with a header."""
    return replaced(seen, lambda one: one.place is CallPlace.UNKNOWN, place=CallPlace.OUTSIDE)


def with_a_dropped_answer(seen: Observation) -> Observation:
    """A request is in transit, although an instance has dropped later answers."""
    call = next(one.call for one in seen.calls if one.place is CallPlace.UNKNOWN)
    fragments = {
        name: msgspec.structs.replace(one, dropped={call.caller: 10_000})
        for name, one in seen.fragments.items()
    }
    moved = replaced(seen, lambda one: one.call == call, place=CallPlace.REQUESTED)
    return msgspec.structs.replace(moved, fragments=fragments)


def with_a_connected_orphan(seen: Observation) -> Observation:
    """An orphan is listed as a duplicate."""
    return msgspec.structs.replace(seen, duplicates=(*seen.duplicates, *seen.orphans), orphans=())


def with_an_accepted_late_call(seen: Observation) -> Observation:
    """A late call was accepted by no instance."""
    late = tuple(msgspec.structs.replace(one, served=()) for one in seen.late)
    return msgspec.structs.replace(seen, late=late)


def with_two_ends(seen: Observation) -> Observation:
    """An instance with a fragment had said goodbye."""
    return msgspec.structs.replace(seen, ends=seen.ends | dict([*seen.fragments.items()][:1]))


def with_a_gone_instance(seen: Observation) -> Observation:
    """An instance with a fragment was disconnected."""
    return msgspec.structs.replace(seen, disconnected=tuple(seen.fragments)[:1])


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (with_another_record, "is not as its caller has recorded it"),
        (with_another_answer, r"is not as \S+ has recorded it"),
        (with_an_outside_call, "is listed as 'outside'"),
        (with_a_dropped_answer, "is listed as 'request in transit'"),
        (with_a_connected_orphan, "is not a call of the kind duplicate"),
        (with_an_accepted_late_call, "is not a late call"),
        (with_two_ends, "has a fragment and had said goodbye"),
        (with_a_gone_instance, "has a fragment and was disconnected"),
    ],
)
def test_an_observation_that_contradicts_itself_is_found(
    change: Callable[[Observation], Observation], error: str, path: Path
) -> None:
    """Each of its parts is compared with the fragments."""
    observations, ledger = observed(KIND, SEED)
    [seen] = (one for one in observations if one.number == RICH)
    with opened(path) as store:
        store.publish(msgspec.structs.replace(change(seen), number=50), TIMES, ledger)
        with pytest.raises(NotConsistent, match=error):
            store.verify(50)


def test_an_instance_has_one_fragment(path: Path) -> None:
    """A second one would hide the first."""

    def change(tables: dict[str, pa.Table]) -> None:
        tables[INSTANCES] = pa.concat_tables([tables[INSTANCES], tables[INSTANCES].slice(0, 1)])

    rewrite(path, RICH, change)
    with pytest.raises(Damaged, match=r"A-00000001 has two fragments.*put the file back"):
        ObservationReader(path).load(RICH)


def test_a_manifest_is_that_of_its_directory(path: Path) -> None:
    """An observation that is copied under another number is not another one."""
    (path / OBSERVATIONS / str(RICH)).rename(path / OBSERVATIONS / "9")
    with pytest.raises(Damaged, match="is not the manifest of observation 9"):
        ObservationReader(path).load(9)


# --- the writer


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (msgspec.msgpack.encode([1, 2]), "Expected `object`, got `array`"),
        (msgspec.msgpack.encode({"x": msgspec.msgpack.Ext(7, b"x")}), "extension type 7"),
        (b"\xc1", "malformed"),
    ],
)
def test_a_state_that_is_no_map_of_fields_is_refused(state: bytes, error: str, path: Path) -> None:
    """The error names the instance."""
    observations, ledger = observed(KIND, SEED)
    seen = observations[-1]
    fragment = msgspec.structs.replace(seen.fragments["A-00000001"], state=InstanceState(state))
    odd = msgspec.structs.replace(
        seen, number=50, fragments=seen.fragments | {"A-00000001": fragment}
    )
    with opened(path) as store:
        with pytest.raises(StoreError, match=f"the state of A-00000001 cannot be read: .*{error}"):
            store.publish(odd, TIMES, ledger)
        assert store.numbers()[-1] == NUMBERS[-1]


def test_an_observation_that_lacks_a_served_call_is_not_stored(path: Path) -> None:
    """It would say that it is not known whether the call was accepted."""
    observations, ledger = observed("losses", 3)
    seen = next(
        one for one in observations if any(call.place is CallPlace.SERVED for call in one.calls)
    )
    lacking = replaced(
        seen, lambda one: one.place is CallPlace.SERVED, served=(), place=CallPlace.UNKNOWN
    )
    with opened(path) as store, pytest.raises(NotConsistent, match=r"is served by .* not listed"):
        store.publish(msgspec.structs.replace(lacking, number=50), TIMES, ledger)


def test_an_observation_that_lacks_an_open_call_is_not_stored(path: Path) -> None:
    """It would say that there is no such call."""
    observations, ledger = observed(KIND, SEED)
    first = observations[0]
    kept = tuple(one for one in first.calls if not one.record.is_awaited)
    with opened(path) as store, pytest.raises(NotConsistent, match="is open in its fragment"):
        store.publish(msgspec.structs.replace(first, number=50, calls=kept), TIMES, ledger)


def test_only_the_newest_stay(path: Path) -> None:
    """One who reads another one is told which there are."""
    with opened(path, keep_count=2) as store:
        store.remove_old()
        assert store.numbers() == NUMBERS[-2:]
        with pytest.raises(UsageError, match=f"no observation {RICH} .*; it has 7 to 8"):
            ObservationReader(path).load(RICH)
        store.remove_old()
        assert store.verify_all(lambda manifest, count: None) == 2


def test_one_that_cannot_be_removed_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is out of sight, and removed when the store is opened again."""
    with opened(path, keep_count=4) as store:
        with monkeypatch.context() as patched:
            patched.setattr(shutil, "rmtree", full)
            with pytest.raises(StoreError, match="could not be cleared of old observations"):
                store.remove_old()
        assert store.numbers() == NUMBERS[1:]
    with opened(path):
        assert not (path / OBSERVATIONS / ".1.dropped").exists()


def test_a_crash_leaves_nothing_that_is_half_done(path: Path) -> None:
    """Neither of an observation that was being written nor of one that was being removed."""
    directory = path / OBSERVATIONS
    shutil.copytree(directory / "1", directory / ".9.partial")
    (directory / "1").rename(directory / ".1.dropped")
    assert ObservationReader(path).numbers() == NUMBERS[1:]
    with opened(path) as store:
        assert sorted(one.name for one in directory.iterdir()) == [*map(str, NUMBERS[1:])]
        assert store.number == NUMBERS[-1]


def test_a_crash_between_observation_and_ledger_repeats_no_number(path: Path) -> None:
    """The ledger is the older one: nothing of that observation was settled."""
    observations, ledger = observed(KIND, SEED)
    older = (path / LEDGER).read_bytes()
    with opened(path) as store:
        store.publish(
            msgspec.structs.replace(observations[-1], number=9),
            TIMES,
            CallLedger(lost={"EUR": 3}),
        )
    (path / LEDGER).write_bytes(older)
    with opened(path) as store:
        assert (store.number, store.ledger) == (9, ledger)


def test_a_crash_between_observation_and_ledger_loses_no_call_that_timed_out(
    path: Path,
) -> None:
    """Nor does it list one twice: a reader finds it in the observation, and the next collector
    keeps it."""
    observations, ledger = observed(KIND, SEED)
    [rich] = [one for one in observations if one.number == RICH]
    unresolved = {one.call for one in (*rich.calls, *rich.late) if not one.record.is_awaited}
    assert rich.late
    listed = {call: one for call, one in ledger.timed_out.items() if call not in unresolved}
    with opened(path) as store:
        store.store_ledger(
            msgspec.structs.replace(ledger, timed_out=listed, timed_out_count=len(listed))
        )
        older = (path / LEDGER).read_bytes()
        store.publish(msgspec.structs.replace(rich, number=9), TIMES, ledger)
    (path / LEDGER).write_bytes(older)
    found = ObservationReader(path).timed_out()
    assert found.listed.keys() == listed.keys() | unresolved
    assert found.dropped_count == 0
    with opened(path) as store:
        assert store.ledger.timed_out == found.listed
    (path / OBSERVATIONS / "9" / CALLS).unlink()
    with opened(path) as store:
        assert store.number == 9


def test_an_older_table_without_the_status_is_read(path: Path) -> None:
    """As one without any."""
    rewrite(path, RICH, lambda tables: tables.update({CALLS: tables[CALLS].drop(["status"])}))
    store = ObservationReader(path)
    assert store.load(RICH).observation.calls
    table = store.tables(store.manifest(RICH), ["calls"])["calls"]
    assert table.column("status").null_count == table.num_rows > 0


def test_a_ledger_that_is_as_it_was_is_not_written_again(tmp_path: Path) -> None:
    """Its calls can be many. Numbers go on all the same."""
    observations, ledger = observed(KIND, SEED)
    numbered = [msgspec.structs.replace(observations[0], number=number) for number in (1, 2)]
    with contextlib.closing(ObservationWriter.open(tmp_path / "seen")) as store:
        store.publish(numbered[0], TIMES, ledger)
        written = (tmp_path / "seen/ledger.json").stat()
        store.publish(numbered[1], TIMES, ledger)
        again = (tmp_path / "seen/ledger.json").stat()
        assert (again.st_ino, again.st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
        changed = msgspec.structs.replace(ledger, retirement_count=ledger.retirement_count + 1)
        store.store_ledger(changed)
    with contextlib.closing(ObservationWriter.open(tmp_path / "seen")) as store:
        assert (store.number, store.ledger) == (2, changed)


def test_a_ledger_is_stored_with_calls_as_keys(tmp_path: Path) -> None:
    """It is what the next collector starts from."""
    call = CallId("A-1", 3)
    ledger = CallLedger(not_accepted={call: OpenCall(3, "pay:80")}, settled={("B-1", "A-1", 2)})
    with opened(tmp_path) as store:
        store.store_ledger(ledger)
    with opened(tmp_path) as store:
        assert (store.ledger, store.number) == (ledger, 0)


def full(*_: object, **__: object) -> None:
    """Fail as a full disk does."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_on_a_full_disk_nothing_changes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to do."""
    observations, ledger = observed(KIND, SEED)
    with opened(path) as store:
        with monkeypatch.context() as patched:
            patched.setattr(snapshot_directory, "write_new", full)
            with pytest.raises(StoreError, match=r"No space left.*make room on that disk"):
                store.publish(msgspec.structs.replace(observations[0], number=9), TIMES, ledger)
        assert store.number == store.numbers()[-1] == NUMBERS[-1]


def test_without_its_ledger_an_observation_is_withdrawn(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not settled, and the next one says the same."""
    observations, ledger = observed(KIND, SEED)
    ledger = msgspec.structs.replace(ledger, retirement_count=ledger.retirement_count + 1)
    with opened(path) as store:
        with monkeypatch.context() as patched:
            patched.setattr("stillframe.store.observation_writers.replace_durably", full)
            with pytest.raises(StoreError, match=f"{LEDGER} could not be written: No space left"):
                store.publish(msgspec.structs.replace(observations[0], number=9), TIMES, ledger)
        assert store.number == store.numbers()[-1] == NUMBERS[-1]
        store.store_ledger(ledger)


# --- refusals


def test_a_second_writer_is_refused(path: Path) -> None:
    """The first one continues."""
    with opened(path), pytest.raises(Unavailable, match="is in use by another program"):
        ObservationWriter.open(path)


def test_another_directory_is_refused(tmp_path: Path) -> None:
    """One with snapshots, and one with files of others."""
    Store.create(tmp_path / "money", description=purses.description).close()
    with pytest.raises(UsageError, match="is a store of snapshots, and not a store of obs"):
        ObservationWriter.open(tmp_path / "money")
    with pytest.raises(UsageError, match="is not empty, and not a store of observations"):
        ObservationWriter.open(tmp_path)


def test_it_is_no_store_of_snapshots(path: Path) -> None:
    """Neither to read, nor to write, nor to begin one; the error says what can be done."""
    for use in (Store.open, Store.open_writer):
        with pytest.raises(UsageError, match=r"can be looked at and not restored.*stillframe show"):
            use(path)
    with pytest.raises(UsageError, match="can be looked at and not restored"):
        Store.create(path, description=purses.description)


def test_a_strange_name_is_reported(path: Path) -> None:
    """A directory that no collector has made."""
    (path / OBSERVATIONS / "007").mkdir()
    with pytest.raises(StoreError, match="007 is not an observation: move it out"):
        ObservationReader(path).numbers()


def test_a_damaged_manifest_hides_no_other(path: Path) -> None:
    """All others are listed."""
    changed(path / OBSERVATIONS / str(RICH) / MANIFEST)
    found, damages = ObservationReader(path).listing()
    assert ([one.number for one in found], [*damages]) == ([1, 6, 7, 8], [RICH])
