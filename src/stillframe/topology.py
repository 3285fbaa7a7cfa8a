"""The processes and channels of a system: the description that all its programs must agree on.

``Topology`` holds live objects (a start state for each process); its ``Description`` is plain data
that travels, is kept in the store, and has a hash that both ends of every connection compare. The
columns of a description are those that fields get in a store.
"""

import datetime
import enum
import hashlib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from typing import Any, ClassVar, Literal, Self

import msgspec

from stillframe.errors import UsageError, check_kind, repr_of
from stillframe.keyed import Keyed
from stillframe.model import Channel, ProcessId, ProcessState, check_process_id, natural_order
from stillframe.process import (
    Message,
    Process,
    accepted_messages,
    check_attributes,
    field_types,
    receive_annotation,
)
from stillframe.state_codec import StateCodec

COLUMN_KINDS: dict[Any, str] = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "text",
    bytes: "bytes",
    datetime.datetime: "time",
}
"""Python type -> the kind of its column in a store; every other type becomes JSON."""

KEYED = "keyed"
"""The kind of a field with separate rows."""

TABLE_NAME_BYTES_MAX = 200
"""Maximum length of ``<class>_<field>``: with what precedes and follows it, it names a file."""


class Column(msgspec.Struct, frozen=True):
    """A field of a process or of a message, and the kind of its column (`COLUMN_KINDS`)."""

    name: str
    kind: str


class KeyedColumns(msgspec.Struct, frozen=True):
    """The columns of a keyed field, which has a row for each key. `key` is the kind of the column
    `_key`. With the layout `value` there is one column of that name; with `map` or `array` the
    values are Structs that are encoded so, and each of their fields has a column."""

    key: str
    layout: Literal["value", "map", "array"]
    values: tuple[Column, ...]


def columns_of(fields: Mapping[str, Any]) -> tuple[Column, ...]:
    """Return the columns of a class."""
    return tuple(Column(name, _column_kind(kind)) for name, kind in fields.items())


def _check_case(classes: Mapping[str, Iterable[Column]]) -> None:
    """Raise a UsageError if two fields in one table differ in case alone: in SQL one would hide the
    other."""
    seen: dict[str, tuple[str, str]] = {}
    for kind, columns in classes.items():
        for column in columns:
            owner, name = seen.setdefault(column.name.casefold(), (kind, column.name))
            if name != column.name:
                raise UsageError(
                    f"the fields {owner}.{name} and {kind}.{column.name} differ only in case, and "
                    "most SQL engines ignore case: rename one"
                )


def _column_kind(kind: Any) -> str:
    """Return the kind of column for a type; ``int | None`` is int, since any column may be null."""
    if typing.get_origin(kind) is Keyed:
        return KEYED
    members = [member for member in typing.get_args(kind) if member is not type(None)]
    if typing.get_origin(kind) in (typing.Union, types.UnionType) and len(members) == 1:
        kind = members[0]
    return COLUMN_KINDS.get(kind, "json") if isinstance(kind, type) else "json"


def keyed_columns(
    classes: Iterable[tuple[type, Mapping[str, tuple[Any, Any]]]],
) -> dict[str, dict[str, KeyedColumns]]:
    """Return class name -> keyed field -> columns, for the classes that have any, each with the
    types of keys and values of its keyed fields. UsageError if a type cannot be a key or value, or
    two fields would share a table."""
    found: dict[str, dict[str, KeyedColumns]] = {}
    tables: dict[str, tuple[str, str]] = {}
    for kind, fields in classes:
        owner = kind.__name__
        for field, (key, value) in fields.items():
            table = f"{owner}_{field}"
            if tables.setdefault(table.casefold(), (owner, field)) != (owner, field):
                raise UsageError(
                    f"the rows of {owner}.{field} would be in a table {table}, and another "
                    "field of another class has one of that name already: rename the field"
                )
            if (size := len(table.encode())) > TABLE_NAME_BYTES_MAX:
                raise UsageError(
                    f"the rows of {owner}.{field} would be in files called {table}, which has "
                    f"{size} bytes: at most {TABLE_NAME_BYTES_MAX} are possible; use shorter names"
                )
            if key is types.NoneType or types.NoneType in typing.get_args(key):
                raise UsageError(
                    f"{owner}.{field}: a key cannot be None: use another key for that case, or "
                    "a separate field"
                )
            _check_key(f"{owner}.{field}", key)
            columns = KeyedColumns(_column_kind(key), *_value_columns(value))
            found.setdefault(owner, {})[field] = columns
    return found


