"""A snapshot goes on with changed classes: field by field, message by message, or it is refused."""

import dataclasses
from typing import Any, ClassVar

import msgspec
import pytest

from stillframe.errors import UsageError
from stillframe.migration import Migration, migrate
from stillframe.model import Batch, Channel, Snapshot
from stillframe.outbox import Outbox, no_commit
from stillframe.process import Message, Process
from stillframe.restore import start_states
from stillframe.topology import ExternalProcess, Topology
from tests.migration import systems as old
from tests.migration.systems import messages_of, snapshot_of, states_of

PAIR = [("A", "B"), ("B", "A")]
OLD = Topology({"A": old.Account(), "B": old.Account(balance=5)}, PAIR)
PLAIN = snapshot_of(OLD)


def to(topology: Topology, snapshot: Snapshot = PLAIN, before: Topology = OLD) -> Migration:
    """Migrate, and see that a start can be made of it."""
    migration = migrate(snapshot, before.description, topology)
    assert start_states(migration.snapshot, topology.description)
    for state in migration.snapshot.state.processes:
        topology.codecs[state.process].check(state.encoded)
    return migration


def accounts(kind: type[Process], **fields: Any) -> Topology:
    """Return the pair of accounts with another class."""
    return Topology({"A": kind(**fields), "B": kind(**fields)}, PAIR)


def lines(migration: Migration) -> list[str]:
    """Return the changes as people read them."""
    return [str(change) for change in migration.changes]


def test_the_same_code_changes_nothing() -> None:
    """The snapshot comes back as it is, and there is nothing to say."""
    assert to(OLD) == Migration(PLAIN, ())


def test_added_removed_and_renamed_fields() -> None:
    """New ones begin as the topology starts them, renamed ones keep their values."""

    class Account(Process):
        renamed: ClassVar = {"money": "balance"}

        money: int
        limit: int = 10
        lines: list[old.Line] = dataclasses.field(default_factory=list)

        def receive(self, channel: Channel, message: old.Pay | old.Ask) -> None:
            """Take it."""

    migration = to(Topology({"A": Account(1), "B": Account(2, limit=50)}, PAIR))
    line = [{"text": "x", "count": 1}]
    assert states_of(migration.snapshot) == {
        "A": {"money": 100, "limit": 10, "lines": line},
        "B": {"money": 5, "limit": 50, "lines": line},
    }
    assert lines(migration) == [
        "class Account: limit is new",
        "class Account: money was renamed from balance",
        "class Account: note was removed: its recorded values are lost",
        "class Account: limit begins as the topology starts each process",
    ]
    assert [change.sentence for change in migration.losses] == ["note was removed"]


def test_a_rename_is_made_once() -> None:
    """A snapshot of the new class, with the old name taken by another field, is read as it is."""

    class Account(Process):
        renamed: ClassVar = {"money": "balance"}

        money: int = 1
        balance: str = "even"

    before = Topology({"A": old.Account()}, [])
    first = to(Topology({"A": Account()}, []), snapshot_of(before), before)
    assert states_of(first.snapshot)["A"] == {"money": 100, "balance": "even"}
    now = Topology({"A": Account()}, [])
    again = to(now, first.snapshot, now)
    assert again.snapshot == first.snapshot


def test_a_subclass_takes_the_renames_of_its_base() -> None:
    """What a base class renamed is renamed in classes derived from it too."""

    class Base(Process):
        renamed: ClassVar = {"money": "balance"}

        money: int = 0

    class Account(Base):
        renamed: ClassVar = {"remark": "note"}

        remark: str = ""

    before = Topology({"A": old.Account()}, [])
    migration = to(Topology({"A": Account()}, []), snapshot_of(before), before)
    assert states_of(migration.snapshot)["A"] == {"money": 100, "remark": "n"}


@pytest.mark.parametrize(
    ("renamed", "said"),
    [
        ({"gone": "balance"}, "names 'gone', which is not one of its fields"),
        ({"a": "x", "b": "x"}, "old field 'x'"),
    ],
)
def test_a_wrong_rename_is_refused(renamed: dict[str, str], said: str) -> None:
    """It names what there is, and gives a value to one field only."""
    body = {"__annotations__": {"a": int, "b": int}, "a": 1, "b": 2, "renamed": renamed}
    kind = type("Account", (Process,), body)
    with pytest.raises(UsageError, match=said):
        to(Topology({"A": kind(), "B": kind()}, PAIR))


