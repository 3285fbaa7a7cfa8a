"""The recorded state of a class: its declared fields as a MessagePack map, and back."""

import sys
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from stillframe.errors import UsageError, describe, text_of
from stillframe.keyed import Keyed
from stillframe.model import DECODING_ERRORS, KeyedChange, decoded
from stillframe.ordered_sets import may_hold_set, with_ordered_sets
from stillframe.outbox import Outbox, OutboxEntry, no_commit, outbox_struct
from stillframe.process import (
    Process,
    Reporting,
    check_attributes,
    check_names,
    field_types,
    is_immutable,
)
from stillframe.restorable import Rules, explain, is_restorable, rules_of

Held = TypeVar("Held", Keyed[Any, Any], Outbox[Any])
NOTHING: Mapping[str, KeyedChange] = types.MappingProxyType({})


class StateCodec:
    """Encodes the declared fields of one class as a MessagePack map, and reads them back. `types`
    has the type of each declared field, `keyed` those of the keys and of the values of a keyed one,
    `outboxes` that of the items of an outbox, and `struct` is what a recorded state decodes to;
    keyed fields are dicts there. A UsageError names a field whose type cannot be recorded."""

    def __init__(self, kind: type) -> None:
        if not issubclass(kind, Process):
            check_names(kind, Reporting)
        self.kind = kind
        self.types = field_types(kind)
        self.keyed = {
            name: _keyed_types(f"{kind.__name__}.{name}", annotation)
            for name, annotation in self.types.items()
            if _mentions(Keyed, annotation)
        }
        self.outboxes = {
            name: _item_type(f"{kind.__name__}.{name}", annotation)
            for name, annotation in self.types.items()
            if _mentions(Outbox, annotation)
        }
        self._other_names = tuple(name for name in self.types if name not in self.keyed)
        self._encode = msgspec.msgpack.Encoder().encode
        fields = self.types | {
            name: types.GenericAlias(dict, both) for name, both in self.keyed.items()
        }
        fields |= {name: outbox_struct(item) for name, item in self.outboxes.items()}
        others = [(name, fields[name]) for name in self._other_names]
        try:
            self.struct = msgspec.defstruct(kind.__name__, list(fields.items()), kw_only=True)
            self._decoder = msgspec.msgpack.Decoder(self.struct)
            rest = msgspec.defstruct(kind.__name__, others, kw_only=True)
            self._rest_decoder = msgspec.msgpack.Decoder(rest)
            fields |= {
                name: types.GenericAlias(list, types.GenericAlias(OutboxEntry, item))
                for name, item in self.outboxes.items()
            }
            self._rules = {name: rules_of(kind) for name, kind in fields.items()}
            self._part_rules = {
                name: tuple(rules_of(part) for part in both) for name, both in self.keyed.items()
            }
            self._array_decoders = {
                name: tuple(
                    msgspec.msgpack.Decoder(types.GenericAlias(list, (part,))) for part in both
                )
                for name, both in self.keyed.items()
            }
            self._names_with_sets = [name for name, kind in others if may_hold_set(kind)]
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"class {kind.__name__}: its fields cannot be recorded: {text_of(error)}"
            ) from error

    def capture(self, process: object) -> bytes:
        """Record the full state now. The bytes share nothing with the live objects. UsageError if
        a field holds what cannot be encoded, or an attribute was never declared."""
        held = {name: field.rows for name, field in self.keyed_fields(process).items()}
        return self.encode(self.others(process) | held)

    def others(self, process: object) -> dict[str, Any]:
        """Return the current values of the fields that are not keyed, by name."""
        check_attributes(process, self.types)
        try:
            values = {name: getattr(process, name) for name in self._other_names}
        except AttributeError as error:
            raise UsageError(f"a declared field was never set: {text_of(error)}") from error
        found = self.outbox_fields(process).items()
        return values | {name: outbox.recorded() for name, outbox in found}

    def keyed_fields(self, process: object) -> dict[str, Keyed[Any, Any]]:
        """Return the keyed fields, by name; a UsageError if one holds something else, or two hold
        the same object."""
        return self._held(process, Keyed, self.keyed)

    def outbox_fields(self, process: object) -> dict[str, Outbox[Any]]:
        """Return the outboxes, by name; errors as for ``keyed_fields``."""
        return self._held(process, Outbox, self.outboxes)

    def open_outboxes(self, process: object, owner: str, origin: str) -> tuple[Outbox[Any], ...]:
        """Return the outboxes of a process called `owner` that begins to run; keys are unique to
        `origin`. Errors as for ``keyed_fields``."""
        found = self.outbox_fields(process)
        for name, outbox in found.items():
            decode = msgspec.msgpack.Decoder(self.outboxes[name]).decode
            outbox.open(f"{owner}.{name}", origin, decode)
        return tuple(found.values())

    def check_opened(self, process: object, opened: tuple[Outbox[Any], ...]) -> None:
        """Raise a UsageError if a process holds other outboxes than those that were `opened`."""
        for (name, found), outbox in zip(self.outbox_fields(process).items(), opened, strict=True):
            if found is not outbox:
                raise UsageError(
                    f"{self.kind.__name__}.{name} holds another Outbox than when the process "
                    "began, whose entries would never be committed: put into the first one instead "
                    "of replacing it"
                )

    def _held(self, process: object, kind: type[Held], names: Iterable[str]) -> dict[str, Held]:
        found: dict[str, Held] = {}
        for name in names:
            field = getattr(process, name, None)
            if type(field) is not kind:
                raise UsageError(
                    f"{self.kind.__name__}.{name} is declared as {kind.__name__} and holds a "
                    f"{type(field).__name__}: give it a stillframe.{kind.__name__}(...)"
                )
            twin = next((other for other, object_ in found.items() if object_ is field), None)
            if twin is not None:
                raise UsageError(
                    f"{self.kind.__name__}.{name} and {twin} hold the same {kind.__name__}: give "
                    "each field a separate one"
                )
            found[name] = field
        return found

    def encode(self, values: dict[str, Any]) -> bytes:
        """Return fields as a MessagePack map; a UsageError names one that cannot be encoded, or
        that a restore would make different."""
        looked_at = {
            name: [value["entries"] if name in self.outboxes else value]
            for name, value in values.items()
        }
        try:
            sets = {name: with_ordered_sets(values[name]) for name in self._names_with_sets}
            encoded = self._encode(values | sets)
        except Exception as error:  # of a value, whose class may be the application's
            self._explain(self._rules, looked_at)
            where = f"{self.kind.__name__}.{self._find_unencodable(values)}"
            raise UsageError(f"{where} cannot be recorded: {describe(error)}") from error
        self._check_restorable(self._rules, looked_at)
        return encoded

    def encode_part(self, name: str, values: list[Any], *, are_keys: bool = False) -> bytes:
        """Return values, or keys, of the keyed field `name` as a MessagePack array; errors as for
        ``encode``."""
        try:
            encoded = self._encode(values)
        except Exception as error:
            where = f"{self.kind.__name__}.{name}"
            raise UsageError(f"{where} cannot be recorded: {describe(error)}") from error
        of_keys, of_values = self._part_rules[name]
        self._check_restorable({name: of_keys if are_keys else of_values}, {name: values})
        return encoded

    def _check_restorable(self, rules: Mapping[str, Rules], values: dict[str, list[Any]]) -> None:
        """Raise a UsageError if a restore would make values of some fields different."""
        if not is_restorable(
            [(rules[name], found) for name, found in values.items()], is_strict=sys.flags.dev_mode
        ):
            self._explain(rules, values)

    def _explain(self, rules: Mapping[str, Rules], values: dict[str, list[Any]]) -> None:
        each = [(name, rules[name], value) for name, found in values.items() for value in found]
        if found := explain(each):
            raise UsageError(f"{self.kind.__name__}.{found}")

    def check(self, encoded: bytes, changes: Mapping[str, KeyedChange] = NOTHING) -> None:
        """Raise a UsageError if a restore could not read the recorded fields. Capturing does not
        check: reading them back takes longer than a process should pause. `encoded` has all fields
        if there are no `changes`, else all but the keyed ones (``ProcessState.keyed``)."""
        try:
            if not changes:
                self._decoded(self._decoder, encoded)
                return
            self._decoded(self._rest_decoder, encoded)
            if changes.keys() != self.keyed.keys():
                raise msgspec.ValidationError(f"changes of {sorted(changes)} were recorded")
            for name, change in changes.items():
                self._check_change(name, change)
        except DECODING_ERRORS as error:
            raise UsageError(
                f"a field of {self.kind.__name__} does not hold what it is declared with: "
                f"{text_of(error)}; a restore could not read it"
            ) from error

    def _decoded(self, decoder: msgspec.msgpack.Decoder[Any], encoded: bytes) -> Any:
        """Return what `decoder` makes of all fields; one of `DECODING_ERRORS` names a field."""
        try:
            return decoded(decoder.decode, encoded)
        except msgspec.ValidationError as error:
            if "`$" in (text := text_of(error)):
                raise
            for name, raw in msgspec.msgpack.decode(encoded, type=dict[str, msgspec.Raw]).items():
                kind = self.struct.__annotations__.get(name, Any)
                try:
                    decoded(msgspec.msgpack.Decoder(kind).decode, raw)
                except DECODING_ERRORS:
                    raise msgspec.ValidationError(f"{text} - at `$.{name}`") from error
            raise

    def _check_change(self, name: str, change: KeyedChange) -> None:
        keys, values = self._array_decoders[name]
        arrays = [(keys, change.removed, change.removed_count)]
        for rows in change.rows:
            arrays += [(keys, rows.keys, rows.count), (values, rows.values, rows.count)]
        for decoder, encoded, count in arrays:
            try:
                found = decoded(decoder.decode, encoded)
            except DECODING_ERRORS as error:
                raise msgspec.ValidationError(f"{text_of(error)} (in {name})") from error
            if len(found) != count:
                raise msgspec.ValidationError(f"{name} has {len(found)} entries and not {count}")

    def restore(self, process: object, encoded: bytes) -> None:
        """Set the fields to what ``capture`` recorded; errors as for ``decode``. An outbox that is
        there keeps its commit function."""
        for name, value in self.decode(encoded).items():
            held = getattr(process, name, None) if name in self.outboxes else None
            if isinstance(held, Outbox):
                held.load(value.recorded())
            else:
                setattr(process, name, value)

    def decode(self, encoded: bytes) -> dict[str, Any]:
        """Return the fields that ``capture`` recorded, by name; a UsageError names a mismatch with
        the declared ones."""
        try:
            state = self._decoded(self._decoder, encoded)
        except DECODING_ERRORS as error:
            raise UsageError(
                f"class {self.kind.__name__} does not fit the recorded state: {text_of(error)}"
            ) from error
        fields = {name: getattr(state, name) for name in self.types}
        for name in self.outboxes:
            outbox: Outbox[Any] = Outbox(no_commit)
            outbox.load(msgspec.structs.asdict(fields[name]))
            fields[name] = outbox
        return fields | {name: Keyed(fields[name]) for name in self.keyed}

    def _find_unencodable(self, values: dict[str, Any]) -> str:
        for name, value in values.items():
            try:
                self._encode(with_ordered_sets(value))
            except Exception:  # noqa: BLE001 - the same
                return name
        return "?"


