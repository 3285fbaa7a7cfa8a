"""``stillframe explore``: every interleaving of a small system."""

import sys
from contextlib import redirect_stdout
from typing import Annotated, Any

import typer
from rich.progress import TimeElapsedColumn

from stillframe.cli import output
from stillframe.cli.command import EXIT_NO, Command
from stillframe.cli.options import AsJson
from stillframe.cli.sim import Network, NetworkName, Rules, RulesName, recorder_of
from stillframe.errors import UsageError
from stillframe.imports import add_cwd_to_path, load_topology
from stillframe.model import ProcessId, SnapshotId
from stillframe.sim import choices
from stillframe.sim import explore as exploration
from stillframe.sim.systems import pair
from stillframe.topology import Description, Topology

ALWAYS = {
    "every promise is kept": exploration.invariants_hold,
    "every cut is consistent": exploration.cuts_are_consistent,
    "every snapshot is published in the end": exploration.snapshots_are_published,
}
SOMETIMES = {
    "a channel held a message at the cut": exploration.a_channel_caught_a_message,
    "the recorded state need not have occurred": exploration.a_recorded_state_need_not_occur,
    "two snapshots were under way at once": exploration.snapshots_overlap,
}


app = typer.Typer(rich_markup_mode=None)


@app.command(cls=Command, epilog="Example: stillframe explore --network reordering")
def explore(
    reference: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:TOPOLOGY",
            help="A small system.  [default: two accounts, each pays once]",
        ),
    ] = None,
    *,
    acts: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROCESS=ACTION,...",
            help="What a process does, in turn; for several processes, again.  "
            "[default: each action once]",
        ),
    ] = None,
    initiator: Annotated[
        list[str] | None,
        typer.Option(
            "--initiator",
            metavar="PROCESS",
            help="Process that initiates a snapshot; again for a second one.  "
            "[default: the first process]",
        ),
    ] = None,
    network: NetworkName = Network.FIFO,
    rules: RulesName = Rules.CHANDY_LAMPORT,
    most: Annotated[
        int, typer.Option(metavar="COUNT", help="Give up beyond so many histories.", min=1)
    ] = 1_000_000,
    is_json: AsJson = False,
) -> None:
    """Visit every global state that a small system can reach, count them, and check what must hold
    always; exit 1 if it does not, with a shortest run to where it fails."""
    add_cwd_to_path()
    topology = pair() if reference is None else load_topology(reference)
    system = exploration.SmallSystem(
        topology=topology,
        acts=_acts(topology, acts or []),
        initiations=_initiations(topology.description, initiator or []),
        network=network,
        recorder=recorder_of(rules),
    )
    with (
        output.progress_bar("visiting histories", TimeElapsedColumn()) as update,
        redirect_stdout(sys.stderr),  # what handlers print is no data
    ):
        found = exploration.explore(
            system,
            always=ALWAYS,
            sometimes=SOMETIMES,
            history_count_max=most,
            progress=lambda count: update(description=f"visiting histories: {count:,}"),
        )
    _put(found, is_json=is_json)
    if found.broken:
        raise typer.Exit(EXIT_NO)


def _initiations(
    description: Description, initiators: list[ProcessId]
) -> tuple[choices.Initiate, ...]:
    firsts = initiators or [next(iter(description.processes))]
    return tuple(
        choices.Initiate(process, SnapshotId(first, number))
        for number, first in enumerate(firsts, 1)
        for process in description.initiators(first)
    )


def _acts(topology: Topology, texts: list[str]) -> dict[ProcessId, tuple[str, ...]]:
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


def _put(found: exploration.Explored, *, is_json: bool) -> None:
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


def _say_run(what: str, run: exploration.Run) -> None:
    output.say(f"  {what}", "  the shortest run to it:", *(f"    {choice}" for choice in run))
