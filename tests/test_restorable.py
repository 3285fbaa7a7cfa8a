"""Values that a restore would change are refused by name: an object that two places share, a time
with a zone, a value of another class than declared."""

import collections
import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import uuid
import zoneinfo
from collections.abc import Callable
from dataclasses import field, make_dataclass
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

import msgspec
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from stillframe.errors import UsageError
from stillframe.keyed import Keyed
from stillframe.outbox import Outbox, OutboxEntry, no_commit
from stillframe.process import Process
from stillframe.restorable import SAMPLE_COUNT, is_restorable, rules_of
from stillframe.state_codec import StateCodec

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
NINE = dt.datetime.fromisoformat("2026-10-23 09:00")


class Job(msgspec.Struct):
    """Can change, and refers to others."""

    name: str
    after: "list[Job]" = []


class Fact(msgspec.Struct, frozen=True):
    """Cannot change."""

    name: str
    at: dt.datetime | None = None


class LongJob(Job):
    """Has a field that the declared class has not."""

    hours: int = 1


@dataclasses.dataclass
class Box:
    """Can change."""

    items: list[int]


class Spot(NamedTuple):
    """Cannot change, but what it holds can."""

    x: int
    box: Box | None = None


T = TypeVar("T")


class Pair(NamedTuple, Generic[T]):
    """A generic class, whose instances are of no other class."""

    one: T
    other: T


@dataclasses.dataclass
class Crate(Generic[T]):
    """The same, and can change."""

    item: T


class Parcel(msgspec.Struct, Generic[T]):
    """The same, as a Struct."""

    item: T


class Notes(TypedDict, total=False):
    """May have one key."""

    box: Box


class Colour(enum.Enum):
    """A value that is one of some."""

    RED = "red"


class Level(enum.IntEnum):
    """The same, and a number."""

    LOW = 1


class Word(enum.StrEnum):
    """The same, and text."""

    NO = "no"


class Right(enum.Flag):
    """Some of several."""

    READ = 1
    WRITE = 2


class Serial(uuid.UUID):
    """Encoded as a UUID."""


class State(Process):
    """A field of each kind that is looked at."""

    queue: list[Job] = field(default_factory=list)
    by_name: dict[str, Job] = field(default_factory=dict)
    current: Job | None = None
    facts: tuple[Fact, ...] = ()
    boxes: dict[int, list[Box | Spot | None]] = field(default_factory=dict)
    notes: Notes = field(default_factory=Notes)
    alarm: dt.time | None = None
    raw: bytes = b""
    words: set[str] = field(default_factory=set)
    other: Any = None
    rows: Keyed[str, Fact] = field(default_factory=Keyed)
    name: str = ""
    count: int | msgspec.UnsetType = 0
    price: decimal.Decimal | None = None
    by_day: dict[dt.date, tuple[int, int]] = field(default_factory=dict)


CODEC = StateCodec(State)


def cyclic() -> Job:
    """Return a job that is after itself."""
    job = Job("a", [Job("b")])
    job.after[0].after.append(job)
    return job


