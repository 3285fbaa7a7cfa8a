"""The one class that a user writes: ``Process``, with the messages it accepts and its recorded
state.

The same class runs over TCP in a separate operating-system process (``runtime/``) and, step by
step, under any other host: a host attaches itself (``attach``), calls the handlers one at a time,
and records the fields with a ``StateCodec``. Nothing here acts.
"""

import dataclasses
import datetime
import enum
import inspect
import types
import typing
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, TypeVar, dataclass_transform, final

import msgspec

from stillframe.errors import UsageError, repr_of, text_of
from stillframe.model import Channel, ProcessId, SnapshotId
from stillframe.outbox import Outbox
from stillframe.waiting import Waiting

Quantities = Mapping[str, int | float]
"""The names of conserved quantities, and how much there is of each."""

_PERIOD_ATTRIBUTE = "_stillframe_period_ms"
_Function = TypeVar("_Function", bound=Callable[..., Any])


_ATTACHED_ATTRIBUTE = "_stillframe_attached"


class Reporting:
    """The methods that are called on any state, if it has them: that of a joined program too."""

    def is_passive(self) -> bool:
        """See ``Process``."""
        raise NotImplementedError

    def waits_for(self) -> Waiting | None:
        """See ``Process``."""
        raise NotImplementedError

    def conserved(self) -> Quantities:
        """See ``Process``."""
        raise NotImplementedError


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class _MessageMeta(msgspec.StructMeta):
    """Lets type checkers know what msgspec does anyway: subclasses are frozen."""

    def __init__(self, name: str, bases: tuple[type, ...], *rest: Any, **config: Any) -> None:
        super().__init__(name, bases, *rest)
        if any(isinstance(base, _MessageMeta) for base in bases):
            check_names(self, Message)


class Message(
    msgspec.Struct, metaclass=_MessageMeta, frozen=True, array_like=True, gc=False, tag=True
):
    """The base of every message: declare fields with types, as in a dataclass.

    A message is frozen and is encoded when it is sent, so nothing that happens to your objects
    later can change it. Its class name travels with it: two messages of one system cannot share it.
    """

    def conserved(self) -> Quantities:
        """Return what this message carries of conserved quantities (``Process.conserved``)."""
        return {}


class Action(msgspec.Struct, frozen=True):
    """An action that a process takes without a message: the method `name`, every `period_ms` ms."""

    name: str
    period_ms: float


def every(*, ms: float) -> Callable[[_Function], _Function]:
    """Make a method an action that its process takes every `ms` milliseconds.

    ``every(ms=0)`` means as fast as the outgoing channels take it: whenever the process is not
    busy with messages and no outgoing channel is full. One call is one atomic action.

    Raises:
        UsageError: `ms` is negative or not a number, or it does not mark a method.
    """
    if isinstance(ms, bool) or not isinstance(ms, int | float) or not 0 <= ms < float("inf"):
        raise UsageError(f"every(ms={repr_of(ms)}): give milliseconds, 0 or more")

    def mark(function: _Function) -> _Function:
        if not callable(function) or isinstance(function, staticmethod):
            raise UsageError(
                f"@every(ms={ms}) marks a {type(function).__name__}, and would have no effect: "
                "mark the method itself"
            )
        setattr(function, _PERIOD_ATTRIBUTE, float(ms))
        return function

    return mark


