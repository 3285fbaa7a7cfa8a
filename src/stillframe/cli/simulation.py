"""``stillframe sim``: seeds, one seed step by step, or a script."""

import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from stillframe.cli import output, quantities
from stillframe.cli.command import EXIT_NO
from stillframe.cli.extras import Extras, serve
from stillframe.cli.rules import Network, Rules, recorder_of
from stillframe.errors import UsageError
from stillframe.imports import add_cwd_to_path, load_topology
from stillframe.sim.campaign import COVERAGE, Tally, run_seeds
from stillframe.sim.narration import Narrator
from stillframe.sim.run import (
    EVENT_INDENT,
    Run,
    RunConfig,
    parse_schedule,
    replay,
    run_seed,
    shrink,
)
from stillframe.sim.scheduler import describe
from stillframe.sim.world import World

_SEEDS = re.compile(r"(\d{1,9})(?:\.\.(\d{1,9}))?", re.ASCII)


class Subject(msgspec.Struct, frozen=True):
    """What is simulated, as the options say it."""

    topology: str | None
    network: Network
    rules: Rules

    def config(self) -> RunConfig:
        """Return the config; called in each process that takes part."""
        add_cwd_to_path()
        return RunConfig(
            topology=None if self.topology is None else load_topology(self.topology),
            network=self.network,
            recorder=recorder_of(self.rules),
        )

    @property
    def rules_fit(self) -> bool:
        """Whether the rules are made for such channels: only then they promise to succeed."""
        fitting = {Network.FIFO: {*Rules}, Network.REORDERING: {Rules.LAI_YANG}}
        return self.rules in fitting.get(self.network, set())

    @property
    def misfit(self) -> str:
        """Say that the rules are not made for such channels."""
        return f"{self.rules} is not made for channels that are {self.network.value}"

    def words(self, seed: int) -> str:
        """Return the command that does `seed` again."""
        options = [] if self.network is Network.FIFO else ["--network", self.network.value]
        options += [] if self.rules is Rules.CHANDY_LAMPORT else ["--rules", self.rules.value]
        system = [self.topology] if self.topology else []
        return " ".join(["stillframe sim", *system, "--seeds", str(seed), *options, "--steps"])


def parse_seeds(text: str) -> range:
    """Return the seeds of ``A..B``, both included, or of one number.

    Raises:
        UsageError: it is neither.
    """
    found = _SEEDS.fullmatch(text)
    first = int(found[1]) if found else 0
    last = int(found[2] or found[1]) if found else -1
    if last < first:
        raise UsageError(
            f"--seeds {text!r}: write FIRST..LAST, for example 1..200, or one number, of at most "
            "nine digits"
        )
    return range(first, last + 1)


def show_seed(
    subject: Subject, seed: int, schedule: Path | None, extras: Extras, *, is_json: bool
) -> None:
    """Run one seed, or with its system what is in the file `schedule`, and show every step of it.

    Raises:
        typer.Exit: with 1; a promise was not kept.
        UsageError: the file holds something else than a schedule.
    """
    with redirect_stdout(sys.stderr):  # what handlers print is no data
        config = subject.config()
        if schedule is None:
            run = run_seed(seed, config)
        else:
            run = replay(seed, config, parse_schedule(schedule.read_text(encoding="utf-8")))
        lines = _narrate(run, config) if extras.prove is None else []
    if extras.prove is None:
        if is_json:
            output.put_json(_run_document(run) | {"happened": lines})
        else:
            output.put_lines(lines)
    serve(run.world, extras, is_json=is_json)
    if run.violation is not None:
        output.say(f"no: seed {seed}: {run.violation}")
        raise typer.Exit(EXIT_NO)
    if not subject.rules_fit:
        ending = run.world.refusal or "nothing wrong was published, and nothing had to be"
        output.say(f"no: seed {seed}: {subject.misfit}: {ending}")
        raise typer.Exit(EXIT_NO)
    output.say(f"yes: seed {seed}: {len(run.schedule)} choices, every promise was kept")


def try_seeds(subject: Subject, seeds: range, *, is_json: bool) -> None:
    """Run `seeds`; of the first that breaks a promise show the shortest schedule that does.

    Raises:
        typer.Exit: with 1; a promise was not kept.
    """
    console = output.words()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("simulating seeds", total=len(seeds))
        with redirect_stdout(sys.stderr):  # what handlers print is no data
            tally = run_seeds(subject.config, seeds, lambda count: bar.update(task, advance=count))
    if not tally.broken:
        _put_tally(subject, tally, is_json=is_json)
        return
    seed = tally.broken[0]
    output.say(f"SEED={seed} broke a promise; looking for the shortest schedule that does ...")
    with redirect_stdout(sys.stderr):
        config = subject.config()
        run = run_seed(seed, config)
        shrunk = shrink(run, config)
    assert shrunk.violation is not None
    if is_json:
        output.put_json(_run_document(shrunk) | {"choice_count_before": len(run.schedule)})
    else:
        output.put_lines(map(str, shrunk.schedule))
    output.say(
        f"no: seed {seed}: {shrunk.violation}",
        f"shown are {len(shrunk.schedule)} of its {len(run.schedule)} choices"
        + ("" if len(shrunk.schedule) < len(run.schedule) else ": leaving out any keeps it"),
        f"what could go wrong: {describe(run.faults)}",
        f"every step of the whole run: {subject.words(seed)}",
        f"every step of what is shown, once it is in a file: {subject.words(seed)} --schedule FILE",
    )
    raise typer.Exit(EXIT_NO)


def _put_tally(subject: Subject, tally: Tally, *, is_json: bool) -> None:
    unseen = [name for name in COVERAGE if name not in tally.seen]
    if is_json:
        output.put_json(
            {"is_kept": subject.rules_fit} | msgspec.structs.asdict(tally) | {"unseen": unseen}
        )
    else:
        rows = [(name, f"{tally.seen.get(name, 0):,}") for name in COVERAGE]
        output.put_table("", ("seen", "in runs"), rows)
    if unseen:
        output.say(f"never seen: {'; '.join(unseen)}")
    seeds = quantities.count(tally.seed_count, "seed")
    if not subject.rules_fit:
        output.say(
            f"no: {subject.misfit}: of {seeds} {tally.refused_count:,} broke off; of "
            f"{quantities.count(tally.snapshot_count, 'snapshot')} {tally.published_count:,} were "
            f"published, none of them wrong, and {tally.inconsistent_count:,} abandoned because "
            "their parts contradicted each other"
        )
        raise typer.Exit(EXIT_NO)
    output.say(
        f"yes: {seeds}, {tally.choice_count:,} choices, "
        f"{quantities.count(tally.snapshot_count, 'snapshot')}: every promise was kept"
    )


def _narrate(run: Run, config: RunConfig) -> list[str]:
    """Do the run again, and tell what happens with each choice."""
    lines: list[str] = []
    narrator: Narrator | None = None

    def tell(world: World, step: Any) -> None:
        nonlocal narrator
        narrator = narrator or Narrator(world)
        news = narrator.news()
        lines.append(str(step))
        lines.extend(f"{EVENT_INDENT}{line}" for line in news)

    replay(run.seed, config, run.schedule, after_each=tell)
    return lines


def _run_document(run: Run) -> dict[str, Any]:
    violation = run.violation
    return {
        "seed": run.seed,
        "is_kept": violation is None,
        "promise": None if violation is None else violation.invariant.name,
        "detail": None if violation is None else violation.detail,
        "faults": vars(run.faults),
        "schedule": [{"at_ms": step.at_ms, "choice": str(step.choice)} for step in run.schedule],
    }
