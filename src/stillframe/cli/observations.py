"""Observations of services in ``list``, ``show``, ``calls``, ``verify``, ``detect``, ``diff`` and
``store stats``."""

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from operator import attrgetter, itemgetter
from typing import Any

import msgspec

from stillframe.cli import output, quantities
from stillframe.cli.command import conclude, end_undecided, end_with_failure
from stillframe.detect.call_waits import served_by_activities
from stillframe.detect.observations import LOSS, ranges_of, resolve_observed
from stillframe.detect.predicate import Verdict
from stillframe.errors import UsageError
from stillframe.imports import add_cwd_to_path
from stillframe.protocol.activities import service_of
from stillframe.protocol.calls import CallId, Located, Observation, TimedOutCall
from stillframe.storage.location import Location
from stillframe.storage.opened import requests_to
from stillframe.store.diff import is_same
from stillframe.store.layout import first_names, has_observations
from stillframe.store.observation_tables import (
    Unresolved,
    amounts_of,
    fate_of,
    fields_of,
    state_of,
    unresolved_of,
)
from stillframe.store.observations import (
    ACCEPTED,
    QUALITIES,
    ObservationManifest,
    ObservationReader,
    StoredObservation,
)

REASON_COUNT_MAX = 20
"""Maximum reasons of partial observations that are printed; JSON has all."""
CALL_COUNT_MAX = 50
"""Maximum rows of each table of calls; JSON has all."""
ROW_COUNT_MAX = 20
"""Maximum observations that ``store stats`` prints: the newest ones."""
Fields = dict[str, Any]


def reader_of(path: Location) -> ObservationReader | None:
    """Return the observations at a place; None if it is no store of observations."""
    return ObservationReader(path) if has_observations(path) else None


LIST_COLUMNS: output.Columns[ObservationManifest] = {
    "observation": lambda one: str(one.number),
    "completed": lambda one: quantities.moment(one.completed_at),
    "amounts": attrgetter("quality"),
    "took": lambda one: quantities.duration(one.duration_s),
    "instances": attrgetter("instance_count"),
    "open calls": attrgetter("open_count"),
    "unresolved": attrgetter("unresolved_count"),
    "totals since": lambda one: str(one.baseline),
    "size": lambda one: quantities.size(one.byte_count),
}


def list_observations(store: ObservationReader) -> None:
    """Carry out ``list``."""
    found, damages = store.listing()
    document: Fields = {
        "store": store.path,
        "observations": list(map(_entry, found)),
        "damaged": [{"number": one, "detail": str(error)} for one, error in damages.items()],
    }
    if (sent := requests_to(store.path)) is not None:
        document["requests"] = sent
    output.answer(document, lambda: _put_list(store, found, has_none=not damages))
    if damages:
        end_with_failure(*map(str, damages.values()))


def _entry(manifest: ObservationManifest) -> Fields:
    return {
        "number": manifest.number,
        "initiated_at": manifest.initiated_at,
        "completed_at": manifest.completed_at,
        "instance_count": manifest.instance_count,
        "open_count": manifest.open_count,
        "unresolved_count": manifest.unresolved_count,
        "is_exact": manifest.is_exact,
        "quality": manifest.quality,
        **_why(manifest),
        "took_s": manifest.duration_s,
        "bytes": manifest.byte_count,
    }


def _why(manifest: ObservationManifest) -> Fields:
    """Return what is unknown, and since when totals are comparable."""
    names = ("partial", "disconnected", "gone", "unknown_count", "forgotten_count", "double_spent")
    return {name: getattr(manifest, name) for name in names} | _baseline(manifest)


def _baseline(manifest: ObservationManifest) -> Fields:
    names = ("baseline", "baseline_why", "baseline_by", "baseline_at")
    return {name: getattr(manifest, name) for name in names}


