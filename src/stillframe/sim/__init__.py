"""Real processes and the real recording rules in one thread: by script, by chance, or every way.

`play` runs a scripted execution by the clock, `explore` visits every interleaving of a small
system, and `run_seed` draws a run with faults from a seed. All give a `World`, in which states,
channels and snapshots are seen as objects, and whose trace ``stillframe.cuts`` takes.
"""

from typing import TYPE_CHECKING, Any

from stillframe.public_names import public_attribute

if TYPE_CHECKING:
    from stillframe.model import Batch, Fragment, Marker, Snapshot
    from stillframe.protocol.assembler import Assembler, assemble
    from stillframe.protocol.lai_yang import CountingMarker, LaiYangRecorder
    from stillframe.protocol.recorder import Effect, Recorder
    from stillframe.sim.campaign import Run, RunConfig, run_seed
    from stillframe.sim.checker import Invariant, Violation, check_run
    from stillframe.sim.choices import (
        Act,
        Break,
        Choice,
        Connect,
        Crash,
        Deliver,
        DeliverNotice,
        Duplicate,
        Expire,
        Heal,
        Initiate,
        Lose,
        Partition,
        Restart,
        parse_choice,
    )
    from stillframe.sim.exploration import (
        Explored,
        Finding,
        SmallSystem,
        explore,
        initiations,
        replay,
    )
    from stillframe.sim.network import Network
    from stillframe.sim.scenario import Played, play_text
    from stillframe.sim.scheduler import Faults, Load, Step
    from stillframe.sim.scripted_process import Script, parse_script
    from stillframe.sim.timed_run import play
    from stillframe.sim.world import RecordedSnapshot, StateView, World

__all__ = [
    "Act",
    "Assembler",
    "Batch",
    "Break",
    "Choice",
    "Connect",
    "CountingMarker",
    "Crash",
    "Deliver",
    "DeliverNotice",
    "Duplicate",
    "Effect",
    "Expire",
    "Explored",
    "Faults",
    "Finding",
    "Fragment",
    "Heal",
    "Initiate",
    "Invariant",
    "LaiYangRecorder",
    "Load",
    "Lose",
    "Marker",
    "Network",
    "Partition",
    "Played",
    "RecordedSnapshot",
    "Recorder",
    "Restart",
    "Run",
    "RunConfig",
    "Script",
    "SmallSystem",
    "Snapshot",
    "StateView",
    "Step",
    "Violation",
    "World",
    "assemble",
    "check_run",
    "explore",
    "initiations",
    "parse_choice",
    "parse_script",
    "play",
    "play_text",
    "replay",
    "run_seed",
]

_MODULES = {
    "stillframe.model": "Batch Fragment Marker Snapshot",
    "stillframe.protocol.assembler": "Assembler assemble",
    "stillframe.protocol.lai_yang": "CountingMarker LaiYangRecorder",
    "stillframe.protocol.recorder": "Effect Recorder",
    "stillframe.sim.campaign": "Run RunConfig run_seed",
    "stillframe.sim.checker": "Invariant Violation check_run",
    "stillframe.sim.choices": "Act Break Choice Connect Crash Deliver DeliverNotice Duplicate "
    "Expire Heal Initiate Lose Partition Restart parse_choice",
    "stillframe.sim.exploration": "Explored Finding SmallSystem explore initiations replay",
    "stillframe.sim.network": "Network",
    "stillframe.sim.scenario": "Played play_text",
    "stillframe.sim.scheduler": "Faults Load Step",
    "stillframe.sim.scripted_process": "Script parse_script",
    "stillframe.sim.timed_run": "play",
    "stillframe.sim.world": "RecordedSnapshot StateView World",
}

if not TYPE_CHECKING:  # a type checker knows the names above, and no others

    def __getattr__(name: str) -> Any:
        """Import a public name when it is used: no command needs all of them."""
        return public_attribute(__name__, name, _MODULES)
