"""Shows why a snapshot is right: the equivalent computation of EWD 864a, step by step."""

from collections.abc import Callable
from itertools import islice

import typer

from stillframe.cli import output, quantities
from stillframe.cli.command import EXIT_NO
from stillframe.errors import NotConsistent, UsageError
from stillframe.model import Snapshot, SnapshotId
from stillframe.protocol.equivalent import Equivalent, equivalent, interchanges, prove
from stillframe.sim.epoch import Epoch
from stillframe.sim.world import World
from stillframe.trace import Cut, Position, Trace

INTERCHANGES_SHOWN_MAX = 200


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
        output.say(f"no: snapshot {snapshot}: {error}")
        raise typer.Exit(EXIT_NO) from None
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