def _mentions(kind: type, annotation: Any) -> bool:
    if annotation is kind or typing.get_origin(annotation) is kind:
        return True
    return any(_mentions(kind, part) for part in typing.get_args(annotation))


def _item_type(where: str, annotation: Any) -> Any:
    """Return the type of the items of an outbox."""
    if typing.get_origin(annotation) is not Outbox:
        raise UsageError(
            f"{where}: Outbox is the whole type of a field, with the type of its items: declare "
            f"'{where.rpartition('.')[2]}: Outbox[Payment]' or the like, not {annotation}"
        )
    return typing.get_args(annotation)[0]


def _keyed_types(where: str, annotation: Any) -> tuple[Any, Any]:
    """Return the types of the keys and of the values of a keyed field, if it can be one."""
    if typing.get_origin(annotation) is not Keyed:
        raise UsageError(
            f"{where}: Keyed is the whole type of a field, with the types of its keys and values: "
            f"declare '{where.rpartition('.')[2]}: Keyed[str, int]' or the like, not {annotation}"
        )
    key, value = typing.get_args(annotation)
    if not all(part is bytes or (is_immutable(part) and part is not float) for part in _parts(key)):
        raise UsageError(
            f"{where}: its keys are declared as {_spelled(key)}: use str, int, bytes, a date, an "
            "Enum or a frozen Struct of such"
        )
    if not all(part is bytes or is_immutable(part) for part in _parts(value)):
        raise UsageError(
            f"{where}: its values are declared as {_spelled(value)}, which could be changed in "
            "place, and a snapshot would not notice: use a frozen Struct (class Row(msgspec.Struct,"
            " frozen=True)) and set the key to a new one, or declare the field as a dict"
        )
    return key, value


def _parts(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the type itself."""
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return typing.get_args(kind) if is_union else (kind,)


def _spelled(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)
