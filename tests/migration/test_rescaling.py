"""Other processes: the application says who goes on with what; books and sums are checked."""

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
import pytest

from stillframe import Channel, InTransit, Message, Process, Recorded, Topology
from stillframe.errors import ApplicationError, UsageError
from stillframe.migration import Migration, migrate
from stillframe.process import Quantities
from stillframe.restore import start_states
from stillframe.topology import ExternalProcess, Redistribute
from tests.migration.systems import messages_of, snapshot_of, states_of


class Coin(Message):
    """Money on its way."""

    amount: int

    def conserved(self) -> Quantities:
        """Not lost on the way."""
        return {"coins": self.amount}


class Purse(Process):
    """Holds money."""

    coins: int = 0
    note: str = ""

    def conserved(self) -> Quantities:
        """Nor here."""
        return {"coins": self.coins}

    def receive(self, channel: Channel, message: Coin) -> None:
        """Take it."""


TWO = Topology.mesh({"A": Purse(), "B": Purse()})
SNAPSHOT = snapshot_of(
    TWO,
    {"A": {"coins": 10, "note": "a"}, "B": {"coins": 5, "note": "b"}},
    {("A", "B"): [Coin(1), Coin(2)], ("B", "A"): [Coin(4)]},
)


def to(names: str, redistribute: Redistribute | None, kind: Any = Purse) -> Migration:
    """Migrate to purses with these names, each connected to each."""
    topology = Topology.mesh({name: kind() for name in names}, redistribute=redistribute)
    migration = migrate(SNAPSHOT, TWO.description, topology)
    assert start_states(migration.snapshot, topology.description).keys() == set(names)
    return migration


def test_the_application_sees_plain_values() -> None:
    """Every field and every message, in the order in which they were sent."""
    seen: list[Recorded] = []

    def look(recorded: Recorded) -> Recorded:
        seen.append(recorded)
        states = {name: recorded.states.get(name, {}) for name in "ABC"}
        return Recorded(states, recorded.messages)

    to("ABC", look)
    assert seen == [
        Recorded(
            {"A": {"coins": 10, "note": "a"}, "B": {"coins": 5, "note": "b"}},
            (
                InTransit("A", "B", "Coin", {"amount": 1}),
                InTransit("A", "B", "Coin", {"amount": 2}),
                InTransit("B", "A", "Coin", {"amount": 4}),
            ),
        )
    ]


def test_a_split() -> None:
    """States and messages go where the application puts them; numbers begin anew, and a field that
    it left out begins as the topology starts it."""

    def split(recorded: Recorded) -> Recorded:
        coins = {name: {"coins": fields["coins"]} for name, fields in recorded.states.items()}
        moved = tuple(msgspec.structs.replace(m, target="C") for m in recorded.messages)
        return Recorded(coins | {"C": {"coins": 0, "note": "new"}}, moved)

    migration = to("ABC", split)
    assert states_of(migration.snapshot) == {
        "A": {"coins": 10, "note": ""},
        "B": {"coins": 5, "note": ""},
        "C": {"coins": 0, "note": "new"},
    }
    assert messages_of(migration.snapshot) == {
        "A->C": [["Coin", 1], ["Coin", 2]],
        "B->C": [["Coin", 4]],
    }
    migration.snapshot.state.check_books()
    counts = {str(c.channel): c.sent_count for c in migration.snapshot.state.channels}
    assert counts == {"A->B": 0, "A->C": 2, "B->A": 0, "B->C": 1, "C->A": 0, "C->B": 0}
    said = [str(change) for change in migration.changes]
    (loss,) = migration.losses
    assert loss.sentence == "note of A, B is missing from the result of redistribute"
    assert (
        "messages: 3 messages were in transit, and redistribute put 3 on the current channels"
        in said
    )
    assert "conserved: 22 coins before and after" in said


def test_a_merge() -> None:
    """What was on its way between processes that are one now is taken into its state."""

    def merge(recorded: Recorded) -> Recorded:
        owned = sum(fields["coins"] for fields in recorded.states.values())
        moving = sum(message.fields["amount"] for message in recorded.messages)
        return Recorded({"Z": {"coins": owned + moving}}, ())

    assert states_of(to("Z", merge).snapshot) == {"Z": {"coins": 22, "note": ""}}