def test_a_field_of_another_type() -> None:
    """It goes on if every recorded value is one of the new type, else the process is named."""

    class Account(Process):
        balance: float = 0.0
        note: str | None = None
        lines: list[dict[str, Any]] = dataclasses.field(default_factory=list)

        def receive(self, channel: Channel, message: old.Pay | old.Ask) -> None:
            """Take it."""

    migration = to(accounts(Account))
    assert states_of(migration.snapshot)["B"]["balance"] == 5.0
    assert lines(migration) == ["class Account: balance changed from int to float"]

    class Strict(Process):
        balance: int = 0
        note: int = 0

    with pytest.raises(
        UsageError,
        match=r"process A \(Strict\): note was 'n': Expected `int`, got `str`; process B",
    ):
        to(accounts(Strict))


def test_what_a_nested_class_drops_is_said() -> None:
    """A value of which only a part goes on is a loss, though its field is there."""

    @dataclasses.dataclass
    class Line:
        text: str

    class Account(Process):
        balance: int = 100
        note: str = "n"
        lines: list[Line] = dataclasses.field(default_factory=list)

        def receive(self, channel: Channel, message: old.Pay | old.Ask) -> None:
            """Take it."""

    migration = to(accounts(Account))
    assert lines(migration) == [
        "class Account: the order of its fields changed, or a type within one",
        "class Account: a part of lines was removed: its recorded values are lost",
    ]


def test_a_new_field_needs_a_value() -> None:
    """A joined program's class has no instance in the topology: without a default it is refused."""

    @dataclasses.dataclass
    class Books:
        total: int

    @dataclasses.dataclass
    class NewBooks:
        total: int
        seen: list[str]

    @dataclasses.dataclass
    class GoodBooks:
        total: int
        seen: list[str] = dataclasses.field(default_factory=lambda: ["x"])

    before = Topology({"A": ExternalProcess(state=Books), "B": ExternalProcess(state=Books)}, PAIR)
    snapshot = snapshot_of(before, {"A": {"total": 1}, "B": {"total": 2}})
    with pytest.raises(UsageError, match=r"process A .*seen is new and has no initial value"):
        to(Topology({n: ExternalProcess(state=NewBooks) for n in "AB"}, PAIR), snapshot, before)
    migration = to(
        Topology({n: ExternalProcess(state=GoodBooks) for n in "AB"}, PAIR), snapshot, before
    )
    assert states_of(migration.snapshot)["B"] == {"total": 2, "seen": ["x"]}
    assert "class GoodBooks: seen begins with ['x']" in lines(migration)


ON_THE_WAY = snapshot_of(OLD, messages={("A", "B"): [old.Pay(3, "m"), old.Ask(), old.Pay(4)]})


def test_messages_in_transit_are_encoded_anew() -> None:
    """Fields added, removed, renamed and in another order; numbers and counts stay."""

    class Pay(Message):
        renamed: ClassVar = {"cents": "amount"}

        is_urgent: bool = True
        cents: int = 0

    class Account(old.Holder):
        def receive(self, channel: Channel, message: Pay | old.Ask) -> None:
            """Take it."""

    migration = to(accounts(Account), ON_THE_WAY)
    assert messages_of(migration.snapshot) == {
        "A->B": [["Pay", True, 3], ["Ask"], ["Pay", True, 4]]
    }
    before, after = (s.state.channels[0] for s in (ON_THE_WAY, migration.snapshot))
    assert (after.sent_count, after.received_count) == (before.sent_count, before.received_count)
    assert "message Pay: memo was removed: its recorded values are lost" in lines(migration)
    assert "message Pay: is_urgent begins with True" in lines(migration)


def test_a_field_of_messages_that_nobody_sent_loses_nothing() -> None:
    """It is said to be gone; nothing was recorded of it."""

    class Pay(Message):
        amount: int

    class Account(old.Holder):
        def receive(self, channel: Channel, message: Pay | old.Ask) -> None:
            """Take it."""

    migration = to(accounts(Account))
    assert "message Pay: memo was removed" in lines(migration)
    assert migration.losses == ()


def test_a_message_class_keeps_its_name_on_the_wire() -> None:
    """A class that is called otherwise now says under which name it travels."""

    class Payment(Message, tag="Pay"):
        amount: int
        memo: str = ""

    class Account(old.Holder):
        def receive(self, channel: Channel, message: Payment | old.Ask) -> None:
            """Take it."""

    migration = to(accounts(Account), ON_THE_WAY)
    assert messages_of(migration.snapshot) == messages_of(ON_THE_WAY)


