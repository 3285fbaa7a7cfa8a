"""Keyed fields in the codec: which are declared rightly, what they hold, how they are recorded.

What every other field is recorded as, ``test_process.py`` shows.
"""

import enum
from collections.abc import Callable
from dataclasses import field, make_dataclass
from typing import Any, ClassVar

import msgspec
import pytest

from stillframe.errors import UsageError
from stillframe.keyed import Keyed
from stillframe.model import KeyedChange, KeyedRows
from stillframe.outbox import Outbox, no_commit
from stillframe.process import Process
from stillframe.state_codec import StateCodec

encode = msgspec.msgpack.encode


class Colour(enum.Enum):
    """An immutable key."""

    RED = "red"


class Row(msgspec.Struct, frozen=True):
    """An immutable value."""

    amount: int


class Loose(msgspec.Struct):
    """A value that can change in place."""

    amount: int


class Bank(Process):
    """One keyed field and one that is not."""

    name: str = ""
    accounts: Keyed[str, int] = field(default_factory=Keyed)


CODEC = StateCodec(Bank)


class Textless(Exception):
    """Has no text."""

    __str__ = None  # type: ignore[assignment]


class Touchy(msgspec.Struct, frozen=True):
    """Raises the error in `raised` when it is created, if there is one."""

    raised: ClassVar[BaseException | None] = None

    amount: int

    def __post_init__(self) -> None:
        """Raise it."""
        if Touchy.raised is not None:
            raise Touchy.raised


@pytest.mark.parametrize(
    "annotation",
    [Keyed[str, int], Keyed[int, Row], Keyed[bytes, bytes | None], Keyed[Colour, str | float]],
)
def test_immutable_keys_and_values_can_be_declared(annotation: Any) -> None:
    """They are recorded and come back."""
    assert StateCodec(make_dataclass("Any", [("rows", annotation)])).keyed.keys() == {"rows"}


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Keyed[str, list[int]], r"values are declared as list\[int\].*frozen Struct"),
        (Keyed[str, Loose], "values are declared as Loose.*changed in place"),
        (Keyed[str, Any], "values are declared as"),
        (Keyed[float, int], "keys are declared as float: use str, int"),
        (Keyed[tuple[int, ...], int], "keys are declared as tuple"),
        (Keyed, "with the types of its keys and values"),
        (Keyed[str, int] | None, "the whole type of a field"),
        (list[Keyed[str, int]], "the whole type of a field"),
    ],
)
def test_what_could_change_unnoticed_is_refused(annotation: Any, words: str) -> None:
    """The error names the field and says what to do."""
    with pytest.raises(UsageError, match=rf"Odd\.rows: .*{words}"):
        StateCodec(make_dataclass("Odd", [("rows", annotation)]))


def test_a_whole_state_has_keyed_fields_as_maps() -> None:
    """As the simulator records it, and as the store gives it back."""
    encoded = CODEC.capture(Bank(name="x", accounts=Keyed({"a": 1})))
    assert msgspec.msgpack.decode(encoded) == {"name": "x", "accounts": {"a": 1}}
    bank = Bank()
    CODEC.restore(bank, encoded)
    assert isinstance(bank.accounts, Keyed)
    assert (bank.name, dict(bank.accounts)) == ("x", {"a": 1})


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda bank: setattr(bank, "accounts", {"a": 1}), "holds a dict: give it"),
        (lambda bank: delattr(bank, "accounts"), "holds a NoneType"),
    ],
)
def test_a_keyed_field_that_holds_something_else_is_refused(
    spoil: Callable[[Bank], None], words: str
) -> None:
    """A plain dict in its place would not notice what changes."""
    bank = Bank()
    spoil(bank)
    with pytest.raises(UsageError, match=rf"Bank\.accounts is declared as Keyed and {words}"):
        CODEC.capture(bank)


@pytest.mark.parametrize("value", [bytearray(b"x"), memoryview(b"x")])
def test_bytes_that_can_change_are_refused_where_bytes_are_declared(value: Any) -> None:
    """They would be encoded as well, and a change in place would go unnoticed."""
    codec = StateCodec(make_dataclass("Blobs", [("rows", Keyed[Colour, bytes])]))
    assert codec.encode_part("rows", [b"x"]) == encode([b"x"])
    with pytest.raises(
        UsageError,
        match=r"Blobs\.rows cannot be recorded: it holds a (bytearray|memoryview) where bytes",
    ):
        codec.encode_part("rows", [b"x", value])


class Rate(msgspec.Struct, frozen=True):
    """What is declared."""

    cents: int


