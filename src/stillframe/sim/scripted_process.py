"""Processes that follow a script: named events, and the messages between them.

    P1: A  B  C  D  E
    P2: F  G  H
    P3: I  J  K
    messages: B>F  I>G  H>D  E>K

``B>F`` is a message that B sends and F accepts; an event that accepts nothing is an action that its
process takes when it is chosen. An event that accepts several messages is one atomic action, for
which they must arrive together. The recorded state of a process is the list of its past events.
They are ordinary processes: every rule and every host treats them like any other.
"""

import re
from dataclasses import field
from itertools import permutations
from typing import Any, ClassVar

import msgspec

from stillframe.errors import UsageError
from stillframe.model import Channel, ProcessId, check_process_id
from stillframe.process import Message, Process, every
from stillframe.topology import Topology

_NAME = r"[A-Za-z][A-Za-z0-9_']{0,31}"
_MESSAGE = re.compile(rf"({_NAME})>({_NAME})")
_LINE = re.compile(r"([A-Za-z][A-Za-z0-9_.-]*):\s*(.*)")
EVENT_COUNT_MAX = 10_000
PROCESS_COUNT_MAX = 100


class ScriptedMessage(Message, tag="Note"):
    """A message of a script: from one event to another."""

    sender: str
    event: str

    def __str__(self) -> str:
        return self.event


def message_name(message: Message) -> str:
    """Return a message as a script calls it, ``B>F``; any other as it prints itself."""
    if isinstance(message, ScriptedMessage):
        return f"{message.sender}>{message.event}"
    return str(message)


class Script(msgspec.Struct, frozen=True):
    """The events of each process in their order, the messages as pairs (sending event, accepting
    event), and the channels; those of the messages at least."""

    events: dict[ProcessId, tuple[str, ...]]
    messages: tuple[tuple[str, str], ...]
    channels: tuple[Channel, ...]

    def process_of(self, event: str) -> ProcessId:
        """Return the process of an event."""
        return next(process for process, events in self.events.items() if event in events)


class ScriptedProcess(Process):
    """Does the events of its script, in their order."""

    done: list[str] = field(default_factory=list)

    _events: ClassVar[tuple[str, ...]] = ()
    _sends: ClassVar[dict[str, list[tuple[ProcessId, str]]]] = {}

    def receive(self, channel: Channel, message: ScriptedMessage) -> None:
        """Do the event that the message is for; once, if it accepts several at a time."""
        if message.event not in self.done:
            self._do(message.event)

    def _do(self, event: str) -> None:
        expected = self._events[len(self.done)] if len(self.done) < len(self._events) else None
        if event != expected:
            raise UsageError(
                f"process {self.id} cannot do {event} now: it did "
                f"{' '.join(self.done) or 'nothing'} so far, and "
                + (f"{expected} comes next" if expected else "that was all")
            )
        self.done.append(event)
        for target, accepting in self._sends[event]:
            self.send(target, ScriptedMessage(event, accepting))


def parse_script(lines: list[str]) -> Script:
    """Read the lines of a script: ``PROCESS: EVENT ...`` for every process, ``messages: EVENT>EVENT
    ...``, and ``channels: mesh`` (the default), ``ring`` or ``P1->P2 ...``. UsageError with the
    line that is wrong."""
    events: dict[ProcessId, tuple[str, ...]] = {}
    pairs: list[tuple[str, str]] = []
    shape: str | None = None
    for line in lines:
        found = _LINE.fullmatch(line.strip())
        if found is None:
            raise UsageError(
                f"{line!r}: write 'PROCESS: EVENT EVENT ...', 'messages: EVENT>EVENT ...' or "
                "'channels: mesh'"
            )
        name, rest = found[1], found[2]
        if name == "messages":
            for text in rest.split():
                if (pair := _MESSAGE.fullmatch(text)) is None:
                    raise UsageError(
                        f"{text!r} is no message: write SENDING_EVENT>ACCEPTING_EVENT, like B>F"
                    )
                pairs.append((pair[1], pair[2]))
        elif name == "channels":
            if shape is not None:
                raise UsageError(f"{line.strip()!r}: write all channels in one line")
            shape = rest
        elif name in events:
            raise UsageError(f"process {name} has two lines: write all its events in one")
        else:
            events[check_process_id(name)] = tuple(rest.split())
    owner = _owners(events)
    _check_messages(pairs, owner)
    channels = _parse_channels("mesh" if shape is None else shape, list(events))
    for sender, accepting in pairs:
        channel = Channel(owner[sender], owner[accepting])
        if channel not in channels:
            raise UsageError(
                f"message {sender}>{accepting}: there is no channel {channel}: add it to "
                "'channels:'"
            )
    return Script(events, tuple(pairs), tuple(sorted(channels)))


