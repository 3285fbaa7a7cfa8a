"""Deadlocks among the activities of services, in an observation of their calls and locks.

An activity is one task, and does nothing while it waits for the answer of a call, for a lock or for
other tasks. So it is blocked as long as the instance that serves the call has not answered, every
holder of the lock keeps it, or none of those tasks does anything. Activities that block each other
in this way stay blocked until a time-out or a cancellation ends one wait, or a task releases a lock
that one of them has acquired. That is true at a consistent cut, and it stays true: none of them
does anything before another one has (Chandy & Lamport 1985, section 4).

What is in transit blocks no activity, nor does a call with an unknown fate, nor a lock with a
holder that is not known. So an alarm is right, and a deadlock is found by the first observation
after its last request was accepted. Other waits are not found: for a lock that no agent made, and
for a task in a form that agents do not know.
"""

import itertools
from collections.abc import Mapping, Sequence

import msgspec

from stillframe.detect.predicate import Verdict, deadlock_among
from stillframe.detect.wait_for_graph import ring_text
from stillframe.protocol.calls import CallPlace, Located, Observation
from stillframe.waiting import Waiting

NO_DEADLOCK = "no activities keep each other blocked"


class ActivityWait(msgspec.Struct, frozen=True):
    """An activity that waits. Times are seconds since 1970, by the clock of its instance.

    Attributes:
        activity: its name.
        instance: the instance whose task it is.
        serves: the call that it serves, such as ``POST /pay (shop-125f1f4a#3)``; empty if none.
        waits_for: what it waits for, in words.
        blockers: activities. It is blocked until one of these is not.
        since: when its request was sent; None for a lock or a task.
        deadline: the earliest time at which it stops waiting; None if it is not known.
    """

    activity: str
    instance: str
    serves: str
    waits_for: str
    blockers: tuple[str, ...]
    since: float | None = None
    deadline: float | None = None

    def __str__(self) -> str:
        work = f"serves {self.serves}" if self.serves else f"runs {self.activity}"
        return f"{self.instance} {work} and waits for {self.waits_for}"


class CallDeadlock(msgspec.Struct, frozen=True):
    """Activities that keep each other blocked.

    Attributes:
        rings: the activities of each ring, in order.
        behind: the activities that wait for them.
        waits: the wait of each of them, by activity.
        ends_at: the earliest known time at which one of a ring stops waiting; None if none is. A
            time-out that only the application knows, such as ``asyncio.timeout``, can be earlier.
    """

    rings: tuple[tuple[str, ...], ...]
    behind: tuple[str, ...]
    waits: dict[str, ActivityWait]
    ends_at: float | None


def served_by_activities(observation: Observation) -> dict[str, str]:
    """Return the call that each activity serves, such as ``POST /pay (shop-125f1f4a#3)``."""
    found = {
        served.details.activity: f"{served.details.name} ({served.call})"
        for fragment in observation.fragments.values()
        for served in fragment.served
        if not served.number
    }
    arrivals = _arrivals(observation)
    for located in observation.calls:
        for _, activity in arrivals.get(str(located.call), ()):
            found.setdefault(activity, f"{located.record.details.name} ({located.call})")
    return found


def waits_of(observation: Observation) -> dict[str, ActivityWait]:
    """Return what each blocked activity waits for, by its name."""
    serving = served_by_activities(observation)
    arrivals = _arrivals(observation)
    found = {}
    for located in observation.calls:
        if (serves := _blocking(located, arrivals)) is not None:
            details = located.record.details
            server, activity = serves
            found[details.activity] = ActivityWait(
                details.activity,
                located.call.caller,
                serving.get(details.activity, ""),
                f"the answer of {server} to {details.name} ({located.call})",
                (activity,),
                details.began_at,
                details.deadline,
            )
    for name, fragment in observation.fragments.items():
        for lock in fragment.state.locks:
            for activity in lock.waiting if lock.holders and all(lock.holders) else ():
                hold = "hold" if len(lock.holders) > 1 else "holds"
                waits_for = f"the lock {lock.name!r}, which {' and '.join(lock.holders)} {hold}"
                found[activity] = ActivityWait(
                    activity, name, serving.get(activity, ""), waits_for, lock.holders
                )
        for wait in fragment.state.task_waits:
            # grpc waits for an answer in another task.
            if wait.activity not in found:
                waits_for = f"{'tasks' if wait.awaits[1:] else 'task'} {' and '.join(wait.awaits)}"
                found[wait.activity] = ActivityWait(
                    wait.activity, name, serving.get(wait.activity, ""), waits_for, wait.awaits
                )
    return found


