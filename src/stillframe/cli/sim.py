"""The commands of the simulator.

``run`` tries seeds, or shows one step by step; ``script`` plays a script; ``explore`` visits every
interleaving.
"""

import difflib
import re
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.progress import BarColumn, MofNCompleteColumn, TimeElapsedColumn, TimeRemainingColumn

from stillframe import tracefile
from stillframe.cli import output, quantities
from stillframe.cli.app import SCRIPT_SUFFIX, SCRIPTS
from stillframe.cli.command import Commands, argument, end_with_failure, flag, option
from stillframe.cli.trace import put_proof
from stillframe.durable_files import shell_command, write_atomically
from stillframe.errors import UsageError, text_of
from stillframe.imports import add_cwd_to_path, load_function, load_topology
from stillframe.model import ProcessId, Snapshot, SnapshotId
from stillframe.protocol.equivalent import Equivalent, equivalent, prove
from stillframe.sim import campaign, exploration, scenario
from stillframe.sim.narration import Narrator
from stillframe.sim.network import Network
from stillframe.sim.scheduler import describe
from stillframe.sim.scripted_process import RULES
from stillframe.sim.systems import pair
from stillframe.sim.world import World
from stillframe.topology import Topology

_ACTION = r"[^,()]+(?:\([^()]*\))?"
_ACTIONS = re.compile(rf"(?:{_ACTION}(?:,|$))*")
_SEEDS = re.compile(r"(\d{1,9})(?:\.\.(\d{1,9}))?", re.ASCII)
ALWAYS = {
    "every invariant holds": exploration.invariants_hold,
    "every cut is consistent": exploration.cuts_are_consistent,
    "every snapshot is published in the end": exploration.snapshots_are_published,
}
SOMETIMES = {
    "a channel held a message at the cut": exploration.a_channel_caught_a_message,
    "the recorded state need not have occurred": exploration.a_recorded_state_need_not_occur,
    "two snapshots were pending at once": exploration.snapshots_overlap,
}


class Rules(StrEnum):
    """The recording rules to follow."""

    CHANDY_LAMPORT = "chandy-lamport"
    LAI_YANG = "lai-yang"


class Extras(msgspec.Struct, frozen=True):
    """Additional output of a run: the file `trace`, which must not be one of the `inputs`, and the
    proof of the snapshot `prove`."""

    trace: Path | None = None
    prove: str | None = None
    inputs: tuple[Path, ...] = ()


app = Commands()

NetworkName = Annotated[Network, typer.Option(help="Assumption about every channel.")]
RulesName = Annotated[Rules, typer.Option(help="Recording rules.")]


TRACE = option(
    "FILE",
    "Write the execution of a script or seed to this trace file.",
    "--trace",
)
PROVE = option(
    "SNAPSHOT",
    "Prove a snapshot of a script or seed: show the equivalent computation in "
    "which all events before the cut come first.",
    "--prove",
)


@app.add("sim run --seeds 1..20")
def run(
    reference: str | None = argument(
        "MODULE:TOPOLOGY",
        "Topology to run.  [default: a random system per seed]",
        default=None,
    ),
    seeds: str | None = option("A..B", "Range of seeds, or one seed.  [default: 1..200]"),
    schedule: Path | None = option(
        "FILE", "Replay this schedule with one seed, as a failing seed prints it."
    ),
    steps: bool = flag("--steps", "Show every step of one seed."),
    network: NetworkName = Network.FIFO,
    rules: RulesName = Rules.CHANDY_LAMPORT,
    trace: Path | None = TRACE,
    prove: str | None = PROVE,
) -> None:
    """Run real processes and recording rules in one thread, in virtual time: many seeds with
    crashes, partitions and lost connections. Exit 1 if an invariant is broken, and print the
    shortest schedule that breaks it."""
    if reference is not None and ":" not in reference:
        raise UsageError(
            f"{reference} is not MODULE:TOPOLOGY; to play a script, use 'stillframe sim script'"
        )
    extras = Extras(trace, prove, () if schedule is None else (schedule,))
    subject = Subject(reference, network, rules)
    chosen = parse_seeds(seeds or "1..200")
    if not steps and schedule is None and trace is None and prove is None:
        _try_seeds(subject, chosen)
        return
    if len(chosen) > 1:
        raise UsageError(
            "--schedule, --steps, --trace and --prove apply to one run: give one seed, such as "
            "--seeds 17"
        )
    _show_seed(subject, chosen[0], schedule, extras)


