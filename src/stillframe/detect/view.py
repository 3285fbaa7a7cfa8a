"""A snapshot as predicates see it: processes as objects, channels as messages; and what those say.

An invalid answer of a method of the user's classes is an error that names it.
"""

import contextlib
import dataclasses
import functools
import gc
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from stillframe.errors import (
    ApplicationError,
    UsageError,
    call,
    check_kind,
    repr_of,
    text_of,
)
from stillframe.model import (
    DECODING_ERRORS,
    Channel,
    ChannelState,
    ProcessId,
    ProcessState,
    Snapshot,
    SnapshotId,
    decoded,
)
from stillframe.process import Message, Process, Quantities, Reporting
from stillframe.protocol.action_runner import ActionRunner, union_of
from stillframe.public_names import public_attribute
from stillframe.topology import Topology
from stillframe.waiting import Waiting

_State = TypeVar("_State")


def state_of(states: Mapping[ProcessId, Any], process: ProcessId, kind: type[_State]) -> _State:
    """Return the state of `process`; UsageError unless there is one, and it is a `kind`."""
    check_kind("kind", kind, type, "the class of the process")
    if process not in states:
        raise UsageError(f"there is no process {process!r}; there are {', '.join(states)}")
    state = states[process]
    if not isinstance(state, kind):
        advice = ": open the store with the topology" if isinstance(state, dict) else ""
        raise UsageError(
            f"the state of {process} is of type {type(state).__name__}, not {kind.__name__}{advice}"
        )
    return state


class SnapshotView(msgspec.Struct, frozen=True):
    """The global state of a snapshot, as predicates take it.

    Attributes:
        snapshot: the id of the snapshot.
        processes: an object of each process's own class, with the recorded fields.
        channels: the messages in transit on each channel, in the order in which they were sent.
    """

    snapshot: SnapshotId
    processes: dict[ProcessId, Any]
    channels: dict[Channel, tuple[Message, ...]]

    def process(self, process: ProcessId, kind: type[_State]) -> _State:
        """Return the recorded state of a process, as an object of its class `kind`. UsageError if
        there is no such process, or its state is of another class."""
        return state_of(self.processes, process, kind)

    def in_transit(self) -> Iterator[tuple[Channel, Message]]:
        """Yield every message in transit, with its channel."""
        for channel, messages in self.channels.items():
            for message in messages:
                yield channel, message


def view_of(snapshot: Snapshot, topology: Topology) -> SnapshotView:
    """Return how a snapshot looks to a predicate. Raises a UsageError if a recorded state or
    message does not fit the classes of the topology."""
    recorded = {state.process: state for state in snapshot.state.processes}
    if recorded.keys() != topology.processes.keys():
        raise UsageError(
            f"snapshot {snapshot.id} holds the processes {', '.join(recorded)}, but the topology "
            f"has {', '.join(topology.processes)}: give the topology that it was taken with"
        )
    with _no_garbage_collection():
        return SnapshotView(
            snapshot.id,
            {name: _process(topology, state) for name, state in recorded.items()},
            {state.channel: _messages(topology, state) for state in snapshot.state.channels},
        )


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Pause garbage collection for the body, which creates many objects and no cycles. It would
    traverse all of them repeatedly, for two thirds of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _process(topology: Topology, state: ProcessState) -> Any:
    codec = topology.codecs[state.process]
    if isinstance(topology.processes[state.process], Process):
        return ActionRunner(state.process, topology, state.encoded).process
    fields = codec.decode(state.encoded)
    try:
        if issubclass(codec.kind, msgspec.Struct):
            return codec.kind(**fields)
        # What __init__ of a dataclass would do besides is not recorded, and may need what is not
        # here; fields that are not recorded are as they are declared.
        process = object.__new__(codec.kind)
        for name, value in (declared_defaults(codec.kind) | fields).items():
            object.__setattr__(process, name, value)
    except (TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"process {state.process}: no {codec.kind.__name__} can be created from its recorded "
            f"fields, {', '.join(fields) or 'none'}, to evaluate it: {text_of(error)}"
        ) from error
    return process


