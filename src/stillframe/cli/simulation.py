"""``stillframe sim``: seeds, one seed step by step, or a script."""

import difflib
import importlib.resources
import re
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from stillframe import tracefile
from stillframe.cli import output, quantities
from stillframe.cli.here import look_here
from stillframe.cli.proof import put_proof
from stillframe.cli.rules import Network, Rules, recorder_of
from stillframe.cli.verdict import EXIT_NO
from stillframe.errors import UsageError
from stillframe.runtime.loading import load_topology
from stillframe.sim import scenario
from stillframe.sim.campaign import Tally, run_seeds
from stillframe.sim.narrate import Narrator
from stillframe.sim.run import Run, Setting, replay, run_seed, shrink
from stillframe.sim.sightings import SIGHTINGS
from stillframe.sim.world import World

_SEEDS = re.compile(r"(\d{1,9})(?:\.\.(\d{1,9}))?", re.ASCII)
RUN_SUFFIX = ".run"


class Extras(msgspec.Struct, frozen=True):
    """What is wanted of one run besides its steps.

    Attributes:
        trace: where to write what happened.
        prove: a snapshot to prove.
    """

    trace: Path | None = None
    prove: str | None = None


class Subject(msgspec.Struct, frozen=True):
    """What is simulated, as the options say it."""

    topology: str | None
    network: Network
    rules: Rules

    def setting(self) -> Setting:
        """Return the setting; called in each process that takes part."""
        look_here()
        return Setting(
            topology=None if self.topology is None else load_topology(self.topology),
            network=self.network,
            recorder=recorder_of(self.rules),
        )

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
        raise UsageError(f"--seeds {text!r}: write FIRST..LAST, for example 1..200, or one number")
    return range(first, last + 1)


def script_path(name: str) -> Path | None:
    """Return the ``.run`` file that `name` means: a file, or one that comes with stillframe; None
    if it means a topology.

    Raises:
        UsageError: it means neither.
    """
    if name.endswith(RUN_SUFFIX):
        path = Path(name)
        if path.exists() or "/" in name:
            return path
    included = Path(str(importlib.resources.files("stillframe.sim") / "runs"))
    path = included / (name if name.endswith(RUN_SUFFIX) else name + RUN_SUFFIX)
    if path.exists() and "/" not in name:
        return path
    if name.endswith(RUN_SUFFIX) or ":" not in name:
        names = ", ".join(sorted(found.stem for found in included.glob(f"*{RUN_SUFFIX}")))
        raise UsageError(
            f"there is no script {name}: give a .run file, MODULE:TOPOLOGY, or one of those that "
            f"come with stillframe: {names}"
        )
    return None


def play_script(path: Path, extras: Extras, *, rewrite: bool, is_json: bool) -> None:
    """Play the script at `path`, and compare what happens with what the file says.

    Raises:
        typer.Exit: with 1; something else happened.
        UsageError: the file cannot be read or played.
    """
    text = _read(path)
    played = scenario.play_text(text)
    if rewrite:
        path.write_text(played.text(), encoding="utf-8")
    if extras.prove is not None:
        pass
    elif is_json:
        output.put_json(
            {
                "blocks": [
                    {"commands": block.commands, "happened": lines}
                    for block, lines in zip(played.blocks, played.happened, strict=True)
                ],
                "is_as_written": not played.differing,
            }
        )
    else:
        output.put_lines(played.text().splitlines())
    _serve(played.world, extras, is_json=is_json)
    if played.differing and not rewrite:
        changes = difflib.unified_diff(
            text.splitlines(),
            played.text().splitlines(),
            "as written",
            "as it happened",
            "",
            "",
            2,
            "",
        )
        output.say(
            *changes, f"no: something else happened than {path} says; if it is right: --rewrite"
        )
        raise typer.Exit(EXIT_NO)


