"""Migrates a snapshot of one topology to another, or refuses it: nothing is lost silently.

``differences`` says in words how the topologies differ. Recorded fields keep their values, under a
new name if the class says so (``renamed``); a new field gets its initial value in the topology, and
a removed field is reported as lost. Messages in transit are encoded again for their current
classes; if one cannot be read any more, the snapshot is refused. Counts are kept, so that the books
of the new snapshot balance like those of the old.

If there are other processes now, the application redistributes the recorded data over them. The
channels then start again, with the messages that it puts on them numbered from 1. Conserved
quantities must be the same before and after; before, they are computed from the recorded states and
messages as objects of the current classes.
"""

import contextlib
import reprlib
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from stillframe.detect.predicate import find_loss, places_of, total
from stillframe.detect.view import declared_defaults, view_of
from stillframe.errors import ApplicationError, UsageError, call, repr_of, text_of
from stillframe.model import (
    DECODING_ERRORS,
    Batch,
    Channel,
    ChannelState,
    GlobalState,
    ProcessId,
    ProcessState,
    Snapshot,
    decoded,
)
from stillframe.ordered_sets import with_ordered_sets
from stillframe.outbox import Outbox, no_commit
from stillframe.process import Message, Process
from stillframe.protocol.action_runner import union_of
from stillframe.topology import Column, Description, InTransit, Recorded, Topology

MESSAGE = "message "
"""The subject of a change of a message class is this, and its name."""
VALUE_LENGTH_MAX = 60
"""How many characters of a value are shown at most."""
_LISTED_MAX = 5

Values = Mapping[str, msgspec.Raw]
"""Field -> its value as MessagePack."""

_LIST = msgspec.msgpack.Decoder(list[msgspec.Raw])


def _as_recorded(value: Any) -> dict[Any, Any]:
    """Return what is recorded of a keyed field or an outbox."""
    return value.recorded() if isinstance(value, Outbox) else dict(value)


_encode = msgspec.msgpack.Encoder(enc_hook=_as_recorded).encode
_encode_plain = msgspec.msgpack.Encoder().encode
_plain = msgspec.msgpack.decode
CANNOT_ENCODE = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
"""What an encoder raises if it cannot encode a value."""


class Misfit(Exception):
    """A field cannot be converted; the text says which and why."""


class Fields:
    """The fields of a class as it is now, with their types in the order of declaration. The class
    variable ``renamed`` gives the former names: ``renamed: ClassVar = {"new": "old"}``. Raises a
    UsageError if it names no field of the class, or one old name twice."""

    def __init__(self, kind: type, struct: type[msgspec.Struct]) -> None:
        hints = typing.get_type_hints(struct)
        self.kind = kind
        self.names = struct.__struct_fields__
        self._renamed = _renamed(kind, self.names)
        self._decoders = {name: msgspec.msgpack.Decoder(hints[name]) for name in self.names}

    def defaults(self) -> dict[str, msgspec.Raw]:
        """Return the fields that have a default which can be encoded, with it."""
        return encoded_values(declared_defaults(self.kind))

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
                raw = recorded[sources[name]]
                try:
                    value = with_ordered_sets(decoded(self._decoders[name].decode, raw))
                    values[name] = msgspec.Raw(_encode(value))
                except (*DECODING_ERRORS, TypeError, ValueError) as error:
                    raise Misfit(f"{name} was {shown(raw)}: {text_of(error)}") from error
                if not _keeps(_plain(raw), _plain(values[name])):
                    cut.append(name)
            elif name in starts:
                values[name] = starts[name]
            else:
                raise Misfit(f"{name} is new and has no initial value: give it a default")
        return values, tuple(cut)


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


