"""What can be wanted of one run besides its steps: its trace, and the proof of a snapshot.

The proof is the equivalent computation of EWD 864a, step by step."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import msgspec

from stillframe import tracefile
from stillframe.cli import output, quantities
from stillframe.cli.command import end_with_no
from stillframe.errors import NotConsistent, UsageError
from stillframe.model import Snapshot, SnapshotId
from stillframe.protocol.equivalent import Equivalent, equivalent, interchanges, prove
from stillframe.sim.world import Epoch, World
from stillframe.trace import Cut, Position, Trace

INTERCHANGES_SHOWN_MAX = 200


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


def put_proof(world: World, name: str, *, is_json: bool) -> None:
    """Prove the snapshot `name` of a simulated world, with its real processes.

    Raises:
        typer.Exit: with 1; it is not consistent, or not the state in between.
        UsageError: there is no such snapshot, or it was abandoned before all had recorded.
    """
    snapshot = SnapshotId.parse(name)
    epoch = _epoch_of(world, snapshot)
    trace = epoch.trace(world.description)
    outcome = epoch.outcomes.get(snapshot)

    def check() -> Equivalent:
        if not isinstance(outcome, Snapshot):
            return equivalent(trace, trace.cut_of(snapshot))
        start = epoch.start.state if epoch.start is not None else None
        return prove(trace, outcome, world.topology, start, contents=epoch.contents)

    _put(trace, snapshot, check, has_state=isinstance(outcome, Snapshot), is_json=is_json)


def put_order(trace: Trace, name: str, *, is_json: bool) -> None:
    """Put the white events of a trace before the red ones; there are no processes to ask.

    Raises:
        typer.Exit: with 1; the cut is not consistent.
        UsageError: the trace has no such snapshot, or not every process recorded its state for it.
    """
    snapshot = SnapshotId.parse(name)
    if snapshot not in trace.snapshots:
        names = ", ".join(map(str, trace.snapshots)) or "none"
        raise UsageError(f"the trace has no snapshot {snapshot}; it has {names}")
    cut = trace.cut_of(snapshot)
    _put(trace, snapshot, lambda: equivalent(trace, cut), has_state=False, is_json=is_json)


def _epoch_of(world: World, snapshot: SnapshotId) -> Epoch:
    known = {name: epoch for epoch in world.epochs for name in epoch.initiated}
    if snapshot not in known:
        names = ", ".join(map(str, known)) or "none"
        raise UsageError(f"there is no snapshot {snapshot} in this run; there are {names}")
    return known[snapshot]


def _put(
    trace: Trace,
    snapshot: SnapshotId,
    check: Callable[[], Equivalent],
    *,
    has_state: bool,
    is_json: bool,
) -> None:
    cut = trace.cut_of(snapshot)
    try:
        found = check()
    except NotConsistent as error:
        if is_json:
            output.put_json({"is_consistent": False, "snapshot": snapshot, "detail": str(error)})
        end_with_no(f"snapshot {snapshot}: {error}")
    if is_json:
        output.put_json(
            {
                "is_consistent": True,
                "snapshot": snapshot,
                "inversion_count": found.inversion_count,
                "interchange_count": found.interchange_count,
                "white": [str(position) for position in found.white],
                "red": [str(position) for position in found.red],
            }
        )
    else:
        _put_steps(trace, cut, found)
    count = quantities.count(found.interchange_count, "interchange")
    white = "the 1 white event precedes"
    if len(found.white) != 1:
        white = f"all {len(found.white)} white events precede"
    red = "the 1 red one" if len(found.red) == 1 else f"all {len(found.red)} red ones"
    output.say(
        f"yes: snapshot {snapshot}: after {count} of neighbours {white} {red}"
        + (
            "; the real processes, replayed in that order, are in the recorded state in between, "
            "and end as they did"
            if has_state
            else ""
        )
    )


def _put_steps(trace: Trace, cut: Cut, found: Equivalent) -> None:
    def named(position: Position) -> str:
        label = trace.event(position).label
        return f"{position} {label}" if label else str(position)

    def coloured(position: Position) -> str:
        is_white = position.index <= cut[trace.index_of[position.process]]
        return f"{'white' if is_white else 'red  '}  {named(position)}"

    lines = ["as it happened:"]
    lines += (f"  {coloured(position)}" for position, _ in trace.positions())
    inversions = quantities.count(found.inversion_count, "inversion")
    lines.append(f"{inversions} (a red event before a white one)")
    for step in islice(interchanges(trace, cut), INTERCHANGES_SHOWN_MAX):
        lines.append(
            f"  {named(step.white)} goes before {named(step.red)}: {step.inversion_count} left"
        )
    if found.interchange_count > INTERCHANGES_SHOWN_MAX:
        lines.append(f"  and {found.interchange_count - INTERCHANGES_SHOWN_MAX:,} more")
    lines.append("as it could have happened:")
    lines += (f"  {coloured(position)}" for position in found.positions)
    output.put_lines(lines)
