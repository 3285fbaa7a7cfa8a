"""A driver on a real cluster: ``cluster_page_program.py COMMANDS PROGRAM REPORT``, for
``test_cluster_page``.

COMMANDS is a file with a command of ``stillframe`` a line; all of them use the session that the
first one starts, and so does PROGRAM. REPORT is what the program printed.
"""

import contextlib
import io
import runpy
import shlex
import sys
from pathlib import Path

from typer.testing import CliRunner

from stillframe.cli.app import app


def main(commands: Path, program: Path, report: Path) -> None:
    """Run all of it."""
    for line in commands.read_text().splitlines():
        ended = CliRunner().invoke(app, shlex.split(line))
        assert ended.exit_code == 0, (line, ended.output)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(program), run_name="__main__")
    report.write_text(printed.getvalue())


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
