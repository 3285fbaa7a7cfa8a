"""Errors say what they are about in fields as well as in text."""

import functools
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn, cast
from unittest.mock import Mock

import pytest

import stillframe
from stillframe import (
    Channel,
    ExternalProcess,
    Message,
    Pipeline,
    Process,
    SnapshotEntry,
    SnapshotId,
    Topology,
    cuts,
    every,
    sim,
    tracefile,
)
from stillframe.detect.view import conserved, is_passive, waits_for, yes_or_no
from stillframe.errors import (
    TEXT_LENGTH_MAX,
    ApplicationError,
    Damaged,
    Refused,
    StillframeError,
    StoreError,
    Unavailable,
    UsageError,
    describe,
    repr_of,
    text_of,
)
from stillframe.importer import JsonPaths, read_log
from stillframe.imports import load_function, load_topology
from stillframe.pipeline import channel
from stillframe.pipeline.cut_view import amounts_in
from stillframe.protocol.action_runner import ActionRunner
from stillframe.protocol.wire import check_version
from stillframe.runtime.run_file import find_running
from stillframe.services import connected_agent
from stillframe.store.history import SnapshotPublished
from stillframe.store.store import Store
from stillframe.store.writer import local
from tests.runtime import programs
from tests.store.samples import DESCRIPTION, TOPOLOGY, publish


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store with two snapshots, open for writing."""
    made = Store.create(tmp_path / "store", description=DESCRIPTION)
    made.raise_epoch(None)
    publish(made, 1, 2)
    yield made
    made.close()


def fields(error: StillframeError) -> tuple[str | None, str | None, str | None]:
    """Return what an error is about."""
    return error.path, error.process, error.snapshot


def test_the_text_ends_with_the_remedy() -> None:
    """So that people read it, and programs have it alone."""
    error = Damaged("x is short", path=Path("x"), remedy="put it back")
    assert (str(error), error.remedy) == ("x is short: put it back", "put it back")
    assert fields(error) == ("x", None, None)
    plain = UsageError("no")
    assert (str(plain), plain.remedy, *fields(plain)) == ("no", None, None, None, None)


def test_who_raises_knows_best() -> None:
    """A caller adds what is not known yet, and replaces nothing."""
    error = Damaged("x is short", path="x")
    error.locate(path="directory", snapshot="P1-7", process="P1")
    assert fields(error) == ("x", "P1", "P1-7")


class Renamed(type):
    """Its classes have no name."""

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise LookupError


class Odd(str):
    """A text that does nothing."""

    __slots__ = ()

    def __str__(self) -> str:
        return self

    def __len__(self) -> int:
        raise LookupError

    encode = __getitem__ = __format__ = __len__  # type: ignore[assignment]


class Hostile(Exception, metaclass=Renamed):
    """An exception whose text is what a function returns, or raises."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __str__(self) -> str:
        text: str = self._make()
        return text

    __repr__ = __str__


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: 1 // 0, "Hostile (its str() raised ZeroDivisionError)"),
        (sys.exit, "Hostile (its str() raised SystemExit)"),
        (lambda: 7, "Hostile (its str() raised TypeError)"),
        (lambda: "c\udce9", "Hostile: c\\udce9"),
        (lambda: Odd("odd"), "Hostile: odd"),
        (lambda: "", "Hostile"),
        (lambda: "x" * (TEXT_LENGTH_MAX + 1), f"Hostile: {'x' * TEXT_LENGTH_MAX}... (10,001 chara"),
    ],
)
def test_the_text_of_an_exception_can_be_made_and_encoded(
    make: Callable[[], object], text: str
) -> None:
    """Whatever its class does: the class is named at least."""
    error = Hostile(make)
    assert describe(error).startswith(text)
    assert {type(text_of(error)), type(repr_of(error))} == {str}


class Cash(Message):
    """A message."""

    amount: int


