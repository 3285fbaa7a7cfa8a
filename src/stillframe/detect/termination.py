"""Termination: every process is passive, and nothing is on its way to wake one.

A passive process acts only when it receives (Dijkstra & Scholten, *Termination Detection for
Diffusing Computations*, 1980). With no message on any channel none of them ever will.
"""

import msgspec

from stillframe.detect.asked import is_passive
from stillframe.detect.view import View
from stillframe.model import Channel, ProcessId


class Activity(msgspec.Struct, frozen=True):
    """What still goes on: processes that may act by themselves, and channels with how many messages
    are on their way."""

    processes: tuple[ProcessId, ...]
    channels: dict[Channel, int]

    def __str__(self) -> str:
        active = [f"active: {', '.join(self.processes)}"] if self.processes else []
        counts = ", ".join(f"{channel} {count}" for channel, count in self.channels.items())
        return "; ".join([*active, *([f"messages on their way: {counts}"] if counts else [])])


def find_activity(view: View) -> Activity | None:
    """Return what still goes on in a snapshot, or None if the computation has terminated.

    Raises:
        ApplicationError: a process does not say whether it is passive.
    """
    active = tuple(
        name
        for name, process in view.processes.items()
        if not is_passive(process, f"process {name}", view.snapshot)
    )
    channels = {channel: len(found) for channel, found in view.channels.items() if found}
    return Activity(active, channels) if active or channels else None
