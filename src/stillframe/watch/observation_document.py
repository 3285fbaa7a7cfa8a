"""The document of an observation of services, as the page shows it: pure.

Instances are the discs of its graph. An edge leads from each caller to each instance that has
accepted a call of it, else to the address that was called. If there are too many of them, services
are the discs. Every part of the document has a limit, and a count of what is left out.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from stillframe.detect.call_waits import CallDeadlock, deadlocked_instances, find_call_deadlock
from stillframe.diagram.text_metrics import count, moment, shorten_name
from stillframe.pages.values import printable
from stillframe.protocol.activities import service_of
from stillframe.protocol.calls import CallId, Located, Observation, TimedOutCall
from stillframe.store.observation_tables import (
    Unresolved,
    amounts_of,
    fate_of,
    served_by,
    state_of,
    unresolved_of,
)
from stillframe.store.observations import (
    ACCEPTED,
    ObservationManifest,
    StoredObservation,
    TimedOutCalls,
)
from stillframe.watch.metrics import QUANTITY_COUNT_MAX
from stillframe.watch.system_document import exact_amounts

DISC_COUNT_MAX = 60
"""How many instances, services and addresses the graph shows."""
EDGE_COUNT_MAX = 120
"""How many edges it shows."""
ROW_COUNT_MAX = 200
"""How many rows each table has."""
REASON_COUNT_MAX = 20
"""How many reasons, and how many waits of a deadlock, are shown."""
TEXT_CHARS_MAX = 200
AMOUNT_PLACES = (
    "in_states",
    "held",
    "ended",
    "in_open_calls",
    "in_unresolved_calls",
    "lost",
    "doubled",
    "unknown",
)
"""The places of an amount, as in the table of amounts."""
ADDRESS = "address"
"""The kind of a disc that is no instance: a target whose instance is unknown."""

Row = dict[str, Any]


class Summary(msgspec.Struct, frozen=True):
    """An observation, reduced to the facts that the page and the metrics show.

    Attributes:
        manifest: its manifest.
        deadlock: the deadlock in it, if there is one.
        amounts: where each amount is, one row for each unit.
        places: how many open calls are in each place.
        kinds: how many unresolved calls there are of each kind.
        services: how many instances each service has.
        oldest_s: how old the oldest open call is, by its caller's clock; 0 if there is none.
        timed_out: the calls that have timed out so far.
        document: the document of the page.
    """

    manifest: ObservationManifest
    deadlock: CallDeadlock | None
    amounts: list[Row]
    places: Counter[str]
    kinds: Counter[str]
    services: Counter[str]
    oldest_s: float
    timed_out: TimedOutCalls
    document: Row


def summarize(found: StoredObservation, timed_out: TimedOutCalls) -> Summary:
    """Return the summary of an observation, with the calls that have timed out so far."""
    manifest, observation = found.manifest, found.observation
    calls = awaited_calls(observation)
    unresolved = unresolved_of(observation)
    deadlock = find_call_deadlock(observation)
    amounts = amounts_of(observation)
    graph = CallGraph(observation, calls, deadlock)
    ages = (manifest.completed_at - one.record.details.began_at for one in calls if _since(one))
    services = Counter(map(service_of, observation.fragments))
    document = {
        "kind": "observation",
        "number": manifest.number,
        "initiated_at": manifest.initiated_at,
        "completed_at": manifest.completed_at,
        "duration_s": manifest.duration_s,
        "bytes": manifest.byte_count,
        "quality": manifest.quality,
        "reasons": _limited(manifest.reasons, text, REASON_COUNT_MAX),
        "disconnected": _limited(manifest.disconnected, text, REASON_COUNT_MAX),
        "comparable": text(manifest.comparable(moment)),
        "service_count": len(services),
        "instance_count": manifest.instance_count,
        "open_count": manifest.open_count,
        "unresolved_count": manifest.unresolved_count,
        "graph": graph.document(),
        "deadlock": None if deadlock is None else _deadlock_document(deadlock),
        "instances": _limited(_instances(observation, calls), dict),
        "calls": _limited(calls, _call),
        "unresolved": _limited(unresolved, _unresolved),
        "timed_out": _timed_out(timed_out),
        "amounts": _limited(amounts, _amounts, QUANTITY_COUNT_MAX),
    }
    return Summary(
        manifest,
        deadlock,
        amounts,
        Counter(one.place.value for one in calls),
        Counter(one.kind for one in unresolved),
        services,
        max(0.0, *ages, 0.0),
        timed_out,
        document,
    )


def awaited_calls(observation: Observation) -> list[Located]:
    """Return the calls that their callers wait for, the oldest first, and those whose beginning is
    unknown last."""
    calls = (one for one in observation.calls if one.record.is_awaited)
    return sorted(calls, key=lambda one: (_since(one) is None, one.record.details.began_at))


def deadlock_sentence(deadlock: CallDeadlock) -> str:
    """Return the instances of the rings of a deadlock as a sentence."""
    return text(deadlocked_instances(deadlock))


def events_between(before: ObservationManifest, now: ObservationManifest) -> list[Row]:
    """Return the events between an observation and a later one: instances that were disconnected,
    and a change of what the observations show."""
    reasons = now.reasons
    found = [("death", f"{text(name)} was disconnected") for name in now.disconnected]
    if reasons and reasons != before.reasons:
        words = "; ".join(map(text, reasons[:2]))
        rest = f"; and {count(len(reasons) - 2, 'more reason')}" if len(reasons) > 2 else ""
        found.append(
            ("partial", f"observation {now.number} is {now.quality}: {words}{rest}"),
        )
    elif before.reasons and not reasons:
        found.append(("begin", f"observation {now.number} is exact"))
    if _without_number(now) != _without_number(before):
        by = f" ({now.baseline_by})" if now.baseline_by else ""
        found.append(("begin", f"a new baseline begins: {text(now.baseline_why + by)}"))
    return [event(now, kind, sentence) for kind, sentence in found]


def _without_number(manifest: ObservationManifest) -> tuple[str, str, float]:
    """Return why a baseline began. Each observation begins it until one is not partial."""
    return manifest.baseline_why, manifest.baseline_by, manifest.baseline_at


def deadlock_events(before: Summary | None, now: Summary) -> list[Row]:
    """Return the event that a deadlock began or ended, as a list."""
    number = now.manifest.number
    was_there = before is not None and before.deadlock is not None
    if now.deadlock is not None and not was_there:
        sentence = f"deadlock in observation {number}: {deadlock_sentence(now.deadlock)}"
        return [event(now.manifest, "deadlock", sentence)]
    if now.deadlock is None and was_there:
        return [event(now.manifest, "begin", f"no deadlock any more in observation {number}")]
    return []


def event(manifest: ObservationManifest, kind: str, sentence: str) -> Row:
    """Return an event of an observation as the page shows it."""
    return {"at": manifest.completed_at, "kind": kind, "sentence": sentence}


# --- the graph


class _Disc(NamedTuple):
    """A disc of the graph. An address may have the name of an instance."""

    name: str
    is_address: bool = False


class _Edge(msgspec.Struct):
    """The calls of one caller to one server."""

    count: int = 0
    since: float | None = None
    places: Counter[str] = msgspec.field(default_factory=Counter)
    is_in_ring: bool = False

    def add(self, located: Located) -> None:
        self.count += 1
        self.places[located.place.value] += 1
        since = _since(located)
        if since is not None:
            self.since = since if self.since is None else min(self.since, since)


class CallGraph:
    """The graph of the open calls of an observation.

    Attributes:
        is_by_service: whether the discs are services, because there are too many instances.
    """

    def __init__(
        self, observation: Observation, calls: Iterable[Located], deadlock: CallDeadlock | None
    ) -> None:
        self._kinds = {_Disc(name): service_of(name) for name in observation.fragments}
        self._edges: dict[tuple[_Disc, _Disc], _Edge] = {}
        for located in calls:
            for server in _servers(located):
                # One that has said goodbye has no fragment.
                kind = ADDRESS if server.is_address else service_of(server.name)
                self._kinds.setdefault(server, kind)
                edge = self._edges.setdefault((_Disc(located.call.caller), server), _Edge())
                edge.add(located)
        self._ring = set() if deadlock is None else _ring_of(deadlock)
        for (caller, server), edge in self._edges.items():
            edge.is_in_ring = (caller.name, server.name) in self._ring and not server.is_address
        self.is_by_service = len(self._kinds) > DISC_COUNT_MAX
        if self.is_by_service:
            self._merge()

    def document(self) -> Row:
        """Return the graph as the page draws it, without what is too much for a picture."""
        degrees = Counter[_Disc]()
        for (caller, server), edge in self._edges.items():
            degrees[caller] += edge.count
            degrees[server] += edge.count
        in_ring = {disc for ends, edge in self._edges.items() if edge.is_in_ring for disc in ends}
        busiest = sorted(
            self._kinds, key=lambda disc: (disc not in in_ring, -degrees[disc], disc.name)
        )
        shown = sorted(busiest[:DISC_COUNT_MAX])
        places = {disc: index for index, disc in enumerate(shown)}
        edges = sorted(
            (item for item in self._edges.items() if places.keys() >= set(item[0])),
            key=lambda item: (not item[1].is_in_ring, -item[1].count, item[0]),
        )[:EDGE_COUNT_MAX]
        return {
            "is_by_service": self.is_by_service,
            "processes": [[text(disc.name), text(self._kinds[disc])] for disc in shown],
            "channels": [[places[caller], places[server]] for (caller, server), _ in edges],
            "ring": sorted(places[disc] for disc in in_ring if disc in places),
            "waits": [
                {
                    "count": edge.count,
                    "since": edge.since,
                    "places": dict(edge.places),
                    "is_in_ring": edge.is_in_ring,
                }
                for _, edge in edges
            ],
            "discs_left_out_count": len(self._kinds) - len(shown),
            "edges_left_out_count": len(self._edges) - len(edges),
        }

    def _merge(self) -> None:
        """Let services be the discs."""
        counts = Counter(kind for disc, kind in self._kinds.items() if not disc.is_address)
        edges: dict[tuple[_Disc, _Disc], _Edge] = {}
        for (caller, server), edge in self._edges.items():
            merged = edges.setdefault((_merged(caller), _merged(server)), _Edge())
            merged.count += edge.count
            merged.places += edge.places
            merged.is_in_ring |= edge.is_in_ring
            known = [since for since in (merged.since, edge.since) if since is not None]
            merged.since = min(known, default=None)
        addresses = {disc: ADDRESS for disc in self._kinds if disc.is_address}
        services = {_Disc(name): count(number, "instance") for name, number in counts.items()}
        self._kinds, self._edges = services | addresses, edges


def _merged(disc: _Disc) -> _Disc:
    return disc if disc.is_address else _Disc(service_of(disc.name))


def _servers(located: Located) -> list[_Disc]:
    """Return the discs that a call leads to."""
    names = dict.fromkeys(name for name, _ in located.served)
    return [_Disc(name) for name in names] or [_Disc(located.record.target, is_address=True)]


def _ring_of(deadlock: CallDeadlock) -> set[tuple[str, str]]:
    """Return the pairs of instances that wait for each other."""
    return {
        (deadlock.waits[activity].instance, deadlock.waits[blocker].instance)
        for ring in deadlock.rings
        for activity in ring
        for blocker in deadlock.waits[activity].blockers
        if blocker in ring
    }


# --- its tables


def _deadlock_document(deadlock: CallDeadlock) -> Row:
    activities = [activity for ring in deadlock.rings for activity in ring]
    return {
        "sentence": deadlock_sentence(deadlock),
        "waits": _limited(
            (str(deadlock.waits[activity]) for activity in activities), text, REASON_COUNT_MAX
        ),
        "behind_count": len(deadlock.behind),
        "ends_at": deadlock.ends_at,
    }


def _instances(observation: Observation, calls: Iterable[Located]) -> list[Row]:
    """Return a row for each instance, those with the most waiting activities first."""
    waiting = Counter(one.call.caller for one in calls)
    rows = [
        {
            "instance": text(name),
            "service": text(service_of(name)),
            "waiting_count": waiting[name],
            "lock_count": sum(
                len(lock.waiting) for lock in state_of(fragment).locks if lock.holders
            ),
            "serving_count": sum(not served.number for served in fragment.served),
        }
        for name, fragment in sorted(observation.fragments.items())
    ]
    return sorted(rows, key=lambda row: -row["waiting_count"] - row["lock_count"])


def _call(located: Located) -> Row:
    record = located.record
    server = served_by(located)
    return {
        "call": text(str(located.call)),
        "caller": text(located.call.caller),
        "name": text(record.details.name),
        "target": text(record.target),
        "place": located.place.value,
        "served_by": None if server is None else text(server),
        "serving": None if record.serving is None else text(str(record.serving)),
        "since": _since(located),
        "deadline": record.details.deadline,
    }


def _unresolved(one: Unresolved) -> Row:
    return {
        "kind": one.kind,
        "call": text(one.call),
        "name": text(one.name),
        "status": one.status,
        "known": text(one.known),
    }


def _timed_out(calls: TimedOutCalls) -> Row:
    """Return the newest of them first."""
    newest = sorted(calls.listed.items(), key=lambda item: item[1].began_at, reverse=True)
    found = dict(_limited(newest, lambda item: _timed_out_call(*item)))
    return found | {"left_out_count": found["left_out_count"] + calls.dropped_count}


def _timed_out_call(call: CallId, one: TimedOutCall) -> Row:
    return {
        "call": text(str(call)),
        "callee": text(one.callee),
        "name": text(one.name),
        "since": one.began_at or None,
        "status": one.status,
        "accepted": ACCEPTED[one.was_accepted],
        "known": text(fate_of(one)),
    }


def _amounts(row: Row) -> Row:
    numbers = {name: amount for name, amount in row.items() if name != "unit"}
    return {"unit": text(row["unit"])} | exact_amounts(numbers)


def _since(located: Located) -> float | None:
    """Return when a call began; None if its caller does not say so."""
    return located.record.details.began_at or None


def _limited(
    items: Iterable[Any], make: Callable[[Any], Any], count_max: int = ROW_COUNT_MAX
) -> Mapping[str, Any]:
    """Return the first rows, and how many are left out."""
    listed = list(items)
    rows = [make(item) for item in islice(listed, count_max)]
    return {"rows": rows, "left_out_count": len(listed) - len(rows)}


def text(words: str) -> str:
    """Return a text of the services as it is shown: printable, and not too long."""
    return shorten_name(printable(words), char_count_max=TEXT_CHARS_MAX)
