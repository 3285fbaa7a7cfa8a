"""Values that a restore would change: they are refused, by name.

A recording holds values and no objects. Three things would be different after a restore, without a
word: an object that two places share becomes two; a time loses its zone; and a value becomes one of
its declared class. Immutable values may be shared.

The declared types say what to look at. Values are looked at in batches, all at once that are
reached in the same way: a few fast calls for each batch, and none for each value. Still, to look at
every value takes several times as long as to encode it. So values are compared in a sample, which
is all of them in a small state, unless Python runs in its development mode, which is for tests.
Every time is looked at. Only if something was found, values are looked at one by one, for its name.
"""

import datetime
import decimal
import enum
import operator
import typing
import uuid
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any

import msgspec
from msgspec import inspect

from stillframe.ordered_sets import types_in

Take = Callable[[list[Any]], Iterator[Any]]
"""Returns what is reached from the values of a batch."""
Steps = Callable[[Any], Iterable[tuple[str, Any]]]
"""Returns what is reached from one value, each with the end of its path."""
Part = tuple[Take, Steps, inspect.Type]
SAMPLE_COUNT = 1_000
"""How many of the values that are reached in the same way are compared outside tests."""
BATCH_COUNT_MAX = 1_000
"""How many ways are looked at: in a recursive type they have no end."""
_KEY_LENGTH_MAX = 40
_ZONES = frozenset({id(None), id(datetime.UTC)})
_zone_of = operator.attrgetter("tzinfo")
_fold_of = operator.attrgetter("fold")


class Rule:
    """A rule for values of one class: those of one that `is_mutable` must not be shared,
    and `parts` are reached from them."""

    def __init__(self, *, is_mutable: bool = False, is_time: bool = False) -> None:
        self.is_mutable = is_mutable
        self.is_time = is_time
        self.parts: list[tuple[Take, Steps, Rules]] = []

    def add(self, take: Take, steps: Steps, part: "Rules") -> None:
        """Add a part."""
        self.parts.append((take, steps, part))


class Rules:
    """The rules for values of one declared type, by class."""

    def __init__(self) -> None:
        self.by_class: dict[type, Rule] = {}
        self.is_any = False
        self.has_times = False
        """Whether all values are looked at, since there may be a time in them. What Any holds is
        looked at as a sample only."""

    def add(self, other: "Rules") -> None:
        """Allow what the `other` rules allow, too."""
        self.by_class |= other.by_class
        self.is_any |= other.is_any

    def allows(self, kind: type) -> bool:
        """Return whether values of a class that has no rule are restored as equal ones. An int
        becomes a float, a member of an IntEnum or StrEnum an int or text; UNSET stays UNSET."""
        if kind is msgspec.UnsetType:
            return True
        plain = next((one for one in (int, str) if issubclass(kind, one)), None)
        if plain is None or self.is_any or not (kind is plain or issubclass(kind, enum.Enum)):
            return False
        return plain in self.by_class or (plain is int and float in self.by_class)

    @property
    def spelled(self) -> str:
        """The declared type, in words."""
        if self.is_any:
            return "Any"
        names = dict.fromkeys(kind.__name__ for kind in self.by_class)
        return " | ".join("None" if name == "NoneType" else name for name in names)


def rules_of(kind: Any) -> Rules:
    """Return the rules for values of a declared type; a TypeError if none of them can be restored
    unchanged."""
    known: dict[int, Rules] = {}
    info = inspect.type_info(kind)  # what is known by id must live
    return _rules(info, known)


def is_restorable(batches: list[tuple[Rules, list[Any]]], *, is_strict: bool = False) -> bool:
    """Return whether values are restored unchanged, given in batches of one type. They must contain
    no cycle. Only if `is_strict`, all objects are compared."""
    try:
        return _is_sample_alike(batches, is_strict=is_strict) and _are_times_plain(batches)
    except (AttributeError, IndexError):  # something is missing: that is for others to say
        return False


def _is_sample_alike(batches: list[tuple[Rules, list[Any]]], *, is_strict: bool) -> bool:
    seen: set[int] = set()
    count = 0
    work: list[tuple[Rules, Iterable[Any]]] = [*batches]
    for rules, values in islice(work, None if is_strict else BATCH_COUNT_MAX):  # `work` grows
        sample = list(islice(values, None if is_strict else SAMPLE_COUNT))
        for rule, group in _grouped(rules, sample):
            if rule is None or (rule.is_time and not _are_plain(group, rules)):
                return False
            if rule.is_mutable:
                count += len(group)
                seen.update(map(id, group))
                if len(seen) < count:
                    return False
            work += [(part, take(group)) for take, _, part in rule.parts]
    return True


def _are_times_plain(batches: list[tuple[Rules, list[Any]]]) -> bool:
    work = [(rules, values) for rules, values in batches if rules.has_times]
    while work:
        rules, batch = work.pop()
        for rule, group in _grouped(rules, batch):
            if rule is None or (rule.is_time and not _are_plain(group, rules)):
                return False
            work += [(part, list(take(group))) for take, _, part in rule.parts if part.has_times]
    return True