class Till(Process):
    """A process whose handlers do what a function does."""

    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    _ask: Callable[..., Any] = print

    def receive(self, channel: Channel, message: Cash) -> None:
        """Ask."""
        self._ask()

    @every(ms=1)
    def act(self) -> None:
        """Ask."""
        self._ask()

    def on_cut(self, snapshot: object) -> None:
        """Ask."""
        self._ask()


def till_of(ask: Callable[..., Any]) -> ActionRunner:
    """Return a process that asks a function in its handlers."""
    till = Till()
    runner = ActionRunner("A", Topology({"A": till, "B": Till()}, [("B", "A")]))
    cast(Till, runner.process)._ask = ask
    return runner


def of_module(ask: Callable[..., Any], load: Callable[[str], object]) -> object:
    """Load something from a module that asks a function for each of its names."""
    module = sys.modules["hostile_module"] = ModuleType("hostile_module")
    module.__getattr__ = ask  # type: ignore[method-assign]
    try:
        return load("hostile_module:it")
    finally:
        del sys.modules["hostile_module"]


ASKED = SnapshotId("P", 7)
PLACES: dict[str, Callable[[Callable[..., Any]], object]] = {
    "a topology": lambda ask: of_module(ask, load_topology),
    "a predicate": lambda ask: of_module(ask, load_function),
    "an answer of a predicate": lambda ask: yes_or_no(ask, None, "m:f", "on P-7"),
    "is_passive": lambda ask: is_passive(SimpleNamespace(is_passive=ask), "A", ASKED),
    "waits_for": lambda ask: waits_for(SimpleNamespace(waits_for=ask), "A", ASKED),
    "conserved": lambda ask: conserved(SimpleNamespace(conserved=ask), "A", ASKED),
    "a property": lambda ask: conserved(type("T", (), {"conserved": property(ask)})(), "A", ASKED),
    "amounts": lambda ask: amounts_in(Mock(snapshot=ASKED), ask, "m:f"),
    "receive": lambda ask: till_of(ask).receive([(Channel("B", "A"), Cash(1))]),
    "an action": lambda ask: till_of(ask).act("act"),
    "on_cut": lambda ask: till_of(ask).cut(ASKED),
}