def _put_list(
    store: ObservationReader, found: list[ObservationManifest], *, has_none: bool
) -> None:
    if has_none and not found:
        output.report(f"the store {store.path} holds no observation yet")
        return
    output.put_table("", LIST_COLUMNS, found, texts=3)
    reasons: dict[str, list[str]] = {}
    for manifest in found:
        for reason in _reasons(manifest):
            reasons.setdefault(reason, []).append(str(manifest.number))
    for reason, numbers in itertools.islice(reasons.items(), REASON_COUNT_MAX):
        output.report(f"{reason} (in {first_names(numbers)})")
    if len(reasons) > REASON_COUNT_MAX:
        output.report(f"and {len(reasons) - REASON_COUNT_MAX:,} more reasons (--json has all)")
    begun = _baselines(found)
    output.report(*(one.comparable(quantities.moment) for one in begun[-REASON_COUNT_MAX:]))
    output.report(f"{quantities.count(len(found), 'observation')}; none can be restored")
    output.say_requests(store.path)


def _baselines(found: list[ObservationManifest]) -> list[ObservationManifest]:
    """Return the first observation of each baseline, the oldest first. One that begins with a
    partial observation has no other one, and is left out unless it is the newest."""
    firsts: dict[int, ObservationManifest] = {}
    for one in found:
        firsts.setdefault(one.baseline, one)
    every = list(firsts.values())
    return [*(one for one in every[:-1] if not one.partial), *every[-1:]]


def _reasons(manifest: ObservationManifest) -> list[str]:
    """Return why an observation is not exact."""
    return [f"{manifest.quality}: {reason}" for reason in manifest.reasons]


# --- store stats


_FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "took_s": ("took", quantities.duration),
    "bytes": ("size", lambda value: quantities.size(round(value))),
    "instance_count": ("instances", "{:,.0f}".format),
    "open_count": ("open calls", "{:,.0f}".format),
    "unresolved_count": ("unresolved calls", "{:,.0f}".format),
}


def summarize_observations(store: ObservationReader) -> None:
    """Carry out ``store stats``."""
    found, damages = store.listing()
    if not found and not damages:
        raise UsageError(f"the store {store.path} holds no observation yet")
    counts = dict.fromkeys(QUALITIES, 0) | Counter(one.quality for one in found)
    document: Fields = {
        "store": store.path,
        "damaged": [{"number": one, "detail": str(error)} for one, error in damages.items()],
        "observations": list(map(_entry, found)),
        "quality_counts": counts,
        "spread": _spread(found),
    }
    output.answer(document, lambda: _put_summary(found, document))
    if damages:
        reasons = (f"observation {one} is left out: {why}" for one, why in damages.items())
        end_with_failure(*reasons)


def _spread(found: list[ObservationManifest]) -> list[Fields]:
    """Return median, p90 and maximum of each figure, as for snapshots."""
    entries = list(map(_entry, found))
    rows = []
    for figure in _FIGURES if entries else ():
        values = [float(entry[figure]) for entry in entries]
        # A quantile needs two values.
        deciles = statistics.quantiles(values * max(1, 3 - len(values)), n=10, method="inclusive")
        most, number = max(
            (value, entry["number"]) for value, entry in zip(values, entries, strict=True)
        )
        rows.append(
            {
                "figure": figure,
                "median": statistics.median(values),
                "p90": deciles[-1],
                "max": most,
                "observation": number,
            }
        )
    return rows


def _put_summary(found: list[ObservationManifest], document: Fields) -> None:
    output.put_table("", LIST_COLUMNS, found[-ROW_COUNT_MAX:], texts=3)
    if (older := len(found) - ROW_COUNT_MAX) > 0:
        output.report(f"and {older:,} older ones (--json has all)")
    cells = []
    for row in document["spread"]:
        name, shown = _FIGURES[row["figure"]]
        values = (shown(row[value]) for value in ("median", "p90", "max"))
        cells.append((name, *values, str(row["observation"])))
    over = f"over {quantities.count(len(found), 'observation')}"
    output.put_table(over, ("", "median", "90 %", "most", "in"), cells)
    counts = document["quality_counts"].items()
    output.report(", ".join(f"{count:,} {quality}" for quality, count in counts))