def _grouped(rules: Rules, batch: list[Any]) -> Iterator[tuple[Rule | None, list[Any]]]:
    """Yield the values of each class that has a rule, and None for a class that is refused."""
    kinds = set(map(type, batch))
    for kind in kinds:
        rule = rules.by_class.get(kind)
        if rule is None and rules.allows(kind):
            continue
        yield rule, batch if len(kinds) == 1 else [one for one in batch if type(one) is kind]


def explain(values: Iterable[tuple[str, Rules, Any]]) -> str:
    """Return which of some values, each with its path, a restore would change, and what to do;
    empty if none."""
    paths: dict[int, str] = {}
    work = list(values)[::-1]
    while work:
        path, rules, value = work.pop()
        kind = type(value)
        rule = rules.by_class.get(kind)
        if rule is None:
            if rules.allows(kind):
                continue
            if not rules.by_class:
                return (
                    f"{path} cannot be recorded: it is not declared, and a restore would lose it: "
                    "declare it in the TypedDict"
                )
            return (
                f"{path} cannot be recorded: it holds a {kind.__name__} where {rules.spelled} is "
                "declared, and would not be restored as what it is: store exactly the declared "
                "class, or declare another one"
            )
        if rule.is_mutable and (other := paths.setdefault(id(value), path)) != path:
            return (
                f"{path} cannot be recorded: it is the same {kind.__name__} as {other}, and a "
                "restore would make two of it: keep it in one place only, and its key or index in "
                "the other"
            )
        if rule.is_time and not _are_plain([value], rules):
            return f"{path} cannot be recorded: {_time_in_words(value)}"
        parts = [
            (path + end, part, each) for _, steps, part in rule.parts for end, each in steps(value)
        ]
        work += parts[::-1]
    return ""


def _are_plain(times: list[Any], rules: Rules) -> bool:
    """Return whether times are restored unchanged. Where Any is declared, one without a zone would
    be text."""
    zones = set(map(id, map(_zone_of, times)))
    if not zones <= _ZONES or (rules.is_any and id(None) in zones):
        return False
    # In UTC a fold means nothing.
    return (
        id(None) not in zones
        or not any(map(_fold_of, times))
        or not any(one.fold for one in times if one.tzinfo is None)
    )


def _time_in_words(value: Any) -> str:
    if value.tzinfo is not None and value.tzinfo is not datetime.UTC:
        zone = getattr(value.tzinfo, "key", None) or type(value.tzinfo).__name__
        return (
            f"its time zone ({zone}) would be lost: store the time in datetime.UTC, and the name "
            "of the zone, if it is needed, in another field"
        )
    if value.fold:
        return (
            "it is the second of two equal times at the end of summer time (fold=1), and would "
            "become the first: store the time in datetime.UTC"
        )
    return (
        "it is a time without a zone where Any is declared, and would become text: declare "
        "it as a datetime"
    )


# --- from declared types


def _rules(info: inspect.Type, known: dict[int, Rules]) -> Rules:
    """Return the rules for a type. `known` has those of other types, by id: one may refer to
    itself, so its rules are there before those of its parts."""
    while isinstance(info, inspect.Metadata):
        info = info.type
    if (rules := known.get(id(info))) is not None:
        return rules
    rules = known[id(info)] = Rules()
    times = inspect.DateTimeType | inspect.TimeType
    rules.has_times = any(isinstance(one, times) for one in types_in(info))
    if isinstance(info, inspect.UnionType):
        for member in info.types:
            rules.add(_rules(member, known))
    elif isinstance(info, inspect.AnyType) or getattr(info, "cls", None) is object:
        rules.add(_any())
    elif (found := _class_and_parts(info)) is not None:
        kind, rule, parts = found
        rules.by_class[kind] = rule
        for take, steps, part in parts:
            rule.add(take, steps, _rules(part, known))
    elif isinstance(info, inspect.LiteralType):
        rules.by_class = {type(value): Rule() for value in info.values}
    else:
        if (leaf := _LEAVES.get(type(info)) or getattr(info, "cls", None)) is None:
            name = type(info).__name__.removesuffix("Type").lower()
            raise TypeError(f"a {name} would not be restored as it was: declare bytes or the like")
        rules.by_class[leaf] = _LEAF_RULES.get(leaf) or Rule()
    return rules


_LEAVES: dict[type[inspect.Type], type] = {
    inspect.NoneType: type(None),
    inspect.BoolType: bool,
    inspect.IntType: int,
    inspect.FloatType: float,
    inspect.StrType: str,
    inspect.BytesType: bytes,
    inspect.ByteArrayType: bytearray,
    inspect.DateTimeType: datetime.datetime,
    inspect.TimeType: datetime.time,
    inspect.DateType: datetime.date,
    inspect.TimeDeltaType: datetime.timedelta,
    inspect.DecimalType: decimal.Decimal,
    inspect.UUIDType: uuid.UUID,
    inspect.RawType: msgspec.Raw,
    inspect.ExtType: msgspec.msgpack.Ext,
}
"""The class of the values of a type that has no parts."""
_LEAF_RULES = {
    datetime.datetime: Rule(is_time=True),
    datetime.time: Rule(is_time=True),
    bytearray: Rule(is_mutable=True),
}
_ONE_ITEM_TYPE: dict[type[inspect.Type], type] = {
    inspect.ListType: list,
    inspect.SetType: set,
    inspect.FrozenSetType: frozenset,
    inspect.VarTupleType: tuple,
}