def _check_key(where: str, key: Any) -> None:
    """Refuse keys that are equal but encoded differently, or whose encoding can be no key."""
    struct = getattr(key, "__struct_config__", None)
    if key is float or (struct is not None and not struct.array_like):
        raise UsageError(
            f"{where}: a key cannot be or contain a {key.__name__}: equal floats may be encoded "
            "differently, and a Struct is a key only with array_like=True"
        )
    members = set(typing.get_args(key)) - {types.NoneType}
    if key is datetime.time or (bool in members and len(members) > 1):
        raise UsageError(
            f"{where}: a key cannot be or contain a {getattr(key, '__name__', key)}: equal ones "
            "(1 and True, or the same time in two time zones) may be encoded differently: use an "
            "int or a str"
        )
    parts = typing.get_type_hints(key).values() if struct is not None else typing.get_args(key)
    for part in parts:
        _check_key(where, part)


def _value_columns(value: Any) -> tuple[Literal["value", "map", "array"], tuple[Column, ...]]:
    """Return the layout of the values of a keyed field, and their columns. A Struct that is not
    encoded field by field, or has a field that begins with `_`, becomes JSON text."""
    struct = getattr(value, "__struct_config__", None)
    if (
        struct is None
        or struct.omit_defaults
        or value.__struct_fields__ != value.__struct_encode_fields__
        or (struct.array_like and struct.tag is not None)
        or any(name.startswith("_") for name in value.__struct_fields__)
    ):
        return "value", (Column("value", _column_kind(value)),)
    hints = typing.get_type_hints(value)
    columns = columns_of({name: hints[name] for name in value.__struct_fields__})
    _check_case({value.__name__: columns})
    return "array" if struct.array_like else "map", columns


class InTransit(msgspec.Struct, frozen=True):
    """A message that was on a channel: of the class called `kind`, with its fields by name."""

    source: ProcessId
    target: ProcessId
    kind: str
    fields: dict[str, Any]


class Recorded(msgspec.Struct, frozen=True):
    """The recorded fields of every process, and the messages on the channels, in order.

    Values are plain, as MessagePack gives them: a keyed field is a dict, a nested Struct a dict or
    a list. An application whose processes are different now redistributes them:
    ``Topology(..., redistribute=...)``.
    """

    states: dict[ProcessId, dict[str, Any]]
    messages: tuple[InTransit, ...]


Redistribute = Callable[[Recorded], Recorded]
"""Converts the recorded states of a snapshot to those of the current processes: a state for each,
and messages only on existing channels. A message that becomes part of a state is left out. Only the
application knows which process takes over what. The same input must give the same result."""


