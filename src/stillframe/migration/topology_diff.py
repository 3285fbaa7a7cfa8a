"""How the topology of a snapshot differs from that of the code, field by field.

``differences`` describes it in words, and ``Fields`` converts the recorded fields of one class to
those of the class as it is now.
"""

import contextlib
import reprlib
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from stillframe.detect.view import declared_defaults
from stillframe.errors import UsageError
from stillframe.model import DECODING_ERRORS, Channel
from stillframe.process import Message
from stillframe.topology import Column, Description, Topology

MESSAGE = "message "
"""The subject of a change of a message class is this, and its name."""
VALUE_LENGTH_MAX = 60
"""How many characters of a value are shown at most."""
_LISTED_MAX = 5

Values = Mapping[str, msgspec.Raw]
"""Field -> its value as MessagePack."""

_encode = msgspec.msgpack.Encoder(enc_hook=dict).encode  # a keyed field is recorded as a map
CANNOT_ENCODE = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
"""What an encoder raises if it cannot encode a value."""


class Misfit(Exception):
    """A field cannot be converted; the text says which and why."""


class Fields:
    """The fields of a class as it is now, with their types in the order of declaration.

    The class variable ``renamed`` gives the former names: ``renamed: ClassVar = {"new": "old"}``.
    Raises a UsageError if it names no field of the class, or one old name twice.
    """

    def __init__(self, kind: type, types: Mapping[str, Any]) -> None:
        self.names = tuple(types)
        self._renamed = _renamed(kind, types)
        self._decoders = {
            name: msgspec.msgpack.Decoder(annotation) for name, annotation in types.items()
        }

    def sources(self, recorded: Collection[str]) -> dict[str, str]:
        """Return field -> the recorded field whose value it gets; new fields are left out."""
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
        """Return each field with its value, in `starts` that of a new one, and the fields that lose
        a part of their values. Raises Misfit if a recorded value is not of the field's type, or a
        new field has none."""
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
    """Return the fields of a dataclass or Struct that have a default, with it, encoded."""
    return encoded_values(declared_defaults(kind))


def encoded_values(values: Mapping[str, Any]) -> dict[str, msgspec.Raw]:
    """Return the values that can be encoded, encoded."""
    found = {}
    for name, value in values.items():
        with contextlib.suppress(*CANNOT_ENCODE):
            found[name] = msgspec.Raw(_encode(value))
    return found


def shown(raw: msgspec.Raw) -> str:
    """Return a value as an error message shows it."""
    brief = reprlib.Repr()
    brief.maxstring = brief.maxother = VALUE_LENGTH_MAX
    return brief.repr(_plain(raw))


def _plain(raw: msgspec.Raw) -> Any:
    return msgspec.msgpack.decode(raw)


def _renamed(kind: type, types: Mapping[str, Any]) -> dict[str, str]:
    """Return new -> old name of fields, as declared by `kind` and its base classes."""
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
    """Return whether the new value contains all of the old one."""
    match before, after:
        case dict(), dict():
            return all(key in after and _keeps(item, after[key]) for key, item in before.items())
        case list(), list():
            return len(before) <= len(after) and (
                all(map(_keeps, before, after)) or _is_same_set(before, after)
            )
        case _:
            # 1 and 1.0 are equal; NaN equals nothing, but has the same bytes.
            return bool(before == after) or _encode(before) == _encode(after)


def _is_same_set(before: list[Any], after: list[Any]) -> bool:
    """A set is recorded as a list, in any order."""
    return sorted(map(msgspec.msgpack.encode, before)) == sorted(map(msgspec.msgpack.encode, after))