JOB, BOX, LIST = Job("a"), Box([]), [1]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (State(queue=[JOB], by_name={"a": JOB}), r"by_name\['a'\] .* same Job as queue\[0\]"),
        (State(queue=[JOB, JOB]), r"queue\[1\] .* the same Job as queue\[0\]"),
        (State(queue=[JOB], current=JOB), r"current .* the same Job as queue\[0\]"),
        (State(current=cyclic()), r"current\.after\[0\]\.after\[0\] .* the same Job as current"),
        (State(boxes={1: [BOX, Spot(1, BOX)]}), r"boxes\[1\]\[1\]\.box .* as boxes\[1\]\[0\]"),
        (State(boxes={1: [BOX], 2: [BOX]}), r"boxes\[2\]\[0\] .* the same Box as boxes\[1\]\[0\]"),
        (State(boxes={3: [BOX]}, notes={"box": BOX}), r"notes\['box'\] .* Box as boxes\[3\]\[0\]"),
        (State(other=[LIST, {"a": LIST}]), r"other\[1\]\['a'\] .* the same list as other\[0\]"),
        (State(alarm=dt.time(9, tzinfo=BERLIN)), r"alarm .* its time zone \(Europe/Berlin\)"),
        (State(facts=(Fact("a", NINE.astimezone(BERLIN)),)), r"facts\[0\]\.at .* in datetime\.UTC"),
        (State(facts=(Fact("a", NINE.replace(fold=1)),)), r"facts\[0\]\.at .* \(fold=1\)"),
        (State(other=NINE), "other .* without a zone where Any is declared, and would .* text"),
        (State(other=(1,)), "other .* holds a tuple where Any is declared"),
        (State(other={"a": Fact("a")}), r"other\['a'\] .* holds a Fact where Any is declared"),
        (State(queue=[LongJob("a")]), r"queue\[0\] .* holds a LongJob where Job is declared"),
        (State(current={"name": "a"}), r"current .* holds a dict where Job \| None is"),  # type: ignore[arg-type]
        (State(by_name=collections.defaultdict()), "by_name .* holds a defaultdict where dict is"),
        (State(words={"a": 1}.keys()), "words .* holds a dict_keys where set is"),  # type: ignore[arg-type]
        (State(words=["a"]), "words .* holds a list where set is"),  # type: ignore[arg-type]
        (State(raw=bytearray()), "raw .* a bytearray where bytes is"),  # type: ignore[arg-type]
        (State(price="0.1"), r"price .* a str where Decimal \| None is declared, and would not be"),  # type: ignore[arg-type]
        (State(price=1), r"price .* a int where Decimal \| None is"),  # type: ignore[arg-type]
        (State(name=decimal.Decimal(1)), "name .* a Decimal where str is"),  # type: ignore[arg-type]
        (State(count=True), "count .* a bool where int is"),
        (State(by_day={"2026-10-23": (1, 2)}), "by_day, key '2026-10-23' .* a str where date is"),  # type: ignore[dict-item]
        (State(notes={"boxes": 1}), "notes, key 'boxes' .* is not declared, .* in the TypedDict"),  # type: ignore[typeddict-unknown-key]
        (State(rows={"a": Fact("a")}), r"rows .* holds a dict: give it a stillframe\.Keyed"),  # type: ignore[arg-type]
        (State(rows=type("Own", (Keyed,), {})()), "rows .* as Keyed and holds a Own: give"),
        (State(rows=Keyed({"a": Fact("a", NINE.astimezone(BERLIN))})), r"rows\['a'\]\.at .* zone"),
    ],
)
def test_what_would_come_back_different_is_refused(state: State, words: str) -> None:
    """The error names each place, and what to do."""
    with pytest.raises(UsageError, match=rf"State\.{words}"):
        CODEC.capture(state)


def test_a_time_with_a_zone_is_refused_in_a_slice_of_a_keyed_field() -> None:
    """As it is where the whole field is encoded at once."""
    with pytest.raises(UsageError, match=r"State\.rows\.at cannot .* zone \(Europe/Berlin\)"):
        CODEC.encode_part("rows", [Fact("a"), Fact("b", NINE.astimezone(BERLIN))])


def test_every_time_is_looked_at_and_objects_in_a_sample() -> None:
    """A large state takes no longer for being compared; every zone would be lost in silence."""
    facts = [Fact("a", NINE)] * 3 * SAMPLE_COUNT
    CODEC.capture(State(facts=tuple(facts)))
    with pytest.raises(UsageError, match=rf"facts\[{len(facts)}\]\.at .* time zone"):
        CODEC.capture(State(facts=(*facts, Fact("a", NINE.astimezone(BERLIN)))))
    jobs = [Job("a") for _ in range(SAMPLE_COUNT)]
    CODEC.capture(State(queue=[*jobs, jobs[0]]))
    rules = rules_of(list[Job])
    assert is_restorable([(rules, [[*jobs, jobs[0]]])])
    assert not is_restorable([(rules, [[*jobs, jobs[0]]])], is_strict=True)
    assert is_restorable([(rules, [[*jobs, Job("a")]])], is_strict=True)
    with pytest.raises(UsageError, match=r"queue\[999\] .* the same Job as queue\[0\]"):
        CODEC.capture(State(queue=[*jobs[1:], jobs[1]]))


def test_what_cannot_change_may_be_shared() -> None:
    """Text, tuples of text, frozen Structs, times in UTC or without a zone."""
    fact = Fact("a", NINE.replace(tzinfo=dt.UTC))
    CODEC.capture(State(facts=(fact, fact, Fact("b", NINE)), rows=Keyed({"a": fact, "b": fact})))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (float, 1),
        (float, Level.LOW),
        (int, Level.LOW),
        (str, Word.NO),
        (Literal["no"], Word.NO),
        (list[Fact | msgspec.UnsetType], []),
    ],
)
def test_what_a_restore_makes_equal_is_recorded(kind: Any, value: Any) -> None:
    """As the documentation lists it."""
    codec = StateCodec(make_dataclass("One", [("field", kind)]))
    assert codec.decode(codec.capture(codec.kind(value))) == {"field": value}


