"""Observations of simulated services, as agents of services would have taken them."""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from stillframe.protocol.activities import InstanceState
from stillframe.protocol.calls import CallLedger, InstanceFragment, Observation
from stillframe.sim.service_judge import UNIT
from stillframe.sim.services import ServicesConfig, run_services
from stillframe.storage.location import Location
from stillframe.store.layout import OBSERVATIONS
from stillframe.store.manifest import MANIFEST, FileRecord
from stillframe.store.observation_tables import read_table
from stillframe.store.observations import ObservationManifest, ObservationWriter
from stillframe.store.parquet import to_parquet
from stillframe.store.sealed_json import read_sealed, seal
from tests.sim.test_services import DEATHS, KINDS

STEP_COUNT = 600
LEAVES = {
    "leaves": ServicesConfig(
        faults=DEATHS | {"leave", "restart"}, started_count_max=4, weights={"leave": 0.03}
    )
}
TIMES = (1000.0, 1000.25)


def captured(fragment: InstanceFragment) -> InstanceFragment:
    """Return a fragment with its state as an agent captures it."""
    fields = {
        "balance": fragment.state[UNIT],
        "rate": 0.5,
        "owner": "Ada",
        "is_open": True,
        "note": None,
        "history": [1, {"more": "text"}],
    }
    state = InstanceState(
        msgspec.msgpack.encode(fields), {UNIT: 3}, {UNIT: fragment.state[UNIT]}, ignored_count=2
    )
    return msgspec.structs.replace(fragment, state=state)


@cache
def observed(kind: str, seed: int) -> tuple[tuple[Observation, ...], CallLedger]:
    """Return the observations of a simulated system, and the ledger after the last one."""
    world = run_services((KINDS | LEAVES)[kind], seed, STEP_COUNT)
    world.end()
    return (
        tuple(
            msgspec.structs.replace(
                one, fragments={name: captured(part) for name, part in one.fragments.items()}
            )
            for one in world.observations
        ),
        world.collector.ledger,
    )


def has_every_kind(observations: tuple[Observation, ...]) -> bool:
    """Return whether there are calls of each kind, and an instance that has said goodbye."""
    every = [(one.calls, one.late, one.duplicates, one.orphans, one.ends) for one in observations]
    return all(any(kinds) for kinds in zip(*every, strict=True))


def filled(path: Location, kind: str, seed: int) -> ObservationWriter:
    """Return a new store, opened for writing, with the observations of a simulated system."""
    writer = ObservationWriter.open(path)
    observations, ledger = observed(kind, seed)
    for observation in observations:
        writer.publish(observation, TIMES, ledger)
    return writer


def rewrite(
    path: Path,
    number: int,
    change: Callable[[dict[str, pa.Table]], None] = lambda tables: None,
    **members: Any,
) -> None:
    """Change tables of an observation, and members of its manifest; all hashes are right then."""
    directory = path / OBSERVATIONS / str(number)
    manifest = read_sealed(directory / MANIFEST, ObservationManifest)
    tables = {
        one.name: read_table(one.name, (directory / one.name).read_bytes())
        for one in manifest.files
    }
    change(tables)
    files = []
    for name, table in tables.items():
        content = to_parquet(table)
        (directory / name).write_bytes(content)
        files.append(FileRecord(name, len(content), hashlib.sha256(content).hexdigest()))
    changed = msgspec.structs.replace(manifest, files=tuple(files), **members)
    (directory / MANIFEST).write_bytes(seal(changed))
