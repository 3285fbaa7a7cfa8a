"""The coordinator of the kill soak: ``pipeline_coordinator.py snapshot|restore ROOT MODE|ID``.

A program of its own, so that it can be killed in the middle. It says ``begins`` when it does, and
then the snapshot's id, or why there is none.
"""

import sys

from stillframe.model import Abandoned
from stillframe.pipeline import Pipeline
from stillframe.storage.location import locate

TIMEOUT_S = 300.0


def main(what: str, root: str, argument: str) -> None:
    """Take one snapshot in a mode, or restore one by its id."""
    pipeline = Pipeline(locate(root))
    print("begins", flush=True)
    if what == "restore":
        print(pipeline.restore(argument).snapshot, flush=True)
        return
    outcome = pipeline.snapshot(argument, timeout_s=TIMEOUT_S)
    print(f"abandoned: {outcome}" if isinstance(outcome, Abandoned) else outcome.snapshot)


if __name__ == "__main__":
    main(*sys.argv[1:])
