"""What a driver does on a real cluster, for ``test_cluster_page``.

COMMANDS is a file with a command of ``stillframe`` a line; all of them use the session that the
first one starts, and so does PROGRAM. REPORT is what the program printed. The page has a session of
its own: those of the driver's other programs have other settings.
"""

import contextlib
import io
import runpy
import shlex
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from typer.testing import CliRunner

from stillframe.cli.app import app


def main(commands: str, program: str, report: str) -> None:
    """Run all of it."""
    end_session()
    for line in Path(commands).read_text().splitlines():
        ended = CliRunner().invoke(app, shlex.split(line))
        assert ended.exit_code == 0, (line, ended.output)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(program, run_name="__main__")
    Path(report).write_text(printed.getvalue())
    end_session()


def end_session() -> None:
    """Stop the active session, if there is one."""
    if (active := SparkSession.getActiveSession()) is not None:
        active.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
