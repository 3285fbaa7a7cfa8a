"""The one class that a user writes: its fields are its state, its annotations its messages."""

import dataclasses
import datetime
import enum
import math
from typing import Any, Union

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stillframe.errors import UsageError
from stillframe.model import Channel, ProcessId
from stillframe.process import (
    Action,
    Message,
    Process,
    Reporting,
    accepted_messages,
    attach,
    every,
    field_types,
    is_immutable,
    names_of,
    receive_annotation,
)
from stillframe.state_codec import StateCodec
from stillframe.topology import Topology


class Coin(Message):
    """Money."""

    amount: int
    note: str = ""


class Note(Message):
    """Words."""

    text: str


class Purse(Process):
    """Holds money."""

    balance: int = 100
    owners: list[str] = dataclasses.field(default_factory=list)
    rate: float | None = None
    _cache: int = 0

    def receive(self, channel: Channel, message: Coin | Note) -> None:
        """Take it."""

    @every(ms=10)
    def pay(self) -> None:
        """Spend one."""
        self.balance -= 1


class RichPurse(Purse):
    """Adds a field and an action to a class that has some."""

    gold: int = 1

    @every(ms=0)
    def dig(self) -> None:
        """Find one."""
        self.gold += 1


def test_a_process_is_made_like_a_dataclass() -> None:
    """Declared fields are arguments with defaults; two processes are never equal."""
    purse = Purse(balance=5)
    assert (purse.balance, purse.owners, purse.rate) == (5, [], None)
    assert purse != Purse(balance=5)
    assert Purse().owners is not Purse().owners


def test_actions_are_found_also_inherited_ones() -> None:
    """Every method with a period, by name, with its milliseconds."""
    assert Purse.actions == (Action("pay", 10.0),)
    assert RichPurse.actions == (Action("dig", 0.0), Action("pay", 10.0))


def test_an_action_is_never_hidden() -> None:
    """By a field, a value or a method of any class; a method may replace one that is marked too."""
    pay = every(ms=1)(lambda self: None)
    field = dataclasses.make_dataclass("Mixed", [("pay", int, 0)])
    plain = type("Plain", (), {"pay": _answer})
    odd: list[tuple[tuple[type, ...], dict[str, Any]]] = [
        ((Purse,), {"__annotations__": {"pay": int}, "pay": 0}),
        ((Purse,), {"__annotations__": {"pay": int}}),
        ((Process,), {"__annotations__": {"pay": int}, "pay": pay}),
        ((dataclasses.make_dataclass("Bare", ["pay"]), Process), {"pay": pay}),
        ((Purse, field), {}),
        ((Purse,), {"pay": 0}),
        ((Purse,), {"pay": property(_answer)}),
        ((Purse,), {"pay": _answer}),
        ((plain, Purse), {}),
    ]
    for bases, members in odd:
        words = r"class Odd: .*'pay'.* action \(@every\) of (Odd|Purse)"
        with pytest.raises(UsageError, match=words):
            type("Odd", bases, members)
    for bases, members in (((Purse,), {"pay": pay}), ((Purse, plain), {})):
        assert [one.name for one in vars(type("Sound", bases, members))["actions"]] == ["pay"]


def test_only_a_method_of_a_process_is_marked() -> None:
    """Elsewhere a mark has no effect: in a message, in the state of a joined program."""
    pay = every(ms=1)(lambda self: None)
    words = "class Odd: 'pay' is marked with @every and would never be called"
    with pytest.raises(UsageError, match=words):
        declare(Message, "pay", pay, is_field=False)
    with pytest.raises(UsageError, match=words):
        StateCodec(type("Odd", (dataclasses.make_dataclass("Base", ["a"]),), {"pay": pay}))
    for no_method in (property(_answer), staticmethod(_answer), 3):
        with pytest.raises(UsageError, match=r"marks a \w+, and would have no effect"):
            every(ms=1)(no_method)  # type: ignore[type-var]


@pytest.mark.parametrize("ms", [-1, float("inf"), float("nan"), "10", None, True])
def test_a_period_is_some_milliseconds(ms: Any) -> None:
    """Anything else is refused where it is written."""
    with pytest.raises(UsageError, match="give milliseconds, 0 or more"):
        every(ms=ms)


