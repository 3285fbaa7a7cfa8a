"""What ends an epoch of a system."""

import msgspec

from stillframe.model import ProcessId, SnapshotId
from stillframe.runtime import control


class Death(msgspec.Struct, frozen=True):
    """A process is gone for good; `failure` is what it said last, if it said why."""

    process: ProcessId
    failure: control.Failure | None


class Wish(msgspec.Struct, frozen=True):
    """Somebody wants the system at `snapshot`; None is the one that a death would go back to."""

    snapshot: SnapshotId | None


class Stop(msgspec.Struct, frozen=True):
    """Somebody wants the system to end."""


Cause = Death | Wish | Stop
"""What ends an epoch of a system."""
