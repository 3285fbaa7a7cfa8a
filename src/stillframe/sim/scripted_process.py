"""Processes that follow a script: named events, and the messages between them.

    P1: A  B  C  D  E
    P2: F  G  H
    P3: I  J  K
    messages: B>F  I>G  H>D  E>K

``B>F`` is a message that B sends and F accepts, ``C->P3`` one that C sends to P3 and that is never
received; an event that accepts nothing is an action that its process takes when it is chosen, with
arguments if it is written like ``pay(20)``. An event that accepts several messages is one atomic
action, for which they must arrive together. The recorded state of a process is the list of its past
events. They are ordinary processes: every rule and every host treats them like any other.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any, ClassVar

import msgspec

from stillframe.errors import StillframeError, UsageError, check_kind
from stillframe.model import Channel, ProcessId, check_process_id
from stillframe.process import Message, Process, every
from stillframe.protocol.lai_yang import LaiYangRecorder
from stillframe.protocol.recorder import Recorder
from stillframe.sim import choices
from stillframe.sim.network import Network
from stillframe.topology import Topology

_NAME = r"[A-Za-z][A-Za-z0-9_']{0,31}"
_EVENT = re.compile(rf"({_NAME})((?:\([^\s()>]{{1,64}}\))?)")
_MESSAGE = re.compile(r"([^\s>]+?)(?:>([^\s>]+)|(->[^\s>]+))")
_PROCESS = r"[A-Za-z][A-Za-z0-9_.-]*"
_LINE = re.compile(rf"({_PROCESS}):\s*(.*)")
_NEVER = "->"
"""What an accepting "event" begins with of a message that is never received; its target follows."""
EVENT_COUNT_MAX = 10_000
PROCESS_COUNT_MAX = 100
ERROR_CHARACTER_MAX = 1000
RULES: dict[str, Callable[..., Recorder | LaiYangRecorder]] = {
    "chandy-lamport": Recorder,
    "lai-yang": LaiYangRecorder,
}
"""The recording rules, by the names that scripts have for them."""


class ScriptedMessage(Message, tag="Note"):
    """A message of a script: from one event to another."""

    sender: str
    event: str

    @property
    def is_never_received(self) -> bool:
        """Whether no event accepts this message."""
        return self.event.startswith(_NEVER)

    def __str__(self) -> str:
        return self.event


def message_name(message: Message) -> str:
    """Return a message as a script calls it, ``B>F``; any other as it prints itself."""
    if not isinstance(message, ScriptedMessage):
        return str(message)
    return f"{message.sender}{'' if message.is_never_received else '>'}{message.event}"


class Script(msgspec.Struct, frozen=True):
    """A system of named events, as ``parse_script`` reads it.

    Attributes:
        events: the events of each process, in their order.
        messages: pairs of a sending and an accepting event; for a message that is never received
            the second is an arrow and a process, such as ``->P3``.
        channels: all channels; those of the messages at least.
        network: what is assumed of every channel.
        rules: the recording rules, by a name in ``RULES``.
    """

    events: dict[ProcessId, tuple[str, ...]]
    messages: tuple[tuple[str, str], ...]
    channels: tuple[Channel, ...]
    network: Network = Network.FIFO
    rules: str = "chandy-lamport"

    def process_of(self, event: str) -> ProcessId:
        """Return the process of an event."""
        return next(process for process, events in self.events.items() if event in events)

    def together(self, message: ScriptedMessage) -> tuple[ProcessId, ...]:
        """Return the processes whose messages one event accepts together with `message`; none if
        that is never received."""
        if message.is_never_received:
            return ()
        return tuple(self.process_of(s) for s, accept in self.messages if accept == message.event)


class ScriptedProcess(Process):
    """Does the events of its script, in their order."""

    done: list[str] = field(default_factory=list)

    _events: ClassVar[tuple[str, ...]] = ()
    _sends: ClassVar[dict[str, list[tuple[ProcessId, str]]]] = {}

    def receive(self, channel: Channel, message: ScriptedMessage) -> None:
        """Do the event that the message is for; once, if it accepts several at a time."""
        if message.is_never_received:
            raise UsageError(f"by the script, message {message_name(message)} is never received")
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


@dataclass
class _Draft:
    """The content of the lines of a script, with their numbers."""

    events: dict[ProcessId, tuple[int, tuple[str, ...]]] = field(default_factory=dict)
    messages: list[tuple[int, str, str]] = field(default_factory=list)
    settings: dict[str, tuple[int, str]] = field(default_factory=dict)

    def read(self, line: int, text: str) -> None:
        """Take the next line."""
        found = _LINE.fullmatch(text)
        if found is None:
            raise UsageError(
                f"{text!r}: write 'PROCESS: EVENT EVENT ...', 'messages: EVENT>EVENT ...', "
                "'channels: mesh', 'network: reordering' or 'rules: lai-yang'"
            )
        name, rest = found[1], found[2].strip()
        if name == "messages":
            for word in rest.split():
                if (message := _MESSAGE.fullmatch(word)) is None:
                    raise UsageError(
                        f"{word!r} is not a message: write SENDING_EVENT>ACCEPTING_EVENT, like "
                        "B>F, or SENDING_EVENT->PROCESS if it is never received"
                    )
                self.messages.append((line, message[1], message[2] or message[3]))
        elif name in ("channels", "network", "rules"):
            if name in self.settings:
                raise UsageError(f"{text!r}: write all {name} in one line")
            self.settings[name] = line, rest
        elif name in self.events:
            raise UsageError(f"process {name} has two lines: write all its events in one")
        else:
            self.events[check_process_id(name)] = line, tuple(rest.split())

    def choice(self, name: str, values: list[str]) -> str:
        """Return the value of a setting, which must be one of these; the first by default."""
        line, value = self.settings.get(name, (0, values[0]))
        if value not in values:
            with at_line(line):
                raise UsageError(f"{name}: {value!r}: write {', '.join(values)}")
        return value


def parse_script(text: str, first_line: int = 1) -> Script:
    """Read a script.

    It has a line ``PROCESS: EVENT ...`` for every process, and these lines, all of them optional:
    ``messages: EVENT>EVENT EVENT->PROCESS ...``; ``channels: mesh`` (the default),
    ``ring`` or ``P1->P2 ...``; ``network: fifo``, ``reordering`` or ``lossy``; and ``rules:
    chandy-lamport`` or ``lai-yang``, by default those made for such channels.

    Args:
        text: the lines; empty ones and those that begin with ``#`` are passed over.
        first_line: the number that errors give to its first line.

    Raises:
        UsageError: a line is wrong; its number is named.
    """
    check_kind("text", text, str, "a string")
    draft = _Draft()
    for line, content in enumerate(map(str.strip, text.split("\n")), first_line):
        if content and not content.startswith("#"):
            with at_line(line):
                draft.read(line, content)
    if not draft.events:
        with at_line(first_line - 1 or 1):
            raise UsageError(
                "a script has no process: write a line 'PROCESS: EVENT EVENT ...' for each"
            )
    owner = _owners(draft.events)
    network = Network(draft.choice("network", [kind.value for kind in Network]))
    fitting = sorted(RULES, reverse=network is Network.REORDERING)
    rules = draft.choice("rules", fitting)
    line, shape = draft.settings.get("channels", (0, "mesh"))
    with at_line(line):
        channels = _parse_channels(shape, list(draft.events))
    senders: dict[str, dict[ProcessId, str]] = defaultdict(dict)
    for line, sender, accept in draft.messages:
        with at_line(line):
            message = ScriptedMessage(sender, accept)
            _check_message(message, owner, draft.events.keys(), senders)
            channel = Channel(owner[sender], _target(accept, owner))
            if channel not in channels:
                raise UsageError(
                    f"message {message_name(message)}: there is no channel {channel}: add it to "
                    "'channels:'"
                )
            if len(senders[accept]) > 1 and network is Network.REORDERING:
                raise UsageError(
                    f"event {accept} accepts several messages: that needs channels that keep order"
                )
    return Script(
        events={process: names for process, (_, names) in draft.events.items()},
        messages=tuple((sender, accept) for _, sender, accept in draft.messages),
        channels=tuple(sorted(channels)),
        network=network,
        rules=rules,
    )


@contextmanager
def at_line(line: int) -> Iterator[None]:
    """Add the line of the script to any error."""
    try:
        yield
    except StillframeError as error:
        raise UsageError(f"line {line}: {str(error)[:ERROR_CHARACTER_MAX]}") from error


def scripted_topology(script: Script) -> Topology:
    """Return a system that does what `script` says."""
    owner = {event: process for process, names in script.events.items() for event in names}
    accepting = {accept for _, accept in script.messages}
    processes: dict[ProcessId, Process] = {}
    for process, names in script.events.items():
        sends: dict[str, list[tuple[ProcessId, str]]] = {event: [] for event in names}
        for sender, accept in script.messages:
            if sender in sends:
                sends[sender].append((_target(accept, owner), accept))
        actions = {event.partition("(")[0] for event in names if event not in accepting}
        members: dict[str, Any] = {action: _action(action) for action in actions}
        members |= {"_events": names, "_sends": sends, "__module__": __name__}
        processes[process] = type("ScriptedProcess", (ScriptedProcess,), members)()
    return Topology(processes, [(c.source, c.target) for c in script.channels])


def _target(accept: str, owner: dict[str, ProcessId]) -> ProcessId:
    return accept.removeprefix(_NEVER) if accept.startswith(_NEVER) else owner[accept]


def _action(action: str) -> Any:
    def do(self: ScriptedProcess, *arguments: Any) -> None:
        self._do(f"{action}{choices.write_arguments(arguments)}")

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


def _owners(events: dict[ProcessId, tuple[int, tuple[str, ...]]]) -> dict[str, ProcessId]:
    """Return the process of each event; UsageError if there are too many, or some named alike."""
    owners: dict[str, ProcessId] = {}
    for number, (process, (line, names)) in enumerate(events.items(), 1):
        with at_line(line):
            if number > PROCESS_COUNT_MAX:
                raise UsageError(f"a script has at most {PROCESS_COUNT_MAX} processes")
            for name in names:
                _check_event(process, name)
                if name in owners:
                    raise UsageError(
                        f"{owners[name]} and {process} have an event {name}: use each name once"
                        if owners[name] != process
                        else f"process {process} has event {name} twice: use each name once"
                    )
                owners[name] = process
            if len(owners) > EVENT_COUNT_MAX:
                raise UsageError(f"a script has at most {EVENT_COUNT_MAX:,} events")
    return owners


def _check_event(process: ProcessId, name: str) -> None:
    found = _EVENT.fullmatch(name)
    if found is None or _is_taken(found[1]):
        raise UsageError(
            f"process {process}: {name!r} cannot name an event: use letters, digits, '_' "
            'and "\'", a letter first, and no name that a process has already'
        )
    act = choices.parse_choice(f"{process} does {name}")
    assert isinstance(act, choices.Act)
    if (written := f"{found[1]}{choices.write_arguments(act.arguments)}") != name:
        raise UsageError(f"process {process}: write event {name} as {written}")


def _is_taken(name: str) -> bool:
    """Return whether every process has something of this name already, declared or attached."""
    declared = (vars(kind).get("__annotations__", {}) for kind in ScriptedProcess.__mro__)
    return hasattr(ScriptedProcess, name) or any(name in names for names in declared)


def _check_message(
    message: ScriptedMessage,
    owner: dict[str, ProcessId],
    processes: Collection[ProcessId],
    senders: dict[str, dict[ProcessId, str]],
) -> None:
    """Refuse a message that cannot be; `senders` are those of each accepting event so far."""
    written, is_received = message_name(message), not message.is_never_received
    for event in (message.sender, message.event)[: 1 + is_received]:
        if event not in owner:
            raise UsageError(
                f"message {written}: no process has an event {event}; there are {', '.join(owner)}"
            )
    source, target = owner[message.sender], _target(message.event, owner)
    if target not in processes:
        raise UsageError(
            f"message {written}: there is no process {target}; there are {', '.join(processes)}"
        )
    if source == target:
        what = "both events are of" if is_received else "its sender is"
        raise UsageError(
            f"message {written}: {what} {source}: a message goes from one process to another"
        )
    if is_received:
        if other := senders[message.event].get(source):
            raise UsageError(
                f"message {written}: {message.event} accepts {other}>{message.event} already; one "
                f"atomic action accepts at most one message from {source}: make it two events"
            )
        senders[message.event][source] = message.sender