class Description(msgspec.Struct, frozen=True, omit_defaults=True):
    """A topology as plain data.

    `processes`: name -> class name. `states`: class name -> columns. `messages`: class name ->
    columns, in the order in which they travel. `accepts`: process -> names of message classes.
    `shapes`: class name -> a hash of its types down to the last, so that two programs whose nested
    classes differ are not taken for the same. `keyed`: class name -> keyed field -> columns; in
    `states` such a field is of the kind `KEYED`.
    """

    processes: dict[ProcessId, str]
    channels: tuple[Channel, ...]
    states: dict[str, tuple[Column, ...]]
    messages: dict[str, tuple[Column, ...]]
    accepts: dict[ProcessId, tuple[str, ...]]
    shapes: dict[str, str] = {}
    keyed: dict[str, dict[str, KeyedColumns]] = {}

    @property
    def hash(self) -> str:
        """64 hexadecimal digits; equal exactly if the descriptions are."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()

    def incoming(self, process: ProcessId) -> tuple[ProcessId, ...]:
        """Return the sources of the channels into `process`, sorted."""
        return tuple(c.source for c in self.channels if c.target == process)

    def outgoing(self, process: ProcessId) -> tuple[ProcessId, ...]:
        """Return the targets of the channels out of `process`, sorted."""
        return tuple(c.target for c in self.channels if c.source == process)

    def channel_count(self, process: ProcessId) -> int:
        """How many channels lead into and out of `process`."""
        return sum(process in (c.source, c.target) for c in self.channels)

    def check_process(self, process: ProcessId) -> None:
        """Raise a UsageError that lists the processes if `process` is none of them."""
        if process not in self.processes:
            raise UsageError(
                f"there is no process {process!r}; there are "
                f"{', '.join(sorted(self.processes, key=natural_order))}"
            )

    def initiators(self, first: ProcessId) -> tuple[ProcessId, ...]:
        """Return `first` and as many more as it takes for markers to reach every process. In a
        strongly connected graph that is `first` alone. Otherwise several processes start the same
        snapshot, as Chandy & Lamport 1985 (section 3.3) allow."""
        self.check_process(first)
        chosen = [first]
        reached = self.reachable(first)
        rest = [p for p in self.processes if p not in reached]
        # The process that reaches most goes first: nothing upstream of it can be left over twice.
        for process in sorted(rest, key=lambda p: (-len(self.reachable(p)), p)):
            if process not in reached:
                chosen.append(process)
                reached |= self.reachable(process)
        return tuple(chosen)

    def cyclic_targets(self, process: ProcessId) -> frozenset[ProcessId]:
        """Return the targets of `process` that a chain of channels leads back from."""
        return frozenset(t for t in self.outgoing(process) if process in self.reachable(t))

    def reachable(self, start: ProcessId) -> set[ProcessId]:
        """Return `start` and every process that a chain of channels leads to from it."""
        reached, frontier = {start}, [start]
        while frontier:
            for target in self.outgoing(frontier.pop()):
                if target not in reached:
                    reached.add(target)
                    frontier.append(target)
        return reached


class ExternalProcess:
    """A process that Stillframe does not start: its program calls ``stillframe.join``.

    Args:
        state: the dataclass or Struct class whose fields are recorded.
        accepts: the message classes it takes, for example ``Transfer | Query``; None for none.
    """

    def __init__(self, *, state: type, accepts: Any = None) -> None:
        check_kind("state", state, type, "the class whose fields are recorded")
        self.state = state
        self.accepts = accepts


_PROCESSES = "a mapping from names to processes"
_CHANNELS = "pairs of names (source, target)"


class Topology:
    """The processes of a system, each with its start state, and the channels between them.

    Args:
        processes: name -> an instance of a Process subclass, or ``ExternalProcess(...)``. The first
            one initiates snapshots, unless another process is named.
        channels: pairs (source, target).
        redistribute: distributes the recorded state of other processes over these, when the system
            continues from the snapshot (``stillframe restore --migrate``).

    Raises:
        UsageError: parts do not fit together; they are named.

    Attributes:
        processes: each process with its start state, sorted by name.
        channels: the channels, sorted.
    """

    processes: dict[ProcessId, Process | ExternalProcess]
    channels: tuple[Channel, ...]

    def __init__(
        self,
        processes: Mapping[ProcessId, Process | ExternalProcess],
        channels: Iterable[tuple[ProcessId, ProcessId]],
        *,
        redistribute: Redistribute | None = None,
    ) -> None:
        check_kind("processes", processes, Mapping, _PROCESSES)
        if not processes:
            raise UsageError("a topology needs at least one process")
        self.processes = {check_process_id(name): processes[name] for name in sorted(processes)}
        self.first: ProcessId = next(iter(processes))
        self.redistribute = redistribute
        self.codecs: dict[ProcessId, StateCodec] = {}
        self.accepts: dict[ProcessId, tuple[type[Message], ...]] = {}
        for name, process in self.processes.items():
            self.codecs[name], self.accepts[name] = _inspect(name, process)
        self.description: Description = self._describe(self._check_channels(channels))
        self.channels = self.description.channels

    @classmethod
    def mesh(
        cls,
        processes: Mapping[ProcessId, Process | ExternalProcess],
        *,
        redistribute: Redistribute | None = None,
    ) -> Self:
        """Connect every process to every other."""
        check_kind("processes", processes, Mapping, _PROCESSES)
        pairs = [(a, b) for a in processes for b in processes if a != b]
        return cls(processes, pairs, redistribute=redistribute)

    @classmethod
    def ring(
        cls,
        processes: Mapping[ProcessId, Process | ExternalProcess],
        *,
        redistribute: Redistribute | None = None,
    ) -> Self:
        """Connect each process to the next, in the order given, and the last to the
        first."""
        check_kind("processes", processes, Mapping, _PROCESSES)
        names = list(processes)
        if len(names) < 2:
            raise UsageError("a ring needs at least two processes")
        pairs = zip(names, names[1:] + names[:1], strict=True)
        return cls(processes, pairs, redistribute=redistribute)

    def check_state(self, state: ProcessState) -> None:
        """Raise a UsageError if a restore could not read what a process recorded."""
        self.codecs[state.process].check(state.encoded, state.keyed)

    def _check_channels(self, pairs: Iterable[tuple[ProcessId, ProcessId]]) -> list[Channel]:
        channels: set[Channel] = set()
        check_kind("channels", pairs, Iterable, _CHANNELS)
        for pair in pairs:
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise UsageError(f"a channel is {repr_of(pair)}: give {_CHANNELS}")
            source, target = pair
            channel = Channel(source, target)
            for end in (source, target):
                if end not in self.processes:
                    raise UsageError(
                        f"channel {channel}: there is no process {end!r}; "
                        f"there are {', '.join(sorted(self.processes, key=natural_order))}"
                    )
            if source == target:
                raise UsageError(f"channel {channel}: a channel joins two different processes")
            if channel in channels:
                raise UsageError(
                    f"channel {channel} is given twice; there is one channel in each direction"
                )
            channels.add(channel)
        return sorted(channels)

    def _describe(self, channels: list[Channel]) -> Description:
        states: dict[str, tuple[Column, ...]] = {}
        messages: dict[str, type[Message]] = {}
        for name, codec in self.codecs.items():
            columns = columns_of(codec.types)
            if states.setdefault(codec.kind.__name__, columns) != columns:
                raise UsageError(f"two different process classes are called {codec.kind.__name__}")
            for message in self.accepts[name]:
                if messages.setdefault(_tag(message), message) is not message:
                    raise UsageError(f"two different message classes are called {_tag(message)}")
        columns_of_messages = {t: _message_columns(m) for t, m in sorted(messages.items())}
        _check_case(states)
        _check_case(columns_of_messages)
        return Description(
            processes={name: codec.kind.__name__ for name, codec in self.codecs.items()},
            channels=tuple(channels),
            states=states,
            messages=columns_of_messages,
            keyed=keyed_columns((codec.kind, codec.keyed) for codec in self.codecs.values()),
            accepts={n: tuple(sorted(map(_tag, kinds))) for n, kinds in self.accepts.items()},
            shapes={
                **{codec.kind.__name__: _shape(codec.struct) for codec in self.codecs.values()},
                **{tag: _shape(message) for tag, message in messages.items()},
            },
        )


def _inspect(
    name: ProcessId, process: Process | ExternalProcess
) -> tuple[StateCodec, tuple[type[Message], ...]]:
    match process:
        case Process():
            kind, annotation = type(process), receive_annotation(type(process))
        case ExternalProcess():
            kind, annotation = process.state, process.accepts
        case _:
            raise UsageError(
                f"process {name!r} is {repr_of(process)}: give an instance of a stillframe.Process "
                "subclass, or stillframe.ExternalProcess(...)"
            )
    codec = StateCodec(kind)
    if isinstance(process, Process):
        check_attributes(process, codec.types)
    return codec, accepted_messages(annotation, f"process {name!r} ({kind.__name__})")


def _tag(message: type[Message]) -> str:
    return str(message.__struct_config__.tag)


def _shape(kind: type) -> str:
    """Return a hash of what values of a class look like, nested classes and all."""
    return hashlib.sha256(_spell(kind, ()).encode()).hexdigest()


def _spell(kind: Any, within: tuple[Any, ...]) -> str:
    """Return a type in words that are equal exactly if its values are encoded alike. `within` are
    the classes that it is a part of: one that refers to itself is named there."""
    if kind in within:
        return f"{kind.__name__} again"
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return f"{kind.__name__}{[(member.name, repr(member.value)) for member in kind]}"
    if isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or is_dataclass(kind)):
        # What a class variable holds is no part of a value.
        fields = {
            name: _spell(hint, (*within, kind))
            for name, hint in typing.get_type_hints(kind).items()
            if hint is not ClassVar and typing.get_origin(hint) is not ClassVar
        }
        is_array = getattr(getattr(kind, "__struct_config__", None), "array_like", False)
        return f"{kind.__name__} {'array' if is_array else 'map'} {fields}"
    members = [_spell(member, within) for member in typing.get_args(kind)]
    return f"{typing.get_origin(kind) or kind}{members}"


def _message_columns(message: type[Message]) -> tuple[Column, ...]:
    columns = columns_of(field_types(message))
    if hidden := sorted(set(message.__struct_fields__) - {column.name for column in columns}):
        raise UsageError(
            f"class {message.__name__}: the field {hidden[0]!r} travels like every other, so it "
            "cannot be private: rename it without the underscore"
        )
    return columns
