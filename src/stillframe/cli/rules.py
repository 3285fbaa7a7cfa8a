"""The recording rules by the names that options have, and the networks that they are tried on."""

from collections.abc import Callable
from enum import StrEnum

from stillframe.protocol.lai_yang import LaiYangRecorder
from stillframe.protocol.recorder import Recorder
from stillframe.sim.network import Network

__all__ = ["Network", "Rules", "recorder_of"]


class Rules(StrEnum):
    """Which recording rules are followed."""

    CHANDY_LAMPORT = "chandy-lamport"
    LAI_YANG = "lai-yang"


def recorder_of(rules: Rules) -> Callable[..., Recorder | LaiYangRecorder]:
    """Return what follows `rules` for one process."""
    return LaiYangRecorder if rules is Rules.LAI_YANG else Recorder
