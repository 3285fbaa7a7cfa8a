"""The recorded fields of one class become those of the class as it is now."""

import dataclasses
import reprlib
import typing
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec

from stillframe.decoding import DECODING_ERRORS
from stillframe.errors import UsageError

VALUE_LENGTH_MAX = 60
"""So many characters of a value are shown."""

Values = Mapping[str, msgspec.Raw]
"""Field -> its value as MessagePack."""

_encode = msgspec.msgpack.Encoder(enc_hook=dict).encode  # a keyed field is recorded as a map


class Misfit(Exception):
    """A field cannot go on; the text says which and why."""


class Fields:
    """The fields of a class as it is now.

    A class says in ``renamed``, a class variable, what its fields were called before:
    ``renamed: ClassVar = {"new": "old"}``.

    Args:
        kind: the class.
        types: field -> type, in the order in which they are declared.

    Raises:
        UsageError: ``renamed`` names what there is not, or one old name twice.
    """

    def __init__(self, kind: type, types: Mapping[str, Any]) -> None:
        self.names = tuple(types)
        self._renamed = _renamed(kind, types)
        self._decoders = {
            name: msgspec.msgpack.Decoder(annotation) for name, annotation in types.items()
        }

    def sources(self, recorded: Collection[str]) -> dict[str, str]:
        """Return field -> the recorded field whose value it goes on with; new ones are not there.

        Args:
            recorded: the names of the recorded fields.
        """
        renamed = {
            new: old
            for new, old in self._renamed.items()
            if new not in recorded and old in recorded
        }
        free = set(recorded) - set(renamed.values())
        found = {name: renamed.get(name, name) for name in self.names}
        return {name: old for name, old in found.items() if name in renamed or old in free}

    def convert(
        self, recorded: Values, starts: Values
    ) -> tuple[dict[str, msgspec.Raw], tuple[str, ...]]:
        """Return each field with its value now, and the fields of whose values a part is dropped.

        Args:
            recorded: what was recorded.
            starts: what new fields begin with.

        Raises:
            Misfit: a recorded value is none of the field's type, or a new field has none.
        """
        sources = self.sources(recorded.keys())
        values: dict[str, msgspec.Raw] = {}
        cut: list[str] = []
        for name in self.names:
            if name in sources:
                values[name] = self._decoded_again(name, recorded[sources[name]])
                if not _keeps(_plain(recorded[sources[name]]), _plain(values[name])):
                    cut.append(name)
            elif name in starts:
                values[name] = starts[name]
            else:
                raise Misfit(f"{name} is new and has no value to begin with: give it a default")
        return values, tuple(cut)

    def _decoded_again(self, name: str, raw: msgspec.Raw) -> msgspec.Raw:
        try:
            return msgspec.Raw(_encode(self._decoders[name].decode(raw)))
        except (*DECODING_ERRORS, TypeError, ValueError) as error:
            raise Misfit(f"{name} was {shown(raw)}: {error}") from error


def defaults(kind: type) -> dict[str, msgspec.Raw]:
    """Return the fields of a dataclass or Struct that have a default, with it."""
    found: dict[str, Any] = {}
    if issubclass(kind, msgspec.Struct):
        for info in msgspec.structs.fields(kind):
            if info.default is not msgspec.NODEFAULT:
                found[info.name] = info.default
            elif info.default_factory is not msgspec.NODEFAULT:
                found[info.name] = info.default_factory()
    elif dataclasses.is_dataclass(kind):
        for field in dataclasses.fields(kind):
            if field.default is not dataclasses.MISSING:
                found[field.name] = field.default
            elif field.default_factory is not dataclasses.MISSING:
                found[field.name] = field.default_factory()
    return encoded_values(found)


def encoded_values(values: Mapping[str, Any]) -> dict[str, msgspec.Raw]:
    """Return those of the values that can be recorded, encoded."""
    return dict(_encodable(values))


def _encodable(values: Mapping[str, Any]) -> Iterator[tuple[str, msgspec.Raw]]:
    for name, value in values.items():
        try:
            yield name, msgspec.Raw(_encode(value))
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
            continue


def shown(raw: msgspec.Raw) -> str:
    """Return a value as an error message shows it."""
    brief = reprlib.Repr()
    brief.maxstring = brief.maxother = VALUE_LENGTH_MAX
    return brief.repr(_plain(raw))


def _plain(raw: msgspec.Raw) -> Any:
    return msgspec.msgpack.decode(raw)


def _renamed(kind: type, types: Mapping[str, Any]) -> dict[str, str]:
    """Return new -> old name of fields, as `kind` and the classes that it is derived from say."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        declared = vars(each).get("renamed")
        if isinstance(declared, Mapping) and "renamed" not in types:
            found |= declared
    wrong = [new for new in found if new not in types]
    if wrong:
        raise UsageError(
            f"class {kind.__name__}: 'renamed' names {wrong[0]!r}, which is no field of it: write "
            "it as {'new': 'old'}, with the names of fields"
        )
    twice = [old for old in found.values() if list(found.values()).count(old) > 1]
    if twice:
        raise UsageError(
            f"class {kind.__name__}: 'renamed' gives the old field {twice[0]!r} to two new ones: a "
            "value goes to one field"
        )
    return found


def _keeps(before: Any, after: Any) -> bool:
    """Return whether all of a plain value is there again; more may be, but not less."""
    match before, after:
        case dict(), dict():
            return all(key in after and _keeps(item, after[key]) for key, item in before.items())
        case list(), list():
            return len(before) <= len(after) and (
                all(map(_keeps, before, after)) or _is_same_set(before, after)
            )
        case _:
            # 1 and 1.0 are equal; what is no number equals nothing, but is the same bytes.
            return bool(before == after) or _encode(before) == _encode(after)


def _is_same_set(before: list[Any], after: list[Any]) -> bool:
    """A set is recorded as a list, in any order."""
    return sorted(map(msgspec.msgpack.encode, before)) == sorted(map(msgspec.msgpack.encode, after))


def types_of(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the fields of a Struct class with their types."""
    hints = typing.get_type_hints(struct)
    return {name: hints[name] for name in struct.__struct_fields__}
