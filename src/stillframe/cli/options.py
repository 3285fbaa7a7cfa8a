"""Arguments and options that several commands share."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from stillframe.cli.command import argument, flag, option
from stillframe.protocol.policy import Policy


def keep_option(what: str, *, least: int = 1) -> Any:
    """Return the option ``--keep N``, of which `what` says what it removes."""
    return option("N", what, "--keep", min=least)


def event_log_option(what: str) -> Any:
    """Return the option ``--event-log DIR``; `what` says what the command does with the log."""
    return option("DIR", what, "--event-log")


StorePath = Annotated[Path, typer.Argument(metavar="STORE", help="Directory of the store.")]
_SNAPSHOT = "Id of a snapshot, such as P1-17, or name of a savepoint."
SnapshotName = Annotated[str, typer.Argument(metavar="SNAPSHOT", help=_SNAPSHOT)]
OptionalSnapshotName = Annotated[str | None, typer.Argument(metavar="SNAPSHOT", help=_SNAPSHOT)]
Timeout = Annotated[
    str, typer.Option(metavar="DURATION", help="Abandon a snapshot that takes longer.")
]
TOPOLOGY = argument("MODULE:TOPOLOGY", "Where the topology is, seen from this directory.")
CLASSES = option(
    "MODULE:TOPOLOGY", "Where the classes are.  [default: where the store says]", "--topology"
)
INITIATOR = option(
    "PROCESS", "Process that initiates it.  [default: the first one declared]", "--initiator"
)
KEEP = keep_option(
    "Remove all but the newest N snapshots as they are published; savepoints stay.  "
    "[default: keep all]"
)
DURATION = option("DURATION", "Stop after this long.  [default: at Ctrl-C]", "--duration")
PIPELINE = option(
    "DIR",
    "The pipeline in which processes of this system are services; it takes the snapshots.",
    "--pipeline",
)
INTERVAL = ("--interval", "--every")
"""The names of the option; the second one is the short form."""
MASTER = option(
    "URL",
    "Where Spark runs, in Spark's own words: local[2], spark://HOST:7077.",
    "--master",
    default="local[*]",
)


@dataclasses.dataclass(frozen=True)
class SnapshotOptions:
    """When a system that is started takes snapshots, and what becomes of those that fail."""

    interval: str = option(
        "DURATION",
        "Take a snapshot this often: 250ms, 1s, 2m; or 'never'.",
        *INTERVAL,
        default="1s",
    )
    initiator: list[str] | None = option(
        "PROCESS", "Process that initiates; several take turns.  [default: the first one declared]"
    )
    timeout: Timeout = "10s"
    marker_linger: str = option(
        "DURATION",
        "Let a marker wait this long for a message of its channel to ride on, at most 1s.",
        default="0",
    )
    on_incomplete: Policy = typer.Option(
        Policy.ABANDON,
        help="What to do with a snapshot for which a part is missing: abandon it; retry at once "
        "from another initiator, three times at most; or exclude from it a process without "
        "channels, with the state that it recorded last.",
    )
    max_abandoned: int | None = option(
        "COUNT",
        "End the system when more snapshots than this in a row are abandoned.  [default: never]",
        min=0,
    )
    duration: str | None = DURATION


@dataclasses.dataclass(frozen=True)
class TraceOptions:
    """What processes write of themselves; elsewhere into directories of the same names."""

    event_log: Path | None = event_log_option(
        "Write what each process does into an event log in DIR."
    )
    fragment_dir: Path | None = option(
        "DIR",
        "Write each process's fragment of every snapshot into DIR, for 'store assemble'.",
    )


@dataclasses.dataclass(frozen=True)
class PlacementOptions:
    """What of a system is on this machine, and how the others reach it."""

    listen: str | None = option(
        "ADDRESS[:PORT]",
        "Where the coordinator listens; its processes use the same address and other ports. "
        "Anything but loopback needs --tls.  [default: 127.0.0.1, any port; with an address, port "
        "8640]",
    )
    tls: Path | None = option(
        "DIR", "Speak TLS, with ca.pem, cert.pem and key.pem of this directory."
    )
    external: list[str] | None = option(
        "PROCESS", "Do not start this process here: wait for it to join. May be repeated."
    )


@dataclasses.dataclass(frozen=True)
class ViewOptions:
    """What ``view`` shows of a trace, a script or a store, and where to."""

    out: Path | None = option(
        "FILE",
        "Where to: a picture if it ends in .svg or .png, a page that goes through the execution "
        "step by step, or shows the snapshot of a store, if it ends in .html.  [default: the "
        "trace's name with .svg; of a store a page]",
    )
    snapshot: str | None = option(
        "SNAPSHOT",
        "Circle what this snapshot recorded, and list what it caught in channels; of a store: "
        "show this one.  [default: the only snapshot, if there is no --cut; of a store the newest]",
    )
    compare: str | None = option(
        "SNAPSHOT", "Of a store or pipeline: compare the snapshot with this earlier one."
    )
    event_log: Path | None = event_log_option(
        "Directory of the event log: draw the true events around the cut."
    )
    cut: str | None = option(
        "PROCESS=COUNT,...",
        "Draw this cut, given how many events of each process lie before it; 0 for those left out.",
    )
    first: int = option("N", "Begin with this step of a long trace.", default=1, min=1)
    steps: bool = flag("--steps", "Draw a picture after each step: FILE/FILE-001.svg and so on.")