def types_of(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the fields of a Struct class with their types."""
    hints = typing.get_type_hints(struct)
    return {name: hints[name] for name in struct.__struct_fields__}


# --- differences


class Change(msgspec.Struct, frozen=True):
    """One difference: its subject, for example ``class Account``, a sentence about it, and whether
    recorded data is lost."""

    subject: str
    sentence: str
    is_loss: bool = False

    def __str__(self) -> str:
        lost = ": what was recorded of it is lost" if self.is_loss else ""
        return f"{self.subject}: {self.sentence}{lost}"


def listed(items: Iterable[object]) -> str:
    """Return the first few items in words; "none" if there are none."""
    names = [str(item) for item in items]
    more = f" and {len(names) - _LISTED_MAX} more" if len(names) > _LISTED_MAX else ""
    return (", ".join(names[:_LISTED_MAX]) or "none") + more


def differences(recorded: Description, topology: Topology) -> list[Change]:
    """Return how a topology differs from the recorded one; the effects on recorded values and
    messages depend on the snapshot (``migrate``). Raises as ``Fields``."""
    now = topology.description
    return [
        *_process_changes(recorded, now),
        *_state_changes(recorded, topology),
        *_message_changes(recorded, topology),
        *_channel_changes(recorded.channels, now.channels),
    ]


def message_classes(topology: Topology) -> dict[str, type[Message]]:
    """Return the message classes that any process accepts, by the name in their encoding."""
    every = (kind for accepted in topology.accepts.values() for kind in accepted)
    return {str(kind.__struct_config__.tag): kind for kind in every}


def state_fields(topology: Topology) -> dict[str, Fields]:
    """Return the fields of every class of processes; raises as ``Fields``."""
    return {
        codec.kind.__name__: Fields(codec.kind, types_of(codec.struct))
        for codec in topology.codecs.values()
    }


def message_fields(topology: Topology) -> dict[str, Fields]:
    """Return the fields of every message class; raises as ``Fields``."""
    return {
        tag: Fields(kind, types_of(kind)) for tag, kind in sorted(message_classes(topology).items())
    }


def is_unchanged(name: str, recorded: Description, now: Description) -> bool:
    """Return whether values of the current class called `name` are encoded as before."""
    return recorded.shapes.get(name) == now.shapes[name]


def _process_changes(recorded: Description, now: Description) -> Iterator[Change]:
    if gone := recorded.processes.keys() - now.processes.keys():
        yield Change("processes", f"{listed(sorted(gone))} are gone")
    if new := now.processes.keys() - recorded.processes.keys():
        yield Change("processes", f"{listed(sorted(new))} are new")
    for process in sorted(recorded.processes.keys() & now.processes.keys()):
        before, after = recorded.processes[process], now.processes[process]
        if before != after:
            yield Change(f"process {process}", f"it was of class {before} and is a {after}")
        took, takes = set(recorded.accepts[process]), set(now.accepts[process])
        if took - takes:
            yield Change(f"process {process}", f"it takes no {listed(sorted(took - takes))} more")
        if takes - took:
            yield Change(f"process {process}", f"it takes {listed(sorted(takes - took))} as well")


def _state_changes(recorded: Description, topology: Topology) -> Iterator[Change]:
    now = topology.description
    fields = state_fields(topology)
    pairs = {(kind, kind) for kind in recorded.states.keys() & now.states.keys()}
    pairs |= {
        (recorded.processes[process], now.processes[process])
        for process in recorded.processes.keys() & now.processes.keys()
    }
    for before, after in sorted(pairs):
        subject = f"class {after}" if before == after else f"class {after}, which was {before}"
        is_same = before == after and is_unchanged(after, recorded, now)
        yield from _field_changes(
            subject, fields[after], recorded.states[before], now.states[after], is_same=is_same
        )


def _message_changes(recorded: Description, topology: Topology) -> Iterator[Change]:
    now = topology.description
    for kind, fields in message_fields(topology).items():
        if kind in recorded.messages:
            yield from _field_changes(
                f"{MESSAGE}{kind}",
                fields,
                recorded.messages[kind],
                now.messages[kind],
                is_same=is_unchanged(kind, recorded, now),
            )
        else:
            yield Change(f"{MESSAGE}{kind}", "it is new")
    for kind in sorted(recorded.messages.keys() - now.messages.keys()):
        yield Change(f"{MESSAGE}{kind}", "there is no such class any more")


def _field_changes(
    subject: str,
    fields: Fields,
    before: tuple[Column, ...],
    after: tuple[Column, ...],
    *,
    is_same: bool,
) -> Iterator[Change]:
    """Yield how fields differ; `is_same` says that not even their nested types do."""
    was, is_now = ({column.name: column.kind for column in columns} for columns in (before, after))
    sources = fields.sources(was)
    found = [Change(subject, f"{name} is new") for name in fields.names if name not in sources]
    for name, old in sources.items():
        if name != old:
            found.append(Change(subject, f"{name} is what {old} was"))
        if is_now[name] != was[old]:
            found.append(Change(subject, f"{name} was {was[old]} and is {is_now[name]}"))
    found += [
        Change(subject, f"{old} is gone", is_loss=True)
        for old in was
        if old not in sources.values()
    ]
    if not found and not is_same:
        found = [
            Change(subject, "its fields are in another order, or of types that changed within")
        ]
    yield from found


def _channel_changes(before: tuple[Channel, ...], after: tuple[Channel, ...]) -> Iterator[Change]:
    if new := sorted(set(after) - set(before)):
        yield Change("channels", f"{listed(new)}: new, their counts begin at 0")
    if gone := sorted(set(before) - set(after)):
        yield Change("channels", f"{listed(gone)}: gone, with their counts")