# --- show


def show_observation(store: ObservationReader, name: str | None) -> None:
    """Carry out ``show``."""
    found = store.load(store.newest() if name is None else store.find(name))
    output.answer(lambda: _document(found), lambda: _put(found))


def _document(found: StoredObservation) -> Fields:
    manifest, observation = found.manifest, found.observation
    return {
        "number": manifest.number,
        "initiated_at": manifest.initiated_at,
        "completed_at": manifest.completed_at,
        "is_exact": manifest.is_exact,
        **_why(manifest),
        "instances": [
            {
                "instance": name,
                "service": service_of(name),
                "state": fields_of(fragment),
                "held": state_of(fragment).held,
                "locks": _locks(observation, name),
                "ignored_count": state_of(fragment).ignored_count,
            }
            for name, fragment in observation.fragments.items()
        ],
        "calls": [_call(one) for one in observation.calls if one.record.is_awaited],
        "unresolved": [
            msgspec.structs.asdict(one) | {"place": one.place.value}
            for one in unresolved_of(observation)
        ],
        "amounts": amounts_of(observation),
    }


def _locks(observation: Observation, instance: str) -> list[Fields]:
    """Return the locks that tasks of an instance hold: each task by what it serves, or its name,
    and one that is not known as an empty text."""
    serving = served_by_activities(observation)
    return [
        {
            "lock": lock.name,
            "holders": [serving.get(one, one) for one in lock.holders],
            "waiting": [serving.get(one, one) for one in lock.waiting],
        }
        for lock in state_of(observation.fragments[instance]).locks
    ]


def _call(located: Located) -> Fields:
    record, details = located.record, located.record.details
    return {
        "call": str(located.call),
        "caller": located.call.caller,
        "target": record.target,
        "name": details.name,
        "place": located.place.value,
        "served_by": [name for name, _ in located.served],
        "serving": None if record.serving is None else str(record.serving),
        "began_at": details.began_at,
        "deadline": details.deadline,
        "amounts": located.amounts(),
        "fields": details.fields,
        "status": located.status,
    }


def _put(found: StoredObservation) -> None:
    manifest, observation = found.manifest, found.observation
    took = quantities.duration(manifest.duration_s)
    output.report(
        f"observation {manifest.number}: initiated {quantities.moment(manifest.initiated_at)}, "
        f"complete after {took}, {manifest.quality}"
    )
    _put_states(observation)
    calls = [_call(one) for one in observation.calls if one.record.is_awaited]
    call_columns: dict[str, Callable[[Fields], object]] = {
        "caller": itemgetter("caller"),
        "waits for": lambda one: one["name"] or one["call"],
        "at": itemgetter("target"),
        "place": _place,
        "serving": itemgetter("serving"),
        "since": lambda one: _moment(one["began_at"]),
        "until": lambda one: _moment(one["deadline"]),
    }
    if any(one["status"] is not None for one in calls):
        call_columns["status"] = itemgetter("status")
    if any(one["fields"] for one in calls):
        call_columns["body"] = lambda one: _body(one["fields"])
    if calls:
        texts = len(call_columns)
        output.put_table("open calls", call_columns, calls, texts=texts, limit=CALL_COUNT_MAX)
    if unresolved := unresolved_of(observation):
        columns: dict[str, Callable[[Unresolved], object]] = {
            "kind": attrgetter("kind"),
            "call": attrgetter("call"),
            "name": attrgetter("name"),
            "outcome": attrgetter("known"),
        }
        if any(one.status is not None for one in unresolved):
            columns["status"] = attrgetter("status")
        if any(one.fields for one in unresolved):
            columns["body"] = lambda one: _body(one.fields)
        output.put_table(
            "unresolved calls", columns, unresolved, texts=len(columns), limit=CALL_COUNT_MAX
        )
    _put_locks(observation)
    if amounts := amounts_of(observation):
        units = [name.replace("_", " ") for name in amounts[0]]
        output.put_table("amounts", units, [one.values() for one in amounts])
    output.report(*_reasons(manifest))
    for name, spent in itertools.islice(manifest.double_spent.items(), CALL_COUNT_MAX):
        words = ", ".join(f"{amount} {unit}" for unit, amount in spent.items())
        output.report(f"call {name}: {words} of it were given back, and a state has them as well")
    output.report(manifest.comparable(quantities.moment))
    output.report(*(f"{name} was disconnected" for name in manifest.disconnected))
    for name, fragment in observation.fragments.items():
        if count := state_of(fragment).ignored_count:
            output.report(f"{name} has ignored {quantities.count(count, 'header')} so far")
    output.report(
        f"{quantities.count(len(calls), 'open call')}, {len(unresolved):,} unresolved; this is no "
        "snapshot and cannot be restored"
    )


