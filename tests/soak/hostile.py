"""The soak of hostile input: mutated frames wherever one can come, mutated files of a store.

``python -m tests.soak.hostile --frames 1000000 --files 100000 --seed 1`` prints ``SEED=`` first and
at the end what became of the inputs, the longest time and the most memory that one took. Each half
runs in an operating-system process of its own, so that a crash is seen. It exits with 1 when an
input did anything but be refused with a reason or be legal, and leaves that input for a look. The
short form runs with the tests.
"""

import argparse
import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.progress import Progress

from tests.soak.hostile_files import Sample
from tests.soak.hostile_search import Corpus, Tally, Watch
from tests.soak.hostile_streams import PIECES, PLACES, giants, hostile_stream
from tests.soak.hostile_trial import Trial

MEMORY_BYTES_MAX = 128 * 2**20
"""So much may one input take; the largest frame thrown has 10 MB."""
INPUT = "input"
"""The file with a stream that did what it should not."""


async def throw_frames(
    seed: int, count: int, directory: Path, tell: Callable[[int], None] = lambda count: None
) -> Tally:
    """Throw `count` streams, the valid ones of each place and the giants first; return the tally.

    Raises:
        Exception: whatever an input led to that it should not; the input is in `directory`.
    """
    chance = random.Random(seed)
    corpora = {name: Corpus(seeds, chance) for name, (_, seeds) in PLACES.items()}
    names = list(PLACES)
    large = giants()
    first = [(name, data) for name in names for data in (*PLACES[name][1], *large)]
    watch = Watch(MEMORY_BYTES_MAX, tell)
    for number in range(count):
        if number < len(first):
            name, data = first[number]
        else:
            name = chance.choice(names)
            data = hostile_stream(chance, name, corpora[name].seeds)
        piece = chance.choice(PIECES) if len(data) < 10_000 else PIECES[-1]

        async def take(name: str = name, data: bytes = data, piece: int = piece) -> str:
            corpus = corpora[name]
            if not corpus.is_traced():
                return await PLACES[name][0](Trial(), data, piece)
            with corpus.traced(data):
                return await PLACES[name][0](Trial(), data, piece)

        try:
            await watch.take(take, name)
            if number < len(first):  # a giant may take much, but not together with the others
                watch.look()
        except Exception:
            (directory / INPUT).write_bytes(data)
            raise
    watch.look()
    tally = watch.tally
    tally.line_count = len({line for corpus in corpora.values() for line in corpus.lines})
    tally.kept_count = sum(corpus.kept_count for corpus in corpora.values())
    return tally


async def throw_files(
    seed: int, count: int, directory: Path, tell: Callable[[int], None] = lambda count: None
) -> Tally:
    """Change a store `count` times, each time from what is right; return the tally.

    Raises:
        Exception: whatever a file led to that it should not; the store is left as it was then.
    """
    chance, sample = random.Random(seed), Sample(directory)
    await sample.ask()
    watch = Watch(MEMORY_BYTES_MAX, tell)
    for _ in range(count):
        way = sample.change(chance)
        await watch.take(sample.ask, way)
        sample.right()
    watch.look()
    return watch.tally


THROWS = {"frames": throw_frames, "files": throw_files}


def work(what: str, seed: int, count: int, directory: Path) -> None:
    """Throw one half, and leave the tally in `directory`."""
    tally = asyncio.run(THROWS[what](seed, count, directory, lambda done: print(done, flush=True)))
    (directory / "tally").write_bytes(msgspec.json.encode(tally))


def run(what: str, seed: int, count: int, directory: Path) -> Tally | None:
    """Throw one half in a process of its own; None if that found something, or died."""
    directory.mkdir()
    command = [sys.executable, "-m", "tests.soak.hostile", "--work", what]
    command += ["--seed", str(seed), f"--{what}", str(count), "--directory", str(directory)]
    with (
        Progress() as progress,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child,
    ):
        bar = progress.add_task(what, total=count)
        assert child.stdout is not None
        for line in child.stdout:
            progress.advance(bar, int(line))
    if child.returncode != 0:
        print(f"\n{what}: ended with {child.returncode}; the input is in {directory}", flush=True)
        return None
    return msgspec.json.decode((directory / "tally").read_bytes(), type=Tally)


def show(what: str, tally: Tally) -> None:
    """Print the figures."""
    print(f"\n{what}: {tally.count:,}")
    for outcome, count in sorted(tally.outcomes.items()):
        print(f"  {outcome:70} {count:>9,}")
    if tally.line_count:
        print(
            f"  {'lines reached; inputs that were kept as seeds':70} {tally.line_count:>9,}", end=""
        )
        print(f"; {tally.kept_count:,}")
    print(f"  longest {tally.longest_s:.2f} s ({tally.longest})")
    print(
        f"  memory {tally.begun_kb / 1024:.0f} MiB before, {tally.peak_kb / 1024:.0f} MiB at most"
    )


def main() -> None:
    """Run the full form."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=0)
    parser.add_argument("--files", type=int, default=0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--work", choices=list(THROWS), help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        work(options.work, options.seed, getattr(options, options.work), options.directory)
        return
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**31)
    print(f"SEED={seed}", flush=True)
    began = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="stillframe-hostile-"))
    tallies = {what: run(what, seed, getattr(options, what), directory / what) for what in THROWS}
    for what, tally in tallies.items():
        if tally is not None:
            show(what, tally)
    print(f"all of it {time.monotonic() - began:.0f} s")
    if None in tallies.values():
        sys.exit(1)
    print("every input was refused with a reason, or is legal")


if __name__ == "__main__":
    main()
