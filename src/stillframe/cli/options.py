"""Arguments and options that several commands share."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from stillframe.cli.command import argument, flag, option
from stillframe.protocol.policy import Policy
from stillframe.storage.location import Location


def event_log_option(what: str) -> Any:
    """Return the option ``--event-log DIR``; `what` says what the command does with the log."""
    return option("DIR", what, "--event-log")


StorePath = Annotated[
    Location,
    typer.Argument(metavar="STORE", help="Directory of the store, or address, as s3://bucket/dir."),
]
_SNAPSHOT = "Id of a snapshot, such as P1-17, or name of a savepoint."
SnapshotName = Annotated[str, typer.Argument(metavar="SNAPSHOT", help=_SNAPSHOT)]
OptionalSnapshotName = Annotated[str | None, typer.Argument(metavar="SNAPSHOT", help=_SNAPSHOT)]
OptionalName = Annotated[
    str | None,
    typer.Argument(metavar="SNAPSHOT", help=f"{_SNAPSHOT} Or number of an observation."),
]
Timeout = Annotated[
    str, typer.Option(metavar="DURATION", help="Abandon a snapshot that takes longer.")
]
StepTimeout = Annotated[
    str,
    typer.Option(
        metavar="DURATION",
        help="Abandon a snapshot if no participant makes progress for this long.",
    ),
]
TOPOLOGY = argument(
    "MODULE:TOPOLOGY", "Topology, as MODULE:ATTRIBUTE, importable from the current directory."
)
CLASSES = option(
    "MODULE:TOPOLOGY",
    "Topology that defines the classes.  [default: the one that the store names]",
    "--topology",
)
INITIATOR = option(
    "PROCESS",
    "Process that initiates the snapshot.  [default: the first one declared]",
    "--initiator",
)
KEPT = "Keep only the newest N snapshots, and all savepoints."
KEEP = option("N", f"{KEPT}  [default: keep all]", "--keep", min=1)
UNTIL = option(
    "PREDICATE",
    "Stop when this predicate holds in a snapshot: termination, deadlock, loss, MODULE:FUNCTION "
    "or SQL, as for 'detect'. Exit 1 if it never holds.",
    "--until",
)
DURATION = option("DURATION", "Stop after this time.  [default: run until Ctrl-C]", "--duration")
PIPELINE = option(
    "DIR",
    "Pipeline in which processes of this system are services, or its address. It then takes the "
    "snapshots.",
    "--pipeline",
)
INTERVAL = ("--interval", "--every")
"""The names of the option; the second one is the short form."""
MASTER = option(
    "URL",
    "Spark master: local[2], spark://HOST:7077.",
    "--master",
    default="local[*]",
)


@dataclasses.dataclass(frozen=True)
class SnapshotOptions:
    """Options for the snapshots of a system that is started, and for failed ones."""

    interval: str = option(
        "DURATION",
        "Interval between snapshots: 250ms, 1s, 2m, or 'never'.",
        *INTERVAL,
        default="1s",
    )
    initiator: list[str] | None = option(
        "PROCESS",
        "Process that initiates snapshots. Repeat it for several, used round-robin."
        "  [default: the first one declared]",
    )
    timeout: Timeout = "10s"
    marker_linger: str = option(
        "DURATION",
        "Time that a marker waits for a message to be sent with, at most 1s.",
        default="0",
    )
    on_incomplete: Policy = typer.Option(
        Policy.ABANDON,
        help="Policy for incomplete snapshots: abandon them, retry from another "
        "initiator (up to 3 times), or exclude missing processes without channels, "
        "reusing their last recorded state.",
    )
    max_abandoned: int | None = option(
        "COUNT",
        "Stop the system when more snapshots than this are abandoned in a row.  [default: never]",
        min=0,
    )
    duration: str | None = DURATION


@dataclasses.dataclass(frozen=True)
class TraceOptions:
    """Options for the traces that processes write; on other machines into directories of the same
    names."""

    event_log: Location | None = event_log_option("Write an event log of every process into DIR.")
    fragment_dir: Location | None = option(
        "DIR",
        "Write each process's fragments into DIR, for 'store assemble'.",
    )


@dataclasses.dataclass(frozen=True)
class PlacementOptions:
    """Options for the processes on this machine, and for how the others connect to it."""

    listen: str | None = option(
        "ADDRESS[:PORT]",
        "Address of the coordinator. The processes use the same address and other "
        "ports. Addresses other than loopback require --tls.  [default: 127.0.0.1 "
        "and any port; port 8640 with an address]",
    )
    tls: Path | None = option(
        "DIR", "Use TLS, with ca.pem, cert.pem and key.pem from this directory."
    )
    external: list[str] | None = option(
        "PROCESS", "Wait for this process to join instead of starting it. Can be repeated."
    )


@dataclasses.dataclass(frozen=True)
class ViewOptions:
    """Options of ``view``: the part of a trace, script or store to show, and the output."""

    out: Path | None = option(
        "FILE",
        "Output file: .svg or .png for a picture, .html for a page.  [default: the "
        "trace's name with .svg, or a page for a store]",
    )
    snapshot: str | None = option(
        "SNAPSHOT",
        "Snapshot to show. In an execution, its recorded states are circled and its"
        " messages in transit listed.  [default: the only snapshot, or the newest "
        "of a store]",
    )
    compare: str | None = option(
        "SNAPSHOT", "Compare the snapshot with this earlier one (stores and pipelines only)."
    )
    event_log: Location | None = event_log_option(
        "Event log of the system. Draws the actual events around the cut."
    )
    cut: str | None = option(
        "PROCESS=COUNT,...",
        "Draw this cut, given as the number of events before it per process; 0 for "
        "processes left out.",
    )
    first: int = option("N", "Start at this step of a long trace.", default=1, min=1)
    steps: bool = flag("--steps", "Draw one picture per step: FILE/FILE-001.svg and so on.")
