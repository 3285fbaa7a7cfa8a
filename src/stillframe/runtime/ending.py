"""What ends an epoch of a system."""

import msgspec

from stillframe.model import SnapshotId
from stillframe.runtime.death import Death


class Wish(msgspec.Struct, frozen=True):
    """Somebody wants the system at `snapshot`; None is the one that a death would go back to."""

    snapshot: SnapshotId | None


class Stop(msgspec.Struct, frozen=True):
    """Somebody wants the system to end."""


Cause = Death | Wish | Stop
"""What ends an epoch."""
