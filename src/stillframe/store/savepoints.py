"""Savepoints: snapshots that are kept under a name."""

import re
from collections.abc import Mapping

from stillframe.errors import UsageError
from stillframe.model import SnapshotId
from stillframe.store.opening import listed

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,62}[A-Za-z0-9_])?")


def check_name(name: str) -> str:
    """Return `name` if a savepoint can be called so.

    Raises:
        UsageError: it cannot, with what is allowed.
    """
    try:
        SnapshotId.parse(name)
    except UsageError:
        if _NAME.fullmatch(name) is not None:
            return name
        raise UsageError(
            f"a savepoint cannot be called {name!r}: use 1 to 64 letters, digits, '_', '.' or '-', "
            "with a letter or digit first and no sign of punctuation last"
        ) from None
    raise UsageError(
        f"a savepoint cannot be called {name!r}: snapshots have ids like that; give a name that "
        "does not end with '-' and a number"
    )


def named(text: str, savepoints: Mapping[str, SnapshotId]) -> SnapshotId:
    """Return the snapshot that `text` names: a savepoint, or an id.

    Raises:
        UsageError: it is neither.
    """
    if text in savepoints:
        return savepoints[text]
    try:
        return SnapshotId.parse(text)
    except UsageError:
        raise UsageError(
            f"{text!r} is no snapshot id: they look like P1-17; nor is it a savepoint: "
            f"there {'is ' + listed(savepoints) if savepoints else 'is none'}"
        ) from None