def declared_defaults(kind: type) -> dict[str, Any]:
    """Return the fields of a dataclass or Struct that have a default, with it."""
    fields: tuple[Any, ...] = ()
    absent: object = dataclasses.MISSING
    if issubclass(kind, msgspec.Struct):
        fields, absent = msgspec.structs.fields(kind), msgspec.NODEFAULT
    elif dataclasses.is_dataclass(kind):
        fields = dataclasses.fields(kind)
    found: dict[str, Any] = {}
    for field in fields:
        if field.default is not absent:
            found[field.name] = field.default
        elif field.default_factory is not absent:
            found[field.name] = field.default_factory()
    return found


def _messages(topology: Topology, state: ChannelState) -> tuple[Message, ...]:
    accepts = topology.accepts[state.channel.target]
    if not accepts or not state.batches:
        return ()
    decoder = msgspec.msgpack.Decoder(list[union_of(accepts)])  # type: ignore[misc]
    try:
        return tuple(m for batch in state.batches for m in decoded(decoder.decode, batch.encoded))
    except DECODING_ERRORS as error:
        raise UsageError(
            f"a message on channel {state.channel} does not fit the topology: {text_of(error)}"
        ) from error


def yes_or_no(function: Callable[[Any], bool], view: object, name: str, where: str) -> bool:
    """Return whether a predicate of the user holds in a view. Raises an ApplicationError, which
    says `name` and `where`, if it raises, or returns something else than True or False."""
    found = call(function, view, name=name, where=f", {where}")
    if isinstance(found, bool):
        return found
    if inspect.iscoroutine(found):
        found.close()
    raise ApplicationError(
        f"{name} returned {repr_of(found)}, a {type(found).__name__}, {where}: return True or False"
    )


def is_passive(owner: object, where: str, snapshot: SnapshotId) -> bool:
    """Return whether a process says that it is passive; one without that method is active. Raises
    an ApplicationError, which says `where` and `snapshot`, if its answer is invalid."""
    answer = _answer(owner, Reporting.is_passive, where, snapshot, absent=False)
    if not isinstance(answer, bool):
        raise _wrong(where, "is_passive", answer, snapshot, "True or False")
    return answer


def waits_for(owner: object, where: str, snapshot: SnapshotId) -> Waiting | None:
    """Return the processes that a process waits for; errors as for ``is_passive``."""
    answer = _answer(owner, Reporting.waits_for, where, snapshot, absent=None)
    if not isinstance(answer, Waiting | None):
        raise _wrong(where, "waits_for", answer, snapshot, "for_all(...), for_any(...) or None")
    return answer


def conserved(owner: object, where: str, snapshot: SnapshotId | None) -> Quantities:
    """Return the conserved quantities of a process or message, in a snapshot or (None) a running
    one; errors as for ``is_passive``."""
    answer = _answer(owner, Reporting.conserved, where, snapshot, absent={})
    if not isinstance(answer, Mapping) or not all(
        isinstance(name, str) and _is_amount(amount) for name, amount in answer.items()
    ):
        raise _wrong(where, "conserved", answer, snapshot, "a dict of names and finite numbers")
    return {text_of(name): amount for name, amount in answer.items()}


def _is_amount(amount: object) -> bool:
    if isinstance(amount, float):
        return math.isfinite(amount)
    return isinstance(amount, int) and not isinstance(amount, bool)


def _answer(
    owner: object,
    asked: Callable[..., object],
    where: str,
    snapshot: SnapshotId | None,
    *,
    absent: object,
) -> object:
    """Return the result of a method without arguments; `absent` if there is none."""
    method = asked.__name__
    asking = functools.partial(call, name=f"{where}: {method}()", where=_on(snapshot, ", "))
    found: Any = asking(getattr, owner, method, lambda: absent)
    if callable(found):
        return asking(found)
    raise ApplicationError(
        f"{where}: {method} is not a method of {type(owner).__name__} but {repr_of(found)}: give "
        "that field another name"
    )


def _wrong(
    where: str, method: str, answer: object, snapshot: SnapshotId | None, wanted: str
) -> ApplicationError:
    return ApplicationError(
        f"{where}: {method}() returned {repr_of(answer)}{_on(snapshot)}: return {wanted}"
    )


def _on(snapshot: SnapshotId | None, between: str = " ") -> str:
    return "" if snapshot is None else f"{between}on snapshot {snapshot}"


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Return what had this name in the last release."""
        return public_attribute(__name__, name)
