"""A topology says what does not fit, and its description is the same for everybody."""

import dataclasses
import datetime
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillframe.errors import UsageError
from stillframe.keyed import Keyed
from stillframe.model import Channel
from stillframe.process import Message, Process
from stillframe.topology import Column, Description, ExternalProcess, KeyedColumns, Topology


class Coin(Message):
    """Money."""

    amount: int


class Note(Message):
    """Words."""

    text: str
    at: datetime.datetime
    lines: list[str]


class Purse(Process):
    """Takes both."""

    balance: int = 0
    rate: float = 0.0
    tags: dict[str, int] = dataclasses.field(default_factory=dict)

    def receive(self, channel: Channel, message: Coin | Note) -> None:
        """Take it."""


class Deaf(Process):
    """Takes nothing."""

    is_on: bool = True
    key: bytes = b""


@dataclasses.dataclass
class Counter:
    """The state of a program of its own."""

    count: int = 0


def purses(names: str, *channels: str) -> Topology:
    """Return a topology of purses: ``purses("ABC", "AB", "BC")``."""
    return Topology({name: Purse() for name in names}, [(c[0], c[1]) for c in channels])


def test_a_description_holds_everything_sorted() -> None:
    """Processes, channels, columns by class and what each process takes."""
    topology = Topology(
        {"C": Deaf(), "A": Purse(), "J": ExternalProcess(state=Counter, accepts=Coin)},
        [("J", "A"), ("A", "J"), ("C", "A")],
    )
    description = topology.description
    assert description.shapes.keys() == {"Purse", "Deaf", "Counter", "Coin", "Note"}
    assert msgspec.structs.replace(description, shapes={}) == Description(
        processes={"A": "Purse", "C": "Deaf", "J": "Counter"},
        channels=(Channel("A", "J"), Channel("C", "A"), Channel("J", "A")),
        states={
            "Purse": (Column("balance", "int"), Column("rate", "float"), Column("tags", "json")),
            "Deaf": (Column("is_on", "bool"), Column("key", "bytes")),
            "Counter": (Column("count", "int"),),
        },
        messages={
            "Coin": (Column("amount", "int"),),
            "Note": (Column("text", "text"), Column("at", "time"), Column("lines", "json")),
        },
        accepts={"A": ("Coin", "Note"), "C": (), "J": ("Coin",)},
    )
    assert list(topology.processes) == ["A", "C", "J"]
    assert topology.accepts["A"] == (Coin, Note)


def test_a_hash_is_of_the_description_alone() -> None:
    """Equal descriptions have equal hashes, whatever the order in which they were written."""
    one, other = purses("AB", "AB", "BA"), purses("BA", "BA", "AB")
    assert one.description.hash == other.description.hash
    decoded = msgspec.json.decode(msgspec.json.encode(one.description), type=Description)
    assert (decoded, decoded.hash) == (one.description, one.description.hash)
    assert len(decoded.hash) == 64
    different = {
        topology.description.hash
        for topology in (
            *(one, purses("ABC", "AB", "BA"), purses("AB", "AB")),
            Topology({"A": Purse(), "B": Deaf()}, [("A", "B"), ("B", "A")]),
        )
    }
    assert len(different) == 4


def test_channels_of_a_process() -> None:
    """Sources into it and targets out of it, sorted."""
    description = purses("ABC", "CA", "BA", "AC").description
    assert (description.incoming("A"), description.outgoing("A")) == (("B", "C"), ("C",))
    assert (description.incoming("B"), description.outgoing("C")) == ((), ("A",))


def test_a_mesh_joins_all_and_a_ring_the_next() -> None:
    """n(n-1) channels, and n in the order that was given."""
    everybody = {name: Purse() for name in "BCA"}
    assert len(Topology.mesh(everybody).description.channels) == 6
    assert Topology.ring(everybody).description.channels == (
        *(Channel("A", "B"), Channel("B", "C"), Channel("C", "A")),
    )
    with pytest.raises(UsageError, match="at least two"):
        Topology.ring({"A": Purse()})


def test_an_initiator_that_reaches_all_is_enough() -> None:
    """In a strongly connected graph the markers of one reach every process."""
    assert purses("ABC", "AB", "BC", "CA").description.initiators("B") == ("B",)


