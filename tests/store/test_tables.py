"""Any state that a system can be in is kept exactly, and its columns say the same."""

import datetime
import itertools
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stillframe.errors import NotConsistent, UsageError
from stillframe.model import Batch, ProcessState, SnapshotId
from stillframe.process import Process
from stillframe.store.manifest import FILES, MESSAGES, PROCESSES
from stillframe.store.parquet import different_column, read_parquet, to_parquet
from stillframe.store.store import Store
from stillframe.store.tables import Tables
from stillframe.store.writer import local
from stillframe.topology import Topology
from tests.nightly import examples
from tests.store.samples import (
    DESCRIPTION,
    Account,
    Fee,
    Till,
    Transfer,
    batches_of,
    global_state,
    snapshot_of,
)

ID = SnapshotId("A", 1)
# Integers share a column with floats here: beyond 2**53 they are refused, not rounded.
EXACT = st.integers(-(2**53), 2**53)
TIMES = st.datetimes(
    timezones=st.sampled_from(
        [datetime.UTC, datetime.timezone(datetime.timedelta(hours=5, minutes=30))]
    ),
    min_value=datetime.datetime(2, 1, 1),  # noqa: DTZ001 -- hypothesis adds the zone
    max_value=datetime.datetime(9998, 1, 1),  # noqa: DTZ001
)
TRANSFERS = st.builds(Transfer, EXACT, st.none() | TIMES)
FEES = st.builds(Fee, st.floats(), st.text(), st.binary(), st.booleans(), TIMES)
MESSAGES_OF = {
    ("A", "B"): st.lists(TRANSFERS | FEES),
    ("B", "A"): st.lists(FEES),
    ("B", "T"): st.lists(TRANSFERS),
}
ACCOUNTS = st.builds(
    Account, balance=EXACT, name=st.text(), history=st.lists(st.integers(0, 2**63 - 1))
)
TILLS = st.builds(Till, balance=st.floats(), is_open=st.booleans())


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    """A store for all examples."""
    with tempfile.TemporaryDirectory() as directory:
        made = Store.create(Path(directory) / "store", description=DESCRIPTION)
        made.raise_epoch(None)
        yield made
        made.close()


@settings(max_examples=examples(30))
@given(
    on_channels=st.fixed_dictionaries(MESSAGES_OF),
    processes=st.fixed_dictionaries({"A": ACCOUNTS, "B": ACCOUNTS, "T": TILLS}),
)
def test_what_is_published_is_loaded(
    store: Store, on_channels: dict[Any, list[Any]], processes: dict[str, Process]
) -> None:
    """States and messages of several classes come back byte by byte, and verify agrees."""
    snapshot = snapshot_of(store.next_number(), global_state(on_channels, processes))
    entry = store.publish(snapshot)
    assert store.load(snapshot.id) == snapshot
    store.verify(snapshot.id)
    rows = read_parquet((local(entry.directory) / MESSAGES).read_bytes()).to_pylist()
    sent = list(itertools.chain.from_iterable(on_channels[name] for name in sorted(on_channels)))
    assert [row["_kind"] for row in rows] == [type(message).__name__ for message in sent]
    for row, message in zip(rows, sent, strict=True):
        assert row["amount"] == message.amount or math.isnan(row["amount"])
        assert row["note"] == getattr(message, "note", None)
        assert row["when"] == getattr(message, "when", None)


def test_a_field_that_did_not_travel_is_null() -> None:
    """A message of an older program, with fewer fields, leaves the last ones empty."""
    state = global_state({("B", "T"): [Transfer(3)]})
    short = Batch.of(21, [msgspec.msgpack.encode(["Transfer", 3])])
    last = msgspec.structs.replace(state.channels[-1], batches=(short,))
    state = msgspec.structs.replace(state, channels=(*state.channels[:-1], last))
    [row] = Tables(DESCRIPTION).of(ID, state)[MESSAGES].to_pylist()
    assert (row["_kind"], row["_number"], row["amount"], row["at"]) == ("Transfer", 21, 3.0, None)