def _put_states(observation: Observation) -> None:
    services: dict[str, dict[str, Mapping[str, Any]]] = {}
    for name, fragment in sorted(observation.fragments.items()):
        held = state_of(fragment).held
        fields = fields_of(fragment) | ({"held": held} if held else {})
        services.setdefault(service_of(name), {})[name] = fields
    for service, states in services.items():
        names = list(dict.fromkeys(itertools.chain.from_iterable(states.values())))
        rows = [
            (name, *(output.cell(fields.get(field)) for field in names))
            for name, fields in states.items()
        ]
        output.put_table(f"instances: {service}", ["instance", *names], rows)


def _put_locks(observation: Observation) -> None:
    rows = [
        (
            lock["lock"],
            name,
            ", ".join(one or "an unknown task" for one in lock["holders"]),
            ", ".join(lock["waiting"]),
        )
        for name in sorted(observation.fragments)
        for lock in _locks(observation, name)
    ]
    if rows:
        columns = ("lock", "of", "held by", "waiting")
        output.put_table("locks", columns, rows, texts=4, limit=CALL_COUNT_MAX)


def _body(fields: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in fields.items())


def _place(call: Fields) -> str:
    by = f" by {', '.join(call['served_by'])}" if call["served_by"] else ""
    return f"{call['place']}{by}"


def _moment(at: float | None) -> str | None:
    return quantities.moment(at) if at else None


# --- calls


_KNOWN_COLUMNS: dict[str, Callable[[Fields], object]] = {
    "call": itemgetter("call"),
    "caller": itemgetter("caller"),
    "callee": lambda one: ", ".join(one["accepted_by"]) or one["target"],
    "name": itemgetter("name"),
    "sent": lambda one: _moment(one["began_at"]),
    "status": itemgetter("status"),
    "accepted": lambda one: ACCEPTED[one["was_accepted"]],
    "outcome": itemgetter("known"),
}


def list_calls(store: ObservationReader, since: float, *, is_timed_out: bool) -> None:
    """Carry out ``calls``; `since` is a time, or 0."""
    timed_out = store.timed_out()
    found = [_known(call, one, fate_of(one)) for call, one in timed_out.listed.items()]
    if not is_timed_out and (numbers := store.numbers()):
        observation = store.load(numbers[-1]).observation
        for located in observation.calls:
            if located.record.is_awaited:
                one = located.timed_out(observation.number)
                known = _known(located.call, one, one.place.value) | {"is_awaited": True}
                if not (one.accepted_by or observation.is_exact):
                    known["was_accepted"] = None
                found.append(known)
    shown = [one for one in found if not one["began_at"] or one["began_at"] >= since]
    shown.sort(key=lambda one: one["began_at"], reverse=True)
    document = {"store": store.path, "calls": shown, "dropped_count": timed_out.dropped_count}
    output.answer(document, lambda: _put_calls(shown))
    counts = Counter(ACCEPTED[one["was_accepted"]] for one in shown)
    accepted = ", ".join(f"{word} of {counts[word]:,}" for word in ACCEPTED.values())
    output.report(f"{quantities.count(len(shown), 'call')}; accepted: {accepted}")
    if timed_out.dropped_count:
        older = quantities.count(timed_out.dropped_count, "older call")
        output.report(f"{older} whose callers did not wait: not listed any more")


