"""The scripts that come with stillframe, played: what pages are checked against."""

import importlib.resources
from functools import cache
from pathlib import Path

from stillframe.sim.scenario import Played, play_text
from stillframe.trace import Trace

RUNS = Path(str(importlib.resources.files("stillframe.sim") / "runs"))
NAMES = sorted(path.stem for path in RUNS.glob("*.run"))


def text_of(name: str) -> str:
    """Return the text of a script."""
    return (RUNS / f"{name}.run").read_text(encoding="utf-8")


@cache
def played(name: str) -> Played:
    """Return what came of a script."""
    return play_text(text_of(name))


def trace_of(name: str) -> Trace:
    """Return the trace of a script."""
    world = played(name).world
    return world.epoch.trace(world.description)