def _class_and_parts(info: Any) -> tuple[type, Rule, list[Part]] | None:
    """Return the class of the values of a type, its rule without parts, and these; None if it can
    have no parts."""
    if (kind := _ONE_ITEM_TYPE.get(type(info))) is not None:
        rule = Rule(is_mutable=kind in (list, set))
        return kind, rule, [(_elements, _element_steps, info.item_type)]
    match info:
        case inspect.DictType(key_type=key, value_type=value):
            of_keys, of_values = (_elements, _key_steps, key), (_values, _value_steps, value)
            return dict, Rule(is_mutable=True), [of_keys, of_values]
        case inspect.TupleType(item_types=items):
            return tuple, Rule(), [_item(n, f"[{n}]", item) for n, item in enumerate(items)]
        case inspect.NamedTupleType(fields=fields):
            return (
                _class_of(info),
                Rule(),
                [_item(n, f".{f.name}", f.type) for n, f in enumerate(fields)],
            )
        case inspect.TypedDictType(fields=fields):
            keys = [_key(f.name, f.type) for f in fields]
            return dict, Rule(is_mutable=True), [*keys, _other_keys({f.name for f in fields})]
        case inspect.StructType() | inspect.DataclassType():
            kind = _class_of(info)
            rule = Rule(is_mutable=not _is_frozen(kind))
            return kind, rule, [_field(f.name, f.type) for f in info.fields]
    return None


def _class_of(info: Any) -> Any:
    """Return the class of the values of a type, which may be generic."""
    return typing.get_origin(info.cls) or info.cls


def _any() -> Rules:
    """Return the rules where Any is declared: what is decoded without a type."""
    rules, keys = Rules(), Rules()
    rules.is_any = keys.is_any = True
    for one in (rules, keys):
        one.by_class = {kind: Rule() for kind in (type(None), bool, int, float, str, bytes)}
        one.by_class[datetime.datetime] = Rule(is_time=True)
    keys.by_class[tuple] = Rule()
    keys.by_class[tuple].add(_elements, _element_steps, keys)
    for kind in (list, dict):
        rules.by_class[kind] = Rule(is_mutable=True)
    rules.by_class[list].add(_elements, _element_steps, rules)
    rules.by_class[dict].add(_elements, _key_steps, keys)
    rules.by_class[dict].add(_values, _value_steps, rules)
    return rules


def _is_frozen(kind: Any) -> bool:
    if issubclass(kind, msgspec.Struct):
        return bool(kind.__struct_config__.frozen)
    if (parameters := getattr(kind, "__dataclass_params__", None)) is not None:
        return bool(parameters.frozen)
    return getattr(kind.__setattr__, "__name__", "") == "_frozen_setattrs"  # of attrs


def _elements(group: list[Any]) -> Iterator[Any]:
    return chain.from_iterable(group)


def _values(group: list[Any]) -> Iterator[Any]:
    return chain.from_iterable(map(dict.values, group))


def _element_steps(value: Any) -> Iterator[tuple[str, Any]]:
    return ((f"[{index}]", each) for index, each in enumerate(value))


def _value_steps(value: Any) -> Iterator[tuple[str, Any]]:
    return ((f"[{_spell(key)}]", each) for key, each in value.items())


def _key_steps(value: Any) -> Iterator[tuple[str, Any]]:
    return ((f", key {_spell(key)}", key) for key in value)


def _spell(key: Any) -> str:
    """Return a key in words; only what ours can be shown without code of the application."""
    if type(key) is str:
        return repr(key[:_KEY_LENGTH_MAX])
    return repr(key) if type(key) in (int, bytes) else f"a {type(key).__name__}"


def _item(index: int, end: str, info: inspect.Type) -> Part:
    take = operator.itemgetter(index)
    return (
        lambda group: map(take, group),
        lambda value: ((end, take(value)),) if index < len(value) else (),
        info,
    )


def _key(key: str, info: inspect.Type) -> Part:
    """Return the part of a dict that is the value of a key that it may have."""
    return (
        lambda group: (one[key] for one in group if key in one),
        lambda value: ((f"[{key!r}]", value[key]),) if key in value else (),
        info,
    )


_UNDECLARED = inspect.UnionType(())
"""The type of what must not be there."""


def _other_keys(names: set[str]) -> Part:
    """Return the part of a dict that is all keys but some."""
    return (
        lambda group: (
            key for one in group if not one.keys() <= names for key in one.keys() - names
        ),
        lambda value: (step for step in _key_steps(value) if step[1] not in names),
        _UNDECLARED,
    )


def _field(name: str, info: inspect.Type) -> Part:
    take = operator.attrgetter(name)
    return (
        lambda group: map(take, group),
        lambda value: ((f".{name}", take(value)),) if hasattr(value, name) else (),
        info,
    )
