"""In what the topology of a snapshot and that of the code differ, in words."""

from collections.abc import Iterable, Iterator

import msgspec

from stillframe.columns import Column
from stillframe.migration.fields import Fields, types_of
from stillframe.model import Channel
from stillframe.process import Message
from stillframe.topology import Description, Topology

MESSAGE = "message "
"""How the subject of a change of a message class begins; its name follows."""
_LISTED_MAX = 5


class Change(msgspec.Struct, frozen=True):
    """One difference, and what it means for what was recorded.

    Attributes:
        subject: what is different, for example ``class Account``.
        sentence: how.
        is_loss: whether something that was recorded is lost.
    """

    subject: str
    sentence: str
    is_loss: bool = False

    def __str__(self) -> str:
        lost = ": what was recorded of it is lost" if self.is_loss else ""
        return f"{self.subject}: {self.sentence}{lost}"


def listed(items: Iterable[object]) -> str:
    """Return the first few in words; none if there are none."""
    names = [str(item) for item in items]
    more = f" and {len(names) - _LISTED_MAX} more" if len(names) > _LISTED_MAX else ""
    return (", ".join(names[:_LISTED_MAX]) or "none") + more


def differences(recorded: Description, topology: Topology) -> list[Change]:
    """Return in what a topology is another than the described one; nothing if it is the same.

    What becomes of recorded values and messages only the snapshot can tell (``migrate``).

    Raises:
        UsageError: a class declares ``renamed`` wrongly.
    """
    now = topology.description
    return [
        *_process_changes(recorded, now),
        *_state_changes(recorded, topology),
        *_message_changes(recorded, topology),
        *_channel_changes(recorded.channels, now.channels),
    ]


def message_classes(topology: Topology) -> dict[str, type[Message]]:
    """Return the message classes that any process accepts, by the name under which they travel."""
    every = (kind for accepted in topology.accepts.values() for kind in accepted)
    return {str(kind.__struct_config__.tag): kind for kind in every}


def state_fields(topology: Topology) -> dict[str, Fields]:
    """Return the fields of every class of processes.

    Raises:
        UsageError: one declares ``renamed`` wrongly.
    """
    return {
        codec.kind.__name__: Fields(codec.kind, types_of(codec.struct))
        for codec in topology.codecs.values()
    }


def message_fields(topology: Topology) -> dict[str, Fields]:
    """Return the fields of every message class; arguments and errors as ``state_fields``."""
    return {
        tag: Fields(kind, types_of(kind)) for tag, kind in sorted(message_classes(topology).items())
    }


def is_unchanged(name: str, recorded: Description, now: Description) -> bool:
    """Return whether values of the class called `name`, of those of now, are encoded as before."""
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
    """Yield how fields differ; a class of which only the insides do is said to differ there."""
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