def test_more_initiators_where_markers_do_not_reach() -> None:
    """Upstream processes begin by themselves; the one that reaches most goes first."""
    description = purses("ABCD", "AB", "BC", "CD").description
    assert description.initiators("A") == ("A",)
    assert description.initiators("C") == ("C", "A")
    assert purses("ABC").description.initiators("B") == ("B", "A", "C")
    with pytest.raises(UsageError, match="no process 'X'; there are A, B, C"):
        purses("ABC").description.initiators("X")


@given(
    st.sets(st.tuples(st.sampled_from("ABCDE"), st.sampled_from("ABCDE"))), st.sampled_from("ABCDE")
)
def test_markers_of_the_initiators_reach_everybody(pairs: set[tuple[str, str]], first: str) -> None:
    """Against brute force: following channels from all initiators visits every process."""
    edges = {(a, b) for a, b in pairs if a != b}
    chosen = purses("ABCDE", *(a + b for a, b in edges)).description.initiators(first)
    assert chosen[0] == first
    reached = set(chosen)
    for _ in range(5):
        reached |= {b for a, b in edges if a in reached}
    assert reached == set("ABCDE")
    assert len(set(chosen)) == len(chosen)


class Impostor:
    """No process."""


class SameName:
    """Holds a class that is called like another."""

    class Purse(Process):
        """Not the other one."""

        count: int = 0


class OtherCoin(Message, tag="Coin"):
    """Travels under the name of another."""

    weight: int


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: Topology({}, []), "at least one process"),
        (lambda: Topology({"1": Purse()}, []), "'1' cannot name a process"),
        (lambda: purses("AB", "AX"), "channel A->X: there is no process 'X'; there are A, B"),
        (lambda: purses("AB", "XA"), "there is no process 'X'"),
        (lambda: purses("AB", "AA"), "channel A->A: a channel joins two different"),
        (lambda: purses("AB", "AB", "AB"), "channel A->B is given twice"),
        (lambda: Topology({"A": Impostor()}, []), "process 'A' is .*: give an instance"),  # type: ignore[dict-item]
        (lambda: Topology({"A": Purse}, []), "process 'A' is .*: give an instance"),  # type: ignore[dict-item]
        (
            lambda: Topology({"A": Purse(), "B": SameName.Purse()}, []),
            "two different process classes are called Purse",
        ),
        (
            lambda: Topology(
                {"A": Purse(), "B": ExternalProcess(state=Counter, accepts=OtherCoin)}, []
            ),
            "two different message classes are called Coin",
        ),
        (
            lambda: Topology({"A": ExternalProcess(state=Counter, accepts=int)}, []),
            r"process 'A' \(Counter\): <class 'int'> is not a message class",
        ),
    ],
)
def test_what_does_not_fit_is_named(make: Callable[[], Any], found: str) -> None:
    """Each mistake in a topology has a sentence of its own."""
    with pytest.raises(UsageError, match=found):
        make()


def test_a_value_with_a_private_field_is_json() -> None:
    """No column of a field begins with an underscore: those are the store's own."""
    value = msgspec.defstruct("Value", [("amount", int), ("_process", str)], frozen=True)
    state = dataclasses.make_dataclass("Odd", [("found", Keyed[str, value])])  # type: ignore[valid-type]
    description = Topology({"A": ExternalProcess(state=state)}, []).description
    expected = KeyedColumns("text", "value", (Column("value", "json"),))
    assert description.keyed == {"Odd": {"found": expected}}


def test_check_process_lists_what_there_is() -> None:
    """A wrong name is answered with the right ones."""
    description = Topology({"A2": Purse(), "A10": Purse()}, []).description
    description.check_process("A2")
    with pytest.raises(UsageError, match="no process 'C'; there are A2, A10"):
        description.check_process("C")


class Optional(Message):
    """May hold nothing."""

    amount: int | None
    either: int | str


class OptionalTaker(Process):
    """Takes it."""

    def receive(self, channel: Channel, message: Optional) -> None:
        """Take it."""


