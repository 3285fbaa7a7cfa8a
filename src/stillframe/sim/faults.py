"""What may go wrong in a simulated run, and how often: a value, so that it can be printed."""

from dataclasses import dataclass
from random import Random

from stillframe.sim.network import Fifo, Lossy, Network


@dataclass(frozen=True, kw_only=True)
class Faults:
    """How slow the network is, and how often what goes wrong. Rates are per virtual second.

    Attributes:
        delay_ms_max: a message or a marker is on its way up to so long.
        hearing_ms_max: a process hears that a snapshot was abandoned up to so much later.
        crash_per_s: processes that die.
        restart_ms_max: the system goes back up to so long after a death.
        break_per_s: connections that are lost.
        connect_ms_max: a lost connection is there again up to so much later.
        partition_per_s: groups of processes that are cut off.
        partition_ms_max: how long.
        double_per_s: messages and markers that are on their way twice.
        lose_per_s: messages and markers that are lost, where the network may lose them.
    """

    delay_ms_max: float = 5.0
    hearing_ms_max: float = 5.0
    crash_per_s: float = 0.0
    restart_ms_max: float = 30.0
    break_per_s: float = 0.0
    connect_ms_max: float = 30.0
    partition_per_s: float = 0.0
    partition_ms_max: float = 100.0
    double_per_s: float = 0.0
    lose_per_s: float = 0.0


def draw_faults(chance: Random, network: Network) -> Faults:
    """Return faults that differ from seed to seed: some runs have one kind alone, some all."""

    def rate(most: float) -> float:
        return chance.choice((0.0, most / 4, most))

    keeps_connections = network is Fifo
    return Faults(
        delay_ms_max=chance.choice((1.0, 5.0, 20.0)),
        hearing_ms_max=chance.choice((1.0, 20.0)),
        crash_per_s=rate(20.0),
        break_per_s=rate(80.0) if keeps_connections else 0.0,
        partition_per_s=rate(20.0),
        partition_ms_max=chance.choice((30.0, 300.0)),
        double_per_s=rate(80.0) if keeps_connections else 0.0,
        lose_per_s=rate(80.0) if network is Lossy else 0.0,
    )


def describe(faults: Faults) -> str:
    """Return what could go wrong, without what could not."""
    figures = {name: value for name, value in vars(faults).items() if value}
    return ", ".join(f"{name} {value:g}" for name, value in figures.items())
