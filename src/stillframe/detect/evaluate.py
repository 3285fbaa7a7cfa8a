"""Calls methods of the user's classes, and names the method whose answer is invalid."""

import inspect
import math
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from stillframe.errors import ApplicationError
from stillframe.model import SnapshotId
from stillframe.process import Quantities
from stillframe.waiting import Waiting

_ABSENT = object()


def yes_or_no(function: Callable[[Any], bool], view: object, name: str, where: str) -> bool:
    """Return whether a predicate of the user holds in a view.

    Args:
        function: the predicate.
        view: its argument.
        name: of the predicate, for the error.
        where: the snapshot, for the error.

    Raises:
        ApplicationError: it raises, or returns something else than True or False.
    """
    try:
        found: object = function(view)
    except (Exception, SystemExit) as error:
        raise ApplicationError(f"{name} raised {type(error).__name__}: {error}, {where}") from error
    if isinstance(found, bool):
        return found
    if inspect.iscoroutine(found):
        found.close()
    raise ApplicationError(
        f"{name} returned {reprlib.repr(found)}, a {type(found).__name__}, {where}: return True or "
        "False"
    )


def is_passive(owner: object, where: str, snapshot: SnapshotId) -> bool:
    """Return whether a process says that it is passive; one without that method is active.

    Args:
        owner: the process.
        where: its name, for the error.
        snapshot: that it belongs to, for the error.

    Raises:
        ApplicationError: it raises, or returns something else than True or False.
    """
    answer = _answer(owner, "is_passive", where, snapshot)
    if answer is _ABSENT:
        return False
    if not isinstance(answer, bool):
        raise _wrong(where, "is_passive", answer, snapshot, "True or False")
    return answer


def waits_for(owner: object, where: str, snapshot: SnapshotId) -> Waiting | None:
    """Return the processes that a process waits for; arguments as for ``is_passive``.

    Raises:
        ApplicationError: it raises, or returns something else.
    """
    answer = _answer(owner, "waits_for", where, snapshot)
    if answer is _ABSENT or answer is None:
        return None
    if not isinstance(answer, Waiting):
        raise _wrong(where, "waits_for", answer, snapshot, "for_all(...), for_any(...) or None")
    return answer


def conserved(owner: object, where: str, snapshot: SnapshotId | None) -> Quantities:
    """Return the conserved quantities of a process or message; arguments as for ``is_passive``, but
    `snapshot` is None for a running one.

    Raises:
        ApplicationError: it raises, or returns something else than names with finite numbers.
    """
    answer = _answer(owner, "conserved", where, snapshot)
    if answer is _ABSENT:
        return {}
    if not isinstance(answer, Mapping) or not all(
        isinstance(name, str) and _is_amount(amount) for name, amount in answer.items()
    ):
        raise _wrong(where, "conserved", answer, snapshot, "a dict of names and finite numbers")
    return answer


def _is_amount(amount: object) -> bool:
    if isinstance(amount, float):
        return math.isfinite(amount)
    return isinstance(amount, int) and not isinstance(amount, bool)


def _answer(owner: object, method: str, where: str, snapshot: SnapshotId | None) -> Any:
    """Return the result of a method without arguments; ``_ABSENT`` if there is none."""
    found = getattr(owner, method, _ABSENT)
    if found is _ABSENT:
        return _ABSENT
    if not callable(found):
        raise ApplicationError(
            f"{where}: {method} is no method of {type(owner).__name__} but {found!r}: give that "
            "field another name"
        )
    try:
        return found()
    except (Exception, SystemExit) as error:
        raise ApplicationError(
            f"{where}: {method}() raised {type(error).__name__}: {error}{_on(snapshot, ', ')}"
        ) from error


def _wrong(
    where: str, method: str, answer: object, snapshot: SnapshotId | None, wanted: str
) -> ApplicationError:
    return ApplicationError(
        f"{where}: {method}() returned {answer!r}{_on(snapshot)}: return {wanted}"
    )


def _on(snapshot: SnapshotId | None, between: str = " ") -> str:
    return "" if snapshot is None else f"{between}on snapshot {snapshot}"