@dataclass_transform(field_specifiers=(dataclasses.field,))
class Process:
    """One process of the system: its declared fields are the state that a snapshot records.

    Subclass it, declare fields as in a dataclass, and implement ``receive``. Handlers run one at a
    time; one call, ``async`` or not, is one atomic action: no snapshot records a state in the
    middle of it. Attributes that begin with an underscore are yours and are not recorded. A field
    cannot have the name of one of these attributes and methods, or of an action.

    Attributes:
        id: the name of this process.
        incoming: the processes that have a channel to this one, sorted.
        outgoing: the processes that this one has a channel to, sorted.
    """

    id: ProcessId
    incoming: tuple[ProcessId, ...]
    outgoing: tuple[ProcessId, ...]

    actions: ClassVar[tuple[Action, ...]] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        try:
            dataclasses.dataclass(eq=False)(cls)
        except (TypeError, ValueError) as error:
            raise UsageError(f"class {cls.__name__}: {text_of(error)}") from error
        check_names(cls, Process)
        cls.actions = _actions_of(cls)

    # A handler may be a plain or an ``async`` function: hence the types.

    def start(self) -> Awaitable[None] | None:
        """Handle a fresh start: called once, before anything else, and not after a restore."""

    def receive(self, channel: Channel, message: Any) -> Awaitable[None] | None:
        """Take one message. Annotate `message` with the classes that you accept (``A | B``)."""
        raise NotImplementedError(f"{type(self).__name__} has no receive(): it accepts no message")

    def receive_records(self, log: str, records: Any) -> None:
        """Take records from a log of the pipeline in which this process is a service.

        One call is one atomic action, like ``receive``. `records` is a ``pyarrow.Table`` with the
        columns that the log declares, as its source appended them together.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no receive_records(): it reads no log"
        )

    def on_cut(self, snapshot: SnapshotId) -> None:
        """Handle a cut: called when the state was recorded for `snapshot`, in the same step, with
        the recorded fields.

        Record here, in an attribute that begins with an underscore, which effects on the outside
        world belong before this cut, for ``on_published``. It has no other use: change no field and
        send nothing, since a snapshot must not change what a process does.
        """

    def on_published(self, snapshot: SnapshotId) -> Awaitable[None] | None:
        """Handle a published restore point in which this process took part.

        From then on no automatic restore loses its cut (``on_cut``): effects on the outside world
        that belong before it can be committed. If the system is part of a pipeline, its snapshot is
        published with that of the pipeline. The call may come late, and not at all for a snapshot
        published just before a death: make it safe to skip or to repeat.
        """

    def is_passive(self) -> bool:
        """Return whether this process will do nothing more unless a message arrives.

        By default: it has no action (``every``), no ``on_published``, reads no log, and its
        outboxes are empty. If a process has one of these, override this and return True once they
        have no further effect.
        """
        kind = type(self)
        if self.actions or any(isinstance(v, Outbox) and len(v) for v in vars(self).values()):
            return False
        acts_on = (kind.on_published, kind.receive_records)
        return acts_on == (Process.on_published, Process.receive_records)

    def waits_for(self) -> Waiting | None:
        """Return the processes that block this one (``waiting.for_all``, ``for_any``), or None."""
        return None

    def conserved(self) -> Quantities:
        """Return this process's amounts of quantities that are never created and never lost, by
        name: ``{"EUR": self.balance}``, or ``{"token 7": 1}`` for a single thing."""
        return {}

    @final
    def send(self, target: ProcessId, message: Message) -> None:
        """Send `message` on the channel to `target`. It is encoded immediately and sent at the end
        of this turn of the event loop.

        Raises:
            UsageError: there is no such channel, `target` does not accept this class, or the
                message cannot be encoded. Nothing was sent.
        """
        raise UsageError(f"{type(self).__name__}.send(): this process is not running yet")

    @final
    def append(self, log: str, records: Any) -> None:
        """Append a ``pyarrow.Table`` to a log of the pipeline in which this process is a service.

        Raises:
            UsageError: there is no pipeline, it has no such log, or the columns do not fit.
        """
        raise UsageError(
            f"{type(self).__name__}.append(): this process is not a service of a pipeline: run its "
            "system with --pipeline"
        )

    @final
    def snapshot(self) -> None:
        """Request a snapshot that this process initiates; it starts after the current action.

        It has no effect in a system that is part of a pipeline: that decides when to take one.
        """
        raise UsageError(f"{type(self).__name__}.snapshot(): this process is not running yet")


def _actions_of(kind: type[Process]) -> tuple[Action, ...]:
    """Return the actions of a class, by name; a UsageError names what hides one: it would never be
    called."""
    fields = {field.name for field in dataclasses.fields(typing.cast(Any, kind))}
    found = []
    for name in dir(kind):
        marking = [one for one in kind.__mro__ if _period_of(getattr(one, name, None)) is not None]
        if not marking:
            continue
        where = f"class {kind.__name__}: "
        if name in fields:
            raise UsageError(
                f"{where}a field cannot be called {name!r}, which is also an action (@every) of "
                f"{marking[0].__name__}: rename one of them"
            )
        if (period := _period_of(getattr(kind, name))) is None:
            raise UsageError(
                f"{where}its {name!r} hides an action (@every) of {marking[0].__name__}, which "
                "would never be called: repeat @every(ms=...) on a method that replaces it, or "
                "rename it"
            )
        found.append(Action(name, period))
    return tuple(found)


def _period_of(member: object) -> float | None:
    """Return the period with which a member of a class is marked."""
    period = getattr(member, _PERIOD_ATTRIBUTE, None) if callable(member) else None
    return period if isinstance(period, float) else None


def attach(
    process: Process,
    *,
    process_id: ProcessId,
    incoming: tuple[ProcessId, ...],
    outgoing: tuple[ProcessId, ...],
    send: Callable[[ProcessId, Message], None],
    snapshot: Callable[[], None],
    append: Callable[[str, Any], None] | None = None,
) -> None:
    """Give `process` its id, its channels, and the host's `send`, `snapshot` and `append`.

    They become attributes of the instance: a call of ``self.send`` then costs one lookup and no
    second Python frame, which would otherwise be most of the cost of sending.
    """
    attached = {
        "id": process_id,
        "incoming": incoming,
        "outgoing": outgoing,
        "send": send,
        "snapshot": snapshot,
    }
    if append is not None:
        attached["append"] = append
    vars(process).update(attached)
    vars(process)[_ATTACHED_ATTRIBUTE] = attached


_FIELD_MARKS = frozenset({"__dataclass_fields__", "__struct_fields__", "__attrs_attrs__"})
"""What a class has whose annotations are fields."""


def check_names(kind: type, base: type) -> None:
    """Raise a UsageError if a class declares a field that hides a public name of `base`, or
    redefines what a host attaches. A method may replace a method. Only a Process has actions."""
    own = [one for one in kind.__mro__ if one is kind or base not in one.__mro__]
    # What other mixins annotate is no field.
    declaring = [one for one in own if one is kind or not _FIELD_MARKS.isdisjoint(vars(one))]
    annotated = {name for one in declaring for name in inspect.get_annotations(one)}
    for name in names_of(base):
        if name not in annotated and not any(name in vars(one) for one in own):
            continue
        usual = getattr(base, name, None)
        is_method = name not in annotated and callable(getattr(kind, name))
        if not is_method or not callable(usual) or hasattr(usual, "__final__"):
            raise UsageError(
                f"class {kind.__name__}: a {'method' if is_method else 'field'} cannot be called "
                f"{name!r}, which Stillframe uses: rename it"
            )
    if base is not Process:
        for name, member in (item for one in kind.__mro__ for item in vars(one).items()):
            if _period_of(member) is not None:
                raise UsageError(
                    f"class {kind.__name__}: {name!r} is marked with @every and would never be "
                    "called, since only a stillframe.Process has actions: call it yourself, and "
                    "remove @every"
                )


def names_of(base: type) -> list[str]:
    """Return the public names that a class declares, sorted."""
    names = {*vars(base), *inspect.get_annotations(base)}
    return sorted(name for name in names if not name.startswith("_"))


def check_attributes(process: object, declared: Mapping[str, Any]) -> None:
    """Raise a UsageError if an object has an attribute that no snapshot would record: one that is
    neither `declared` nor attached, and does not begin with an underscore."""
    attributes = getattr(process, "__dict__", {})
    attached = attributes.get(_ATTACHED_ATTRIBUTE, {})
    for name, value in attributes.items():
        if name in declared or name.startswith("_"):
            continue
        if name in attached and attached[name] is value:
            continue
        where = f"{type(process).__name__}.{name}"
        if isinstance(process, Process) and name in names_of(Process):
            raise UsageError(f"{where} was set, and Stillframe uses that name: call it otherwise")
        raise UsageError(
            f"{where} was set but is not declared: a snapshot would lose it. Declare it ('{name}: "
            f"<type>') or, if it must not be recorded, call it '_{name}'"
        )


def field_types(kind: type) -> dict[str, Any]:
    """Return the recorded fields of a process class (or of any dataclass or Struct), with types.
    UsageError if a type cannot be resolved."""
    try:
        hints = typing.get_type_hints(kind)
    except (NameError, TypeError) as error:
        raise UsageError(
            f"class {kind.__name__}: its annotations do not resolve: {text_of(error)}"
        ) from error
    if issubclass(kind, msgspec.Struct):
        names: tuple[str, ...] = kind.__struct_fields__
    elif dataclasses.is_dataclass(kind):
        names = tuple(field.name for field in dataclasses.fields(kind))
    else:
        names = ()
    return {name: hints[name] for name in names if not name.startswith("_")}


def accepted_messages(annotation: Any, where: str) -> tuple[type[Message], ...]:
    """Return the message classes in an annotation such as ``Transfer | Query``; a UsageError if
    something in it is not derived from ``stillframe.Message``."""
    if annotation is None or annotation is type(None):
        return ()
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    members = typing.get_args(annotation) if is_union else (annotation,)
    for member in members:
        if not (isinstance(member, type) and issubclass(member, Message) and member is not Message):
            raise UsageError(
                f"{where}: {repr_of(member)} is not a message class: annotate the message with "
                "classes derived from stillframe.Message, for example 'message: Transfer | Query'"
            )
    return members


# Not bytes and not tuples: a bytearray or a list in their place would be encoded as well, and the
# target could not tell. With these, what does not fit is refused by the target's decoder.
_IMMUTABLE = frozenset(
    {bool, int, float, str, type(None)}
    | {datetime.datetime, datetime.date, datetime.time, datetime.timedelta}
)


def is_immutable(kind: Any, within: frozenset[type] = frozenset()) -> bool:
    """Return whether values of this type can never change, according to its annotations. `within`
    are the Structs that it is a part of: for one that refers to itself."""
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return all(is_immutable(member, within) for member in members)
    if not isinstance(kind, type) or origin is not None:
        return False
    if issubclass(kind, msgspec.Struct) and kind not in within:
        hints, within = typing.get_type_hints(kind), within | {kind}
        return kind.__struct_config__.frozen and all(
            is_immutable(hints[name], within) for name in kind.__struct_fields__
        )
    return kind in _IMMUTABLE or kind in within or issubclass(kind, enum.Enum)


def receive_annotation(kind: type[Process]) -> Any:
    """Return the annotation of the `message` parameter of ``receive``; None if it is not written. A
    UsageError if ``receive`` does not take (self, channel, message), or has no annotation."""
    if kind.receive is Process.receive:
        return None
    parameters = list(inspect.signature(kind.receive).parameters)
    where = f"{kind.__name__}.receive"
    if len(parameters) != 3:
        found = ", ".join(parameters)
        raise UsageError(f"{where} must take (self, channel, message), not ({found})")
    try:
        hints = typing.get_type_hints(kind.receive)
    except (NameError, TypeError) as error:
        raise UsageError(f"{where}: its annotations do not resolve: {text_of(error)}") from error
    if parameters[2] not in hints:
        raise UsageError(
            f"{where}: annotate the messages that it accepts, for example '{parameters[2]}: "
            "Transfer'"
        )
    return hints[parameters[2]]
