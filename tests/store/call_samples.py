"""An observation that is made by hand: a deadlock, calls in every place, and unresolved calls."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from stillframe.protocol.activities import CallDetails, InstanceState, Lock
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
from stillframe.store.observations import ObservationWriter

SHOP, STOCK, BANK, OTHER_BANK = (
    "shop-0000000a",
    "stock-0000000b",
    "bank-0000000c",
    "bank-0000000d",
)
BEGAN, DEADLINE = 1_700_000_000.0, 1_700_000_005.0
INITIATED, COMPLETED = BEGAN + 2.0, BEGAN + 2.25


def call(
    caller: str,
    number: int,
    target: str,
    place: CallPlace,
    by: Sequence[tuple[str, int]] = (),
    *,
    activity: str = "",
    is_awaited: bool = True,
    name: str = "",
) -> Located:
    """Return a call; `by` are the instances that have accepted it, with the number of the answer,
    or 0."""
    call_id = CallId(caller, number)
    details = CallDetails(
        name or f"POST /{target.partition(':')[0]}",
        activity or f"task {number} of {caller}",
        BEGAN + number,
        DEADLINE + number,
        {"order": '"A7"'},
    )
    record = OpenCall(number, target, {"EUR": number}, is_awaited=is_awaited, details=details)
    serving = msgspec.structs.replace(details, activity=str(call_id))
    served = tuple(
        (instance, ServedCall(call_id, {"EUR": number}, answer, {"EUR": 1}, details=serving))
        for instance, answer in by
    )
    return Located(call_id, record, place, served)


def fragment(
    name: str, calls: Sequence[Located], locks: tuple[Lock, ...] = (), held: int = 0
) -> InstanceFragment:
    """Return the share of an instance in an observation that has these calls."""
    state = InstanceState(
        msgspec.msgpack.encode({"orders": 3, "note": "<img src=x onerror=alert(1)>"}),
        {"EUR": held} if held else {},
        {"EUR": 100},
        locks,
    )
    return InstanceFragment(
        instance=name,
        after=0,
        observation=1,
        state=state,
        sent_count=9,
        calls=tuple(one.record for one in calls if one.call.caller == name),
        forgotten_through=0,
        served=tuple(served for one in calls for server, served in one.served if server == name),
        answer_counts={},
        highest_accepted={},
        received={},
        dropped={},
        targets={},
        lost={},
    )


def deadlocked(number: int = 1) -> Observation:
    """Return an observation in which the shop waits for the stock, which waits for the bank, which
    waits for a handler of the shop, which waits for the lock that the first handler holds."""
    first = f"{OTHER_BANK}#1"
    ring = [
        call(SHOP, 2, "stock:80", CallPlace.SERVED, [(STOCK, 0)], activity=first),
        call(STOCK, 3, "bank:80", CallPlace.SERVED, [(BANK, 0)], activity=f"{SHOP}#2"),
        call(BANK, 4, "shop:80", CallPlace.SERVED, [(SHOP, 0)], activity=f"{STOCK}#3"),
    ]
    calls = [
        call(OTHER_BANK, 1, "shop:80", CallPlace.SERVED, [(SHOP, 0)], name="GET /buy"),
        *ring,
        call(SHOP, 5, "bank:80", CallPlace.REQUESTED),
        call(STOCK, 6, "bank:80", CallPlace.ANSWERED, [(OTHER_BANK, 1)]),
        call(SHOP, 7, "cards.example:443", CallPlace.OUTSIDE),
        call(STOCK, 8, "old:80", CallPlace.UNKNOWN),
        call(SHOP, 9, "bank:80", CallPlace.ANSWERED, [(BANK, 2)], is_awaited=False),
    ]
    locks = (Lock("ledger", (first,), (f"{BANK}#4",)),)
    fragments = {
        SHOP: fragment(SHOP, calls, locks, held=7),
        **{name: fragment(name, calls) for name in (STOCK, BANK, OTHER_BANK)},
    }
    lost = ServedCall(CallId("gone-0000000e", 3), {}, 1, {"EUR": 2})
    return Observation(
        number=number,
        fragments=fragments,
        calls=tuple(sorted(calls, key=lambda one: one.call)),
        late=(),
        duplicates=(),
        orphans=((BANK, lost),),
        disconnected=("gone-0000000e",),
        not_accepted={},
        unknown={},
        lost={},
        created={},
        forgotten_count=0,
        partial=("cards.example:443 has never answered with a header",),
        since=Baseline(number, "it is the first one"),
    )


def crowd(instance_count: int, call_count: int) -> Observation:
    """Return an observation of many instances, and many calls that are served or in transit."""
    names = [f"service{number % 7}-{number:08x}" for number in range(instance_count)]
    calls = [
        call(
            names[number % instance_count],
            number + 1,
            f"target{number % 5}:80",
            CallPlace.SERVED if number % 2 else CallPlace.REQUESTED,
            [(names[(number * 7 + 3) % instance_count], 0)] if number % 2 else [],
        )
        for number in range(call_count)
    ]
    return msgspec.structs.replace(
        deadlocked(),
        fragments={name: fragment(name, []) for name in names},
        calls=tuple(sorted(calls, key=lambda one: one.call)),
        orphans=(),
    )


def stored(path: Path, *observations: Observation) -> Path:
    """Write observations to a new store; return its path."""
    writer = ObservationWriter.open(path)
    for observation in observations:
        writer.publish(observation, (INITIATED, COMPLETED), CallLedger())
    writer.close()
    return path