def test_a_process_that_is_not_running_says_so() -> None:
    """Sending needs a host; so does asking for a snapshot; receiving needs a method."""
    purse = Purse()
    with pytest.raises(UsageError, match=r"Purse\.send\(\): this process is not running"):
        purse.send("B", Coin(1))
    with pytest.raises(UsageError, match=r"Purse\.snapshot\(\): this process is not running"):
        purse.snapshot()

    class Deaf(Process):
        """Takes nothing."""

    with pytest.raises(NotImplementedError, match=r"Deaf has no receive\(\)"):
        Deaf().receive(Channel("A", "B"), Coin(1))


def test_a_host_puts_itself_in_place() -> None:
    """After attaching, the process knows its name and channels, and sends through the host."""
    sent: list[tuple[ProcessId, Message]] = []
    asked: list[bool] = []
    purse = Purse()
    attach(
        purse,
        process_id="A",
        incoming=("B",),
        outgoing=("B", "C"),
        send=lambda target, message: sent.append((target, message)),
        snapshot=lambda: asked.append(True),
    )
    purse.send("C", Coin(3))
    purse.snapshot()
    assert (purse.id, purse.incoming, purse.outgoing) == ("A", ("B",), ("B", "C"))
    assert (sent, asked) == ([("C", Coin(3))], [True])
    assert StateCodec(Purse).capture(purse) == StateCodec(Purse).capture(Purse())


def test_messages_are_frozen_arrays_with_their_name() -> None:
    """What travels is [class name, fields in order]; a message never changes."""
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(Coin(3))) == ["Coin", 3, ""]
    with pytest.raises(AttributeError, match="immutable"):
        Coin(3).amount = 4


def test_recorded_fields_are_the_declared_ones() -> None:
    """Of a process, a dataclass or a Struct; what begins with an underscore is left out."""
    assert field_types(Purse) == {"balance": int, "owners": list[str], "rate": float | None}
    assert list(field_types(RichPurse)) == ["balance", "owners", "rate", "gold"]
    assert field_types(Coin) == {"amount": int, "note": str}
    assert field_types(int) == {}


def _answer(self: object) -> None:
    """Stand in for a method."""


def attach_nothing(process: Process) -> None:
    """Attach a process to a host that does nothing."""
    attach(
        process,
        process_id="A",
        incoming=(),
        outgoing=(),
        send=lambda *_: None,
        snapshot=lambda: None,
        append=lambda *_: None,
    )


def declare(base: type, name: str, value: object, *, is_field: bool) -> type:
    """Declare a class called Odd in which `name` is `value`."""
    bases = () if base is object else (base,)
    annotations = {"__annotations__": {name: Any}} if is_field else {}
    return type(base)("Odd", bases, {**annotations, name: value})


OF_PROCESS = names_of(Process)


@pytest.mark.parametrize("name", OF_PROCESS)
def test_what_hides_a_name_of_a_process_is_refused_where_it_is_declared(name: str) -> None:
    """As a field, a value, a property, or from a class that it is mixed with."""
    words = rf"class Odd: a field cannot be called '{name}', which Stillframe uses: rename it"
    for value, is_field in ((0, True), (_answer, True), (0, False), (property(_answer), False)):
        with pytest.raises(UsageError, match=words):
            declare(Process, name, value, is_field=is_field)
    mixed = dataclasses.make_dataclass("Mixed", [(name, int, 0)])
    for bases in ((mixed, Process), (Purse, mixed)):
        with pytest.raises(UsageError, match=words):
            type("Odd", bases, {})


def test_a_method_may_replace_a_method_but_not_what_a_host_attaches() -> None:
    """A host would hide a method called ``send`` again. So says the type checker, too."""
    refused = []
    for name in OF_PROCESS:
        try:
            declare(Process, name, _answer, is_field=False)
        except UsageError as error:
            assert f"class Odd: a method cannot be called '{name}'" in str(error)  # noqa: PT017
            refused.append(name)
    purse, attached = Purse(), ["append", "id", "incoming", "outgoing", "send", "snapshot"]
    attach_nothing(purse)
    assert sorted(vars(purse).keys() - vars(Purse()).keys() - {"_stillframe_attached"}) == attached
    assert sorted(refused) == ["actions", *attached]


def test_what_a_mixin_annotates_is_no_field() -> None:
    """A checker of types reads it; a mixin that is a dataclass does declare fields."""
    hints = type("Hints", (), {"__annotations__": {"id": str}})
    assert issubclass(type("Sound", (hints, Process), {}), Process)
    with pytest.raises(UsageError, match="class Odd: a field cannot be called 'id'"):
        type("Odd", (dataclasses.dataclass(hints), Process), {})


