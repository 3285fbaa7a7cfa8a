"""The commands about pipelines, with their words: ``stillframe spark snapshot`` and so on.

As in ``app``: each reads its options and calls the module that does it. None needs Spark or Java:
all that is said and heard is in the directory of the pipeline.
"""
# ruff: noqa: PLC0415 - heavy modules are imported by the command that needs them

from pathlib import Path
from typing import Annotated

import typer

from stillframe.cli import quantities
from stillframe.cli.options import AsJson, Timeout, keep_option
from stillframe.cli.verdict import Command
from stillframe.protocol.aligner import Mode

app = typer.Typer()

PipelinePath = Annotated[
    Path, typer.Argument(metavar="PIPELINE", help="Directory of the pipeline.", show_default=False)
]
ModeName = Annotated[
    Mode,
    typer.Option(
        help="When each query and service records: once it stands at the barriers of all its "
        "channels; at once, with what is on the channels; or without holding anything up, so that "
        "a restore receives some records twice."
    ),
]
SnapshotOrSavepoint = Annotated[
    str,
    typer.Argument(
        metavar="SNAPSHOT",
        help="Id of a snapshot, such as shop-17, or name of a savepoint.",
        show_default=False,
    ),
]
OptionalSnapshot = Annotated[
    str | None,
    typer.Argument(
        metavar="SNAPSHOT",
        help="Id of a snapshot, such as shop-17, or name of a savepoint.  [default: the newest of "
        "the present course]",
        show_default=False,
    ),
]


@app.command(
    cls=Command,
    short_help="Take a snapshot of a pipeline now.",
    epilog="Examples: stillframe spark snapshot shop.pipeline --mode unaligned; "
    "stillframe spark snapshot shop.pipeline --every 1m --keep 10",
)
def snapshot(
    pipeline: PipelinePath,
    *,
    mode: ModeName = Mode.ALIGNED,
    every: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="Take one this often, until Ctrl-C: 10s, 5m.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[
        int | None, keep_option("Afterwards delete all but the newest N; savepoints stay.")
    ] = None,
    timeout: Timeout = "1m",
    as_json: AsJson = False,
) -> None:
    """Take a snapshot of all queries, services and channels while they run, and print its id;
    exit 1 says who was missing. Ctrl-C gives it up, and nothing stays held."""
    timeout_s = quantities.parse_duration("--timeout", timeout)
    every_s = None if every is None else quantities.parse_duration("--every", every)
    from stillframe.cli import pipeline_snapshot

    if every_s is None:
        pipeline_snapshot.take(
            pipeline, mode, name=None, timeout_s=timeout_s, keep=keep, is_json=as_json
        )
    else:
        pipeline_snapshot.take_every(
            pipeline, mode, every_s, timeout_s=timeout_s, keep=keep, is_json=as_json
        )


@app.command(
    cls=Command,
    short_help="Take a snapshot that is kept under a name.",
    epilog="Example: stillframe spark savepoint shop.pipeline before-upgrade",
)
def savepoint(
    pipeline: PipelinePath,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="What it is called.", show_default=False)
    ],
    *,
    mode: ModeName = Mode.ALIGNED,
    timeout: Timeout = "1m",
    as_json: AsJson = False,
) -> None:
    """Take a snapshot that is kept under a name until it is dropped; as 'snapshot'."""
    timeout_s = quantities.parse_duration("--timeout", timeout)
    from stillframe.cli import pipeline_snapshot

    pipeline_snapshot.take(
        pipeline, mode, name=name, timeout_s=timeout_s, keep=None, is_json=as_json
    )


@app.command(
    "list",
    cls=Command,
    short_help="List the snapshots of a pipeline.",
    epilog="Example: stillframe spark list shop.pipeline",
)
def list_(pipeline: PipelinePath, as_json: AsJson = False) -> None:
    """List the snapshots of a pipeline in the order of publishing; those of the present course,
    and the one from which the present epoch began, are marked."""
    from stillframe.cli import pipeline_listing

    pipeline_listing.list_snapshots(pipeline, is_json=as_json)


@app.command(
    cls=Command,
    short_help="Show what a snapshot of a pipeline holds.",
    epilog="Example: stillframe spark show shop.pipeline shop-17",
)
def show(
    pipeline: PipelinePath, snapshot: OptionalSnapshot = None, as_json: AsJson = False
) -> None:
    """Show what a snapshot holds: for each query its micro-batch, for each service its fields, and
    what was sent, received and on each channel."""
    from stillframe.cli import pipeline_contents

    pipeline_contents.show_snapshot(pipeline, snapshot, is_json=as_json)


@app.command(
    cls=Command,
    short_help="Take a stopped pipeline back to a snapshot.",
    epilog="Example: stillframe spark restore shop.pipeline shop-17",
)
def restore(
    pipeline: PipelinePath, snapshot: OptionalSnapshot = None, as_json: AsJson = False
) -> None:
    """Verify a snapshot and take the stopped pipeline back to it, all at once or not at all; then
    start its programs again."""
    from stillframe.cli import pipeline_restore

    pipeline_restore.restore(pipeline, snapshot, is_json=as_json)


@app.command(
    cls=Command,
    short_help="Make a second pipeline from a snapshot.",
    epilog="Example: stillframe spark fork shop.pipeline shop-17 trial.pipeline",
)
def fork(
    pipeline: PipelinePath,
    snapshot: SnapshotOrSavepoint,
    target: Annotated[
        Path,
        typer.Argument(
            metavar="TARGET",
            help="Directory of the second: a new or empty one.",
            show_default=False,
        ),
    ],
    *,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What the snapshots of the second are called after.  [default: the name of TARGET "
            "without its ending]",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a second pipeline that goes on from a snapshot, beside the first, which may run; neither
    sees what the other writes."""
    from stillframe.cli import pipeline_restore

    pipeline_restore.fork(pipeline, snapshot, target, name=name, is_json=as_json)


@app.command(
    cls=Command,
    short_help="Show who holds a snapshot up.",
    epilog="Example: stillframe spark progress shop.pipeline --watch",
)
def progress(
    pipeline: PipelinePath,
    *,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Follow the snapshot until it is over; exit 1 if it was given up."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show how far the snapshot is that is being taken: who has recorded, who is awaited, for what
    and since when."""
    from stillframe.cli import pipeline_progress

    if watch:
        pipeline_progress.watch(pipeline, is_json=as_json)
    else:
        pipeline_progress.show_progress(pipeline, is_json=as_json)


@app.command(
    cls=Command,
    short_help="Delete snapshots of a pipeline.",
    epilog="Examples: stillframe spark drop shop.pipeline shop-3 shop-4; "
    "stillframe spark drop shop.pipeline --keep 10",
)
def drop(
    pipeline: PipelinePath,
    snapshots: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SNAPSHOT...",
            help="Ids of snapshots, or names of savepoints.",
            show_default=False,
        ),
    ] = None,
    *,
    keep: Annotated[
        int | None, keep_option("Delete all but the newest N; savepoints stay.", least=0)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Delete snapshots, all those named or none, and what the channels kept for them alone. The
    one from which the present epoch began stays."""
    from stillframe.cli import pipeline_listing

    pipeline_listing.drop(pipeline, tuple(snapshots or ()), keep=keep, is_json=as_json)
