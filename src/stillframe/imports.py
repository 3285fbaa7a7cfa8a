"""Imports what a user names as ``module:attribute``: a topology, or a predicate.

The user's directories come first on Python's path while such a module is imported, and last from
then on. A file that is called like a module of Python or of a package is thus never imported in
its place by the code of others, which imports much only when it needs it.
"""

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from itertools import takewhile
from pathlib import Path
from types import ModuleType
from typing import Any

from stillframe.errors import StillframeError, UsageError, check_kind, describe
from stillframe.topology import Topology

_yours: list[str] = []
"""The directories of the user, whose modules are imported here."""


def add_cwd_to_path(directory: str | None = None) -> None:
    """Let the modules of a user be found in a directory; by default the current one."""
    here = str(Path.cwd()) if directory is None else directory
    set_search_path([here, *(place for place in search_path() if place != here)], yours=[here])


def search_path() -> list[str]:
    """Return where modules of the user are looked for, in this order."""
    yours = [place for place in _yours if place in sys.path]
    return [*yours, *(place for place in sys.path if place not in yours)]


def set_search_path(places: Sequence[str], *, yours: Sequence[str] | None = None) -> None:
    """Look for modules of the user where another program does, as its ``search_path`` says.

    `yours` are the directories of the user. By default they are those that come before all that
    Python has here.
    """
    if yours is None:
        others = [place for place in sys.path if place not in _yours]
        yours = tuple(takewhile(lambda place: place not in others, places))
    _yours[:] = yours
    sys.path[:] = [*(place for place in places if place not in yours), *yours]


@contextmanager
def _yours_first() -> Iterator[None]:
    yours = [place for place in _yours if place in sys.path]
    sys.path[:] = search_path()
    try:
        yield
    finally:
        # The module may have added directories: they stay where it put them.
        sys.path[:] = [*(place for place in sys.path if place not in yours), *yours]


def _hidden(name: str) -> str:
    """Return what to do about a file of the user that another module of the same name hides, to
    continue a sentence; "" if there is none."""
    top = name.partition(".")[0]
    if top in sys.modules:
        found = getattr(sys.modules[top], "__file__", None) or "Python itself"
        for place in _yours:
            for file in (Path(place, f"{top}.py"), Path(place, top, "__init__.py")):
                if file.exists() and str(file) != found:
                    return f"; {file} is hidden by the module {top!r} of {found}: rename it"
    return ""


def _split(reference: str, noun: str, example: str) -> tuple[str, str]:
    """Return the module and the name in `reference`; a UsageError if it does not have both."""
    module_name, colon, name = reference.partition(":")
    if not colon or not module_name or not name or "/" in reference:
        raise UsageError(f"{reference!r} does not name a {noun}: write MODULE:{example}")
    return module_name, name


def _imported(module_name: str, name: str) -> tuple[ModuleType, object]:
    """Import a module of the user; return it, and what it has under `name`, or None."""
    try:
        with _yours_first():
            module = importlib.import_module(module_name)
        return module, getattr(module, name, None)
    except (StillframeError, KeyboardInterrupt):
        raise
    except BaseException as error:  # sys.exit() in it as well
        missing = error.name if type(error) is ModuleNotFoundError else None
        if isinstance(missing, str) and f"{module_name}.".startswith(f"{missing}."):
            raise UsageError(
                f"there is no module {module_name!r} here: run from the directory that holds it"
                f"{_hidden(missing)}"
            ) from error
        asked = error.name if type(error) is ImportError else None
        hidden = _hidden(asked) if isinstance(asked, str) else ""
        raise UsageError(
            f"module {module_name!r} cannot be imported: {describe(error)}{hidden}"
        ) from error


def load_function(reference: str) -> Callable[..., Any]:
    """Import the module of `reference`, such as ``predicates:terminated``, from ``sys.path`` and
    return its function, a predicate; what the module prints goes to stderr. UsageError if there is
    no such module or function, or the import fails."""
    example = "FUNCTION, for example 'predicates:terminated' for the function terminated in"
    module_name, name = _split(reference, "predicate", f"{example} predicates.py")
    with redirect_stdout(sys.stderr):
        _, function = _imported(module_name, name)
    if not callable(function):
        raise UsageError(f"{module_name} has no function {name!r}{_hidden(module_name)}")
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
            f"{_hidden(module_name)}"
        )
    return topology
