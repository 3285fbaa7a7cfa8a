"""What ``stillframe view`` shows: the execution in a trace, or the one that a script tells of."""

from pathlib import Path

import msgspec

from stillframe import tracefile
from stillframe.cli import scripts
from stillframe.durable_files import local_path
from stillframe.errors import UsageError
from stillframe.sim.scenario import Played
from stillframe.trace import Trace


class Execution(msgspec.Struct, frozen=True):
    """An execution, and where it comes from.

    Attributes:
        path: the file that was read.
        trace: what happened; of a script with several epochs, in the last.
        script: the text of the script and what came of it; None if the file is a trace.
    """

    path: Path
    trace: Trace
    script: tuple[str, Played] | None

    @property
    def beside(self) -> Path:
        """Where a picture goes by default, but for its suffix: beside the file, or here if that
        comes with stillframe."""
        return Path(self.path.name) if scripts.is_included(self.path) else self.path


def read(what: str) -> Execution:
    """Return the execution that `what` means: a trace file, a ``.run`` file, or the name of one
    that comes with stillframe.

    Raises:
        UsageError: it means none of them, or the file is not what it should be.
        NotConsistent: no execution is like what the file says.
        OSError: it cannot be read.
    """
    path = local_path(what)
    if what.endswith(scripts.RUN_SUFFIX) or (
        what in scripts.included_names() and not path.exists()
    ):
        script = scripts.script_path(what)
        assert script is not None, what
        text = scripts.read_script(script)
        played = scripts.play(script, text)
        world = played.world
        return Execution(script, world.epoch.trace(world.description), (text, played))
    if path.is_dir():
        raise UsageError(f"{what} is a directory: give a trace, or a script that ends in .run")
    if not path.exists():
        raise UsageError(
            f"there is no file {what}: give a trace, a .run file, or one of those that come with "
            f"stillframe: {', '.join(scripts.included_names())}"
        )
    return Execution(path, tracefile.read(path), None)
