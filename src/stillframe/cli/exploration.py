"""``stillframe explore``: every interleaving of a small system."""

import sys
from contextlib import redirect_stdout
from typing import Any

import msgspec
import typer
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from stillframe.cli import output
from stillframe.cli.command import EXIT_NO
from stillframe.cli.rules import Network, Rules, recorder_of
from stillframe.errors import UsageError
from stillframe.imports import add_cwd_to_path, load_topology
from stillframe.model import ProcessId, SnapshotId
from stillframe.sim import choices, explore
from stillframe.sim.systems import pair
from stillframe.topology import Description, Topology

ALWAYS = {
    "every promise is kept": explore.invariants_hold,
    "every cut is consistent": explore.cuts_are_consistent,
    "every snapshot is published in the end": explore.snapshots_are_published,
}
SOMETIMES = {
    "a channel held a message at the cut": explore.a_channel_caught_a_message,
    "the recorded state need not have occurred": explore.a_recorded_state_need_not_occur,
    "two snapshots were under way at once": explore.snapshots_overlap,
}


class Limits(msgspec.Struct, frozen=True):
    """What can happen, as the options say it.

    Attributes:
        acts: ``PROCESS=ACTION,ACTION``, in turn; empty for once each action of each process.
        initiators: who initiates a snapshot; empty for the first process.
        network: what is assumed of every channel.
        rules: which recording rules are followed.
        history_count_max: where to stop.
    """

    acts: tuple[str, ...]
    initiators: tuple[ProcessId, ...]
    network: Network
    rules: Rules
    history_count_max: int


def explore_all(reference: str | None, limits: Limits, *, is_json: bool) -> None:
    """Visit every interleaving of the topology `reference`, by default of two accounts.

    Raises:
        typer.Exit: with 1; a property that should hold always does not.
        UsageError: there is no such topology, process or action, or there is too much to visit.
    """
    add_cwd_to_path()
    topology = pair() if reference is None else load_topology(reference)
    system = _system(topology, limits)
    console = output.words()
    with Progress(
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("visiting histories", total=None)
        with redirect_stdout(sys.stderr):  # what handlers print is no data
            found = explore.explore(
                system,
                always=ALWAYS,
                sometimes=SOMETIMES,
                history_count_max=limits.history_count_max,
                progress=lambda count: bar.update(
                    task, description=f"visiting histories: {count:,}"
                ),
            )
    _put(found, is_json=is_json)
    if found.broken:
        raise typer.Exit(EXIT_NO)


def _system(topology: Topology, limits: Limits) -> explore.SmallSystem:
    description = topology.description
    firsts = limits.initiators or (next(iter(description.processes)),)
    initiations = [
        choices.Initiate(process, SnapshotId(first, number))
        for number, first in enumerate(firsts, 1)
        for process in description.initiators(first)
    ]
    return explore.SmallSystem(
        topology=topology,
        acts=_acts(topology, limits.acts),
        initiations=tuple(initiations),
        network=limits.network,
        recorder=recorder_of(limits.rules),
    )


def _acts(topology: Topology, texts: tuple[str, ...]) -> dict[ProcessId, tuple[str, ...]]:
    known = {
        name: tuple(action.name for action in getattr(process, "actions", ()))
        for name, process in topology.processes.items()
    }
    if not texts:
        return known
    acts: dict[ProcessId, tuple[str, ...]] = {}
    for text in texts:
        process, sign, names = text.partition("=")
        Description.check_process(topology.description, process)
        actions = tuple(name for name in names.split(",") if name)
        if not sign or not set(actions) <= set(known[process]):
            raise UsageError(
                f"--acts {text!r}: write PROCESS=ACTION,ACTION with actions of {process}: "
                f"{', '.join(known[process]) or 'it has none'}"
            )
        acts[process] = (*acts.get(process, ()), *actions)
    return acts


def _put(found: explore.Explored, *, is_json: bool) -> None:
    if is_json:
        document: dict[str, Any] = {
            "is_kept": not found.broken,
            "state_count": found.state_count,
            "history_count": found.history_count,
            "finished_count": found.end_count,
            "run_count": found.run_count,
        }
        for key, properties in (("broken", found.broken), ("seen", found.seen)):
            document[key] = {
                name: {"what": what, "run": [str(choice) for choice in run]}
                for name, (what, run) in properties.items()
            }
        output.put_json(document)
        return
    counts = (
        ("global states", found.state_count),
        ("histories", found.history_count),
        ("finished histories", found.end_count),
        ("runs", found.run_count),
    )
    output.put_table("", ("every interleaving", "count"), [(n, f"{c:,}") for n, c in counts])
    for name in ALWAYS:
        output.say(f"{'no' if name in found.broken else 'yes'}: {name}")
        if name in found.broken:
            _say_run(*found.broken[name])
    for name in SOMETIMES:
        output.say(f"{'seen' if name in found.seen else 'never seen'}: {name}")


def _say_run(what: str, run: explore.Run) -> None:
    output.say(f"  {what}", "  the shortest run to it:", *(f"    {choice}" for choice in run))