def test_a_message_has_no_field_that_hides_a_method() -> None:
    """It is refused where the class is declared."""
    for value, is_field in ((0, True), (0, False), (property(_answer), False)):
        with pytest.raises(UsageError, match="class Odd: a field cannot be called 'conserved'"):
            declare(Message, "conserved", value, is_field=is_field)
    odd = declare(Message, "conserved", _answer, is_field=False)
    assert vars(odd)["conserved"] is _answer


@pytest.mark.parametrize("name", names_of(Reporting))
def test_a_state_of_a_joined_program_hides_no_method_that_is_called_on_it(name: str) -> None:
    """Dataclass or Struct; the other names of a process are free there."""
    for kind in (
        dataclasses.make_dataclass("Odd", [(name, int)]),
        msgspec.defstruct("Odd", [(name, int)]),
    ):
        with pytest.raises(UsageError, match=f"class Odd: a field cannot be called '{name}'"):
            StateCodec(kind)
    free = sorted({*OF_PROCESS} - {*names_of(Reporting)})
    kind = dataclasses.make_dataclass("Free", [(one, int) for one in free])
    assert list(StateCodec(kind).types) == free


def test_annotations_that_do_not_resolve_are_named() -> None:
    """An unknown name in an annotation is reported with its class, not as a NameError."""

    class Odd(Process):
        """Refers to what is not there."""

        other: "Nowhere" = None  # type: ignore[name-defined] # noqa: F821

        def receive(self, channel: Channel, message: "Nowhere") -> None:  # type: ignore[name-defined] # noqa: F821
            """Take it."""

    with pytest.raises(UsageError, match=r"class Odd: its annotations do not resolve.*Nowhere"):
        field_types(Odd)
    with pytest.raises(UsageError, match=r"Odd\.receive: its annotations do not resolve.*Nowhere"):
        receive_annotation(Odd)


@pytest.mark.parametrize(
    ("annotation", "accepted"),
    [
        (Coin, (Coin,)),
        (Coin | Note, (Coin, Note)),
        (Union[Coin, Note], (Coin, Note)),  # noqa: UP007 -- the older spelling
        (Coin | None, None),
        (None, ()),
        (Message, None),
        (int, None),
        (Coin | int, None),
        (Any, None),
        ("Coin", None),
    ],
)
def test_messages_are_read_from_the_annotation(annotation: Any, accepted: Any) -> None:
    """Message classes and unions of them; anything else is refused with an example."""
    if accepted is not None:
        assert accepted_messages(annotation, "here") == accepted
    else:
        with pytest.raises(UsageError, match=r"here: .* is not a message class: annotate"):
            accepted_messages(annotation, "here")


def test_receive_must_be_annotated() -> None:
    """Its message says what is accepted; a class without it accepts nothing."""
    assert receive_annotation(Purse) == Coin | Note

    class Deaf(Process):
        """Takes nothing."""

    class Bare(Process):
        """Does not say what it takes."""

        def receive(self, channel, message):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202
            """Take it."""

    class Short(Process):
        """Takes too few arguments."""

        def receive(self, message: Coin) -> None:  # type: ignore[override]
            """Take it."""

    assert receive_annotation(Deaf) is None
    with pytest.raises(UsageError, match=r"Bare\.receive: annotate the messages that it accepts"):
        receive_annotation(Bare)
    with pytest.raises(UsageError, match=r"Short\.receive must take .*not \(self, message\)"):
        receive_annotation(Short)


class Colour(enum.Enum):
    """Two colours."""

    WHITE = "white"
    RED = "red"


class Place(msgspec.Struct, frozen=True):
    """Frozen all the way down."""

    x: int
    next: "Place | None" = None


class Box(msgspec.Struct):
    """Can change."""

    x: int


class Shelf(msgspec.Struct, frozen=True):
    """Frozen, but what it holds is not."""

    box: Box


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        *((kind, True) for kind in (int, str, bool, float, None.__class__, Colour, Place)),
        *((kind, True) for kind in (datetime.datetime, int | None, Place | None)),
        *((kind, False) for kind in (bytes, tuple[int, str], tuple[int, ...], tuple[Place, ...])),
        *((kind, False) for kind in (list, list[int], dict[str, int], set[int], Any, Box, Shelf)),
        *((kind, False) for kind in (tuple, tuple[list[int], ...], int | list[int], object)),
    ],
)
def test_what_can_never_change(kind: Any, expected: bool) -> None:
    """Plain values, and frozen things made of them only."""
    assert is_immutable(kind) is expected