def _arrivals(observation: Observation) -> dict[str, list[tuple[str, str]]]:
    """Return the instances at which each call has arrived without being accepted, each with the
    activity that will serve it."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name, fragment in observation.fragments.items():
        for arrival in fragment.state.arrivals:
            found.setdefault(arrival.call, []).append((name, arrival.activity))
    return found


def _blocking(
    located: Located, arrivals: Mapping[str, list[tuple[str, str]]]
) -> tuple[str, str] | None:
    """Return the instance and its activity that block the activity which made a call; None if they
    do not. A request that was delivered twice may be answered by either instance. An application
    may call itself in one task."""
    by = [(server, served.details.activity) for server, served in located.served]
    if located.place in (CallPlace.REQUESTED, CallPlace.OUTSIDE):
        by = arrivals.get(str(located.call), [])
    elif located.place is not CallPlace.SERVED:
        return None
    waiting = located.record.details.activity if located.record.is_awaited else ""
    if len(by) != 1 or not waiting or by[0][1] in ("", waiting):
        return None
    return by[0]


def find_call_deadlock(observation: Observation) -> CallDeadlock | None:
    """Return the deadlock in an observation, or None if there is none."""
    waits = waits_of(observation)
    found = deadlock_among(
        {name: Waiting(frozenset(one.blockers), needs_all=False) for name, one in waits.items()}
    )
    if found is None:
        return None
    rings = tuple(ring.processes for ring in found.rings)
    among = {name for ring in rings for name in ring}
    deadlines = [waits[name].deadline for name in among]
    known = [deadline for deadline in deadlines if deadline is not None]
    return CallDeadlock(
        rings=rings,
        behind=tuple(name for name in found.processes if name not in among),
        waits={name: waits[name] for name in found.processes},
        ends_at=min(known, default=None),
    )


def deadlocked_instances(deadlock: CallDeadlock) -> str:
    """Return a sentence about the instances of the rings of a deadlock."""
    return "; ".join(_instances_text(ring, deadlock.waits) for ring in deadlock.rings)


def _instances_text(ring: Sequence[str], waits: Mapping[str, ActivityWait]) -> str:
    """Return which instance waits for which. A wait for another task of the same instance is no
    step."""
    nexts = (*ring[1:], ring[0])
    is_cycle = all(b in waits[a].blockers for a, b in zip(ring, nexts, strict=True))
    steps = [name for name, _ in itertools.groupby(waits[one].instance for one in ring)]
    if len(steps) > 1 and steps[0] == steps[-1]:
        steps.pop()
    if len(ring) == 1:
        return f"a task of {steps[0]} waits for itself"
    if len(steps) == 1 or not is_cycle:
        return f"tasks of {' and '.join(sorted(set(steps)))} wait for each other"
    return ring_text(steps, None)


def call_deadlock(observation: Observation) -> Verdict:
    """Return whether activities of services keep each other blocked until a time-out."""
    found = find_call_deadlock(observation)
    if found is None:
        return Verdict(holds=False, sentence=NO_DEADLOCK)
    texts = []
    for ring in found.rings:
        details = "; ".join(str(found.waits[name]) for name in ring)
        texts.append(f"{_instances_text(ring, found.waits)}: {details}")
    if found.behind:
        texts.append(f"waiting for them: {', '.join(found.behind)}")
    return Verdict(holds=True, sentence="; ".join(texts))