def test_a_message_that_nobody_takes_any_more_refuses_the_whole() -> None:
    """The channel, the number, the class and the count are named: nothing is lost silently."""

    class Account(old.Holder):
        def receive(self, channel: Channel, message: old.Ask) -> None:
            """Take it."""

    with pytest.raises(
        UsageError,
        match=r"message 1 on channel A->B \(Pay\): B no longer accepts Pay "
        r"\(and 1 more of that class there\)",
    ):
        to(accounts(Account), ON_THE_WAY)
    assert "message Pay: this class no longer exists" in lines(to(accounts(Account)))
    assert "process A: it no longer accepts Pay" in lines(to(accounts(Account)))


def test_a_message_that_cannot_be_read_refuses_the_whole() -> None:
    """A value that is none of its new type, and a new field without a default."""

    class Pay(Message):
        amount: str
        to: str

    class Account(old.Holder):
        def receive(self, channel: Channel, message: Pay | old.Ask) -> None:
            """Take it."""

    with pytest.raises(UsageError, match=r"message 1 on channel A->B \(Pay\): amount was 3: Expec"):
        to(accounts(Account), ON_THE_WAY)

    class Tip(Message, tag="Pay"):
        amount: int
        to: str

    class Till(old.Holder):
        def receive(self, channel: Channel, message: Tip | old.Ask) -> None:
            """Take it."""

    with pytest.raises(UsageError, match=r"\(Pay\): to is new and has no initial value"):
        to(accounts(Till), ON_THE_WAY)


def test_channels_come_and_go() -> None:
    """A new one begins at 0; one with messages on it must stay."""
    three = {"A": old.Account(), "B": old.Account(), "C": old.Account()}
    before = Topology(three, [("A", "B"), ("B", "C")])
    now = Topology(three, [("A", "B"), ("C", "A")])
    quiet = snapshot_of(before, messages={("A", "B"): [old.Ask()]})
    migration = to(now, quiet, before)
    counts = [(str(c.channel), c.sent_count) for c in migration.snapshot.state.channels]
    assert counts == [("A->B", 1), ("C->A", 0)]
    assert lines(migration) == [
        "channels: C->A: new, their counts begin at 0",
        "channels: B->C: removed, with their counts",
    ]
    busy = snapshot_of(before, messages={("B", "C"): [old.Ask(), old.Pay(1)]})
    with pytest.raises(
        UsageError, match=r"channel B->C was removed, with 2 messages in transit \(Ask, Pay\)"
    ):
        to(now, busy, before)


def test_a_process_of_another_class() -> None:
    """It goes on with the fields that both classes have, and that is said."""

    class Vault(Process):
        balance: int = 0
        is_open: bool = False

        def receive(self, channel: Channel, message: old.Pay | old.Ask) -> None:
            """Take it."""

    migration = to(Topology({"A": Vault(), "B": old.Account()}, PAIR))
    assert states_of(migration.snapshot)["A"] == {"balance": 100, "is_open": False}
    assert migration.snapshot.state.processes[0].kind == "Vault"
    assert lines(migration)[0] == "process A: its class changed from Account to Vault"
    assert "class Vault, formerly Account: note was removed: its recorded values are lost" in lines(
        migration
    )


def test_only_the_first_reasons_are_named() -> None:
    """A hundred messages that do not fit are one sentence and a number."""

    class Account(Process):
        note: int = 0

    names = [f"P{number}" for number in range(5)]
    before = Topology({name: old.Account() for name in names}, [])
    with pytest.raises(UsageError, match=r"and 2 more\. Change the code") as refused:
        to(Topology({name: Account() for name in names}, []), snapshot_of(before), before)
    assert len(str(refused.value)) < 1000


def test_a_state_that_is_damaged_is_refused_with_its_process() -> None:
    """Also with unchanged code everything is decoded before anything is said to go on."""
    broken = snapshot_of(OLD, {"B": {"balance": "much"}})
    with pytest.raises(UsageError, match=r"process B \(Account\): a field of Account"):
        migrate(broken, OLD.description, OLD)
    garbled = msgspec.structs.replace(PLAIN.state.processes[0], encoded=b"\xc1")
    state = msgspec.structs.replace(PLAIN.state, processes=(garbled, PLAIN.state.processes[1]))
    snapshot = msgspec.structs.replace(PLAIN, state=state)
    with pytest.raises(UsageError, match="process A"):
        migrate(snapshot, OLD.description, OLD)