def test_what_is_missing_is_left_to_the_check() -> None:
    """A tuple without its second item is no error of the comparison."""
    with pytest.raises(UsageError, match="Expected `array` of length 2"):
        CODEC.check(CODEC.capture(State(by_day={dt.date(2026, 10, 23): (1,)})))  # type: ignore[dict-item]
    with pytest.raises(UsageError, match=r"class One: .* memoryview would not be restored"):
        StateCodec(make_dataclass("One", [("field", memoryview)]))


# --- any value of any type: refused, or as it was


class Words(list[Any]):
    """A list that is none."""


def of_items(*kinds: Callable[[Any], Any]) -> Callable[[st.SearchStrategy[Any]], Any]:
    """Return what makes containers of the first class, and sometimes of another one, of values of a
    strategy. These repeat: two places then hold the same object."""
    return lambda values: st.lists(values, min_size=1, max_size=2).flatmap(
        lambda pool: st.builds(
            lambda kind, items: kind(items),
            st.sampled_from((*kinds[:1] * len(kinds), *kinds)),
            st.lists(st.sampled_from(pool), max_size=3),
        )
    )


def by_place(kind: Callable[[Any], Any]) -> Callable[[list[Any]], Any]:
    """Return what makes a map of items."""
    return lambda items: kind({str(place): item for place, item in enumerate(items)})


ZONES = st.sampled_from((None, dt.UTC, BERLIN, dt.timezone(dt.timedelta(hours=2))))
FOLDS = st.sampled_from((0, 0, 1))
TIMES = st.builds(
    lambda day, fold, zone: dt.datetime(2026, 10, day, 2, fold=fold, tzinfo=zone),
    st.integers(1, 31),
    FOLDS,
    ZONES,
)
DECIMALS = st.decimals(allow_nan=False) | st.sampled_from((1, "0.1", 0.5))
DATES = st.dates().flatmap(lambda day: st.sampled_from((day, str(day))))
IDS = st.uuids().flatmap(lambda one: st.sampled_from((one, str(one), one.bytes, Serial(one.hex))))
LEVELS = st.sampled_from((Level.LOW, 1, Right.READ))
BOXES = st.builds(Box, st.lists(st.integers(0, 9)))
LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (bool, st.booleans()),
    (int, st.integers(-(2**63), 2**64 - 1) | st.booleans()),
    (float, st.floats()),
    (str, st.text() | DECIMALS | DATES | IDS | TIMES | st.just(Colour.RED)),
    (bytes, st.binary() | st.builds(bytearray)),
    (bytearray, st.binary().map(bytearray) | st.binary()),
    (decimal.Decimal, st.decimals() | DECIMALS),
    (uuid.UUID, IDS),
    (dt.date, DATES | TIMES),
    (dt.timedelta, st.timedeltas() | st.just("P1D")),
    (dt.datetime, TIMES | TIMES.map(str)),
    (dt.time, st.builds(lambda fold, zone: dt.time(2, fold=fold, tzinfo=zone), FOLDS, ZONES)),
    (Colour, st.sampled_from((Colour.RED, "red", Word.NO))),
    (Level, LEVELS),
    (Word, st.sampled_from((Word.NO, "no"))),
    (Right, st.sampled_from((Right.READ, Right.READ | Right.WRITE, 1))),
    (Literal["a", 1], st.sampled_from(("a", 1))),
    (msgspec.Raw, st.sampled_from((msgspec.Raw(b"\1"), 1))),
    (Fact, st.builds(Fact, st.text("ab"), st.none() | TIMES)),
    (Box, BOXES),
    (Notes, st.fixed_dictionaries({}, optional={"box": BOXES, "other": st.integers(0, 9)})),
    (Any, st.none() | st.text("ab") | TIMES | st.builds(Fact, st.text("ab")) | LEVELS | DECIMALS),
    (set[int], st.sets(st.integers(0, 9)) | st.frozensets(st.integers(0, 9))),
    (dict[decimal.Decimal, int], st.dictionaries(DECIMALS, st.integers(0, 9))),
    (dict[dt.date, int], st.dictionaries(DATES, st.integers(0, 9))),
    (dict[Level, int], st.dictionaries(LEVELS, st.integers(0, 9))),
    (dict[tuple[int, str], int], st.dictionaries(st.tuples(LEVELS, st.text()), st.integers(0, 9))),
]
AROUND: list[tuple[Callable[[Any], Any], Callable[[st.SearchStrategy[Any]], Any]]] = [
    (lambda kind: kind, lambda values: values),
    (lambda kind: kind | None if kind is not Any else kind, lambda values: st.none() | values),
    (lambda kind: list[kind], of_items(list, Words, tuple)),  # type: ignore[valid-type]
    (lambda kind: tuple[kind, ...], of_items(tuple, list)),  # type: ignore[valid-type]
    (lambda kind: tuple[kind, int], lambda values: st.tuples(values, st.integers(0, 9))),  # type: ignore[valid-type]
    (
        lambda kind: dict[str, kind],  # type: ignore[valid-type]
        of_items(
            by_place(dict),
            by_place(collections.OrderedDict),
            by_place(lambda rows: collections.defaultdict(list, rows)),
        ),
    ),
    (lambda kind: Pair[kind], lambda values: st.builds(Pair, values, values)),  # type: ignore[valid-type]
    (lambda kind: Crate[kind], lambda values: st.builds(Crate, values)),  # type: ignore[valid-type]
    (lambda kind: Parcel[kind], lambda values: st.builds(Parcel, values)),  # type: ignore[valid-type]
]


