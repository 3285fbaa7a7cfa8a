"""The reference of the command line, from its help texts: ``python -m stillframe.cli.reference``
writes what ``docs/cli.md`` holds."""

from typing import Any

import typer
import typer.main

from stillframe.cli.app import app
from stillframe.cli.command import DeferredCommand

INTRODUCTION = """# The command line

Data goes to stdout, words go to stderr.
With `--json` the data are one JSON document
(`run` and a `restore` that starts the system write one line of JSON for each event).
Colour appears only on a terminal, and never with `NO_COLOR`.

| exit code | meaning |
|---|---|
| 0 | yes, or done |
| 1 | no: damaged, not consistent, different, abandoned |
| 2 | wrong usage or input, or something that is needed is not there |
| 101 | a bug in stillframe |
| 130 | it was ended by Ctrl-C before it had begun |

Where damage would hide what is whole, `list`, `history` and `pipeline list`, `store stats` show the
rest and end with 1. Their JSON document names what is damaged: `damaged` is a list of objects with
`detail`, a sentence, and of snapshots `id`; of `store stats` it is `damages`, an object with a
sentence for each id.

Every path is one of the local file system, which a shared one can be mounted into. What begins like
an address, with a scheme of two letters or more, a colon and a slash (`s3://bucket/x`, `file:///x`,
`hdfs://`, `dbfs:/x`), is refused with exit code 2; `C:/x` and `a:b` are paths, and a directory that
is really called `s3:` is given by its absolute path. The same holds in Python.

Durations are a number and a unit: `250ms`, `1s`, `2m`, `1h`.
Snapshot ids name the process that initiated and a number: `P1-17`.

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
