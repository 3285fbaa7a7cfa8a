"""The JSON document of the page of an observation of services.

Every part is bounded, and reports how much is left out, as of ``snapshot_documents``.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Any

import msgspec

from stillframe.detect.call_waits import ActivityWait, CallDeadlock, find_call_deadlock
from stillframe.diagram import svg
from stillframe.diagram.scene import TEXT_ROW
from stillframe.diagram.text_metrics import clean, count, moment
from stillframe.pages.call_diagram import CallDiagram, call_words, draw_calls, is_blocked, ring_of
from stillframe.pages.values import Budget, printable, show, show_fields
from stillframe.protocol.activities import service_of
from stillframe.protocol.calls import CallPlace, InstanceFragment, Located, Observation
from stillframe.store.observation_tables import (
    Unresolved,
    amounts_of,
    fields_of,
    served_by,
    state_of,
    unresolved_of,
)
from stillframe.store.observations import ObservationManifest, StoredObservation

OBSERVATION = "observation"
"""The kind of this document."""
STATE_CHARS_MAX, CALL_CHARS_MAX = 1_500_000, 1_000_000
"""Characters of states in a document, and of the open and of the unresolved calls."""
CALLS_MAX, UNRESOLVED_MAX = 3000, 1000
REASONS_MAX, UNITS_MAX, RING_MAX, LOCKS_MAX = 50, 100, 50, 100
NOTICES_MAX, WAITS_MAX = 3, 6
"""Reasons, and waits of a deadlock, above a picture."""
_TEXT_CHARS_MAX = 300
_TIME_MAX = 250_000_000_000.0
"""The year 9892."""
VERIFIED = (
    "the SHA-256 of every file is right: no byte of the observation was changed",
    "the rest was not checked: 'stillframe verify' compares the calls with what was recorded",
)


def draw_observation(found: StoredObservation) -> CallDiagram:
    """Return the diagram of an observation, with its deadlock, and why it is not exact, above it.

    It is for a picture without a page.
    """
    deadlock = find_call_deadlock(found.observation)
    reasons = _reasons(found.manifest)
    notices = [_line(reason) for reason in reasons[:NOTICES_MAX]]
    if (more := len(reasons) - NOTICES_MAX) > 0:
        notices.append(f"and {count(more, 'more reason')}")
    if deadlock is not None:
        notices = [*_rings(deadlock), _ending(deadlock), *notices]
    return draw_calls(found.observation, deadlock, notices)


def observation_document(found: StoredObservation) -> dict[str, Any]:
    """Return the document of the page of an observation."""
    manifest, observation = found.manifest, found.observation
    deadlock = find_call_deadlock(observation)
    shown = draw_calls(observation, deadlock)
    # A page scrolls the diagram and not its legend, so the legend is not in it.
    height = shown.diagram.height - TEXT_ROW * (len(shown.diagram.legend) + 1)
    picture = msgspec.structs.replace(shown.diagram, legend=(), height=height)
    reasons, disconnected = _reasons(manifest), manifest.disconnected
    amounts = amounts_of(observation)
    return {
        "kind": OBSERVATION,
        "number": manifest.number,
        "quality": manifest.quality,
        "verdict": _verdict(found),
        "reasons": list(map(_line, reasons[:REASONS_MAX])),
        "reasons_left_out_count": max(0, len(reasons) - REASONS_MAX),
        "comparable": _line(manifest.comparable(moment)),
        "disconnected": list(map(_line, disconnected[:REASONS_MAX])),
        "disconnected_left_out_count": max(0, len(disconnected) - REASONS_MAX),
        "verified": VERIFIED,
        "initiated_at": manifest.initiated_at,
        "recorded_s": max(0.0, manifest.completed_at - manifest.initiated_at),
        "instance_count": manifest.instance_count,
        "service_count": len(set(map(service_of, observation.fragments))),
        "open_count": manifest.open_count,
        "unresolved_count": manifest.unresolved_count,
        "bytes": manifest.byte_count,
        "deadlock": None if deadlock is None else _deadlock(deadlock),
        "diagram": {
            "svg": svg.draw(picture, has_style=False),
            "legend": [
                {"sample": row.sample.value, "text": row.full} for row in shown.diagram.legend
            ],
            "left_out": shown.left_out,
        },
        **_contents(observation, ring_of(deadlock), manifest.initiated_at),
        "amounts": [
            {name: _line(str(value)) for name, value in row.items()} for row in amounts[:UNITS_MAX]
        ],
        "amounts_left_out_count": max(0, len(amounts) - UNITS_MAX),
    }


def _verdict(found: StoredObservation) -> str:
    manifest = found.manifest
    if manifest.is_exact:
        return "Exact: every amount is in a state, in a call, or known to be lost"
    if manifest.partial:
        return f"Partial, for {count(len(manifest.reasons), 'reason')}"
    return f"Not exact, for {count(len(manifest.reasons), 'reason')}"


def _contents(observation: Observation, ring: frozenset[str], at: float) -> dict[str, Any]:
    """Return the states and calls; `at` is when the observation was initiated."""
    states, calls = Budget(STATE_CHARS_MAX), Budget(CALL_CHARS_MAX)
    fragments = sorted(
        observation.fragments.values(), key=lambda one: (service_of(one.instance), one.instance)
    )
    processes = [_instance(fragment, states) for fragment in states.limit(fragments)]
    places = list(CallPlace)
    waiting = sorted(
        (one for one in observation.calls if one.record.is_awaited),
        key=lambda one: (not is_blocked(one, ring), places.index(one.place), one.call),
    )
    rows = [_call(one, ring, at, calls) for one in calls.limit(waiting[:CALLS_MAX])]
    unresolved = unresolved_of(observation)
    rest = Budget(CALL_CHARS_MAX)
    settled = [_unresolved(one, rest) for one in rest.limit(unresolved[:UNRESOLVED_MAX])]
    return {
        "processes": processes,
        "processes_left_out_count": len(fragments) - len(processes),
        "excluded": {},
        "member": "instance",
        "calls": rows,
        "calls_left_out_count": len(waiting) - len(rows),
        "unresolved": settled,
        "unresolved_left_out_count": len(unresolved) - len(settled),
    }


def _instance(fragment: InstanceFragment, budget: Budget) -> dict[str, Any]:
    state = state_of(fragment)
    fields = show_fields(fields_of(fragment), budget)
    if state.held:
        fields.append({"name": "(variables of handlers)"} | show(state.held, budget))
    if state.locks:
        locks = {
            lock.name: {
                "held by": [one or "unknown" for one in lock.holders],
                "waiting": lock.waiting,
            }
            for lock in islice(state.locks, LOCKS_MAX)
        }
        fields.append({"name": "(locks)"} | show(locks, budget))
    return {
        "process": _line(fragment.instance),
        "kind": _line(service_of(fragment.instance)),
        "fields": fields,
    }


def _call(located: Located, ring: frozenset[str], at: float, budget: Budget) -> dict[str, Any]:
    record, details = located.record, located.record.details
    began_at = _time(details.began_at)
    texts = {
        "call": str(located.call),
        "name": details.name or str(located.call),
        "caller": located.call.caller,
        "target": record.target,
        "served_by": served_by(located),
        "serving": None if record.serving is None else str(record.serving),
        "status": _status(located.status),
        "words": call_words(located),
    }
    return {
        **_texts(texts, budget),
        "place": located.place.value,
        "is_blocked": is_blocked(located, ring),
        "began_at": began_at,
        "open_s": None if began_at is None else max(0.0, at - began_at),
        "deadline": _time(details.deadline),
        "amounts": _texts(located.amounts(), budget),
        "fields": show_fields(details.fields, budget, chars_max=_TEXT_CHARS_MAX),
    }


def _status(status: int | None) -> str | None:
    return None if status is None else str(status)


def _unresolved(one: Unresolved, budget: Budget) -> dict[str, Any]:
    texts = {
        "call": one.call,
        "name": one.name,
        "kind": one.kind,
        "target": one.target,
        "status": _status(one.status),
        "known": one.known,
    }
    return {**_texts(texts, budget), "amounts": _texts(one.amounts, budget)}


def _deadlock(deadlock: CallDeadlock) -> dict[str, Any]:
    return {
        "rings": [
            {
                "waits": [_wait(deadlock.waits[name]) for name in ring[:RING_MAX]],
                "left_out_count": max(0, len(ring) - RING_MAX),
            }
            for ring in deadlock.rings[:RING_MAX]
        ],
        "rings_left_out_count": max(0, len(deadlock.rings) - RING_MAX),
        "behind": [_line(str(deadlock.waits[name])) for name in deadlock.behind[:RING_MAX]],
        "behind_left_out_count": max(0, len(deadlock.behind) - RING_MAX),
        "ends_at": _time(deadlock.ends_at),
    }


def _wait(wait: ActivityWait) -> dict[str, Any]:
    return {
        "sentence": _line(str(wait)),
        "since": _time(wait.since),
        "deadline": _time(wait.deadline),
    }


def _rings(deadlock: CallDeadlock) -> list[str]:
    """Return the first waits of rings in words, for a picture."""
    found = [f"deadlock: {deadlock.waits[name]}" for ring in deadlock.rings for name in ring]
    more = [f"and {count(len(found) - WAITS_MAX, 'more wait')}"] if len(found) > WAITS_MAX else []
    return [*map(_line, found[:WAITS_MAX]), *more]


def _ending(deadlock: CallDeadlock) -> str:
    ends_at = _time(deadlock.ends_at)
    if ends_at is None:
        return "no wait of the deadlock has a time-out that is known"
    return f"its first known time-out is at {moment(ends_at)}"


def _texts(values: Mapping[str, object], budget: Budget) -> dict[str, str | None]:
    return {
        _line(name): None if value is None else budget.take(_line(str(value)), _TEXT_CHARS_MAX)
        for name, value in values.items()
    }


def _time(seconds: float | None) -> float | None:
    """Return a time that a service gave, or None if it is none that a page can show."""
    return seconds if seconds is not None and 0 < seconds < _TIME_MAX else None


def _reasons(manifest: ObservationManifest) -> list[str]:
    """Return why an observation is not exact."""
    return [f"{manifest.quality}: {reason}" for reason in manifest.reasons]


def _line(text: str) -> str:
    """Return a text on one line, as a page shows it."""
    return clean(printable(text), char_count_max=_TEXT_CHARS_MAX)
