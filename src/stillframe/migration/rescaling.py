"""Rescaling: the application redistributes the recorded data over other processes.

The channels start anew, with the messages that the application puts on them numbered from 1.
Conserved quantities must be the same before and after; before, they are computed from the recorded
states and messages as objects of the current classes.
"""

from typing import Any

import msgspec

from stillframe.detect.conservation import find_loss, places_of, total
from stillframe.detect.view import view_of
from stillframe.errors import ApplicationError, UsageError
from stillframe.migration.topology_diff import CANNOT_ENCODE, Change, listed
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
from stillframe.topology import Description, InTransit, Recorded, Topology

_encode = msgspec.msgpack.Encoder().encode


def redistribute(
    snapshot: Snapshot, recorded: Description, topology: Topology
) -> tuple[Snapshot, list[Change]]:
    """Return the snapshot as if it had been taken of the processes of `topology`, and the changes.

    Fields and messages are still as they were recorded, without fields that the application left
    out.

    Raises:
        UsageError: the topology has no ``redistribute``.
        ApplicationError: it raised, or what it returned does not fit.
    """
    if topology.redistribute is None:
        before, now = recorded.processes.keys(), topology.processes.keys()
        raise UsageError(
            f"snapshot {snapshot.id} is of other processes than this code: gone: "
            f"{listed(sorted(before - now))}; new: {listed(sorted(now - before))}. "
            "Only the application knows who goes on with what: give the topology a function that "
            "spreads what was recorded over the processes of now, Topology(..., redistribute=...)"
        )
    before_it = _plain(snapshot, recorded)
    try:
        after: object = topology.redistribute(before_it)
    except (Exception, SystemExit) as error:
        raise ApplicationError(
            f"redistribute raised {type(error).__name__}: {error}, on snapshot {snapshot.id}"
        ) from error
    if not isinstance(after, Recorded):
        raise _wrong(f"returned {after!r}: return a stillframe.Recorded")
    state = GlobalState(
        tuple(_states(after, recorded, topology)), tuple(_channels(after, recorded, topology))
    )
    sentence = (
        f"{len(before_it.messages)} were on channels, and redistribute has put "
        f"{len(after.messages)} on the channels of now"
    )
    changes = [
        Change(
            "processes",
            f"{name} of {listed(owners)} is not in what redistribute returned",
            is_loss=True,
        )
        for name, owners in _not_passed_on(before_it, after).items()
    ]
    changes.append(Change("messages", sentence))
    return msgspec.structs.replace(snapshot, state=state), changes


def as_now(recorded: Description, topology: Topology) -> Topology:
    """Return the recorded processes and channels with the current classes. Raises UsageError if a
    class does not exist any more, or they do not fit together."""
    examples = {type_name: name for name, type_name in topology.description.processes.items()}
    missing = sorted(set(recorded.processes.values()) - examples.keys())
    if missing:
        raise UsageError(f"there is no class {missing[0]} now")
    return Topology(
        {name: topology.processes[examples[kind]] for name, kind in recorded.processes.items()},
        [(channel.source, channel.target) for channel in recorded.channels],
    )


def compare_conserved(
    before: tuple[Snapshot, Topology], after: tuple[Snapshot, Topology]
) -> list[Change]:
    """Check that the quantities that processes and messages conserve are the same as before.

    Raises:
        UsageError: one is not; it is named.
        ApplicationError: ``conserved`` of one of them raised.
    """
    expected = places_of(view_of(*before))
    differences = find_loss(view_of(*after), expected)
    if differences:
        wrong = differences[0]
        raise UsageError(
            f"snapshot {before[0].id} cannot go on: before redistribute there were "
            f"{wrong.expected} {wrong.quantity}, after it there are {wrong.found}: see that it "
            "passes on everything"
        )
    return [
        Change("conserved", f"{total(places)} {quantity} before and after")
        for quantity, places in sorted(expected.items())
    ]


def _not_passed_on(before: Recorded, after: Recorded) -> dict[str, list[ProcessId]]:
    """Return the recorded fields that a process, or every process if it was removed, has lost."""
    anywhere = {name for fields in after.states.values() for name in fields}
    found: dict[str, list[ProcessId]] = {}
    for process, fields in before.states.items():
        for name in fields.keys() - after.states.get(process, anywhere):
            found.setdefault(name, []).append(process)
    return dict(sorted(found.items()))


def _plain(snapshot: Snapshot, recorded: Description) -> Recorded:
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
            f"snapshot {snapshot.id} cannot be given to redistribute as plain values: {error}: go "
            "on with the code that it was taken of"
        ) from error


def _in_transit(channel: Channel, raw: bytes, recorded: Description) -> InTransit:
    kind, *values = msgspec.msgpack.decode(raw)
    names = [column.name for column in recorded.messages[kind]]
    return InTransit(channel.source, channel.target, kind, dict(zip(names, values, strict=False)))


def _states(after: Recorded, recorded: Description, topology: Topology) -> list[ProcessState]:
    if after.states.keys() != topology.processes.keys():
        odd = sorted(after.states.keys() ^ topology.processes.keys())
        raise _wrong(
            f"returned states of {listed(sorted(after.states))}, and the processes "
            f"are {listed(topology.processes)}: {odd[0]} is in one of them only"
        )
    were = {column.name for columns in recorded.states.values() for column in columns}
    return [
        _state(process, fields, were | topology.codecs[process].types.keys())
        for process, fields in sorted(after.states.items())
    ]


def _state(process: ProcessId, fields: dict[str, Any], known: set[str]) -> ProcessState:
    odd = sorted(fields.keys() - known)
    if odd:
        raise _wrong(f"gave process {process} a field {odd[0]!r}, which it never had and has not")
    # No class: some fields may be missing, so these are converted like those of another one.
    return ProcessState(process, "", _encoded(fields, f"the state of {process}"))


def _channels(after: Recorded, recorded: Description, topology: Topology) -> list[ChannelState]:
    on: dict[Channel, list[bytes]] = {channel: [] for channel in topology.description.channels}
    for message in after.messages:
        channel = Channel(message.source, message.target)
        if channel not in on:
            raise _wrong(f"put a {message.kind} on channel {channel}, and there is no such channel")
        columns = recorded.messages.get(message.kind, ())
        names = [column.name for column in columns]
        if message.kind not in recorded.messages or message.fields.keys() != set(names):
            raise _wrong(
                f"put a {message.kind} on channel {channel} with the fields "
                f"{listed(sorted(message.fields))}; of what was recorded, messages "
                f"are {listed(recorded.messages)}, and that one has "
                f"{listed(names)}"
            )
        values = [message.kind, *(message.fields[name] for name in names)]
        on[channel].append(_encoded(values, f"a {message.kind} on channel {channel}"))
    return [
        ChannelState(channel, len(messages), 0, (Batch.of(1, messages),) if messages else ())
        for channel, messages in on.items()
    ]


def _encoded(value: object, what: str) -> bytes:
    try:
        return _encode(value)
    except CANNOT_ENCODE as error:
        raise _wrong(f"returned what cannot be encoded: {what}: {error}") from error


def _wrong(what: str) -> ApplicationError:
    return ApplicationError(f"redistribute {what}")
