"""Modules of the user's are looked for in the directory where the command is given."""

import sys
from pathlib import Path


def look_here() -> None:
    """Put the current directory on Python's path, first."""
    here = str(Path.cwd())
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)