ERRORS: dict[str, BaseException] = {
    "Hostile (its str() raised ZeroDivisionError)": Hostile(lambda: 1 // 0),
    "Hostile: c\\udce9": Hostile(lambda: "c\udce9"),
    "SystemExit: 3": SystemExit(3),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("text", ERRORS)
def test_an_error_in_code_of_an_application_is_named_by_its_class(place: str, text: str) -> None:
    """Wherever it is called: whoever called it has an error of ours to report."""

    def ask(*_: object) -> NoReturn:
        raise ERRORS[text]

    with pytest.raises(StillframeError) as found:
        PLACES[place](ask)
    assert text in str(found.value)
    assert str(found.value).encode()


def test_errors_are_in_utf8() -> None:
    """So that each can be sent, stored and shown: a path may be no text."""
    error = UsageError("a c\udce9", path=Path("c\udce9"), remedy="use \ud800")
    assert (str(error), error.path) == ("a c\\udce9: use \\ud800", "c\\udce9")


def test_an_error_keeps_its_fields_on_its_way_to_another_program() -> None:
    """As Spark's Python processes send theirs: class, arguments and fields."""
    error = Damaged("x is short", path="x", snapshot="P1-7", remedy="put it back")
    reduced = error.__reduce__()
    assert isinstance(reduced, tuple)
    made, arguments, held = reduced
    again = made(*arguments)
    vars(again).update(held)
    assert type(again) is Damaged
    assert (str(again), again.remedy, fields(again)) == (str(error), error.remedy, fields(error))


def test_a_damaged_file_names_file_snapshot_and_remedy(store: Store) -> None:
    """Whichever file it is, and however it is read."""
    opened = stillframe.open_store(store.path)
    for name in ("processes.parquet", "manifest.json"):
        path = local(store.path) / "snapshots" / "A-1" / name
        path.write_bytes(path.read_bytes()[:-1])
        for read in (opened.load, opened.verify):
            with pytest.raises(Damaged) as caught:
                read("A-1")
            assert fields(caught.value) == (str(path), None, "A-1")
            assert caught.value.remedy is not None
            assert str(caught.value).endswith(f": {caught.value.remedy}")


def _agent_with(name: str, value: Any) -> object:
    settings: dict[str, Any] = {"collector": "127.0.0.1:1", "secret": bytes(16)}
    return connected_agent(**{"service": "a", "state": {"n": 1}, **settings, name: value})


def test_a_value_of_another_kind_is_refused(store: Store, tmp_path: Path) -> None:
    """Whatever takes an id, a name, a path or a part of a system says what it wants instead."""
    opened = stillframe.open_store(store.path)
    bank = Topology({"A": programs.Sink()}, [])
    world = sim.World(bank)
    view = cuts.CutView(world.trace(), (0,))
    shop = Pipeline.create(tmp_path / "shop", queries=["q"], channels=[])
    small = sim.SmallSystem(topology=bank)
    calls: list[Callable[[Any], object]] = [
        *(opened.load, opened.entry, opened.verify, SnapshotId.parse),
        *(stillframe.open_store, lambda wrong: stillframe.open_store(store.path, topology=wrong)),
        *(
            lambda wrong: stillframe.run(TOPOLOGY, store=wrong),
            lambda wrong: stillframe.run(wrong, store="x"),
        ),
        *(Topology.mesh, Topology.ring, lambda wrong: Topology(wrong, [])),
        *(
            lambda wrong: Topology({"A": wrong}, []),
            lambda wrong: Topology({wrong: programs.Sink()}, []),
        ),
        *(
            lambda wrong: Topology(bank.processes, wrong),
            lambda wrong: Topology(bank.processes, [wrong]),
        ),
        lambda wrong: ExternalProcess(state=wrong),
        *(stillframe.for_all, stillframe.for_any),
        *(Pipeline, lambda wrong: Pipeline.create(wrong, queries=["q"], channels=[])),
        lambda wrong: Pipeline.create(tmp_path / "x", queries=wrong, channels=[]),
        lambda wrong: Pipeline.create(tmp_path / "x", queries=["q"], channels=[wrong]),
        lambda wrong: channel("a", wrong, source="q"),
        *(shop.find, shop.view, shop.restore, shop.savepoint, shop.delete, shop.records),
        *(shop.timeline, shop.topic_records, shop.topic_filter),
        *(lambda wrong: shop.fork(wrong, tmp_path), lambda wrong: shop.fork("x", wrong)),
        lambda wrong: shop.join_service(wrong, state=None).__enter__(),
        *(world.take, world.recorded, sim.World, sim.parse_choice, sim.parse_script, sim.play_text),
        *(lambda wrong: sim.play(wrong, []), lambda wrong: sim.play(bank, [(0, wrong)])),
        *(lambda wrong: sim.replay(small, [wrong]), lambda wrong: sim.initiations(bank, wrong)),
        *(view.trace.event, view.trace.cut_of, view.trace.check_cut, view.count, view.last),
        *(view.events, view.in_transit, lambda wrong: cuts.explain(view.trace, wrong)),
        *(tracefile.read, lambda wrong: tracefile.write(wrong, view.trace)),
        *(read_log, JsonPaths.parse),
    ]
    names = ("service", "collector", "targets", "stored_fields", "shared", "certificates")
    calls += (functools.partial(_agent_with, name) for name in names)
    for call in calls:
        with pytest.raises(UsageError, match="42"):
            call(42)


def test_a_lost_snapshot_is_named(store: Store) -> None:
    """It was published, and its directory is gone."""
    store.history.append(SnapshotPublished(SnapshotId("A", 9), is_removal_noted=True))
    with pytest.raises(Damaged) as caught:
        stillframe.open_store(store.path).verify()
    assert fields(caught.value) == (str(store.path), None, "A-9")


def test_a_missing_snapshot_is_named(store: Store) -> None:
    """With the store that does not have it."""
    for name in ("A-7", "lost"):
        with pytest.raises(UsageError) as caught:
            stillframe.open_store(store.path).load(name)
        assert fields(caught.value) == (str(store.path), None, name)


def test_a_pipeline_that_does_not_exist_is_named(tmp_path: Path, store: Store) -> None:
    """So is something else in its place, whichever of the two is wanted."""
    stillframe.Pipeline.create(tmp_path / "p", queries=["q"], channels=[])
    (tmp_path / "file").touch()
    start = functools.partial(Store.create, description=DESCRIPTION)
    wrong: list[tuple[Callable[[Path], object], Path]] = [
        (stillframe.Pipeline, tmp_path / "nothing"),
        (stillframe.Pipeline, local(store.path)),
        (stillframe.open_store, tmp_path / "nothing"),
        (stillframe.open_store, tmp_path / "p"),
        (start, tmp_path / "file"),
        (start, tmp_path),
    ]
    for opened, path in wrong:
        with pytest.raises((UsageError, StoreError)) as caught:
            opened(path)
        assert caught.value.path == str(path)
        assert caught.value.remedy is not None


def test_a_file_in_place_of_a_directory_is_reported_as_one(tmp_path: Path) -> None:
    """Not as a disk that may be damaged."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="a file has that name"):
        Store.create(tmp_path / "file", description=DESCRIPTION)


def test_a_participant_in_use_is_named(tmp_path: Path) -> None:
    """With its pipeline and what to do."""
    pipeline = stillframe.Pipeline.create(
        tmp_path / "p", services={"books": programs.Books}, channels=[]
    )
    with (
        pipeline.join_service("books", state=programs.Books()),
        pytest.raises(Unavailable) as caught,
        pipeline.join_service("books", state=programs.Books()),
    ):
        pytest.fail("it has joined twice")
    assert fields(caught.value) == (str(tmp_path / "p"), "books", None)
    assert caught.value.remedy == "stop that one first"


def test_a_missing_snapshot_of_a_pipeline_is_named(tmp_path: Path) -> None:
    """By its id, or by a name."""
    pipeline = stillframe.Pipeline.create(tmp_path / "p", queries=["q"], channels=[])
    for name in (SnapshotId("p", 7), "p-7", "lost"):
        with pytest.raises(UsageError) as caught:
            pipeline.find(name)
        assert fields(caught.value) == (str(tmp_path / "p"), None, str(name))


def test_a_store_in_use_and_a_system_that_does_not_run_are_named(store: Store) -> None:
    """Each with what to do."""
    with pytest.raises(Unavailable) as caught:
        Store.open_writer(store.path)
    assert fields(caught.value) == (str(store.path), None, None)
    assert caught.value.remedy == "stop that program, or use another directory"
    with pytest.raises(Unavailable) as caught:
        find_running(store.path)
    assert fields(caught.value) == (str(store.path), None, None)
    assert caught.value.remedy is not None


def test_another_release_is_refused_with_a_remedy() -> None:
    """It says what to install where."""
    with pytest.raises(Refused) as caught:
        check_version(1, "the other end")
    assert (caught.value.remedy or "").startswith("run the same release")


@pytest.mark.slow
def test_the_process_whose_handler_raises_is_named(tmp_path: Path) -> None:
    """With the store that it can be restored from."""
    with pytest.raises(ApplicationError) as caught:
        stillframe.run(programs.raising_at_start, store=tmp_path / "raising")
    assert fields(caught.value) == (str(tmp_path / "raising"), "A", None)


@pytest.mark.slow
def test_a_restore_by_other_code_names_snapshot_and_remedy(tmp_path: Path) -> None:
    """So that a program can offer a migration."""
    path = tmp_path / "store"
    with stillframe.run(programs.rally, store=path, interval_s=None) as system:
        first = system.savepoint("first")
    assert isinstance(first, SnapshotEntry)
    with pytest.raises(UsageError) as caught:
        stillframe.run(programs.pipeline, store=path, restore="first")
    assert fields(caught.value) == (str(path), None, str(first.id))
    assert "--migrate" in (caught.value.remedy or "")