def _read(path: Path) -> str:
    """Return the text of a script; of one that is too long as much as it takes to find out."""
    with path.open(encoding="utf-8") as file:
        try:
            return file.read(scenario.FILE_CHARACTER_MAX + 1)
        except UnicodeDecodeError as error:
            raise UsageError(
                f"{path} is no .run file: it is not text in UTF-8 ({error})"
            ) from error


def show_seed(subject: Subject, seed: int, extras: Extras, *, is_json: bool) -> None:
    """Run one seed and show every step of it.

    Raises:
        typer.Exit: with 1; a promise was not kept.
    """
    setting = subject.setting()
    run = run_seed(seed, setting)
    if extras.prove is None:
        lines = _narrate(run, setting)
        if is_json:
            output.put_json(_run_document(run) | {"happened": lines})
        else:
            output.put_lines(lines)
    _serve(run.world, extras, is_json=is_json)
    if run.violation is not None:
        output.say(f"no: seed {seed}: {run.violation}")
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
        tally = run_seeds(subject.setting, seeds, lambda count: bar.update(task, advance=count))
    if not tally.broken:
        _put_tally(subject, tally, is_json=is_json)
        return
    seed = tally.broken[0]
    setting = subject.setting()
    output.say(f"SEED={seed} broke a promise; looking for the shortest schedule that does ...")
    run = run_seed(seed, setting)
    shrunk = shrink(run, setting)
    assert shrunk.violation is not None
    if is_json:
        output.put_json(_run_document(shrunk) | {"choice_count_before": len(run.schedule)})
    else:
        output.put_lines(map(str, shrunk.schedule))
    output.say(
        f"no: seed {seed}: {shrunk.violation}",
        f"shown are {len(shrunk.schedule)} of its {len(run.schedule)} choices",
        f"what could go wrong: {run.faults}",
        f"every step of the whole run: {subject.words(seed)}",
    )
    raise typer.Exit(EXIT_NO)


def _put_tally(subject: Subject, tally: Tally, *, is_json: bool) -> None:
    unseen = [name for name in SIGHTINGS if name not in tally.seen]
    if is_json:
        output.put_json({"is_kept": True} | msgspec.structs.asdict(tally) | {"unseen": unseen})
    else:
        rows = [(name, f"{tally.seen.get(name, 0):,}") for name in SIGHTINGS]
        output.put_table("", ("seen", "in runs"), rows)
    output.say(
        f"yes: {quantities.count(tally.seed_count, 'seed')}, {tally.choice_count:,} choices, "
        f"{quantities.count(tally.snapshot_count, 'snapshot')}: every promise was kept"
    )
    if unseen and subject.network is Network.FIFO:
        output.say(f"never seen: {'; '.join(unseen)}")


def _narrate(run: Run, setting: Setting) -> list[str]:
    """Do the run again, and tell what happens with each choice."""
    lines: list[str] = []
    narrator: Narrator | None = None

    def tell(world: World, step: Any) -> None:
        nonlocal narrator
        narrator = narrator or Narrator(world)
        news = narrator.news()
        lines.append(str(step))
        lines.extend(f"{'':14}{line}" for line in news)

    replay(run.seed, setting, run.schedule, after_each=tell)
    return lines


def _run_document(run: Run) -> dict[str, Any]:
    violation = run.violation
    return {
        "seed": run.seed,
        "is_kept": violation is None,
        "promise": None if violation is None else violation.promise.name,
        "detail": None if violation is None else violation.detail,
        "faults": vars(run.faults),
        "schedule": [{"at_ms": step.at_ms, "choice": str(step.choice)} for step in run.schedule],
    }


def _serve(world: World, extras: Extras, *, is_json: bool) -> None:
    if extras.trace is not None:
        _write_trace(world, extras.trace)
    if extras.prove is not None:
        put_proof(world, extras.prove, is_json=is_json)


def _write_trace(world: World, path: Path) -> None:
    tracefile.write(path, world.epoch.trace(world.description))
    which = f"epoch {world.epoch.number}, the last, " if len(world.epochs) > 1 else "the run "
    output.say(f"{which}is in {path}: stillframe view {path}")