def test_fields_are_renamed_after_it() -> None:
    """The application is given, and may return, the fields as they were recorded."""

    class Wallet(Process):
        renamed: ClassVar = {"cents": "coins"}

        cents: int = 0

        def receive(self, channel: Channel, message: Coin) -> None:
            """Take it."""

    def keep(recorded: Recorded) -> Recorded:
        return Recorded(recorded.states | {"C": {"cents": 3}}, recorded.messages)

    migration = to("ABC", keep, Wallet)
    assert states_of(migration.snapshot) == {
        "A": {"cents": 10},
        "B": {"cents": 5},
        "C": {"cents": 3},
    }
    said = [str(change) for change in migration.changes]
    assert "class Wallet, formerly Purse: note was removed: its recorded values are lost" in said
    assert "conserved: not compared before and after: class Purse no longer exists" in said


def test_money_that_is_not_passed_on_is_refused() -> None:
    """The quantity and both sums are named."""

    def forget(recorded: Recorded) -> Recorded:
        return Recorded(recorded.states | {"C": {}}, recorded.messages[1:])

    with pytest.raises(
        UsageError, match="before redistribute there were 22 coins, after it there are 21"
    ):
        to("ABC", forget)


def test_without_a_function_other_processes_are_refused() -> None:
    """The error says which are gone and which are new, and what to give."""
    with pytest.raises(
        UsageError, match=r"removed: B; new: C, D\. .*Topology\(\.\.\., redistribute=\.\.\.\)"
    ):
        to("ACD", None)


@pytest.mark.parametrize(
    ("states", "messages", "said"),
    [
        ({"A": {}}, (), "states of A, but the processes are A, B, C: only one of the two has B"),
        (
            {"A": {"coin": 1}, "B": {}, "C": {}},
            (),
            "process A a field 'coin', which it has neither in the snapshot nor",
        ),
        ({"A": {"note": object()}, "B": {}, "C": {}}, (), "cannot be encoded: the state of A"),
        (None, (InTransit("A", "Q", "Coin", {"amount": 1}),), "channel A->Q, which does not exist"),
        (None, (InTransit("A", "B", "Coin", {"sum": 1}),), "with the fields sum"),
        (None, (InTransit("A", "B", "Note", {}),), "messages are Coin"),
    ],
)
def test_what_does_not_fit_is_refused(
    states: dict[str, dict[str, Any]] | None, messages: tuple[InTransit, ...], said: str
) -> None:
    """It is said of redistribute, with what was wrong."""
    given = {"A": {"coins": 22}, "B": {}, "C": {}} if states is None else states
    with pytest.raises(ApplicationError, match="redistribute ") as refused:
        to("ABC", lambda recorded: Recorded(given, messages))
    assert said in str(refused.value)


def test_a_value_of_another_type_is_refused_with_its_process() -> None:
    """What redistribute returns is read as what was recorded is."""
    states: dict[str, dict[str, Any]] = {"A": {"coins": "many"}, "B": {}, "C": {}}
    with pytest.raises(UsageError, match=r"process A \(Purse\): coins was 'many'"):
        to("ABC", lambda recorded: Recorded(states, ()))


def _raises(recorded: Recorded) -> Recorded:
    raise KeyError("accounts")


@pytest.mark.parametrize(
    ("function", "said"),
    [(_raises, "raised KeyError: 'accounts', on snapshot A-7"), (lambda recorded: None, "None")],
)
def test_a_function_that_does_not_work(function: Callable[..., Any], said: str) -> None:
    """The error says that it is the application's."""
    with pytest.raises(ApplicationError, match=f"redistribute .*{said}"):
        to("ABC", function)


def test_joined_programs_are_spread_too() -> None:
    """Their states are given and taken alike."""

    class Books(msgspec.Struct):
        total: int = 0

    old = Topology({"A": ExternalProcess(state=Books)}, [])
    now = Topology(
        {name: ExternalProcess(state=Books) for name in "AB"},
        [],
        redistribute=lambda recorded: Recorded(
            {"A": {"total": 1}, "B": {"total": recorded.states["A"]["total"] - 1}}, ()
        ),
    )
    migration = migrate(snapshot_of(old, {"A": {"total": 9}}), old.description, now)
    assert states_of(migration.snapshot) == {"A": {"total": 1}, "B": {"total": 8}}
