"""The reference of the command line, from its help texts: ``python -m stillframe.cli.reference``
writes what ``docs/cli.md`` holds."""

from typing import Any

import typer
import typer.main

from stillframe.cli.app import app
from stillframe.cli.command import DeferredCommand

INTRODUCTION = """# The command line

Results go to stdout: tables, headlines, verdicts. Progress and warnings go to stderr.
If stdout has the id of a new snapshot, or a schedule or a script of the simulator, it has only
that, so that another command can use it: what else is said goes to stderr.
With `--json` the results are JSON objects, one per line, and an error is one object on stderr:
[JSON output](json.md) describes them.
Colours appear only on a terminal, and never with `NO_COLOR`.

| exit code | meaning |
|---|---|
| 0 | success, or the answer is yes |
| 1 | failure, or the answer is no: damaged, inconsistent, different, abandoned |
| 2 | usage error, bad input, or missing dependency |
| 3 | not decided, by `detect`, `pipeline detect` or `store detect`: neither yes nor no |
| 101 | a bug in Stillframe |
| 130 | interrupted by Ctrl-C; a command that runs until Ctrl-C ends with 0 |
| 141 | the reader of stdout, such as `head`, stopped before everything was written |

`list`, `events`, `pipeline list` and `store stats` show what is readable even if something else
is damaged. They then name the damage and exit with 1.

A store, pipeline, event log or directory of fragments can be in an object store or in HDFS: give
its address, such as `s3://bucket/x`, `gs://bucket/x`, `hdfs://namenode:8020/x` or
`abfss://container@account.dfs.core.windows.net/x`.
Where only a local path can be used, an address is refused with exit code 2. `file:///x` means `/x`.
To use a directory that is called `s3:`, give its absolute path. The same holds in Python.

Durations are a number and a unit: `250ms`, `1s`, `2m`, `1h`.
Snapshot ids consist of the initiating process and a number: `P1-17`.

The commands under `store` and `log`, but for `store copy`, need the extra `stillframe[spark]` and
Java 17, 21 or 25. No other command does.

Old names of commands and options work until version 0.3 and print the new name.

This page is generated: `python -m stillframe.cli.reference > docs/cli.md`.
"""
WIDTH = 100


def reference() -> str:
    """Return the reference as Markdown."""
    return "\n".join([INTRODUCTION, *_sections(typer.main.get_command(app), None, "stillframe")])


def _sections(command: Any, parent: Any, path: str) -> list[str]:
    if isinstance(command, DeferredCommand):
        command = command.load()
    name = path.rpartition(" ")[2]
    context = command.context_class(
        command, info_name=name, parent=parent, max_content_width=WIDTH, terminal_width=WIDTH
    )
    sections = [f"## {path}\n\n```text\n{command.get_help(context)}\n```\n"]
    for child, subcommand in getattr(command, "commands", {}).items():
        sections += _sections(subcommand, context, f"{path} {child}")
    return sections


if __name__ == "__main__":
    print(reference(), end="")
