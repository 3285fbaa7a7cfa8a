"""What can be wanted of one run besides its steps: its trace, and the proof of a snapshot."""

from pathlib import Path

import msgspec

from stillframe import tracefile
from stillframe.cli import output
from stillframe.cli.proof import put_proof
from stillframe.sim.world import World


class Extras(msgspec.Struct, frozen=True):
    """What is wanted of one run besides its steps.

    Attributes:
        trace: where to write what happened.
        prove: a snapshot to prove.
        inputs: the files that were read, which no trace replaces.
    """

    trace: Path | None = None
    prove: str | None = None
    inputs: tuple[Path, ...] = ()


def serve(world: World, extras: Extras, *, is_json: bool) -> None:
    """Write the trace of `world`, and prove a snapshot of it, if that is wanted.

    Raises:
        typer.Exit: with 1; the snapshot is not what it should be.
        UsageError: there is no such snapshot, or the trace cannot be written there.
    """
    if extras.trace is not None:
        _write_trace(world, extras.trace, extras.inputs)
    if extras.prove is not None:
        put_proof(world, extras.prove, is_json=is_json)


def _write_trace(world: World, path: Path, inputs: tuple[Path, ...]) -> None:
    tracefile.write(path, world.epoch.trace(world.description), inputs=inputs)
    which = f"epoch {world.epoch.number}, the last, " if len(world.epochs) > 1 else "the run "
    output.say(f"{which}is in {path}: stillframe view {path}")