class LooseRate(msgspec.Struct):
    """Encoded alike, and can be changed in place."""

    cents: int


@pytest.mark.parametrize("value", [LooseRate(1), {"cents": 1}])
def test_what_can_change_is_refused_where_a_frozen_struct_is_declared(value: Any) -> None:
    """It would be encoded as well, and a change in place would go unnoticed."""
    codec = StateCodec(make_dataclass("Rates", [("rows", Keyed[str, Rate])]))
    assert codec.encode_part("rows", [Rate(1)]) == encode([Rate(1)])
    with pytest.raises(UsageError, match=r"Rates\.rows cannot be recorded: it holds a"):
        codec.encode_part("rows", [Rate(1), value])


def test_two_fields_cannot_hold_the_same_mapping() -> None:
    """A cut of the one would take the changes of the other."""
    kind = make_dataclass("Twins", [("one", Keyed[str, int]), ("other", Keyed[str, int])])
    shared: Keyed[str, int] = Keyed()
    with pytest.raises(UsageError, match=r"Twins\.other and one hold the same Keyed"):
        StateCodec(kind).capture(kind(shared, shared))


def change(**wrong: Any) -> KeyedChange:
    """Return a change of `accounts` that is right but for what is given."""
    rows: dict[str, Any] = {"count": 1, "keys": encode(["a"]), "values": encode([1])}
    removed: dict[str, Any] = {"removed_count": 1, "removed": encode(["b"])}
    rows |= {name: wrong[name] for name in wrong if name in rows}
    removed |= {name: wrong[name] for name in wrong if name in removed}
    return KeyedChange((KeyedRows(**rows),), **removed)


def test_changes_that_a_restore_could_read_pass() -> None:
    """Without the keyed field in the map; or the map alone, with everything in it."""
    CODEC.check(encode({"name": "x"}), {"accounts": change()})
    CODEC.check(encode({"name": "x", "accounts": {"a": 1}}))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"keys": encode([1])}, "Expected `str`, got `int`.*in accounts"),
        ({"values": encode(["1"])}, "Expected `int`, got `str`.*in accounts"),
        ({"values": encode([1, 2])}, "accounts has 2 entries and not 1"),
        ({"count": 2}, "accounts has 1 entries and not 2"),
        ({"removed": encode([1])}, "Expected `str`, got `int`"),
        ({"removed_count": 0}, "accounts has 1 entries and not 0"),
        ({"keys": b"\xc1"}, "in accounts"),
    ],
)
def test_changes_that_do_not_fit_the_declaration_are_refused(
    wrong: dict[str, Any], words: str
) -> None:
    """Keys, values and counts; the field is named."""
    with pytest.raises(UsageError, match=rf"a field of Bank does not hold .*{words}"):
        CODEC.check(encode({"name": "x"}), {"accounts": change(**wrong)})


def test_changes_of_other_fields_are_refused() -> None:
    """All keyed fields are there, and no others."""
    with pytest.raises(UsageError, match=r"changes of .*'debts'"):
        CODEC.check(encode({"name": "x"}), {"debts": change()})


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("far"), "KeyError: 'far'"),
        (Textless(), "Textless"),
        (ValueError("far"), "far"),
        (type("Odd", (Textless, ValueError), {})(), "TypeError"),
        (SystemExit(1), "SystemExit"),
    ],
)
def test_a_class_that_raises_when_it_is_decoded_is_named(
    error: BaseException, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the class of the state and the field: the process is named where it is checked."""
    fields = [("first", int), ("touchy", Touchy), ("rows", Keyed[str, Touchy])]
    codec = StateCodec(make_dataclass("State", [*fields, ("out", Outbox[Touchy])]))
    one, outbox = Touchy(1), Outbox[Touchy](no_commit)
    state = codec.kind(1, one, Keyed({"a": one}), outbox)
    codec.open_outboxes(state, "P1", "")
    encoded, values = codec.capture(state), encode([one])
    monkeypatch.setattr(Touchy, "raised", error)
    for act in (codec.check, codec.decode):
        with pytest.raises(UsageError, match=rf"State .*{words}.* at `\$\.touchy`"):
            act(encoded)
    other = StateCodec(make_dataclass("Rows", fields[2:]))
    with pytest.raises(UsageError, match=rf"of Rows .*{words}.* \(in rows\)"):
        other.check(encode({}), {"rows": change(values=values)})
    with pytest.raises(UsageError, match=rf"P1\.out: .* cannot be put: .*{words}"):
        outbox.put(one)
