"""Migrates a snapshot of one topology to another, or refuses it: nothing is lost silently.

Recorded fields keep their values, under a new name if the class says so (``renamed``); a new field
gets its initial value in the topology, and a removed field is reported as lost. Messages on
channels are encoded again for their current classes; if one cannot be read any more, the snapshot
is refused. Counts are kept, so that the books of the new snapshot balance like those of the old.
"""

from collections.abc import Iterable

import msgspec

from stillframe.errors import UsageError
from stillframe.migration.rescaling import as_now, compare_conserved, redistribute
from stillframe.migration.topology_diff import (
    MESSAGE,
    Change,
    Fields,
    Misfit,
    Values,
    defaults,
    differences,
    encoded_values,
    is_unchanged,
    listed,
    message_classes,
    message_fields,
    shown,
    state_fields,
)
from stillframe.model import (
    DECODING_ERRORS,
    Batch,
    Channel,
    ChannelState,
    GlobalState,
    ProcessId,
    ProcessState,
    Snapshot,
)
from stillframe.process import Process
from stillframe.protocol.action_runner import union_of
from stillframe.topology import Description, Topology

_VALUES = dict[str, msgspec.Raw]
_LIST = msgspec.msgpack.Decoder(list[msgspec.Raw])
_encode = msgspec.msgpack.Encoder().encode


class Migration(msgspec.Struct, frozen=True):
    """The result of a migration.

    Attributes:
        snapshot: of the current topology, for ``restore.start_states``.
        changes: nothing if the snapshot was taken of the same topology.
    """

    snapshot: Snapshot
    changes: tuple[Change, ...]

    @property
    def losses(self) -> tuple[Change, ...]:
        """The changes by which recorded data is lost."""
        return tuple(change for change in self.changes if change.is_loss)


def migrate(snapshot: Snapshot, recorded: Description, topology: Topology) -> Migration:
    """Return `snapshot`, taken of the topology `recorded`, as one of `topology`. Everything in it
    is decoded on the way.

    Raises:
        UsageError: it cannot be migrated; the first reasons are named.
        ApplicationError: ``redistribute`` raised, or returned something invalid.
    """
    changes = differences(recorded, topology)
    if recorded.processes.keys() == topology.processes.keys():
        return _convert(snapshot, recorded, topology, changes)
    redistributed, more = redistribute(snapshot, recorded, topology)
    after = _convert(redistributed, recorded, topology, [*changes, *more])
    try:
        past = as_now(recorded, topology)
        before = _convert(snapshot, recorded, past, [])
    except UsageError as error:
        more = [Change("conserved", f"not compared before and after: {error}")]
    else:
        more = compare_conserved((before.snapshot, past), (after.snapshot, topology))
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
            f"snapshot {snapshot.id} cannot go on with this code: {'; '.join(refusals[:3])}"
            + (f"; and {len(refusals) - 3} more" if refusals[3:] else "")
            + ". Change the code, or restore with the code that the snapshot was taken of"
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
        self._states = state_fields(topology)
        self._messages = message_fields(topology)
        self._classes = message_classes(topology)
        self._defaults = {kind: defaults(each) for kind, each in self._classes.items()}
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
            yield Change(subject, f"a part of {name} is gone", is_loss=True)

    def process(self, state: ProcessState) -> ProcessState:
        """Return a recorded state as one of the class that the process has now."""
        codec = self._topology.codecs[state.process]
        kind = codec.kind.__name__
        try:
            if state.kind == kind and is_unchanged(
                kind, self._recorded, self._topology.description
            ):
                codec.check(state.encoded)
                return state
            values = msgspec.msgpack.decode(state.encoded, type=_VALUES)
            starts = self._starts(state.process)
            encoded = _encode(self._convert(f"class {kind}", self._states[kind], values, starts))
            codec.check(encoded)
            return ProcessState(state.process, kind, encoded)
        except (Misfit, UsageError, *DECODING_ERRORS) as error:
            self.refusals.append(f"process {state.process} ({kind}): {error}")
            return state

    def _starts(self, process: ProcessId) -> Values:
        start = self._topology.processes[process]
        if not isinstance(start, Process):
            return defaults(start.state)
        names = self._topology.codecs[process].types
        return encoded_values({n: getattr(start, n) for n in names if hasattr(start, n)})

    def channels(self, states: Iterable[ChannelState]) -> Iterable[ChannelState]:
        """Yield the channels that there are now, each with what was on it."""
        before = {state.channel: state for state in states}
        now = self._topology.description.channels
        for channel, state in before.items():
            if channel not in now and state.message_count:
                kinds = sorted({_kind(raw) for b in state.batches for raw in _messages(b)})
                self.refusals.append(
                    f"channel {channel} is gone, and {state.message_count} messages are on it "
                    f"({listed(kinds)})"
                )
        for channel in now:
            state = before.get(channel, ChannelState(channel, 0, 0, ()))
            yield msgspec.structs.replace(state, batches=self._batches(channel, state.batches))

    def _batches(self, channel: Channel, batches: tuple[Batch, ...]) -> tuple[Batch, ...]:
        accepts = self._topology.accepts[channel.target]
        accepted = {str(kind.__struct_config__.tag) for kind in accepts}
        decoder = msgspec.msgpack.Decoder(union_of(accepts)) if accepts else None
        refused: dict[str, tuple[str, int]] = {}

        def convert(raw: bytes, number: int) -> bytes:
            kind = _kind(raw)
            self._met.add(kind)
            try:
                if kind not in accepted or decoder is None:
                    raise Misfit(f"{channel.target} takes no {kind} any more")
                converted = self._message(kind, raw)
                decoder.decode(converted)
            except (Misfit, *DECODING_ERRORS) as error:
                where = f"message {number} on channel {channel} ({kind}): {error}"
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
        if is_unchanged(kind, self._recorded, self._topology.description):
            return raw
        names = [column.name for column in self._recorded.messages.get(kind, ())]
        _, *values = _LIST.decode(raw)
        if len(values) > len(names):
            raise Misfit(f"it has {len(values)} fields and not {len(names)}")
        found = self._convert(
            f"{MESSAGE}{kind}",
            self._messages[kind],
            dict(zip(names, values, strict=False)),
            self._defaults[kind],
        )
        return _encode([kind, *found.values()])

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