def _renamed(kind: type, names: Collection[str]) -> dict[str, str]:
    """Return new -> old name of fields, as declared by `kind` and its base classes."""
    found: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        declared = vars(each).get("renamed")
        if isinstance(declared, Mapping) and "renamed" not in names:
            found |= declared
    wrong = [new for new in found if new not in names]
    if wrong:
        raise UsageError(
            f"class {kind.__name__}: 'renamed' names {wrong[0]!r}, which is not one of its "
            "fields: write it as {'new': 'old'}, with the names of fields"
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
            if len(before) <= len(after) and all(map(_keeps, before, after)):
                return True
            # A set is recorded as a list, in any order.
            return sorted(map(_encode_plain, before)) == sorted(map(_encode_plain, after))
        case _:
            # 1 and 1.0 are equal; NaN equals nothing, but has the same bytes.
            return bool(before == after) or _encode(before) == _encode(after)


# --- differences


class Change(msgspec.Struct, frozen=True):
    """One difference between the code and that of a snapshot.

    Attributes:
        subject: what differs, for example ``class Account``.
        sentence: how, as a sentence.
        is_loss: whether recorded data is lost.
    """

    subject: str
    sentence: str
    is_loss: bool = False

    def __str__(self) -> str:
        lost = ": its recorded values are lost" if self.is_loss else ""
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


def _tag(kind: type[Message]) -> str:
    """Return the name of a message class in its encoding."""
    return str(kind.__struct_config__.tag)


def _state_fields(topology: Topology) -> dict[str, Fields]:
    """Return the fields of every class of processes; raises as ``Fields``."""
    codecs = topology.codecs.values()
    return {codec.kind.__name__: Fields(codec.kind, codec.struct) for codec in codecs}


def _message_fields(topology: Topology) -> dict[str, Fields]:
    """Return the fields of every message class that is accepted; raises as ``Fields``."""
    kinds = {kind for accepted in topology.accepts.values() for kind in accepted}
    return {_tag(kind): Fields(kind, kind) for kind in sorted(kinds, key=_tag)}


def _is_unchanged(name: str, recorded: Description, now: Description) -> bool:
    """Return whether values of the current class called `name` are encoded as before."""
    return recorded.shapes.get(name) == now.shapes[name]


def _process_changes(recorded: Description, now: Description) -> Iterator[Change]:
    if gone := recorded.processes.keys() - now.processes.keys():
        yield Change("processes", f"{listed(sorted(gone))}: removed")
    if new := now.processes.keys() - recorded.processes.keys():
        yield Change("processes", f"{listed(sorted(new))}: new")
    for process in sorted(recorded.processes.keys() & now.processes.keys()):
        before, after = recorded.processes[process], now.processes[process]
        if before != after:
            yield Change(f"process {process}", f"its class changed from {before} to {after}")
        took, takes = set(recorded.accepts[process]), set(now.accepts[process])
        if took - takes:
            yield Change(
                f"process {process}", f"it no longer accepts {listed(sorted(took - takes))}"
            )
        if takes - took:
            yield Change(
                f"process {process}", f"it now also accepts {listed(sorted(takes - took))}"
            )


def _state_changes(recorded: Description, topology: Topology) -> Iterator[Change]:
    now = topology.description
    fields = _state_fields(topology)
    pairs = {(kind, kind) for kind in recorded.states.keys() & now.states.keys()}
    pairs |= {
        (recorded.processes[process], now.processes[process])
        for process in recorded.processes.keys() & now.processes.keys()
    }
    for before, after in sorted(pairs):
        subject = f"class {after}" if before == after else f"class {after}, formerly {before}"
        is_same = before == after and _is_unchanged(after, recorded, now)
        yield from _field_changes(
            subject, fields[after], recorded.states[before], now.states[after], is_same=is_same
        )


def _message_changes(recorded: Description, topology: Topology) -> Iterator[Change]:
    now = topology.description
    for kind, fields in _message_fields(topology).items():
        if kind in recorded.messages:
            yield from _field_changes(
                f"{MESSAGE}{kind}",
                fields,
                recorded.messages[kind],
                now.messages[kind],
                is_same=_is_unchanged(kind, recorded, now),
            )
        else:
            yield Change(f"{MESSAGE}{kind}", "it is new")
    for kind in sorted(recorded.messages.keys() - now.messages.keys()):
        yield Change(f"{MESSAGE}{kind}", "this class no longer exists")


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
            found.append(Change(subject, f"{name} was renamed from {old}"))
        if is_now[name] != was[old]:
            found.append(Change(subject, f"{name} changed from {was[old]} to {is_now[name]}"))
    found += [
        Change(subject, f"{old} was removed", is_loss=True)
        for old in was
        if old not in sources.values()
    ]
    if not found and not is_same:
        found = [Change(subject, "the order of its fields changed, or a type within one")]
    yield from found


def _channel_changes(before: tuple[Channel, ...], after: tuple[Channel, ...]) -> Iterator[Change]:
    if new := sorted(set(after) - set(before)):
        yield Change("channels", f"{listed(new)}: new, their counts begin at 0")
    if gone := sorted(set(before) - set(after)):
        yield Change("channels", f"{listed(gone)}: removed, with their counts")


# --- conversion


class Migration(msgspec.Struct, frozen=True):
    """A snapshot of the current topology, for ``restore.start_states``, and the changes: none if it
    was taken of the same topology."""

    snapshot: Snapshot
    changes: tuple[Change, ...]

    @property
    def losses(self) -> tuple[Change, ...]:
        """The changes by which recorded data is lost."""
        return tuple(change for change in self.changes if change.is_loss)


def migrate(snapshot: Snapshot, recorded: Description, topology: Topology) -> Migration:
    """Return `snapshot`, taken of the topology `recorded`, as one of `topology`. Everything in it
    is decoded on the way. Raises a UsageError with the first reasons if it cannot be migrated; an
    ApplicationError if ``redistribute`` raised, or returned something invalid."""
    changes = differences(recorded, topology)
    if recorded.processes.keys() == topology.processes.keys():
        return _convert(snapshot, recorded, topology, changes)
    redistributed, more = _redistribute(snapshot, recorded, topology)
    after = _convert(redistributed, recorded, topology, [*changes, *more])
    try:
        past = _as_now(recorded, topology)
        before = _convert(snapshot, recorded, past, [])
    except UsageError as error:
        more = [Change("conserved", f"not compared before and after: {error}")]
    else:
        more = _compare_conserved((before.snapshot, past), (after.snapshot, topology))
    return msgspec.structs.replace(after, changes=(*after.changes, *more))


def _convert(
    snapshot: Snapshot, recorded: Description, topology: Topology, changes: list[Change]
) -> Migration:
    """Convert states and messages; the processes are those of `topology` already."""
    conversion = _Conversion(recorded, topology)
    processes = tuple(conversion.process(state) for state in snapshot.state.processes)
    channels = tuple(conversion.channels(snapshot.state.channels))
    if refusals := conversion.refusals:
        raise UsageError(
            f"snapshot {snapshot.id} cannot be continued with this code: "
            f"{'; '.join(refusals[:3])}"
            + (f"; and {len(refusals) - 3} more" if refusals[3:] else "")
            + ". Change the code, or restore with the code that the snapshot was taken with"
        )
    state = GlobalState(processes, channels)
    found = (*map(conversion.as_it_came, changes), *conversion.found())
    return Migration(msgspec.structs.replace(snapshot, state=state), found)


class _Conversion:
    """Converts the parts of a snapshot, and collects what stands in the way."""

    def __init__(self, recorded: Description, topology: Topology) -> None:
        self.refusals: list[str] = []
        self._recorded = recorded
        self._topology = topology
        self._states = _state_fields(topology)
        self._messages = _message_fields(topology)
        self._defaults = {kind: fields.defaults() for kind, fields in self._messages.items()}
        self._cut: dict[tuple[str, str], None] = {}
        self._begun: dict[tuple[str, str], set[bytes]] = {}
        self._met: set[str] = set()

    def as_it_came(self, change: Change) -> Change:
        """Return a change as it turned out: without a message, its fields lose nothing."""
        kind = change.subject.removeprefix(MESSAGE)
        if not change.is_loss or kind == change.subject or kind in self._met:
            return change
        return msgspec.structs.replace(change, is_loss=False)

    def found(self) -> Iterable[Change]:
        """Return what only the recorded values could tell."""
        for (subject, name), values in self._begun.items():
            value = shown(msgspec.Raw(next(iter(values)))) if len(values) == 1 else None
            begins = "as the topology starts each process" if value is None else f"with {value}"
            yield Change(subject, f"{name} begins {begins}")
        for subject, name in self._cut:
            yield Change(subject, f"a part of {name} was removed", is_loss=True)

    def process(self, state: ProcessState) -> ProcessState:
        """Return a recorded state as one of the class that the process has now."""
        codec = self._topology.codecs[state.process]
        kind = codec.kind.__name__
        try:
            if state.kind == kind and self._is_unchanged(kind):
                codec.check(state.encoded)
                return state
            values = msgspec.msgpack.decode(state.encoded, type=dict[str, msgspec.Raw])
            starts = self._starts(state.process)
            encoded = _encode_plain(
                self._convert(f"class {kind}", self._states[kind], values, starts)
            )
            codec.check(encoded)
            return ProcessState(state.process, kind, encoded)
        except (Misfit, UsageError, *DECODING_ERRORS) as error:
            self.refusals.append(f"process {state.process} ({kind}): {text_of(error)}")
            return state

    def _is_unchanged(self, kind: str) -> bool:
        return _is_unchanged(kind, self._recorded, self._topology.description)

    def _starts(self, process: ProcessId) -> Values:
        start, codec = self._topology.processes[process], self._topology.codecs[process]
        empty = encoded_values({name: Outbox(no_commit) for name in codec.outboxes})
        if not isinstance(start, Process):
            return empty | self._states[codec.kind.__name__].defaults()
        names = codec.types
        return encoded_values({n: getattr(start, n) for n in names if hasattr(start, n)})

    def channels(self, states: Iterable[ChannelState]) -> Iterable[ChannelState]:
        """Yield the channels that there are now, each with what was on it."""
        before = {state.channel: state for state in states}
        now = self._topology.description.channels
        for channel, state in before.items():
            if channel not in now and state.message_count:
                kinds = sorted({_kind(raw) for b in state.batches for raw in _messages(b)})
                self.refusals.append(
                    f"channel {channel} was removed, with {state.message_count} messages in "
                    f"transit ({listed(kinds)})"
                )
        for channel in now:
            state = before.get(channel, ChannelState(channel, 0, 0, ()))
            yield msgspec.structs.replace(state, batches=self._batches(channel, state.batches))

    def _batches(self, channel: Channel, batches: tuple[Batch, ...]) -> tuple[Batch, ...]:
        accepts = self._topology.accepts[channel.target]
        accepted = set(map(_tag, accepts))
        decoder = msgspec.msgpack.Decoder(union_of(accepts)) if accepts else None
        refused: dict[str, tuple[str, int]] = {}

        def convert(raw: bytes, number: int) -> bytes:
            kind = _kind(raw)
            self._met.add(kind)
            try:
                if kind not in accepted or decoder is None:
                    raise Misfit(f"{channel.target} no longer accepts {kind}")
                converted = self._message(kind, raw)
                decoded(decoder.decode, converted)
            except (Misfit, *DECODING_ERRORS) as error:
                where = f"message {number} on channel {channel} ({kind}): {text_of(error)}"
                first, count = refused.get(kind, (where, 0))
                refused[kind] = (first, count + 1)
                return raw
            return converted

        converted = tuple(
            Batch.of(b.first, [convert(raw, b.first + i) for i, raw in enumerate(_messages(b))])
            for b in batches
        )
        for first, count in refused.values():
            more = f" (and {count - 1} more of that class there)" if count > 1 else ""
            self.refusals.append(first + more)
        return converted

    def _message(self, kind: str, raw: bytes) -> bytes:
        if self._is_unchanged(kind):
            return raw
        names = [column.name for column in self._recorded.messages.get(kind, ())]
        _, *values = _LIST.decode(raw)
        if len(values) > len(names):
            raise Misfit(f"it has {len(values)} fields instead of {len(names)}")
        found = self._convert(
            f"{MESSAGE}{kind}",
            self._messages[kind],
            dict(zip(names, values, strict=False)),
            self._defaults[kind],
        )
        return _encode_plain([kind, *found.values()])

    def _convert(self, subject: str, fields: Fields, values: Values, starts: Values) -> Values:
        converted, cut = fields.convert(values, starts)
        self._cut |= dict.fromkeys((subject, name) for name in cut)
        for name in converted.keys() - fields.sources(values.keys()).keys():
            self._begun.setdefault((subject, name), set()).add(bytes(converted[name]))
        return converted


def _messages(batch: Batch) -> list[bytes]:
    """Return the messages of a batch, or all of it as one if it does not hold messages."""
    try:
        return batch.messages()
    except DECODING_ERRORS:
        return [batch.encoded]


def _kind(raw: bytes) -> str:
    """Return the name of a message's class; if it has none, one that no class has."""
    try:
        return str(msgspec.msgpack.decode(_LIST.decode(raw)[0]))
    except (*DECODING_ERRORS, IndexError):
        return "?"


# --- other processes


def _redistribute(
    snapshot: Snapshot, recorded: Description, topology: Topology
) -> tuple[Snapshot, list[Change]]:
    """Return the snapshot as if it had been taken of the processes of `topology`, and the changes.
    Fields and messages are still as they were recorded, without fields that the application left
    out."""
    if topology.redistribute is None:
        before, now = recorded.processes.keys(), topology.processes.keys()
        raise UsageError(
            f"snapshot {snapshot.id} has other processes than this code: removed: "
            f"{listed(sorted(before - now))}; new: {listed(sorted(now - before))}. Only the "
            "application knows how to divide its state: give the topology a function that "
            "distributes the recorded state over the current processes, Topology(..., "
            "redistribute=...)"
        )
    before_it = _recorded(snapshot, recorded)
    where = f", on snapshot {snapshot.id}"
    after = call(topology.redistribute, before_it, name="redistribute", where=where)
    if not isinstance(after, Recorded):
        raise _wrong(f"returned {repr_of(after)}: return a stillframe.Recorded")
    state = GlobalState(
        tuple(_states(after, recorded, topology)), tuple(_channels(after, recorded, topology))
    )
    sentence = (
        f"{len(before_it.messages)} messages were in transit, and redistribute put "
        f"{len(after.messages)} on the current channels"
    )
    changes = [*_not_passed_on(before_it, after), Change("messages", sentence)]
    return msgspec.structs.replace(snapshot, state=state), changes


def _as_now(recorded: Description, topology: Topology) -> Topology:
    """Return the recorded processes and channels with the current classes."""
    examples = {type_name: name for name, type_name in topology.description.processes.items()}
    missing = sorted(set(recorded.processes.values()) - examples.keys())
    if missing:
        raise UsageError(f"class {missing[0]} no longer exists")
    return Topology(
        {name: topology.processes[examples[kind]] for name, kind in recorded.processes.items()},
        [(channel.source, channel.target) for channel in recorded.channels],
    )


def _compare_conserved(
    before: tuple[Snapshot, Topology], after: tuple[Snapshot, Topology]
) -> list[Change]:
    """Check that the quantities that processes and messages conserve are the same as before."""
    expected = places_of(view_of(*before))
    differences = find_loss(view_of(*after), expected)
    if differences:
        wrong = differences[0]
        raise UsageError(
            f"snapshot {before[0].id} cannot be restored: before redistribute there were "
            f"{wrong.expected} {wrong.quantity}, after it there are {wrong.found}: make it keep "
            "the total"
        )
    return [
        Change("conserved", f"{total(places)} {quantity} before and after")
        for quantity, places in sorted(expected.items())
    ]


def _not_passed_on(before: Recorded, after: Recorded) -> Iterable[Change]:
    """Yield the recorded fields that a process, or every process if it was removed, has lost."""
    anywhere = {name for fields in after.states.values() for name in fields}
    found: dict[str, list[ProcessId]] = {}
    for process, fields in before.states.items():
        for name in fields.keys() - after.states.get(process, anywhere):
            found.setdefault(name, []).append(process)
    for name, owners in sorted(found.items()):
        sentence = f"{name} of {listed(owners)} is missing from the result of redistribute"
        yield Change("processes", sentence, is_loss=True)


def _recorded(snapshot: Snapshot, recorded: Description) -> Recorded:
    try:
        return Recorded(
            states={
                state.process: msgspec.msgpack.decode(state.encoded, type=dict[str, Any])
                for state in snapshot.state.processes
            },
            messages=tuple(
                _in_transit(state.channel, raw, recorded)
                for state in snapshot.state.channels
                for batch in state.batches
                for raw in batch.messages()
            ),
        )
    except (*DECODING_ERRORS, TypeError, ValueError, KeyError) as error:
        raise UsageError(
            f"snapshot {snapshot.id} cannot be passed to redistribute as plain values: "
            f"{text_of(error)}: continue with the code that it was taken with"
        ) from error


def _in_transit(channel: Channel, raw: bytes, recorded: Description) -> InTransit:
    kind, *values = msgspec.msgpack.decode(raw)
    names = [column.name for column in recorded.messages[kind]]
    return InTransit(channel.source, channel.target, kind, dict(zip(names, values, strict=False)))


def _states(after: Recorded, recorded: Description, topology: Topology) -> list[ProcessState]:
    if after.states.keys() != topology.processes.keys():
        odd = sorted(after.states.keys() ^ topology.processes.keys())
        raise _wrong(
            f"returned states of {listed(sorted(after.states))}, but the processes are "
            f"{listed(topology.processes)}: only one of the two has {odd[0]}"
        )
    were = {column.name for columns in recorded.states.values() for column in columns}
    found = []
    for process, fields in sorted(after.states.items()):
        if odd := sorted(fields.keys() - were - topology.codecs[process].types.keys()):
            raise _wrong(
                f"gave process {process} a field {odd[0]!r}, which it has neither in the "
                "snapshot nor now"
            )
        # No class: some fields may be missing, so these are converted like those of another one.
        found.append(ProcessState(process, "", _encoded(fields, f"the state of {process}")))
    return found


def _channels(after: Recorded, recorded: Description, topology: Topology) -> list[ChannelState]:
    on: dict[Channel, list[bytes]] = {channel: [] for channel in topology.description.channels}
    for message in after.messages:
        channel = Channel(message.source, message.target)
        if channel not in on:
            raise _wrong(f"put a {message.kind} on channel {channel}, which does not exist")
        names = [column.name for column in recorded.messages.get(message.kind, ())]
        if message.kind not in recorded.messages or message.fields.keys() != set(names):
            raise _wrong(
                f"put a {message.kind} on channel {channel} with the fields "
                f"{listed(sorted(message.fields))}; the recorded messages are "
                f"{listed(recorded.messages)}, and that one has {listed(names)}"
            )
        values = [message.kind, *(message.fields[name] for name in names)]
        on[channel].append(_encoded(values, f"a {message.kind} on channel {channel}"))
    return [ChannelState.of(channel, 0, messages) for channel, messages in on.items()]


def _encoded(value: object, what: str) -> bytes:
    try:
        return _encode_plain(with_ordered_sets(value))
    except CANNOT_ENCODE as error:
        raise _wrong(
            f"returned a value that cannot be encoded: {what}: {text_of(error)}"
        ) from error


def _wrong(what: str) -> ApplicationError:
    return ApplicationError(f"redistribute {what}")