@app.add("sim script lecture", "sim script mine.run --rewrite")
def script(
    name: str = argument("SCRIPT", "A .run file, or the name of an included script."),
    trace: Path | None = TRACE,
    prove: str | None = PROVE,
    rewrite: bool = flag("--rewrite", "Write the outcome into the script."),
) -> None:
    """Play a script step by step. Exit 1 if the outcome is not what the script says.
    docs/simulator.md describes the format."""
    path = script_path(name)
    play_script(path, Extras(trace, prove, (path,)), rewrite=rewrite)


class Subject(msgspec.Struct, frozen=True):
    """The system to simulate, as the options describe it."""

    topology: str | None
    network: Network
    rules: Rules

    def config(self) -> campaign.RunConfig:
        """Return the config; called in each process that takes part."""
        add_cwd_to_path()
        return campaign.RunConfig(
            topology=None if self.topology is None else load_topology(self.topology),
            network=self.network,
            recorder=RULES[self.rules],
        )

    @property
    def rules_fit(self) -> bool:
        """Whether the rules are made for such channels: only then they promise to succeed."""
        fitting = {Network.FIFO: {*Rules}, Network.REORDERING: {Rules.LAI_YANG}}
        return self.rules in fitting.get(self.network, set())

    @property
    def misfit(self) -> str:
        """Say that the rules are not made for such channels."""
        return f"{self.rules} does not support channels that are {self.network.value}"

    def words(self, seed: int) -> str:
        """Return the command that does `seed` again."""
        options = [] if self.network is Network.FIFO else ["--network", self.network.value]
        options += [] if self.rules is Rules.CHANDY_LAMPORT else ["--rules", self.rules.value]
        system = [self.topology] if self.topology else []
        return " ".join(["stillframe sim run", *system, "--seeds", str(seed), *options, "--steps"])


def parse_seeds(text: str) -> range:
    """Return the seeds of ``A..B``, both included, or of one number."""
    found = _SEEDS.fullmatch(text)
    first = int(found[1]) if found else 0
    last = int(found[2] or found[1]) if found else -1
    if last < first:
        raise UsageError(
            f"--seeds {text!r}: write FIRST..LAST, for example 1..200, or one number, of at most "
            "nine digits"
        )
    return range(first, last + 1)


def _show_seed(subject: Subject, seed: int, schedule: Path | None, extras: Extras) -> None:
    lines: list[str] = []
    narrator: Narrator | None = None

    def record(world: World, step: Any) -> None:
        nonlocal narrator
        narrator = narrator or Narrator(world)
        news = narrator.news()
        lines.append(str(step))
        lines.extend(f"{campaign.EVENT_INDENT}{line}" for line in news)

    with redirect_stdout(sys.stderr):  # what handlers print is no data
        config = subject.config()
        if schedule is None:
            run = campaign.run_seed(seed, config)
        else:
            run = campaign.replay(
                seed, config, campaign.parse_schedule(schedule.read_text(encoding="utf-8"))
            )
        if extras.prove is None:  # do the run again, and say what happens with each choice
            campaign.replay(run.seed, config, run.schedule, after_each=record)
    if extras.prove is None:
        document = _run_document(run) | {"happened": lines}
        output.answer(document, lambda: output.put_file(lines))
    serve(run.world, extras)
    if run.violation is not None:
        end_with_failure(f"seed {seed}: {run.violation}")
    if not subject.rules_fit:
        ending = run.world.refusal or "no wrong snapshot was published, and none had to be"
        end_with_failure(f"seed {seed}: {subject.misfit}: {ending}")
    output.report(f"PASS: seed {seed}: {len(run.schedule)} choices, every invariant held")


