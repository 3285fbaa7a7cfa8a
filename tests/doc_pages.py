"""Pages of the documents, as tests read them."""

import contextlib
import re
import shlex
import sys
from pathlib import Path
from unittest import mock

from typer.testing import CliRunner, Result

from stillframe.cli.app import app


def blocks(language: str, page: str) -> list[str]:
    """Return the text of each code block of a page that is in `language`."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def called(command: str, directory: Path) -> Result:
    """Call a command of a page in `directory`, in this process; what it does to ``sys.path`` is
    undone. Modules of that directory are imported anew: others may have had their names."""
    name, *arguments = shlex.split(command)
    assert name == "stillframe"
    with contextlib.chdir(directory), mock.patch.object(sys, "path", list(sys.path)):
        _forget_modules()
        try:
            return CliRunner().invoke(app, arguments, catch_exceptions=False)
        finally:
            _forget_modules()


def _forget_modules() -> None:
    for path in Path().glob("*.py"):
        sys.modules.pop(path.stem, None)
