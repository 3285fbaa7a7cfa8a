"""The tables of an observation that are complete although it is partial or not exact.

A table is complete if it has every row, and all of its values are right. Most reasons for a partial
observation say that the cut may be inconsistent, or that an instance is missing: then no table is
complete. The others, in `_LIMITED`, leave some of them as they would be in an exact observation:

* A state may be torn, or is missing: each call is where it is all the same, since that follows from
  headers alone.
* Amounts of calls, or whole calls, are missing: states are captured in one step with all messages
  that their instances have accepted.
* What a variable holds is in no state and in no message: only sums show that.

A reason that is not listed leaves no table complete. So does one of another version of an agent.
"""

import re
from collections.abc import Collection, Iterator

from stillframe.protocol.calls import CallPlace
from stillframe.store.observations import AMOUNTS, ObservationManifest, ObservationReader

INSTANCES, STATES, CALLS, UNRESOLVED = ("instances", "states", "calls", "unresolved")
TABLES = (INSTANCES, STATES, CALLS, UNRESOLVED, AMOUNTS)
"""The tables of an observation that a query can read."""
_TORN = frozenset({INSTANCES, STATES, AMOUNTS})
_OF_CALLS = frozenset({CALLS, UNRESOLVED, AMOUNTS})
_DROPPED = _OF_CALLS | {INSTANCES}
"""What a dropped call or amount is missing in: an instance has the counts and the lost amounts."""
_SUMS = frozenset({AMOUNTS})
_EVERYTHING = frozenset(TABLES)
_FATE = "it is unknown whether some calls were accepted"
_MORE = "the same holds for {} more"
_NAME = "[^ ]+: "
"""The pattern of the name of an instance before each reason that it gives."""
_LIMITED = {
    _FATE: _OF_CALLS,
    "earlier calls with an unknown fate: {}": _SUMS,
    "amounts that are not known were dropped since the baseline: {} times": _SUMS,
    "{} has dropped unresolved calls, because there were too many": _DROPPED,
    "{} has dropped {} answers that {} has not accepted, because there were too many": _DROPPED,
    "{} has dropped answers to {}, which is not connected": _DROPPED,
    "{} has dropped amounts of streams: too many messages": _DROPPED,
    "{} has dropped statements about calls: there were too many": _OF_CALLS,
    "{} has given amounts back for call {}, which is not one of those whose fate is open: it was "
    "answered, or is not kept any more": _SUMS,
    "the amounts of call {} are not known": _OF_CALLS,
    "amounts of call {} were dropped: too many messages": _DROPPED,
    "call {} has a stream and was accepted twice": _OF_CALLS,
    "{} carries other amounts for its caller than where it is served: carries must find the same "
    "at both ends": _OF_CALLS,
}
_LIMITED_BY_AN_AGENT = {
    "carries raised {} for {}": _OF_CALLS,
    "the amounts of a message of the stream {} are not known": _OF_CALLS,
    "{} runs in a thread, so the state may be torn": _TORN,
    "{} is inside the middleware that takes part in observations": _TORN,
    "the body of {} is too long, or has no length, to be accepted in one step": _TORN,
    "a step of the event loop waits for something: use held there": _TORN,
    "step was given amounts where no endpoint runs in a thread: use held": _TORN,
    "its state could not be captured: {}": _TORN,
    "a task keeps the answer of {}": _SUMS,
    "the answer of {} is not made yet": _SUMS,
    "an error of {} is not answered yet": _SUMS,
}
"""The tables that are not complete for each reason; ``{}`` stands for a name or a number."""


def _pattern(template: str, before: str = "") -> re.Pattern[str]:
    return re.compile(before + ".*".join(map(re.escape, template.split("{}"))), re.DOTALL)


_BY_AN_AGENT = [(_pattern(text, _NAME), of) for text, of in _LIMITED_BY_AN_AGENT.items()]
_BY_RULES = [(_pattern(text), of) for text, of in _LIMITED.items()]
_REPEATED = _pattern(_MORE)


def reasons_against(
    store: ObservationReader, manifest: ObservationManifest, tables: Collection[str]
) -> tuple[str, ...]:
    """Return why some tables of an observation are not complete, as its manifest and its calls say;
    nothing if they are.

    Raises:
        UsageError: the observation was removed meanwhile.
        Damaged: its calls are not what was written.
    """
    found = {reason: None for reason, of in _incomplete(manifest) if not of.isdisjoint(tables)}
    if not manifest.is_exact and _FATE not in found and not _OF_CALLS.isdisjoint(tables):
        # An observation does not say this besides other reasons.
        places = store.tables(manifest, [CALLS])[CALLS].column("place").to_pylist()
        if not {CallPlace.UNKNOWN.value, CallPlace.OUTSIDE.value}.isdisjoint(places):
            found[_FATE] = None
    return tuple(found)


def _incomplete(manifest: ObservationManifest) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield each reason why an observation is not exact, and the tables that it leaves
    incomplete."""
    more = _EVERYTHING
    for reason in (*manifest.partial, *manifest.unknowns):
        if _REPEATED.fullmatch(reason):
            yield reason, more
        elif (of := _listed(reason, _BY_AN_AGENT)) is not None:
            yield reason, of
            more = _EVERYTHING  # it counts all that the instance gives, of any kind
        else:
            more = _listed(reason, _BY_RULES) or _EVERYTHING  # it counts those of this kind
            yield reason, more


def _listed(
    reason: str, kinds: list[tuple[re.Pattern[str], frozenset[str]]]
) -> frozenset[str] | None:
    return next((of for pattern, of in kinds if pattern.fullmatch(reason)), None)