def _try_seeds(subject: Subject, seeds: range) -> None:
    """Run `seeds`; of the first that breaks an invariant show the shortest schedule that does."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        output.progress_bar("simulating seeds", *columns, total=len(seeds)) as update,
        redirect_stdout(sys.stderr),  # what handlers print is no data
    ):
        tally = campaign.run_seeds(subject.config, seeds, lambda count: update(advance=count))
    if not tally.broken:
        _put_tally(subject, tally)
        return
    seed = tally.broken[0]
    output.say(f"SEED={seed} broke an invariant; looking for the shortest schedule that does ...")
    with redirect_stdout(sys.stderr):
        config = subject.config()
        run = campaign.run_seed(seed, config)
        shrunk = campaign.shrink(run, config)
    assert shrunk.violation is not None
    output.answer(
        _run_document(shrunk) | {"choice_count_before": len(run.schedule)},
        lambda: output.put_file(map(str, shrunk.schedule)),
    )
    output.report(
        f"FAIL: seed {seed}: {shrunk.violation}",
        f"shown are {len(shrunk.schedule)} of its {len(run.schedule)} choices"
        + ("" if len(shrunk.schedule) < len(run.schedule) else ": leaving out any keeps it"),
        f"injected faults: {describe(run.faults)}",
        f"every step of the whole run: {subject.words(seed)}",
        f"every step of what is shown, once it is in a file: {subject.words(seed)} --schedule FILE",
    )
    end_with_failure()


def _put_tally(subject: Subject, tally: campaign.Tally) -> None:
    unseen = [name for name in campaign.COVERAGE if name not in tally.seen]
    rows = [(name, tally.seen.get(name, 0)) for name in campaign.COVERAGE]
    output.answer(
        {"ok": subject.rules_fit} | msgspec.structs.asdict(tally) | {"unseen": unseen},
        lambda: output.put_table("", ("seen", "in runs"), rows),
    )
    if unseen:
        output.report(f"never seen: {'; '.join(unseen)}")
    seeds = quantities.count(tally.seed_count, "seed")
    if not subject.rules_fit:
        end_with_failure(
            f"{subject.misfit}: of {seeds} {tally.refused_count:,} broke off; of "
            f"{quantities.count(tally.snapshot_count, 'snapshot')} {tally.published_count:,} were "
            f"published, none of them wrong, and {tally.inconsistent_count:,} were abandoned "
            "because their fragments contradicted each other"
        )
    output.report(
        f"PASS: {seeds}, {tally.choice_count:,} choices, "
        f"{quantities.count(tally.snapshot_count, 'snapshot')}: every invariant held"
    )


def _run_document(run: campaign.Run) -> dict[str, Any]:
    violation = run.violation
    return {
        "seed": run.seed,
        "ok": violation is None,
        "invariant": None if violation is None else violation.invariant.name,
        "detail": None if violation is None else violation.detail,
        "faults": vars(run.faults),
        "schedule": [{"at_ms": step.at_ms, "choice": str(step.choice)} for step in run.schedule],
    }


@app.add("sim explore --network reordering")
def explore(
    reference: str | None = argument(
        "MODULE:TOPOLOGY",
        "Topology to explore.  [default: two accounts that pay once]",
        default=None,
    ),
    acts: list[str] | None = option(
        "PROCESS=ACTION,...",
        "Actions of a process, in order. Repeat it for other processes.  [default: "
        "each action once]",
    ),
    initiator: list[str] | None = option(
        "PROCESS",
        "Process that initiates a snapshot. Repeat it for a second snapshot.  "
        "[default: the first one declared]",
        "--initiator",
    ),
    invariant: list[str] | None = option(
        "MODULE:FUNCTION",
        "Function of a global state that must return True in every state. Can be repeated.",
    ),
    predicate: list[str] | None = option(
        "MODULE:FUNCTION",
        "Function of a global state. Reports whether it returns True in any state. "
        "Can be repeated.",
    ),
    network: NetworkName = Network.FIFO,
    rules: RulesName = Rules.CHANDY_LAMPORT,
    most: int = option(
        "COUNT", "Stop with an error beyond this number of histories.", default=1_000_000, min=1
    ),
) -> None:
    """Visit every reachable global state of a small system and check its invariants. Exit 1 if
    one fails, and print a shortest run to it."""
    add_cwd_to_path()
    topology = pair() if reference is None else load_topology(reference)
    system = exploration.SmallSystem(
        topology=topology,
        acts=_acts(topology, acts or []),
        initiations=exploration.initiations(topology, *(initiator or [topology.first])),
        network=network,
        recorder=RULES[rules],
    )
    with (
        output.progress_bar("visiting histories", TimeElapsedColumn()) as update,
        redirect_stdout(sys.stderr),  # what handlers print is no data
    ):
        found = exploration.explore(
            system,
            invariants={name: load_function(name) for name in invariant or []},
            predicates={name: load_function(name) for name in predicate or []},
            always=ALWAYS,
            sometimes=SOMETIMES,
            history_count_max=most,
            progress=lambda count: update(description=f"visiting histories: {count:,}"),
        )
    document: dict[str, Any] = {
        "ok": not found.broken,
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
    always, sometimes = [*ALWAYS, *(invariant or [])], [*SOMETIMES, *(predicate or [])]
    output.answer(document, lambda: _put_explored(found, always, sometimes))
    if found.broken:
        end_with_failure()


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
        topology.description.check_process(process)
        actions = tuple(re.findall(_ACTION, names))
        are_known = {action.partition("(")[0] for action in actions} <= {*known[process]}
        if not (sign and are_known and _ACTIONS.fullmatch(names)):
            raise UsageError(
                f"--acts {text!r}: write PROCESS=ACTION,ACTION with actions of {process}: "
                f"{', '.join(known[process]) or 'it has none'}"
            )
        acts[process] = (*acts.get(process, ()), *actions)
    return acts


def _put_explored(
    found: exploration.Explored, always: Iterable[str], sometimes: Iterable[str]
) -> None:
    counts = (
        ("global states", found.state_count),
        ("histories", found.history_count),
        ("finished histories", found.end_count),
        ("runs", found.run_count),
    )
    output.put_table("", ("every interleaving", "count"), counts)
    for name in always:
        output.report(f"{'FAIL' if name in found.broken else 'PASS'}: {name}")
        if name in found.broken:
            what, run = found.broken[name]
            steps = (f"    {choice}" for choice in run)
            output.report(f"  {what}", "  the shortest run to it:", *steps)
    for name in sometimes:
        output.report(f"{'seen' if name in found.seen else 'never seen'}: {name}")


def serve(world: World, extras: Extras) -> None:
    """Write the trace of `world`, and prove a snapshot of it, with its real processes, if that is
    wanted; end with 1 if it is not what it should be."""
    if extras.trace is not None:
        path = extras.trace
        tracefile.write(path, world.trace(), inputs=extras.inputs)
        which = f"epoch {world.epoch.number}, the last, " if len(world.epochs) > 1 else "the run "
        output.report(f"{which}is in {path}: {shell_command('view', path)}")
    if extras.prove is None:
        return
    snapshot = SnapshotId.parse(extras.prove)
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

    put_proof(trace, snapshot, check, has_state=isinstance(outcome, Snapshot))


def script_path(name: str) -> Path:
    """Return the ``.run`` file that `name` means: a file, or one that comes with stillframe."""
    if name.endswith(SCRIPT_SUFFIX):
        path = Path(name)
        if path.exists() and not path.is_file():
            raise UsageError(
                f"{name} is not a regular file: a script is a text file that ends in .run"
            )
        if path.exists() or "/" in name:
            return path
    path = SCRIPTS / (name if name.endswith(SCRIPT_SUFFIX) else name + SCRIPT_SUFFIX)
    if path.exists() and "/" not in name:
        return path
    raise UsageError(
        f"there is no script {name}: give a .run file, or an included script: "
        f"{', '.join(included_names())}"
    )


def included_names() -> list[str]:
    """Return the names of the scripts that come with stillframe."""
    return sorted(found.stem for found in SCRIPTS.glob(f"*{SCRIPT_SUFFIX}"))


def is_included(path: Path) -> bool:
    """Return whether `path` is a script that comes with stillframe."""
    return path.is_relative_to(SCRIPTS)


def play_script(path: Path, extras: Extras, *, rewrite: bool) -> None:
    """Play the script at `path`; end with 1 if something else happens than the file says."""
    if rewrite and is_included(path):
        raise UsageError(f"{path.name} is an included script: copy it to rewrite it")
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
            lambda: output.put_file(happened),
        )
    serve(played.world, extras)
    if played.differing and not rewrite:
        names = ("as written", "as it happened")
        output.report(*difflib.unified_diff(text.splitlines(), happened, *names, n=2, lineterm=""))
        end_with_failure(f"the outcome differs from {path}; if it is right, use --rewrite")


def play(path: Path, text: str) -> scenario.Played:
    """Play `text`, which is that of the script at `path`; an error names file and line."""
    try:
        return scenario.play_text(text)
    except UsageError as error:
        comma = "," if str(error).startswith("line ") else ":"
        raise UsageError(f"{path.name}{comma} {error}") from error


def read_script(path: Path) -> str:
    """Return the text of a script; of one that is too long as much as it takes to find out."""
    with path.open(encoding="utf-8") as file:
        try:
            return file.read(scenario.FILE_CHARACTER_MAX + 1)
        except UnicodeDecodeError as error:
            raise UsageError(
                f"{path} is not a .run file: it is not text in UTF-8 ({text_of(error)})"
            ) from error