class Everything(Process):
    """A field of each kind that people use."""

    number: int = 0
    figure: float = 0.0
    text: str = ""
    raw: bytes = b""
    at: datetime.datetime | None = None
    colour: Colour = Colour.WHITE
    place: Place = Place(0)
    names: dict[int, list[str]] = dataclasses.field(default_factory=dict)
    seen: set[int] = dataclasses.field(default_factory=set)


@given(
    st.builds(
        Everything,
        number=st.integers(-(2**63), 2**64 - 1),
        figure=st.floats(allow_nan=False),
        text=st.text(),
        raw=st.binary(),
        at=st.none() | st.datetimes(timezones=st.just(datetime.UTC)),
        colour=st.sampled_from(Colour),
        place=st.builds(Place, st.integers(0, 9), st.none() | st.builds(Place, st.integers(0, 9))),
        names=st.dictionaries(st.integers(0, 9), st.lists(st.text())),
        seen=st.sets(st.integers(0, 99)),
    )
)
def test_what_is_captured_is_restored(process: Everything) -> None:
    """Every field comes back equal and of its type."""
    codec = StateCodec(Everything)
    restored = Everything()
    codec.restore(restored, codec.capture(process))
    assert vars(restored) == vars(process)


def test_a_recorded_state_shares_nothing_with_the_live_one() -> None:
    """What happens to the process later does not reach what was captured, nor the reverse."""
    codec, purse = StateCodec(Purse), Purse(owners=["a"])
    encoded = codec.capture(purse)
    purse.owners.append("b")
    again = Purse()
    codec.restore(again, encoded)
    assert again.owners == ["a"]


def test_what_is_not_recorded_survives_a_restore() -> None:
    """An attribute with an underscore is the program's own."""
    codec, purse = StateCodec(Purse), Purse()
    purse._cache = 7
    codec.restore(purse, codec.capture(Purse(balance=1)))
    assert (purse.balance, purse._cache) == (1, 7)


def test_an_attribute_that_was_not_declared_is_not_lost_in_silence() -> None:
    """Capture refuses it and says how to declare it or leave it out on purpose."""
    purse = Purse()
    purse.late = 1  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=r"Purse\.late was set but is not declared.*'_late'"):
        StateCodec(Purse).capture(purse)
    with pytest.raises(UsageError, match=r"Purse\.late was set but is not declared"):
        Topology({"A": purse}, [])


@pytest.mark.parametrize("name", OF_PROCESS)
def test_an_attribute_with_a_name_of_a_process_is_not_lost_in_silence(name: str) -> None:
    """Set by a handler, also over what a host has attached; in a program's state it is free."""
    purse = Purse()
    attach_nothing(purse)
    setattr(purse, name, [])
    with pytest.raises(UsageError, match=rf"Purse\.{name} was set, and Stillframe uses that name"):
        StateCodec(Purse).capture(purse)
    books = dataclasses.make_dataclass("Books", [])()
    setattr(books, name, [])
    with pytest.raises(UsageError, match=rf"Books\.{name} was set but is not declared"):
        StateCodec(type(books)).capture(books)


@pytest.mark.parametrize("value", [object(), 2**64, "\ud800", math.sin, Ellipsis])
def test_a_value_that_cannot_be_recorded_is_named(value: Any) -> None:
    """Class and field are in the error."""
    with pytest.raises(UsageError, match=r"Purse\.rate cannot be recorded"):
        StateCodec(Purse).capture(Purse(rate=value))


def test_a_state_of_other_fields_is_refused() -> None:
    """A class that has changed since the snapshot says which field does not fit."""
    codec = StateCodec(Purse)
    for state, found in (
        ({"balance": 1, "owners": []}, "rate"),
        ({"balance": "x", "owners": [], "rate": None}, "balance"),
    ):
        with pytest.raises(UsageError, match=f"class Purse does not fit .*{found}"):
            codec.restore(Purse(), msgspec.msgpack.encode(state))


def test_a_type_that_cannot_be_recorded_is_refused_before_it_runs() -> None:
    """A declaration that no snapshot could hold is found when the codec is made."""

    class Odd(Process):
        """Holds what MessagePack cannot read back."""

        either: int | Box | Place = 0

    with pytest.raises(UsageError, match="class Odd: its fields cannot be recorded"):
        StateCodec(Odd)


def test_a_mistake_in_a_declaration_is_named() -> None:
    """A mutable default is refused with the class and the reason."""
    with pytest.raises(UsageError, match="class Odd: mutable default"):
        type("Odd", (Process,), {"__annotations__": {"x": list}, "x": []})
