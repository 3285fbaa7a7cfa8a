"""One execution of the simulator: a script, played rule by rule; its trace; and the proof of a
snapshot, which is the equivalent computation of EWD 864a, step by step."""

import difflib
import importlib.resources
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import msgspec

from stillframe import tracefile
from stillframe.cli import output, quantities
from stillframe.cli.command import end_with_no
from stillframe.durable_files import write_atomically
from stillframe.errors import NotConsistent, UsageError
from stillframe.model import Snapshot, SnapshotId
from stillframe.protocol.equivalent import Equivalent, equivalent, interchanges, prove
from stillframe.sim import scenario
from stillframe.sim.world import World
from stillframe.trace import Cut, Position, Trace

RUN_SUFFIX = ".run"
INTERCHANGES_SHOWN_MAX = 200


class Extras(msgspec.Struct, frozen=True):
    """What one run writes besides its steps: the file `trace`, which must not be one of the
    `inputs`, and the proof of the snapshot `prove`."""

    trace: Path | None = None
    prove: str | None = None
    inputs: tuple[Path, ...] = ()


def serve(world: World, extras: Extras) -> None:
    """Write the trace of `world`, and prove a snapshot of it, if that is wanted; end with 1 if it
    is not what it should be."""
    if extras.trace is not None:
        path = extras.trace
        tracefile.write(path, world.epoch.trace(world.description), inputs=extras.inputs)
        which = f"epoch {world.epoch.number}, the last, " if len(world.epochs) > 1 else "the run "
        output.say(f"{which}is in {path}: stillframe view {path}")
    if extras.prove is not None:
        _put_proof(world, extras.prove)


def _put_proof(world: World, name: str) -> None:
    """Prove the snapshot `name` of a simulated world, with its real processes."""
    snapshot = SnapshotId.parse(name)
    known = {name: epoch for epoch in world.epochs for name in epoch.initiated}
    if snapshot not in known:
        names = ", ".join(map(str, known)) or "none"
        raise UsageError(f"there is no snapshot {snapshot} in this run; there are {names}")
    epoch = known[snapshot]
    trace = epoch.trace(world.description)
    outcome = epoch.outcomes.get(snapshot)

    def check() -> Equivalent:
        if not isinstance(outcome, Snapshot):
            return equivalent(trace, trace.cut_of(snapshot))
        start = epoch.start.state if epoch.start is not None else None
        return prove(trace, outcome, world.topology, start, contents=epoch.contents)

    _put(trace, snapshot, check, has_state=isinstance(outcome, Snapshot))


def put_order(trace: Trace, name: str) -> None:
    """Put the white events of a trace before the red ones; there are no processes to ask. End with
    1 if the cut is not consistent."""
    snapshot = SnapshotId.parse(name)
    if snapshot not in trace.snapshots:
        names = ", ".join(map(str, trace.snapshots)) or "none"
        raise UsageError(f"the trace has no snapshot {snapshot}; it has {names}")
    cut = trace.cut_of(snapshot)
    _put(trace, snapshot, lambda: equivalent(trace, cut), has_state=False)


def _put(
    trace: Trace, snapshot: SnapshotId, check: Callable[[], Equivalent], *, has_state: bool
) -> None:
    cut = trace.cut_of(snapshot)
    try:
        found = check()
    except NotConsistent as error:
        output.answer({"is_consistent": False, "snapshot": snapshot, "detail": str(error)})
        end_with_no(f"snapshot {snapshot}: {error}")
    output.answer(
        lambda: {
            "is_consistent": True,
            "snapshot": snapshot,
            "inversion_count": found.inversion_count,
            "interchange_count": found.interchange_count,
            "white": [str(position) for position in found.white],
            "red": [str(position) for position in found.red],
        },
        lambda: _put_steps(trace, cut, found),
    )
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


def script_path(name: str) -> Path | None:
    """Return the ``.run`` file that `name` means: a file, or one that comes with stillframe; None
    if it means a topology."""
    if name.endswith(RUN_SUFFIX):
        path = Path(name)
        if path.exists() and not path.is_file():
            raise UsageError(f"{name} is no regular file: a script is a text that ends in .run")
        if path.exists() or "/" in name:
            return path
    included = _included()
    path = included / (name if name.endswith(RUN_SUFFIX) else name + RUN_SUFFIX)
    if path.exists() and "/" not in name:
        return path
    if name.endswith(RUN_SUFFIX) or ":" not in name:
        raise UsageError(
            f"there is no script {name}: give a .run file, MODULE:TOPOLOGY, or one of those that "
            f"come with stillframe: {', '.join(included_names())}"
        )
    return None


def included_names() -> list[str]:
    """Return the names of the scripts that come with stillframe."""
    return sorted(found.stem for found in _included().glob(f"*{RUN_SUFFIX}"))


def is_included(path: Path) -> bool:
    """Return whether `path` is a script that comes with stillframe."""
    return path.is_relative_to(_included())


def _included() -> Path:
    return Path(str(importlib.resources.files("stillframe.sim") / "runs"))


def play_script(path: Path, extras: Extras, *, rewrite: bool) -> None:
    """Play the script at `path`; end with 1 if something else happens than the file says."""
    if rewrite and is_included(path):
        raise UsageError(f"{path.name} comes with stillframe: copy it to rewrite it")
    text = read_script(path)
    played = play(path, text)
    if rewrite:
        write_atomically(path, [played.text().encode()])
    happened = played.text().splitlines()
    if extras.prove is None:
        blocks = [
            {"commands": block.commands, "happened": lines}
            for block, lines in zip(played.blocks, played.happened, strict=True)
        ]
        output.answer(
            {"blocks": blocks, "is_as_written": not played.differing},
            lambda: output.put_lines(happened),
        )
    serve(played.world, extras)
    if played.differing and not rewrite:
        names = ("as written", "as it happened")
        output.say(*difflib.unified_diff(text.splitlines(), happened, *names, n=2, lineterm=""))
        end_with_no(f"something else happened than {path} says; if it is right: --rewrite")


def play(path: Path, text: str) -> scenario.Played:
    """Play `text`, which is that of the script at `path`; an error names file and line."""
    try:
        return scenario.play_text(text)
    except UsageError as error:
        raise UsageError(f"{path.name}, {error}") from error


def read_script(path: Path) -> str:
    """Return the text of a script; of one that is too long as much as it takes to find out."""
    with path.open(encoding="utf-8") as file:
        try:
            return file.read(scenario.FILE_CHARACTER_MAX + 1)
        except UnicodeDecodeError as error:
            raise UsageError(
                f"{path} is no .run file: it is not text in UTF-8 ({error})"
            ) from error
