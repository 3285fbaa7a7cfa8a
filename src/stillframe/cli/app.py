"""The commands by name: a module of commands is imported when one of its commands is called."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from stillframe.cli import renamed
from stillframe.cli.command import Root, defer

SPARK = "Needs stillframe[spark] and Java 17, 21 or 25."
SCRIPT_SUFFIX = ".run"
SCRIPTS = Path(__file__).parent.parent / "sim" / "runs"
"""The scripts that are part of Stillframe."""
_SIM_OPTIONS = {"--seeds", "--schedule", "--network", "--rules", "--trace", "--prove"}
"""The options of ``sim run`` and ``sim script`` that have a value."""


class Simulator(TyperGroup):
    """The commands of the simulator: ``sim lecture`` is short for ``sim script lecture``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; see ``TyperGroup``."""
        first = args[0] if args else ""
        if first not in {*self.commands, "--help"}:
            name = _first_argument(args)
            is_script = name.endswith(SCRIPT_SUFFIX) or (name != "" and ":" not in name)
            args = ["script", *args] if is_script else renamed.rename_sim(args)
        return super().parse_args(ctx, args)


def _first_argument(args: list[str]) -> str:
    """Return the first of the arguments of ``sim`` that is no option and no value of one."""
    words = iter(args)
    for word in words:
        if word in _SIM_OPTIONS:
            next(words, "")
        elif not word.startswith("-"):
            return word
    return ""


def _group(name: str, words: str, group: type[TyperGroup] = TyperGroup) -> typer.Typer:
    made = typer.Typer(help=words, no_args_is_help=True, rich_markup_mode=None, cls=group)
    app.add_typer(made, name=name, short_help=f"{words.partition('.')[0]}.")
    return made


app = typer.Typer(
    name="stillframe",
    cls=Root,
    help="Take consistent global snapshots of running distributed systems.",
    epilog="Exit codes: 0 success or yes, 1 failure or no, 2 usage error or missing dependency, "
    "101 bug in Stillframe.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 100},
)
defer(app, "run", "run", "Start a system and take snapshots of it.")
defer(app, "run", "restore", "Roll a system back to a snapshot.")
defer(app, "run", "resume", "Take over a system whose supervisor died.")
defer(app, "run", "join", "Run one process of a system on this machine.")
defer(app, "snapshots", "snapshot", "Take a snapshot now.")
defer(app, "snapshots", "savepoint", "Keep a snapshot under a name.")
defer(app, "snapshots", "delete", "Delete a snapshot or a savepoint.")
defer(app, "snapshots", "list", "List the snapshots of a store.")
defer(app, "snapshots", "show", "Show the contents of a snapshot, or its progress.")
defer(app, "snapshots", "verify", "Check the bytes and channel counts of snapshots.")
defer(app, "snapshots", "diff", "Compare two snapshots.")
defer(app, "snapshots", "detect", "Check whether a stable predicate holds.")
defer(app, "snapshots", "events", "List starts, failures and snapshots of a system.")
defer(app, "observe", "observe", "Observe services that keep their own transports.")
defer(app, "observe", "baseline", "Begin a new baseline of observed totals.")
defer(app, "observe", "calls", "List calls that timed out, and which took effect.")
defer(app, "watch", "watch", "Serve a live dashboard of a system, pipeline or services.")
defer(app, "view", "view", "Draw an execution or a snapshot.")
defer(app, "run", "certs", "Create TLS certificates for testing.")

pipeline_app = _group(
    "pipeline",
    "Snapshot and restore whole pipelines. A pipeline consists of streaming queries, services and "
    "channels. These commands read and write its directory. Only 'detect' starts Spark, and only "
    "for states of queries.",
)
defer(pipeline_app, "pipeline", "snapshot", "Take a snapshot of a pipeline now.")
defer(pipeline_app, "pipeline", "savepoint", "Take a snapshot and keep it under a name.")
defer(pipeline_app, "pipeline", "list", "List the snapshots of a pipeline.")
defer(pipeline_app, "pipeline", "show", "Show the contents of a snapshot.")
defer(pipeline_app, "pipeline_contents", "filter", "Print which records of a topic count.")
defer(pipeline_app, "pipeline_contents", "detect", "Check whether a stable predicate holds.")
defer(pipeline_app, "pipeline", "delete", "Delete snapshots.")
defer(pipeline_app, "pipeline", "restore", "Roll a stopped pipeline back to a snapshot.")
defer(pipeline_app, "pipeline", "fork", "Create a second pipeline from a snapshot.")
defer(pipeline_app, "pipeline", "status", "Show the progress of the current snapshot.")

store_app = _group(
    "store",
    f"Analyze all snapshots of a store with Spark, or copy it. {SPARK} 'copy' needs neither.",
)
defer(store_app, "analytics", "audit", "Check all snapshots and a conserved total.")
defer(store_app, "analytics", "stats", "Summarize durations, sizes and messages in transit.")
defer(store_app, "analytics", "diff", "Compare two snapshots of a large store.")
defer(store_app, "analytics", "detect", "Find the first snapshot in which a predicate holds.")
defer(store_app, "records", "compact", "Combine all snapshots into a few large tables.")
defer(store_app, "records", "assemble", "Build snapshots from recorded fragments.")
defer(store_app, "follow", "follow", "Check each snapshot as soon as it ends.")
defer(store_app, "snapshots", "copy", "Copy a store to another place.")

log_app = _group("log", f"Analyze the event logs of processes with Spark. {SPARK}")
defer(log_app, "records", "verify", "Check all snapshots against an event log.")
defer(log_app, "records", "clock", "Compute the vector clock of an event.")

trace_app = _group("trace", "Import logs of other systems, and query consistent cuts.")
defer(trace_app, "trace", "import", "Convert a log with vector clocks into a trace.")
defer(trace_app, "trace", "cuts", "Query the consistent cuts of a trace.")

sim_app = _group(
    "sim",
    "Run systems in a deterministic simulator with virtual time. 'sim SCRIPT' is short for 'sim "
    "script SCRIPT'.",
    Simulator,
)
defer(sim_app, "sim", "run", "Run many seeds with injected faults.")
defer(sim_app, "sim", "script", "Play a scripted execution.")
defer(sim_app, "sim", "explore", "Visit every interleaving of a small system.")


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        import importlib.metadata  # noqa: PLC0415 - this option alone needs it

        typer.echo(f"stillframe {importlib.metadata.version('stillframe')}")
        raise typer.Exit


@app.callback()
def _stillframe(
    *,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass
