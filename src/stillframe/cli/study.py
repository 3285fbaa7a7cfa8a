"""The commands about executions, with their words: simulated, scripted, or from elsewhere.

As in ``app``: each reads its options and calls the module that does it.
"""
# ruff: noqa: PLC0415 - heavy modules are imported by the command that needs them

from pathlib import Path
from typing import Annotated

import typer

from stillframe.cli.command import Command
from stillframe.cli.options import AsJson, NetworkName, RulesName, TraceFile, event_log_option
from stillframe.cli.rules import Network, Rules
from stillframe.errors import UsageError

app = typer.Typer()


@app.command(
    "import",
    cls=Command,
    short_help="Turn a log of another system into a trace.",
    epilog="Example: stillframe import simpledb.log --out simpledb.trace",
)
def import_(
    log: Annotated[
        Path,
        typer.Argument(
            metavar="LOG",
            help="Log with vector clocks: text in the form that ShiViz reads, or JSON in lines if "
            "its name ends in .ndjson or .jsonl.",
            show_default=False,
        ),
    ],
    *,
    regex: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help="Finds an event in text, with groups (?<host>...), (?<clock>...) and "
            "(?<event>...). One that can begin anywhere, without ^, is slow where lines are long.  "
            "[default: an event, on the next line its host and clock]",
            show_default=False,
        ),
    ] = None,
    delimiter: Annotated[
        str | None,
        typer.Option(
            metavar="REGEX",
            help="Finds what separates executions in text; its group (?<trace>...) names the next.",
            show_default=False,
        ),
    ] = None,
    json_paths: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=PATH,...",
            help="The log is JSON in lines, and there host, clock, kind, source, target and "
            "content are, as in host=who,clock=meta.clock.",
            show_default=False,
        ),
    ] = None,
    execution: Annotated[
        int | None,
        typer.Option(metavar="N", help="Take only this execution, from 1.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the trace here; several executions get numbers: m.trace is then "
            "m-1.trace, m-2.trace.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that the vector clocks of a log contradict themselves nowhere, find its messages, and
    write it as a trace; exit 1 names line and host."""
    from stillframe.cli import importing

    form = importing.Form(regex=regex, delimiter=delimiter, json_paths=json_paths)
    importing.import_log(log, form, number=execution, out=out, is_json=as_json)


@app.command(
    cls=Command,
    short_help="Ask about the consistent cuts of a trace.",
    epilog="Example: stillframe cuts simpledb.trace --cut P24464=3,P24468=5",
)
def cuts(
    trace: TraceFile,
    *,
    cut: Annotated[
        str | None,
        typer.Option(
            metavar="PROCESS=COUNT,...",
            help="Say whether this cut is consistent, given how many events of each process lie "
            "before it; 0 for those left out.",
            show_default=False,
        ),
    ] = None,
    before: Annotated[
        str | None,
        typer.Option(
            metavar="PROCESS#INDEX",
            help="Show the smallest consistent cut that has this event: all that happened before.",
            show_default=False,
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Count the consistent cuts in which this function of a CutView returns true.",
            show_default=False,
        ),
    ] = None,
    prove: Annotated[
        str | None,
        typer.Option(
            metavar="SNAPSHOT",
            help="Put all events before this snapshot's cut first, interchange by interchange.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Ask one question about the consistent cuts of a trace, by default how many there are; exit 1
    if the answer is no."""
    from stillframe.cli import cutting

    question = cutting.Question(cut=cut, before=before, where=where, prove=prove)
    cutting.answer(trace, question, is_json=as_json)


@app.command(
    cls=Command,
    short_help="Simulate seeds with faults, or play a script.",
    epilog="Examples: stillframe sim --seeds 1..200; stillframe sim lecture",
)
def sim(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:TOPOLOGY|SCRIPT",
            help="A system, or a .run file; of those that come with stillframe the name will do.  "
            "[default: another random system from each seed]",
            show_default=False,
        ),
    ] = None,
    *,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="A..B",
            help="Which seeds; one number for one.  [default: 1..200]",
            show_default=False,
        ),
    ] = None,
    schedule: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With one seed: do this schedule with its system, as a failing seed prints it.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[bool, typer.Option("--steps", help="Show every step of one seed.")] = False,
    network: NetworkName = Network.FIFO,
    rules: RulesName = Rules.CHANDY_LAMPORT,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write what happened in a script or in one seed, for 'view' and 'cuts'.",
            show_default=False,
        ),
    ] = None,
    prove: Annotated[
        str | None,
        typer.Option(
            metavar="SNAPSHOT",
            help="Show the proof of a snapshot in a script or in one seed, step by step: the "
            "computation in which all events before the cut come first.",
            show_default=False,
        ),
    ] = None,
    rewrite: Annotated[
        bool, typer.Option("--rewrite", help="Write what happens now into the script.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run real processes and the real recording rules in one thread, in virtual time: many seeds
    with crashes, partitions and lost connections, each judged; or a script, step by step. Exit 1 if
    a promise is broken, with the shortest schedule that does, or if a script ends otherwise."""
    from stillframe.cli import scripts, simulation
    from stillframe.cli.extras import Extras

    path = scripts.script_path(what) if what is not None else None
    inputs = tuple(file for file in (path, schedule) if file is not None)
    extras = Extras(trace, prove, inputs)
    is_usual = network is Network.FIFO and rules is Rules.CHANDY_LAMPORT
    if path is not None:
        if steps or seeds is not None or schedule is not None or not is_usual:
            raise UsageError(
                f"{what} is a script, and says itself what happens: leave --seeds, --schedule, "
                "--steps, --network and --rules out"
            )
        scripts.play_script(path, extras, rewrite=rewrite, is_json=as_json)
        return
    if rewrite:
        raise UsageError("--rewrite is about a script: name one")
    subject = simulation.Subject(what, network, rules)
    chosen = simulation.parse_seeds(seeds or "1..200")
    if not steps and schedule is None and trace is None and prove is None:
        simulation.try_seeds(subject, chosen, is_json=as_json)
        return
    if len(chosen) > 1:
        raise UsageError(
            "--schedule, --steps, --trace and --prove are about one run: give one seed, such as "
            "--seeds 17"
        )
    simulation.show_seed(subject, chosen[0], schedule, extras, is_json=as_json)


@app.command(
    cls=Command,
    short_help="Visit every interleaving of a small system.",
    epilog="Example: stillframe explore --network reordering",
)
def explore(
    topology: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:TOPOLOGY",
            help="A small system.  [default: two accounts, each pays once]",
            show_default=False,
        ),
    ] = None,
    *,
    acts: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROCESS=ACTION,...",
            help="What a process does, in turn; for several processes, again.  "
            "[default: each action once]",
            show_default=False,
        ),
    ] = None,
    initiator: Annotated[
        list[str] | None,
        typer.Option(
            "--initiator",
            metavar="PROCESS",
            help="Process that initiates a snapshot; again for a second one.  "
            "[default: the first process]",
            show_default=False,
        ),
    ] = None,
    network: NetworkName = Network.FIFO,
    rules: RulesName = Rules.CHANDY_LAMPORT,
    most: Annotated[
        int, typer.Option(metavar="COUNT", help="Give up beyond so many histories.", min=1)
    ] = 1_000_000,
    as_json: AsJson = False,
) -> None:
    """Visit every global state that a small system can reach, count them, and check what must hold
    always; exit 1 if it does not, with a shortest run to where it fails."""
    from stillframe.cli import exploration

    limits = exploration.Limits(tuple(acts or ()), tuple(initiator or ()), network, rules, most)
    exploration.explore_all(topology, limits, is_json=as_json)


@app.command(
    cls=Command,
    short_help="Show an execution as a space-time diagram.",
    epilog="Examples: stillframe view lecture.trace --snapshot P1-1 --out lecture.svg; "
    "stillframe view lecture --out lecture.html",
)
def view(
    what: Annotated[
        str,
        typer.Argument(
            metavar="TRACE|SCRIPT|STORE",
            help="Trace that 'import --out' or 'sim --trace' wrote, or a .run file; of those that "
            "come with stillframe the name will do. Or a store, or a pipeline: shows one of its "
            "snapshots.",
            show_default=False,
        ),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where to: a picture if it ends in .svg or .png, a page that goes through the "
            "execution step by step, or shows the snapshot of a store, if it ends in .html.  "
            "[default: the trace's name with .svg; of a store a page]",
            show_default=False,
        ),
    ] = None,
    snapshot: Annotated[
        str | None,
        typer.Option(
            metavar="SNAPSHOT",
            help="Circle what this snapshot recorded, and list what it caught in channels; of a "
            "store: show this one.  [default: the only snapshot, if there is no --cut; of a store "
            "the newest]",
            show_default=False,
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="SNAPSHOT",
            help="Of a store or pipeline: show in what the snapshot differs from this earlier one.",
            show_default=False,
        ),
    ] = None,
    log: Annotated[
        Path | None,
        event_log_option("Directory of the event log: draw the true events around the cut."),
    ] = None,
    cut: Annotated[
        str | None,
        typer.Option(
            metavar="PROCESS=COUNT,...",
            help="Draw this cut, given how many events of each process lie before it; 0 for those "
            "left out.",
            show_default=False,
        ),
    ] = None,
    first: Annotated[
        int, typer.Option(metavar="N", help="Begin with this step of a long trace.", min=1)
    ] = 1,
    steps: Annotated[
        bool,
        typer.Option(
            "--steps", help="Draw a picture after each step: FILE/FILE-001.svg and so on."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show an execution: processes, events, messages, markers, and cuts with what is in channels,
    as a picture, or as a page in one file that needs nothing else; long ones are cut off, and what
    is shown says where. Or a snapshot of a store: its cut, every state and every channel."""
    from stillframe.cli import picture

    if Path(what).is_dir():
        from stillframe.cli import snapshot_page

        if snapshot_page.is_store(Path(what)):
            if cut is not None or first != 1 or steps:
                raise UsageError("--cut, --first and --steps are for traces, and not for a store")
            stored = snapshot_page.Wish(out=out, snapshot=snapshot, compare=compare, log=log)
            snapshot_page.show(Path(what), stored, is_json=as_json)
            return
    if compare is not None or log is not None:
        raise UsageError(f"--compare and --log are for stores, and {what} is none")
    wish = picture.Wish(out=out, snapshot=snapshot, cut=cut, first=first, steps=steps)
    picture.show(what, wish, is_json=as_json)