@pytest.mark.parametrize(
    "message", [["Gone", 1], ["Transfer", 1, None, "too many"], [], 5, {"a": 1}, [1, 2]]
)
def test_what_is_no_message_of_the_topology_is_named(message: Any) -> None:
    """The error names the channel, the numbers and the classes that there are."""
    state = global_state({("B", "T"): [Transfer(3)]})
    odd = msgspec.structs.replace(
        state.channels[-1], batches=(Batch.of(21, [msgspec.msgpack.encode(message)]),)
    )
    state = msgspec.structs.replace(state, channels=(*state.channels[:-1], odd))
    with pytest.raises(NotConsistent, match=r"B->T, messages 21 to 21.*\(Fee, Transfer\)"):
        Tables(DESCRIPTION).of(ID, state)


def test_a_topology_without_messages_has_tables() -> None:
    """Processes that send nothing make a snapshot, too."""
    topology = Topology({"A": Till()}, [])
    silent = msgspec.structs.replace(topology.description, messages={})
    made = Tables(silent).of(ID, global_state(topology=topology))
    assert [made[name].num_rows for name in FILES] == [1, 0, 0]


def test_a_state_that_is_no_map_is_named() -> None:
    """A recorded state that no codec wrote is refused with its process."""
    state = global_state()
    odd = ProcessState("A", "Account", b"\x01")
    state = msgspec.structs.replace(state, processes=(odd, *state.processes[1:]))
    with pytest.raises(UsageError, match="process A: its state is not a MessagePack map"):
        Tables(DESCRIPTION).of(ID, state)


def test_processes_of_all_classes_share_a_table() -> None:
    """A column per field of any class; null where a class lacks it; lists as JSON."""
    state = global_state(processes={"A": Account(balance=7, name="x", history=[1, 2])})
    rows = Tables(DESCRIPTION).of(ID, state)[PROCESSES].to_pylist()
    assert [
        (r["_process"], r["_kind"], r["balance"], r["name"], r["history"], r["is_open"])
        for r in rows
    ] == [
        ("A", "Account", 7.0, "x", "[1,2]", None),
        ("B", "Account", 100.0, "", "[]", None),
        ("T", "Till", 0.5, None, None, True),
    ]


def test_parquet_shows_plain_types() -> None:
    """A reader sees texts and numbers, no dictionaries of ours."""
    made = Tables(DESCRIPTION).of(ID, global_state({("B", "T"): [Transfer(3)]}))
    schema = read_parquet(to_parquet(made[MESSAGES])).schema
    types = {field.name: field.type for field in schema}
    assert {types[f"_{name}"] for name in "snapshot source target kind".split()} == {pa.string()}
    assert types["note"] == pa.string()
    assert (types["_number"], types["amount"]) == (pa.int64(), pa.float64())
    assert (types["seal"], types["is_urgent"]) == (pa.binary(), pa.bool_())
    assert types["when"] == pa.timestamp("us", tz="UTC")


@pytest.mark.parametrize(
    ("one", "other", "column"),
    [
        ({"x": [math.nan]}, {"x": [math.nan]}, None),
        ({"x": [0.0]}, {"x": [-0.0]}, "x"),
        ({"x": [1.0], "y": [None]}, {"x": [1.0], "y": [2]}, "y"),
        ({"x": [1]}, {"x": [1, 2]}, "x"),
        ({"x": [1]}, {"y": [1]}, "x"),
        ({"x": [1]}, {"x": ["1"]}, "x"),
    ],
)
def test_tables_are_compared_bit_by_bit(one: Any, other: Any, column: str | None) -> None:
    """A NaN is itself, and minus zero is not zero."""
    assert different_column(pa.table(one), pa.table(other)) == column


def test_batches_keep_their_bounds() -> None:
    """The sample's batches are numbered without a gap, whatever their size."""
    batches = batches_of(5, [Transfer(n) for n in range(7)], size=3)
    assert [(b.first, b.count) for b in batches] == [(5, 3), (8, 3), (11, 1)]
