"""Imports what a user names as ``module:attribute``: a topology, or a predicate."""

import importlib
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

from stillframe.errors import StillframeError, UsageError, check_kind, describe
from stillframe.topology import Topology


def add_cwd_to_path(directory: str | None = None) -> None:
    """Put a directory on Python's path, first; by default the current one."""
    here = str(Path.cwd()) if directory is None else directory
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)


def _split(reference: str, noun: str, example: str) -> tuple[str, str]:
    """Return the module and the name in `reference`; a UsageError if it does not have both."""
    module_name, colon, name = reference.partition(":")
    if not colon or not module_name or not name or "/" in reference:
        raise UsageError(f"{reference!r} does not name a {noun}: write MODULE:{example}")
    return module_name, name


def _imported(module_name: str, name: str) -> tuple[ModuleType, object]:
    """Import a module of the user; return it, and what it has under `name`, or None."""
    try:
        module = importlib.import_module(module_name)
        return module, getattr(module, name, None)
    except (StillframeError, KeyboardInterrupt):
        raise
    except BaseException as error:  # sys.exit() in it as well
        missing = error.name if type(error) is ModuleNotFoundError else None
        if isinstance(missing, str) and f"{module_name}.".startswith(f"{missing}."):
            raise UsageError(
                f"there is no module {module_name!r} here: run from the directory that holds it"
            ) from error
        raise UsageError(f"module {module_name!r} cannot be imported: {describe(error)}") from error


def load_function(reference: str) -> Callable[..., Any]:
    """Import the module of `reference`, such as ``predicates:terminated``, from ``sys.path`` and
    return its function, a predicate; what the module prints goes to stderr. UsageError if there is
    no such module or function, or the import fails."""
    example = "FUNCTION, for example 'predicates:terminated' for the function terminated in"
    module_name, name = _split(reference, "predicate", f"{example} predicates.py")
    with redirect_stdout(sys.stderr):
        _, function = _imported(module_name, name)
    if not callable(function):
        raise UsageError(f"{module_name} has no function {name!r}")
    found: Callable[..., Any] = function
    return found


def reference_of(topology: Topology) -> str:
    """Return where a topology is defined, ``module:attribute``: the processes of a system import it
    from there. UsageError if no imported module has it, or only the program itself."""
    check_kind("topology", topology, Topology, "a Topology, or MODULE:ATTRIBUTE")
    found = [
        (name, attribute)
        for name, module in sorted(sys.modules.items())
        for attribute, value in vars(module).items()
        if value is topology
    ]
    kinds = {codec.kind.__module__ for codec in topology.codecs.values()}
    # Other modules may have imported it: prefer the one that has its classes, too.
    found.sort(key=lambda one: (one[0] not in kinds, one))
    for name, attribute in found:
        if name != "__main__":
            return f"{name}:{attribute}"
    where = "in this script or notebook" if found else "in no module"
    attribute = found[0][1] if found else "bank"
    raise UsageError(
        f"the topology is defined {where}, and the processes of the system cannot import it from "
        f"there: put it and its classes into a file such as {attribute}_topology.py, and use 'from "
        f"{attribute}_topology import {attribute}'"
    )


def load_topology(reference: str) -> Topology:
    """Import the module of `reference`, such as ``bank:bank``, from ``sys.path`` and
    return its topology. UsageError if there is no such module, attribute or topology, or the import
    fails."""
    example = "TOPOLOGY, for example 'bank:bank' for the name bank in bank.py"
    module_name, attribute = _split(reference, "topology", example)
    module, topology = _imported(module_name, attribute)
    if not isinstance(topology, Topology):
        names = sorted(n for n, value in vars(module).items() if isinstance(value, Topology))
        raise UsageError(
            f"{module_name} has no topology {attribute!r}; it has {', '.join(names) or 'none'}"
        )
    return topology
