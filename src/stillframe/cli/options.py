"""Arguments and options that several commands share."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from stillframe.protocol.policy import Policy


def keep_option(what: str, *, least: int = 1) -> Any:
    """Return the option ``--keep N``, of which `what` says what it removes."""
    return typer.Option("--keep", metavar="N", min=least, help=what)


def event_log_option(what: str) -> Any:
    """Return the option ``--log DIR``, of which `what` says what is done with an event log."""
    return typer.Option("--log", metavar="DIR", help=what)


StorePath = Annotated[Path, typer.Argument(metavar="STORE", help="Directory of the store.")]
_SNAPSHOT = "Id of a snapshot, such as P1-17, or name of a savepoint."
SnapshotName = Annotated[str, typer.Argument(metavar="SNAPSHOT", help=_SNAPSHOT)]
OptionalSnapshotName = Annotated[str | None, typer.Argument(metavar="SNAPSHOT", help=_SNAPSHOT)]
InitiatorName = Annotated[
    str | None,
    typer.Option(
        "--initiator",
        metavar="PROCESS",
        help="Process that initiates it.  [default: the first process]",
    ),
]
Keep = Annotated[
    int | None,
    keep_option(
        "Remove all but the newest N snapshots as they are published; savepoints stay.  "
        "[default: keep all]"
    ),
]
TopologyName = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:TOPOLOGY", help="Where the topology is, seen from this directory."
    ),
]
Classes = Annotated[
    str | None,
    typer.Option(
        "--topology",
        metavar="MODULE:TOPOLOGY",
        help="Where the classes are.  [default: where the store says]",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON to stdout.")]
Timeout = Annotated[
    str, typer.Option(metavar="DURATION", help="Abandon a snapshot that takes longer.")
]
For = Annotated[
    str | None,
    typer.Option("--for", metavar="DURATION", help="Stop after this long.  [default: at Ctrl-C]"),
]


@dataclasses.dataclass(frozen=True)
class SnapshotOptions:
    """When a system that is started takes snapshots, and what becomes of those that fail."""

    every: Annotated[
        str,
        typer.Option(
            metavar="DURATION", help="Take a snapshot this often: 250ms, 1s, 2m; or 'never'."
        ),
    ] = "1s"
    initiator: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROCESS",
            help="Process that initiates; several take turns.  [default: the first process]",
        ),
    ] = None
    timeout: Timeout = "10s"
    marker_wait: Annotated[
        str,
        typer.Option(
            metavar="DURATION",
            help="Let a marker wait this long for a message of its channel to ride on, at most 1s.",
        ),
    ] = "0"
    if_incomplete: Annotated[
        Policy,
        typer.Option(
            help="What to do with a snapshot for which a part is missing: abandon it; retry at "
            "once from another initiator, three times at most; or exclude from it a process "
            "without channels, with the state that it recorded last."
        ),
    ] = Policy.ABANDON
    tolerate: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT",
            min=0,
            help="End the system when more snapshots than this in a row are abandoned.  "
            "[default: never]",
        ),
    ] = None
    for_: For = None


@dataclasses.dataclass(frozen=True)
class TraceOptions:
    """What processes write of themselves; elsewhere into directories of the same names."""

    log: Annotated[
        Path | None, event_log_option("Write what each process does into an event log in DIR.")
    ] = None
    fragments: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Let each process write what it records of every snapshot into DIR, for "
            "'stillframe spark assemble'.",
        ),
    ] = None


@dataclasses.dataclass(frozen=True)
class PlacementOptions:
    """What of a system is on this machine, and how the others reach it."""

    listen: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS[:PORT]",
            help="Where the coordinator listens; its processes use the same address and other "
            "ports. Anything but loopback needs --tls.  [default: 127.0.0.1, any port; with an "
            "address, port 8640]",
        ),
    ] = None
    tls: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Speak TLS, with ca.pem, cert.pem and key.pem of this directory."
        ),
    ] = None
    elsewhere: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROCESS",
            help="Do not start this process here: wait for it to join. May be repeated.",
        ),
    ] = None


InPipeline = Annotated[
    Path | None,
    typer.Option(
        "--pipeline",
        metavar="DIR",
        help="The pipeline in which processes of this system are services; it takes the snapshots.",
    ),
]

Master = Annotated[
    str,
    typer.Option(
        "--master",
        metavar="URL",
        help="Where Spark runs, in Spark's own words: local[2], spark://HOST:7077.",
    ),
]


@dataclasses.dataclass(frozen=True)
class ViewOptions:
    """What ``view`` shows of a trace, a script or a store, and where to."""

    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where to: a picture if it ends in .svg or .png, a page that goes through the "
            "execution step by step, or shows the snapshot of a store, if it ends in .html.  "
            "[default: the trace's name with .svg; of a store a page]",
        ),
    ] = None
    snapshot: Annotated[
        str | None,
        typer.Option(
            metavar="SNAPSHOT",
            help="Circle what this snapshot recorded, and list what it caught in channels; of a "
            "store: show this one.  [default: the only snapshot, if there is no --cut; of a store "
            "the newest]",
        ),
    ] = None
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="SNAPSHOT",
            help="Of a store or pipeline: show in what the snapshot differs from this earlier one.",
        ),
    ] = None
    log: Annotated[
        Path | None,
        event_log_option("Directory of the event log: draw the true events around the cut."),
    ] = None
    cut: Annotated[
        str | None,
        typer.Option(
            metavar="PROCESS=COUNT,...",
            help="Draw this cut, given how many events of each process lie before it; 0 for those "
            "left out.",
        ),
    ] = None
    first: Annotated[
        int, typer.Option(metavar="N", help="Begin with this step of a long trace.", min=1)
    ] = 1
    steps: Annotated[
        bool,
        typer.Option(
            "--steps", help="Draw a picture after each step: FILE/FILE-001.svg and so on."
        ),
    ] = False