def scripted_topology(script: Script) -> Topology:
    """Return a system that does what `script` says."""
    owner = {event: process for process, names in script.events.items() for event in names}
    accepting = {accept for _, accept in script.messages}
    processes: dict[ProcessId, Process] = {}
    for process, names in script.events.items():
        sends: dict[str, list[tuple[ProcessId, str]]] = {event: [] for event in names}
        for sender, accept in script.messages:
            if sender in sends:
                sends[sender].append((owner[accept], accept))
        members: dict[str, Any] = {e: _action(e) for e in names if e not in accepting}
        members |= {"_events": names, "_sends": sends, "__module__": __name__}
        processes[process] = type("ScriptedProcess", (ScriptedProcess,), members)()
    return Topology(processes, [(c.source, c.target) for c in script.channels])


def _action(event: str) -> Any:
    def do(self: ScriptedProcess) -> None:
        self._do(event)

    return every(ms=0)(do)


def _parse_channels(text: str, processes: list[ProcessId]) -> set[Channel]:
    match text.split():
        case ["mesh"]:
            return {Channel(*pair) for pair in permutations(processes, 2)}
        case ["ring"]:
            if len(processes) < 2:
                raise UsageError("channels: ring: a ring needs at least two processes")
            following = processes[1:] + processes[:1]
            return {Channel(*pair) for pair in zip(processes, following, strict=True)}
        case names:
            channels = set()
            for name in names:
                source, arrow, target = name.partition("->")
                ends = {source, target}
                if not arrow or len(ends) < 2 or not ends.issubset(processes):
                    raise UsageError(
                        f"channels: {name!r}: write 'mesh', 'ring', or channels such as P1->P2 "
                        f"between two of {', '.join(processes)}"
                    )
                channels.add(Channel(source, target))
            return channels


def _owners(events: dict[ProcessId, tuple[str, ...]]) -> dict[str, ProcessId]:
    """Return the process of each event; UsageError if there are too many, or some named alike."""
    if not 1 <= len(events) <= PROCESS_COUNT_MAX:
        raise UsageError(
            f"a script has 1 to {PROCESS_COUNT_MAX} processes, this one {len(events):,}: write a "
            "line 'PROCESS: EVENT EVENT ...' for each"
        )
    owners: dict[str, ProcessId] = {}
    for process, names in events.items():
        for name in names:
            if re.fullmatch(_NAME, name) is None or _is_taken(name):
                raise UsageError(
                    f"process {process}: {name!r} cannot name an event: use letters, digits, '_' "
                    'and "\'", a letter first, and no name that a process has already'
                )
            if name in owners:
                raise UsageError(
                    f"event {name} is of {owners[name]} and of {process}: give each event, of "
                    "whichever process, a name of its own"
                    if owners[name] != process
                    else f"process {process} has event {name} twice: give each a name of its own"
                )
            owners[name] = process
    if len(owners) > EVENT_COUNT_MAX:
        raise UsageError(
            f"a script has at most {EVENT_COUNT_MAX:,} events, this one {len(owners):,}"
        )
    return owners


def _is_taken(name: str) -> bool:
    """Return whether every process has something of this name already, declared or attached."""
    declared = (vars(kind).get("__annotations__", {}) for kind in ScriptedProcess.__mro__)
    return hasattr(ScriptedProcess, name) or any(name in names for names in declared)


def _check_messages(pairs: list[tuple[str, str]], owner: dict[str, ProcessId]) -> None:
    senders: dict[tuple[ProcessId, str], str] = {}
    for sender, accepting in pairs:
        for event in (sender, accepting):
            if event not in owner:
                raise UsageError(
                    f"message {sender}>{accepting}: no process has an event {event}; there are "
                    f"{', '.join(owner)}"
                )
        if owner[sender] == owner[accepting]:
            raise UsageError(
                f"message {sender}>{accepting}: both events are of {owner[sender]}: a message goes "
                "from one process to another"
            )
        arrival = (owner[sender], accepting)
        if arrival in senders:
            raise UsageError(
                f"message {sender}>{accepting}: {accepting} accepts "
                f"{senders[arrival]}>{accepting} already; one atomic action accepts at most one "
                f"message from {owner[sender]}: make it two events"
            )
        senders[arrival] = sender
