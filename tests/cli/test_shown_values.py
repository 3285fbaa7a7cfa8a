"""Every place that shows recorded values shows all of them, and each otherwise than its double."""

import json
import math
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stillframe import Message, Process, Topology, open_store
from stillframe.cli.output import cell
from stillframe.json_values import json_text
from stillframe.model import Channel
from stillframe.store.observation_tables import state_of
from stillframe.store.store import Store
from stillframe.store.tables import Tables, former_json_texts
from tests.cli.conftest import Call
from tests.cli.test_snapshot_page import document_in
from tests.store.call_samples import stored
from tests.store.observation_samples import observed
from tests.store.samples import global_state, snapshot_of
from tests.test_json_values import refuse

DOUBLES: dict[str, tuple[Any, Any]] = {
    "ratio": (math.nan, "nan"),
    "limit": (math.inf, -math.inf),
    "nothing": ([math.nan], [None]),
    "mixed": ({1: 10, "1": 20}, {"1": 20}),
    "payload": (b"nan", "bmFu"),
    "zero": (0.0, -0.0),
    "large": (2**63, 2**63 + 1),
    "key": ({1: 1}, {"$1": 1}),
    "form": ({"$float": "nan"}, [{"$float": "nan"}, math.nan]),
    "pair": ({(1, 2): 3}, {"[1, 2]": 3}),
    "text": (7, "7"),
    "long": ("x" * 99 + "1", "x" * 99 + "2"),
}
LONG = "long"
BEFORE, AFTER = ({name: pair[side] for name, pair in DOUBLES.items()} for side in (0, 1))


class Odd(Message):
    """Carries any value."""

    value: Any


class Hostile(Process):
    """Its values are what JSON, JavaScript or a table would take for others."""

    ratio: Any
    limit: Any
    nothing: Any
    mixed: Any
    payload: Any
    zero: Any
    large: Any
    key: Any
    form: Any
    pair: Any
    text: Any
    long: Any

    def receive(self, channel: Channel, message: Odd) -> None:
        """Take it."""


SYSTEM = Topology({"A": Hostile(**BEFORE), "B": Hostile(**BEFORE)}, [("A", "B")])


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with both values of each pair, in states and on a channel."""
    path = tmp_path_factory.mktemp("shown") / "store"
    store = Store.create(path, description=SYSTEM.description)
    store.raise_epoch(None)
    for number, values in enumerate((BEFORE, AFTER), 1):
        messages: Any = {("A", "B"): [Odd(values)]}
        state = global_state(messages, {"A": Hostile(**values)}, topology=SYSTEM)
        store.publish(snapshot_of(number, state))
    store.close()
    return path


@pytest.fixture(scope="module")
def observations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of observations, in which a state has both values of each pair."""
    first = observed("deaths", 4)[0][0]
    found = []
    for number, values in enumerate((BEFORE, AFTER), 1):
        name, fragment = next(iter(first.fragments.items()))
        encoded = msgspec.msgpack.encode(values)
        state = msgspec.structs.replace(state_of(fragment), encoded=encoded)
        fragments = first.fragments | {name: msgspec.structs.replace(fragment, state=state)}
        found.append(msgspec.structs.replace(first, number=number, fragments=fragments))
    return stored(tmp_path_factory.mktemp("shown") / "seen", *found)


def in_json(*words: str) -> Callable[[Call, Path, Path], Collection[str]]:
    """Return what runs a command with ``--json``, and returns its output in parts."""

    def run(call: Call, store: Path, out: Path) -> Collection[str]:
        del out
        shown = call(words[0], store, *words[1:], "--json").stdout
        found: list[str] = []

        def add(value: Any) -> Any:
            found.append(msgspec.json.encode(value).decode())
            for part in value.values() if isinstance(value, dict) else value:
                add(part) if isinstance(part, dict | list) else found.append(
                    msgspec.json.encode(part).decode()
                )

        add(json.loads(shown, parse_constant=refuse))
        return found

    return run


def in_table(*words: str) -> Callable[[Call, Path, Path], Collection[str]]:
    """Return what runs a command, and returns the cells of its tables."""
    return lambda call, store, out: re.split(r" {2,}|\n", call(words[0], store, *words[1:]).stdout)


def on_page(*words: str) -> Callable[[Call, Path, Path], Collection[str]]:
    """Return what makes a page, and returns the texts of its values."""

    def run(call: Call, store: Path, out: Path) -> Collection[str]:
        assert call("view", store, *words, "--out", out / "page.html").exit_code == 0
        found: list[str] = []
        pending: list[Any] = [document_in(out / "page.html")]
        while pending:
            part = pending.pop()
            if isinstance(part, dict | list):
                pending += part.values() if isinstance(part, dict) else part
                found += [part["text"]] if isinstance(part, dict) and "text" in part else []
        return found

    return run


def in_tables(call: Call, store: Path, out: Path) -> Collection[str]:
    """Return the columns of JSON that SQL sees."""
    del call, out
    [row, _] = open_store(store).load("A-1").tables["processes"].to_pylist()
    return [row[name] for name in DOUBLES]


ONE_SNAPSHOT = [
    in_json("show", "A-1"),
    in_table("show", "A-1"),
    on_page("--snapshot", "A-1"),
    in_tables,
]
TWO_SNAPSHOTS = [
    in_json("diff", "A-1", "A-2"),
    in_table("diff", "A-1", "A-2"),
    on_page("--snapshot", "A-2", "--compare", "A-1"),
]
ONE_OBSERVATION = [in_json("show", "1"), in_table("show", "1"), on_page("1")]
TWO_OBSERVATIONS = [in_json("diff", "1", "2"), in_table("diff", "1", "2")]


@pytest.mark.parametrize(
    ("place", "kind", "is_pair"),
    [
        *((place, "snapshots", False) for place in ONE_SNAPSHOT),
        *((place, "snapshots", True) for place in TWO_SNAPSHOTS),
        *((place, "observations", False) for place in ONE_OBSERVATION),
        *((place, "observations", True) for place in TWO_OBSERVATIONS),
    ],
)
def test_each_place_shows_what_was_recorded(
    place: Callable[[Call, Path, Path], Collection[str]],
    kind: str,
    is_pair: bool,
    call: Call,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    """As JSON, or as the text of a cell."""
    shown = {text.strip() for text in place(call, request.getfixturevalue(kind), tmp_path)}
    for name, pair in DOUBLES.items():
        for value in pair if is_pair else pair[:1]:
            assert name == LONG or shown & {json_text(value), cell(value)}, (name, value, shown)


def test_two_long_values_are_shown_from_where_they_differ(call: Call, snapshots: Path) -> None:
    """The ends of both are in the table."""
    shown = call("diff", snapshots, "A-1", "A-2").stdout
    assert "xx1 " in shown
    assert "xx2" in shown


def test_a_snapshot_of_release_0_2_is_verified(tmp_path: Path) -> None:
    """Its columns of JSON do not say all of it, and are as that release wrote them."""
    store = Store.create(tmp_path / "store", description=SYSTEM.description)
    store.raise_epoch(None)
    store._tables[SYSTEM.description.hash] = Tables(SYSTEM.description, former_json_texts)
    store.publish(snapshot_of(1, global_state(topology=SYSTEM)))
    store.close()
    snapshot = open_store(tmp_path / "store").load("A-1")
    assert snapshot.processes["A"]["mixed"] == BEFORE["mixed"]
    assert Store.open(tmp_path / "store").verify_all(lambda entry, count: None) == 1
    column = Store.open(tmp_path / "store").tables(snapshot.id)["processes"]["ratio"]
    assert column.to_pylist() == ["null", "null"]