def _known(call: CallId, one: TimedOutCall, known: str) -> Fields:
    return {
        "call": str(call),
        "caller": call.caller,
        "target": one.target,
        "accepted_by": list(dict.fromkeys(one.accepted_by)),
        "name": one.name,
        "began_at": one.began_at,
        "status": one.status,
        "is_awaited": False,
        "was_accepted": one.was_accepted,
        "is_settled": one.is_settled,
        "known": known,
        "observation": one.observation,
    }


def _put_calls(found: list[Fields]) -> None:
    if found:
        texts = len(_KNOWN_COLUMNS)
        output.put_table("", _KNOWN_COLUMNS, found, texts=texts, limit=CALL_COUNT_MAX)


# --- verify


def verify_observations(store: ObservationReader, name: str | None) -> None:
    """Carry out ``verify``; an error says what is wrong."""
    if name is not None:
        manifest = store.verify(store.find(name)).manifest
        counts = {
            "instance_count": manifest.instance_count,
            "open_count": manifest.open_count,
            "unresolved_count": manifest.unresolved_count,
        }
        output.answer({"is_consistent": True, "observation": manifest.number} | counts)
        output.report(
            f"PASS: observation {manifest.number} is consistent, and its "
            f"{quantities.size(manifest.byte_count)} are what was written"
        )
        return
    output.verify_all(store.path, "observation", store.verify_all, attrgetter("byte_count"))


# --- detect


def detect_observations(store: ObservationReader, name: str) -> None:
    """Carry out ``detect``."""
    add_cwd_to_path()
    evaluate = resolve_observed(name, store)
    verdicts: dict[int, Verdict] = {}
    against: dict[str, list[int]] = {}
    numbers = store.numbers()
    with output.progress_bar("evaluating observations", total=len(numbers)) as update:
        for number in numbers:
            outcome = evaluate(number)
            if isinstance(outcome, Verdict):
                verdicts[number] = outcome
            elif outcome is not None:
                for reason in outcome.reasons:
                    against.setdefault(reason, []).append(number)
            update(advance=1)
    if not numbers:
        raise UsageError(f"the store {store.path} holds no observation yet")
    held = [number for number, verdict in verdicts.items() if verdict.holds]
    newest = max(verdicts, default=None)
    document: Fields = {
        "predicate": name,
        "holds": None if newest is None else verdicts[newest].holds,
        "found": None if newest is None else verdicts[held[-1] if held else newest].sentence,
        "observation": newest,
        "held": ranges_of(held, list(verdicts)),
        "observation_count": len(verdicts),
        "not_evaluated": [
            {"reason": reason, "observations": ranges_of(found, numbers)}
            for reason, found in against.items()
        ],
        "baselines": [],
    }
    undecided = "" if verdicts else f"{name} could not be evaluated in any observation"
    if name == LOSS:
        begun = _baselines(store.listing()[0])
        document["baselines"] = list(map(_baseline, begun))
        since = begun[-1].baseline if begun else 0
        if newest is None or newest < since:
            document["holds"] = None
            undecided = f"since observation {since} there are no two exact ones to compare"
        output.report(*(one.comparable(quantities.moment) for one in begun[-REASON_COUNT_MAX:]))
    output.answer(document)
    output.report(*(f"not evaluated: {reason}" for reason in _reasons_against(against)))
    if undecided:
        before = f"; before, {_sentence(document | {'holds': True})}" if verdicts else ""
        end_undecided(f"{undecided}{before}")
    conclude(document["holds"], _sentence(document), yes="yes", no="no")


def _reasons_against(against: Mapping[str, list[int]]) -> list[str]:
    """Return why observations were not evaluated, and in which of them each reason holds."""
    found = [
        f"{reason} (in {first_names(list(map(str, numbers)))})"
        for reason, numbers in itertools.islice(against.items(), REASON_COUNT_MAX)
    ]
    if (more := len(against) - REASON_COUNT_MAX) > 0:
        found.append(f"and {more:,} more reasons ('stillframe list --json' has all)")
    return found


