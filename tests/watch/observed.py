"""Stores of observations that no collector has taken, of services of any size."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from stillframe.protocol.activities import CallDetails, InstanceState
from stillframe.protocol.calls import (
    Baseline,
    CallId,
    CallLedger,
    CallPlace,
    InstanceFragment,
    Located,
    Observation,
    OpenCall,
    ServedCall,
)
from stillframe.storage.location import Location
from stillframe.store.observations import ObservationWriter

AT = 1_700_000_000.0
"""When an observation of number 0 would be initiated; each is a second after the one before."""
TOOK_S = 0.25
SECRET = "4242-secret"
"""A field of a body that a service allows to be stored: it is for ``show`` only."""


class Call(NamedTuple):
    """A call: who made it and who has accepted it, if anybody; `age_s` is None if it is unknown.
    `serves` is the call that its caller serves meanwhile."""

    caller: str
    server: str | None
    number: int = 1
    target: str = "127.0.0.1:8000"
    name: str = "POST /pay"
    age_s: float | None = 3.0
    serves: CallId | None = None
    deadline: float | None = None
    is_awaited: bool = True


def observed(
    number: int, calls: Sequence[Call], others: Iterable[str] = (), partial: tuple[str, ...] = ()
) -> Observation:
    """Return an observation of these calls, and of the `others`, which neither call nor serve. Each
    request carries 2 EUR, and each state holds 100."""
    ended_at = AT + number + TOOK_S
    names = {*others, *(one.caller for one in calls), *(one.server for one in calls if one.server)}
    made: dict[str, list[OpenCall]] = {name: [] for name in names}
    served: dict[str, list[ServedCall]] = {name: [] for name in names}
    located = []
    for one in calls:
        call = CallId(one.caller, one.number)
        details = CallDetails(
            one.name,
            str(one.serves or f"{call} itself"),
            0.0 if one.age_s is None else ended_at - one.age_s,
            one.deadline,
            {"note": SECRET},
        )
        record = OpenCall(
            *(one.number, one.target, {"EUR": 2}),
            serving=one.serves,
            is_awaited=one.is_awaited,
            details=details,
        )
        made[one.caller].append(record)
        by: tuple[tuple[str, ServedCall], ...] = ()
        if one.server is not None:
            serving = msgspec.structs.replace(details, activity=str(call))
            by = ((one.server, ServedCall(call, {"EUR": 2}, details=serving)),)
            served[one.server].append(by[0][1])
        place = CallPlace.SERVED if by else CallPlace.REQUESTED
        located.append(Located(call, record, place, by))
    state = InstanceState(msgspec.msgpack.encode({"secret": SECRET}), {}, {"EUR": 100})
    fragments = {
        name: InstanceFragment(
            *(name, number - 1, number, state, 1000, tuple(made[name]), 0, tuple(served[name])),
            *({}, {}, {}, {}, {"127.0.0.1:8000": True}, {}),
        )
        for name in sorted(names)
    }
    nothing: dict[str, int] = {}
    return Observation(
        *(number, fragments, tuple(located), (), (), (), ()),
        *(nothing, nothing, nothing, nothing, 0, partial, Baseline(number)),
    )


def ring(number: int, names: Sequence[str], *, deadline: float | None = None) -> Observation:
    """Return an observation in which each of these instances waits for the next one, and the last
    for the first; the first stops waiting at `deadline`."""
    pairs = zip((names[-1], *names[:-1]), names, (*names[1:], names[0]), strict=True)
    calls = [
        Call(name, after, serves=CallId(before, 1), deadline=None if index else deadline)
        for index, (before, name, after) in enumerate(pairs)
    ]
    return observed(number, calls)


def crowd(number: int, *, instance_count: int, call_count: int) -> Observation:
    """Return an observation of a large system: instances with long names, of a service for every
    ten of them, and calls between them."""
    names = [
        f"a-service-with-a-very-long-name-{index // 10}-{index:08x}"
        for index in range(instance_count)
    ]
    numbers = Counter[str]()
    calls = []
    for index in range(call_count):
        caller = names[index % instance_count]
        numbers[caller] += 1
        server = names[(index * 7 + 1) % instance_count] if index % 5 else None
        calls.append(Call(caller, server, numbers[caller], name=f"GET /{'x' * 500}"))
    return observed(number, calls, names)


def publish(store: Location, *observations: Observation) -> None:
    """Store observations as a collector does."""
    writer = ObservationWriter.open(store)
    for one in observations:
        times = (AT + one.number, AT + one.number + TOOK_S)
        writer.publish(one, times, CallLedger())
    writer.close()
