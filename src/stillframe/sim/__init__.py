"""Real processes and the real recording rules in one thread: by script, by chance, or every way.

`play` runs a scripted execution by the clock, `explore` visits every interleaving of a small
system, and `run_seed` draws a run with faults from a seed. All give a `World`, in which states,
channels and snapshots are seen as objects, and whose trace ``stillframe.cuts`` takes.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stillframe.protocol.lai_yang import LaiYangRecorder
    from stillframe.protocol.recorder import Recorder
    from stillframe.sim.campaign import Run, RunConfig, run_seed
    from stillframe.sim.checker import Violation, check_run
    from stillframe.sim.choices import Act, Deliver, Initiate, parse_choice
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
    from stillframe.sim.scripted_process import Script, parse_script
    from stillframe.sim.timed_run import play
    from stillframe.sim.world import RecordedSnapshot, StateView, World

__all__ = [
    "Act",
    "Deliver",
    "Explored",
    "Finding",
    "Initiate",
    "LaiYangRecorder",
    "Network",
    "Played",
    "RecordedSnapshot",
    "Recorder",
    "Run",
    "RunConfig",
    "Script",
    "SmallSystem",
    "StateView",
    "Violation",
    "World",
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
    "protocol.lai_yang": ("LaiYangRecorder",),
    "protocol.recorder": ("Recorder",),
    "sim.campaign": ("Run", "RunConfig", "run_seed"),
    "sim.checker": ("Violation", "check_run"),
    "sim.choices": ("Act", "Deliver", "Initiate", "parse_choice"),
    "sim.exploration": ("Explored", "Finding", "SmallSystem", "explore", "initiations", "replay"),
    "sim.network": ("Network",),
    "sim.scenario": ("Played", "play_text"),
    "sim.scripted_process": ("Script", "parse_script"),
    "sim.timed_run": ("play",),
    "sim.world": ("RecordedSnapshot", "StateView", "World"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: no command needs all of them."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"stillframe.{module}"), name)
    raise AttributeError(f"module 'stillframe.sim' has no attribute {name!r}")
