"""The way of the markers of the last snapshots, from what the processes say with their parts.

It is kept for those who look on, in memory and for few snapshots: what must last is in the history.
"""

import math
from collections import OrderedDict

import msgspec

from stillframe.errors import ProtocolViolation
from stillframe.model import Fragment, MarkerTimes, ProcessId, SnapshotId
from stillframe.topology import Description

WAVE_COUNT_MAX = 32
"""Of so many snapshots the way of the markers is kept."""


class Wave(msgspec.Struct, frozen=True):
    """How the markers of one snapshot went through the system.

    Attributes:
        snapshot: which.
        initiated_at: when, in seconds since 1970 by the coordinator's clock.
        ended_at: when it was published or abandoned; None if it is under way.
        is_published: whether it is in the store.
        times: what each process said with its part.
        part_at: when the part of each process was in, by the coordinator's clock.
        epoch: of the system then; 0 is of a version that does not say it.
    """

    snapshot: SnapshotId
    initiated_at: float
    ended_at: float | None = None
    is_published: bool = False
    times: dict[ProcessId, MarkerTimes] = {}
    part_at: dict[ProcessId, float] = {}
    epoch: int = 0


class Waves:
    """The waves of the last snapshots, of whatever epoch: those of one that a death has ended are
    what people want to see."""

    def __init__(self) -> None:
        self._waves: OrderedDict[SnapshotId, Wave] = OrderedDict()

    def began(self, snapshot: SnapshotId, at: float, epoch: int) -> None:
        """Note that `snapshot` was initiated."""
        self._waves[snapshot] = Wave(snapshot, at, times={}, part_at={}, epoch=epoch)
        while len(self._waves) > WAVE_COUNT_MAX:
            self._waves.popitem(last=False)

    def took(self, fragment: Fragment, at: float, description: Description) -> None:
        """Note that the part of a process is in.

        Args:
            fragment: the part.
            at: when it was in.
            description: which channels there are.

        Raises:
            ProtocolViolation: it names channels that the process does not have, or no times.
        """
        process, times = fragment.state.process, fragment.marker_times
        if times is not None:
            sources = set(description.incoming(process))
            named = times.came_s.keys() | ({times.marked_by} - {None})
            if not named <= sources or not all(
                map(math.isfinite, (times.cut_at, *times.came_s.values()))
            ):
                raise ProtocolViolation("its part names markers that could not come to it")
        wave = self._waves.get(fragment.snapshot)
        if wave is not None:
            wave.part_at[process] = at
            if times is not None:
                wave.times[process] = times

    def ended(self, snapshot: SnapshotId, at: float, *, is_published: bool) -> None:
        """Note that `snapshot` was published or abandoned."""
        wave = self._waves.get(snapshot)
        if wave is not None:
            self._waves[snapshot] = msgspec.structs.replace(
                wave, ended_at=at, is_published=is_published
            )

    def latest(self) -> tuple[Wave, ...]:
        """Return what is kept, the oldest first."""
        return tuple(self._waves.values())