def test_what_may_be_missing_keeps_its_kind_of_column() -> None:
    """``int | None`` is a column of whole numbers; a real choice of types is JSON."""
    description = Topology({"A": OptionalTaker()}, []).description
    assert description.messages["Optional"] == (Column("amount", "int"), Column("either", "json"))


class Twins(Process):
    """Two fields that SQL engines would take for one."""

    total: int = 0
    Total: int = 0


class Loud(Message):
    """Has a field that they would take for one of a Coin."""

    AMOUNT: int


class Shouter(Process):
    """Takes it, and has a field that they would take for one of a Purse."""

    BALANCE: int = 0

    def receive(self, channel: Channel, message: Loud) -> None:
        """Take it."""


class Hearer(Process):
    """Takes it."""

    def receive(self, channel: Channel, message: Loud) -> None:
        """Take it."""


class Row(msgspec.Struct, frozen=True):
    """The value of a key, with two such fields."""

    total: int
    Total: int


class Table(Process):
    """Has them as columns of a table."""

    rows: Keyed[str, Row] = dataclasses.field(default_factory=Keyed)


class Secretive(Message):
    """Has a field that looks private."""

    _amount: int


class SecretTaker(Process):
    """Takes it."""

    def receive(self, channel: Channel, message: Secretive) -> None:
        """Take it."""


def process_with(name: str, **fields: Any) -> Process:
    """Return a process whose class has these fields: each a type."""
    made: Process = type(name, (Process,), {"__annotations__": fields, **dict.fromkeys(fields)})()
    return made


@pytest.mark.parametrize(
    ("processes", "found"),
    [
        ([Twins()], r"the fields Twins\.total and Twins\.Total differ only in case"),
        (
            [Purse(), Shouter()],
            r"the fields Purse\.balance and Shouter\.BALANCE differ only in case",
        ),
        ([Purse(), Hearer()], r"the fields Coin\.amount and Loud\.AMOUNT differ only in case"),
        ([Table()], r"the fields Row\.total and Row\.Total differ only in case"),
        ([process_with("Greek", σ=int, ς=int)], r"Greek\.\w and Greek\.\w differ only in case"),
        ([SecretTaker()], "'_amount' travels"),
        ([process_with("Long", **{"ä" * 98: Keyed[str, int]})], "201 bytes: at most 200 are"),
    ],
)
def test_fields_that_tables_could_not_hold_are_refused(
    processes: list[Process], found: str
) -> None:
    """A column that would be lost or mixed up is an error before anything starts."""
    with pytest.raises(UsageError, match=found):
        Topology(dict(zip("AB", processes, strict=False)), [])


def nested(*fields: str) -> Topology:
    """Return a topology whose message holds a struct with these fields, in this order."""
    inner = msgspec.defstruct("Inner", [(name, int) for name in fields], array_like=True)
    outer = type("Outer", (Message,), {"__annotations__": {"inner": inner}})

    def receive(self: Process, channel: Channel, message: Any) -> None:
        """Take it."""

    receive.__annotations__["message"] = outer
    return Topology({"A": type("Taker", (Process,), {"receive": receive})()}, [])


def test_a_hash_tells_nested_classes_apart() -> None:
    """Two fields that change places would be read back the wrong way round."""
    assert nested("a", "b").description.hash == nested("a", "b").description.hash
    assert nested("a", "b").description.hash != nested("b", "a").description.hash


def test_targets_on_a_cycle() -> None:
    """Those that lead back, over however many channels."""
    description = purses("ABCD", "AB", "BC", "CA", "CD").description
    assert description.cyclic_targets("A") == {"B"}
    assert description.cyclic_targets("C") == {"A"}
    assert purses("AB", "AB").description.cyclic_targets("A") == frozenset()


def test_the_first_process_is_the_first_one_declared() -> None:
    """Not the first by name: it initiates snapshots where no process is named."""
    for topology in (
        Topology.mesh({"Z": Purse(), "A": Purse()}),
        Topology.ring({"Z": Purse(), "A": Purse()}),
        Topology({"Z": Purse(), "A": Purse()}, []),
    ):
        assert topology.first == "Z"
        assert list(topology.processes) == ["A", "Z"]