def _sentence(document: Fields) -> str:
    name, held = document["predicate"], document["held"]
    ranges = [f"{first}" if first == last else f"{first} to {last}" for first, last in held]
    of = quantities.count(document["observation_count"], "observation")
    if not held:
        return f"{name} holds in none of {of}: {document['found']}"
    words = f"{name} holds in {first_names(ranges[::-1])}, of {of}"
    if not document["holds"]:
        newest = document["observation"]
        words = f"{name} does not hold in {newest}, the newest, but in {first_names(ranges[::-1])}"
    return f"{words}: {document['found']}"


# --- diff


def diff_observations(store: ObservationReader, before: str, after: str) -> None:
    """Carry out ``diff``."""
    one, other = (store.load(store.find(name)).observation for name in (before, after))
    document = difference(one, other)
    output.answer(document, lambda: _put_difference(before, after, document))
    if document["is_equal"]:
        output.report(f"observations {before} and {after} show the same states and the same calls")
        return
    output.report(
        f"observations {before} and {after} differ in "
        f"{quantities.count(len(document['fields']), 'field')} of instances and "
        f"{quantities.count(len(document['calls']), 'call')}"
    )
    end_with_failure()


def difference(one: Observation, other: Observation) -> Fields:
    """Return how two observations differ: instances, fields of those in both, and open calls."""
    fields = []
    for name in sorted(one.fragments.keys() & other.fragments.keys()):
        old, new = fields_of(one.fragments[name]), fields_of(other.fragments[name])
        fields += [
            {
                "instance": name,
                "field": field,
                "before": old.get(field),
                "after": new.get(field),
            }
            for field in old | new
            if (field in old) != (field in new) or not is_same(old[field], new[field])
        ]
    befores, afters = ({located.call: located for located in o.calls} for o in (one, other))
    calls = []
    for call in sorted(befores.keys() | afters.keys()):
        places = [_state_of_call(found.get(call)) for found in (befores, afters)]
        if places[0] != places[1]:
            located = befores.get(call) or afters[call]
            calls.append(
                {
                    "call": str(call),
                    "name": located.record.details.name,
                    "before": places[0],
                    "after": places[1],
                }
            )
    joined = sorted(other.fragments.keys() - one.fragments.keys())
    left = sorted(one.fragments.keys() - other.fragments.keys())
    return {
        "is_equal": not (fields or calls or joined or left),
        "joined": joined,
        "left": left,
        "fields": fields,
        "calls": calls,
    }


def _state_of_call(located: Located | None) -> str | None:
    """Return where a call is, and whether it is awaited; None if it is not open."""
    if located is None:
        return None
    return (
        located.place.value if located.record.is_awaited else f"{located.place.value}, unresolved"
    )


def _put_difference(before: str, after: str, document: Fields) -> None:
    rows = [(name, change) for change in ("joined", "left") for name in document[change]]
    if rows:
        output.put_table("instances", ("instance", "change"), rows, texts=2)
    if document["fields"]:
        fields = [
            (one["instance"], one["field"], *output.pair_of_cells(one["before"], one["after"]))
            for one in document["fields"]
        ]
        output.put_table("fields", ["instance", "field", before, after], fields, texts=2)
    if document["calls"]:
        call_columns: dict[str, Callable[[Fields], object]] = {
            "call": itemgetter("call"),
            "name": itemgetter("name"),
            before: lambda one: one["before"] or "not open",
            after: lambda one: one["after"] or "closed",
        }
        output.put_table("calls", call_columns, document["calls"], texts=4, limit=CALL_COUNT_MAX)


def refuse_options(*options: tuple[str, object]) -> None:
    """Raise a UsageError if an option is given that applies to snapshots only."""
    for name, value in options:
        if value:
            raise UsageError(f"{name} applies to snapshots, and this store holds observations")
