"""Activities of services: the part of a fragment that the rules of calls only pass on.

An *activity* is one task of an instance, and has a name that no other task has. A task does one
thing at a time: while it waits for an answer, for a lock or for another task, it does nothing else.
So what waits for what at a consistent cut stays so until something outside of it happens, such as
the end of a time-out.
"""

import re
from typing import Annotated

import msgspec

NUMBER_MAX = 2**53
"""The highest number of a message, a call or an observation, and the highest total of the amounts
of one unit in a fragment."""
Count = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]
Amount = Annotated[int, msgspec.Meta(ge=-NUMBER_MAX, le=NUMBER_MAX)]
TEXT_LENGTH_MAX = 1_000
Text = Annotated[str, msgspec.Meta(max_length=TEXT_LENGTH_MAX)]
"""A text about a call; agents cut theirs much earlier."""
TIME_MAX = 1e11
Time = Annotated[float, msgspec.Meta(ge=0, le=TIME_MAX)]
"""Seconds since 1970."""
_SUFFIX = re.compile(r"-[0-9a-f]{8}\Z")


class CallDetails(msgspec.Struct, frozen=True):
    """Facts about a call that the host records. The rules do not read them.

    Attributes:
        name: what is called, such as ``POST /pay``, without the query.
        activity: at the caller, the activity that waits for the answer; at the instance that serves
            the call, the activity that serves it. Empty if there is none.
        began_at: when the request was sent or accepted, in seconds since 1970, by that instance's
            clock.
        deadline: the earliest time at which the caller stops waiting, if there is one, by its
            clock.
        fields: those fields of the body that the service allows to be stored, as JSON.
        has_unknown_amounts: whether a message of the call carries amounts that the host does not
            know, such as one whose body was not read.
        status: the status of the answer: that of HTTP, or the number of that of gRPC. At the
            instance that serves the call it is that of its answer; at the caller that of an answer
            without a header, such as one of a gateway. None if there is no answer.
    """

    name: Text = ""
    activity: Text = ""
    began_at: Time = 0.0
    deadline: Time | None = None
    fields: dict[Text, Text] = {}
    has_unknown_amounts: bool = False
    status: Count | None = None


NO_DETAILS = CallDetails()


class Lock(msgspec.Struct, frozen=True):
    """A lock of an instance, or a resource that a limited number of tasks can hold at a time.

    Attributes:
        name: its name.
        holders: the activities that hold it, an empty text for each that is not known.
        waiting: the activities that wait until one of the holders releases it.
    """

    name: str
    holders: tuple[str, ...]
    waiting: tuple[str, ...]


class TaskWait(msgspec.Struct, frozen=True):
    """A wait of a task for other tasks of its instance.

    Attributes:
        activity: the activity that waits.
        awaits: activities. It waits until one of them does something.
    """

    activity: str
    awaits: tuple[str, ...]


class Arrival(msgspec.Struct, frozen=True):
    """A request that has reached an instance and is not accepted, as while a dependency of its
    endpoint waits.

    Attributes:
        call: the call, such as ``shop-125f1f4a#3``.
        activity: the activity that will serve it.
    """

    call: str
    activity: str


class InstanceState(msgspec.Struct, frozen=True):
    """The state that an instance captures.

    Attributes:
        encoded: the state of the application: a MessagePack map of its fields.
        held: the amounts that variables of handlers hold, by unit.
        conserved: the amounts that the state holds, by unit, if the application reports them.
        locks: the locks that activities hold.
        task_waits: the waits of tasks for other tasks.
        ignored_count: how many headers were ignored so far, since they were not made with the
            secret, or belong elsewhere.
        arrivals: the requests that have arrived and are not accepted.
    """

    encoded: bytes
    held: dict[str, Amount] = {}
    conserved: dict[str, Amount] = {}
    locks: tuple[Lock, ...] = ()
    task_waits: tuple[TaskWait, ...] = ()
    ignored_count: Count = 0
    arrivals: tuple[Arrival, ...] = ()


def service_of(instance: str) -> str:
    """Return the service of an instance: its name without the last eight digits."""
    return _SUFFIX.sub("", instance)
