"""The first writes of this release into data of 0.1.0, by programs that are killed at each step."""

import contextlib
import itertools
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stillframe import durable_files
from stillframe.model import SnapshotId
from stillframe.pipeline import Pipeline
from stillframe.store.store import Store
from tests.golden import recording

STEPS = frozenset("mkdir remove rmdir rename link symlink truncate".split())
DENSE = 8
"""Up to here the head of a directory is written, and each step is tried."""
WRITES = os.O_WRONLY | os.O_RDWR


def writer(write: Callable[[Store], object]) -> Callable[[Path], None]:
    """Return `write`, which gets a store, as a function of its path."""

    def act(path: Path) -> None:
        with contextlib.closing(Store.open_writer(path)) as store:
            write(store)
            store.settle()

    return act


STORES = {
    "restore": writer(lambda store: store.raise_epoch(SnapshotId("A", 10))),
    "delete": writer(lambda store: store.drop("A-4")),
}
PIPELINES: dict[str, Callable[[Path], object]] = {
    "service": lambda path: recording.sell(Pipeline(path), 12),
    "restore": lambda path: Pipeline(path).restore("gold"),
}


def die_at(step: int, directory: Path) -> None:
    """Kill this program by SIGKILL before its `step`-th operation on files in `directory`; a file
    that it writes is written by half then."""
    steps = itertools.count(1)
    write_new = durable_files.write_new

    def count() -> bool:
        return next(steps) == step

    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, args: tuple[Any, ...]) -> None:
        path = Path(directory, str(args[0]))
        is_step = args[2] & WRITES if event == "open" else event[3:] in STEPS
        is_nothing = event == "os.remove" and args[1] < 0 and not path.exists()
        if is_step and not is_nothing and path.is_relative_to(directory) and count():
            kill()

    def torn(path: Path, content: bytes, **how: int) -> None:
        if count():
            write_new(path, content[: len(content) // 2], **how)
            kill()
        write_new(path, content, **how)

    def counted(act: Callable[[int], None]) -> Callable[[int], None]:
        def go(descriptor: int) -> None:
            if count():
                kill()
            act(descriptor)

        return go

    os.fsync = counted(os.fsync)  # type: ignore[assignment]
    for module in [*sys.modules.values()]:
        if getattr(module, "write_new", None) is write_new:
            module.write_new = torn  # type: ignore[attr-defined]
    sys.addaudithook(audit)


def main(name: str, directory: Path, stride: int) -> None:
    """Write to copies of the directory `name` of the data, until one program of each kind lives;
    after the first steps only one of `stride` is tried."""
    acts = PIPELINES if name.endswith(".pipeline") else STORES
    for act, write in acts.items():
        for step in itertools.chain(range(1, DENSE), itertools.count(DENSE, stride)):
            copy = shutil.copytree(recording.DATA / name, directory / f"{act}-{step}")
            child = os.fork()
            if not child:
                die_at(step, copy)
                write(copy)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            if status == 0:
                break
            assert os.WTERMSIG(status) == signal.SIGKILL, (act, step, status)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
