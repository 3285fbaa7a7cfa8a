"""Modules of the user's are looked for in the directory where the command is given."""

import importlib
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from stillframe.errors import UsageError


def look_here(directory: str | None = None) -> None:
    """Put a directory on Python's path, first; by default the current one."""
    here = str(Path.cwd()) if directory is None else directory
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)


def load_function(reference: str) -> Callable[..., Any]:
    """Import the module of `reference` and return its function, a predicate; what the module prints
    goes to stderr.

    Args:
        reference: for example ``predicates:terminated``; the module is looked for on ``sys.path``.

    Raises:
        UsageError: there is no such module or function, or the import fails.
    """
    module_name, colon, name = reference.partition(":")
    if not colon or not module_name or not name or "/" in reference:
        raise UsageError(
            f"{reference!r} does not name a predicate: write MODULE:FUNCTION, for example "
            "'predicates:terminated' for the function terminated in predicates.py"
        )
    try:
        with redirect_stdout(sys.stderr):
            module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"module {module_name!r} cannot be imported: {type(error).__name__}: {error}; it is "
            "looked for in this directory"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"{module_name} has no function {name!r}")
    found: Callable[..., Any] = function
    return found