def outbox_of(items: list[Any]) -> Outbox[Any]:
    """Return an outbox in which some items wait."""
    outbox: Outbox[Any] = Outbox(no_commit)
    outbox.load({"entries": [OutboxEntry(item, "") for item in items], "committed": 0, "mark": ""})
    return outbox


WHOLE: list[tuple[Callable[[Any], Any], Callable[[st.SearchStrategy[Any]], Any]]] = [
    *AROUND,
    (
        lambda kind: Keyed[str, kind],  # type: ignore[valid-type]
        lambda values: st.dictionaries(st.text("ab"), values).map(Keyed),
    ),
    (lambda kind: Outbox[kind], lambda values: st.lists(values, max_size=2).map(outbox_of)),  # type: ignore[valid-type]
]
"""What may be around the whole type of a field."""


@functools.cache
def codec_of(leaf: int, inner: int, outer: int) -> StateCodec | None:
    """Return the codec of a state with two fields of a type; None if it is refused."""
    kind = WHOLE[outer][0](AROUND[inner][0](LEAVES[leaf][0]))
    try:
        return StateCodec(make_dataclass("Two", [("one", kind), ("other", kind)]))
    except UsageError:
        return None


def act(value: Any) -> None:
    """Change all that can be changed in place."""
    match value:
        case list():
            for item in value:
                act(item)
            value.append("end")
        case tuple():
            for item in value:
                act(item)
        case dict() | Keyed():
            for item in value.values():
                act(item)
            with contextlib.suppress(KeyError):
                value["missing"]
            value["end"] = len(value)
        case Box():
            value.items.append(len(value.items))
        case Crate() | Parcel():
            act(value.item)
        case bytearray() | set():
            value.__ior__({1}) if isinstance(value, set) else value.append(1)


def told(value: Any) -> Any:
    """Return all that a program can tell of a value, but the identity of one that cannot change."""
    match value:
        case dt.datetime() | dt.time():
            fold = value.fold if value.tzinfo is None else 0
            parts: Any = (value.replace(tzinfo=None).isoformat(), fold, repr(value.tzinfo))
        case dict():
            parts = [(told(key), told(item)) for key, item in value.items()]
        case Keyed():
            parts = sorted((key, told(item)) for key, item in value.items())
        case Outbox():
            parts = [told(item) for item in value]
        case msgspec.Raw():
            parts = bytes(value)
        case list() | tuple():
            parts = [told(item) for item in value]
        case Fact() | Box() | Crate() | Parcel():
            parts = [told(getattr(value, name)) for name in type(value).__annotations__]
        case set() | frozenset():
            parts = sorted(value)
        case _:
            parts = repr(value)
    return type(value).__name__, parts


@given(st.data())
def test_the_same_actions_have_the_same_effect_after_a_restore(data: st.DataObject) -> None:
    """On every value of every type; or it is refused, when it is recorded or when it is checked."""
    leaf, inner, outer = (
        data.draw(st.integers(0, len(each) - 1)) for each in (LEAVES, AROUND, WHOLE)
    )
    if (codec := codec_of(leaf, inner, outer)) is None:
        event("no such field")
        return
    values = WHOLE[outer][1](AROUND[inner][1](LEAVES[leaf][1]))
    pool = data.draw(st.lists(values, min_size=1, max_size=2))
    live = codec.kind(*(data.draw(st.sampled_from(pool)) for _ in range(2)))
    try:
        codec.open_outboxes(live, "P1", "")
        encoded = codec.capture(live)
        codec.check(encoded)
    except UsageError as error:
        event(str(error).partition("cannot be recorded: ")[2][:20])
        return
    event("recorded")
    restored = codec.decode(encoded)
    before = {"one": live.one, "other": live.other}
    for state in (restored, before):
        for value in state.values():
            act(value)
    assert told(restored) == told(before)