@pytest.mark.parametrize("raw", [b"\xc1", b"\x90", b"\x91\x01", b"\x01"])
def test_bytes_that_are_no_message_are_refused_with_their_channel(raw: bytes) -> None:
    """Nothing that a store could hold makes more trouble than an error that names the place."""
    batch = Batch.of(1, [raw])
    channel = msgspec.structs.replace(PLAIN.state.channels[0], sent_count=1, batches=(batch,))
    state = msgspec.structs.replace(PLAIN.state, channels=(channel, PLAIN.state.channels[1]))
    snapshot = msgspec.structs.replace(PLAIN, state=state)
    with pytest.raises(UsageError, match=r"message 1 on channel A->B \(\S+\): B no longer accepts"):
        migrate(snapshot, OLD.description, OLD)
    gone = Topology({"A": old.Account(), "B": old.Account()}, PAIR[1:])
    with pytest.raises(UsageError, match="channel A->B was removed, with 1 messages in transit"):
        migrate(snapshot, OLD.description, gone)


def test_a_message_with_more_fields_than_its_class_had_is_refused() -> None:
    """What nobody knows the name of cannot be passed on."""

    class Pay(Message):
        amount: int = 0

    class Account(old.Holder):
        def receive(self, channel: Channel, message: Pay | old.Ask) -> None:
            """Take it."""

    snapshot = snapshot_of(OLD, messages={("A", "B"): [["Pay", 1, "m", 3]]})
    with pytest.raises(UsageError, match="it has 3 fields instead of 2"):
        to(accounts(Account), snapshot)


def test_an_unchanged_message_is_read_all_the_same() -> None:
    """One that its own class cannot read is refused before anything is said to go on."""
    snapshot = snapshot_of(OLD, messages={("A", "B"): [["Pay", "much", ""]]})
    with pytest.raises(UsageError, match=r"message 1 on channel A->B \(Pay\): Expected `int`"):
        to(OLD, snapshot)


class Mail(msgspec.Struct, frozen=True):
    """An effect before a change of code."""

    to: str


class Mailer(Process):
    """Has effects that wait."""

    mails: Outbox[Mail] = dataclasses.field(default_factory=lambda: Outbox(no_commit))


@dataclasses.dataclass
class Desk:
    """What a program recorded before it had effects."""

    total: int = 0


def test_entries_of_an_outbox_keep_their_keys() -> None:
    """When the class of the items has changed, receivers still recognize what they have, and the
    entries that are put later continue the history. A new outbox is empty."""
    before = Topology({"A": Mailer(), "J": ExternalProcess(state=Desk)}, [])
    mailer = Mailer()
    before.codecs["A"].open_outboxes(mailer, "A", "run")
    key = mailer.mails.put(Mail("C1"))
    recorded: dict[str, Any] = {"A": {"mails": mailer.mails.recorded()}, "J": {"total": 0}}
    snapshot = snapshot_of(before, recorded)
    mail = msgspec.defstruct("Mail", [("to", str), ("copies", int, 1)], frozen=True)
    later = type(
        "Mailer",
        (Process,),
        {
            "__annotations__": {"mails": Outbox[mail], "more": Outbox[int]},  # type: ignore[valid-type]
            "mails": dataclasses.field(default_factory=lambda: Outbox(no_commit)),
            "more": dataclasses.field(default_factory=lambda: Outbox(no_commit)),
        },
    )
    desk = dataclasses.make_dataclass("Desk", [("total", int), ("effects", Outbox[int])])
    after = Topology({"A": later(), "J": ExternalProcess(state=desk)}, [])
    migrated = to(after, snapshot, before).snapshot
    found = states_of(migrated)
    assert found["A"]["mails"]["entries"] == [{"item": {"to": "C1", "copies": 1}, "key": key}]
    assert found["A"]["mails"]["mark"] == mailer.mails.recorded()["mark"]
    assert found["A"]["more"]["entries"] == found["J"]["effects"]["entries"] == []
    process = later()
    [state_of_a] = [s for s in migrated.state.processes if s.process == "A"]
    after.codecs["A"].restore(process, state_of_a.encoded)
    mails, more = after.codecs["A"].open_outboxes(process, "A", "another run")
    due = mails.due()
    assert due is not None
    assert due.mark == key
    assert more.put(1) != after.codecs["A"].open_outboxes(later(), "A", "third run")[1].put(1)
