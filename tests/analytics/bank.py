"""Stores of a small bank for the tests of the audit, and ways to spoil them behind their seals.

Three accounts with a channel each way; the money in balances and in transfers is always 300.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from stillframe.model import (
    Batch,
    Channel,
    ChannelState,
    GlobalState,
    ProcessState,
    Snapshot,
    SnapshotId,
)
from stillframe.process import Message, Process
from stillframe.storage.location import Location
from stillframe.store.manifest import FileRecord, Manifest, read_manifest
from stillframe.store.sealed_json import seal
from stillframe.store.store import Store
from stillframe.topology import Topology

Place = TypeVar("Place", bound=Location)
TOTAL = 300
CAUGHT = Channel("P1", "P2")
"""The channel on which every snapshot caught 5 transfers of 2."""


class Transfer(Message):
    """Money on its way."""

    amount: int


class Account(Process):
    """Where money rests."""

    balance: int = 100
    rate: float = 0.1

    def receive(self, channel: Channel, message: Transfer) -> None:
        """Take money in."""
        self.balance += message.amount


TOPOLOGY = Topology.mesh({name: Account() for name in ("P1", "P2", "P3")})


def snapshot(number: int) -> Snapshot:
    """Return snapshot P1-`number`: 5 transfers of 2 on P1->P2, the rest in the balances."""
    states = tuple(
        ProcessState(
            name,
            "Account",
            msgspec.msgpack.encode({"balance": 90 if name == "P1" else 100, "rate": 0.1}),
        )
        for name in TOPOLOGY.processes
    )
    transfers = [msgspec.msgpack.encode(Transfer(2)) for _ in range(5)]
    channels = tuple(
        ChannelState(channel, number + 5, number, (Batch.of(number + 1, transfers),))
        if channel == CAUGHT
        else ChannelState(channel, number, number, ())
        for channel in TOPOLOGY.description.channels
    )
    return Snapshot(SnapshotId("P1", number), 1, 0.0, 1.0, GlobalState(states, channels))


def make_store(path: Place, *, snapshot_count: int) -> Place:
    """Make a store with snapshots P1-1, P1-2, ... in it, all sound."""
    store = Store.create(path, description=TOPOLOGY.description)
    store.raise_epoch(None)
    for number in range(1, snapshot_count + 1):
        store.publish(snapshot(number))
    store.close()
    return path


def spoil(directory: Path, file: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change a table of the snapshot in `directory` and seal it again, as if written like that."""
    path = directory / file
    pq.write_table(change(pq.read_table(path, partitioning=None)), path)
    content = path.read_bytes()
    record = FileRecord(file, len(content), hashlib.sha256(content).hexdigest())
    manifest: Manifest = read_manifest(directory, {TOPOLOGY.description.hash: TOPOLOGY.description})
    files = tuple(record if old.name == file else old for old in manifest.files)
    (directory / "manifest.json").write_bytes(seal(msgspec.structs.replace(manifest, files=files)))


def with_value(table: pa.Table, column: str, row: int, value: Any) -> pa.Table:
    """Return the table with one value changed."""
    values = table.column(column).to_pylist()
    values[row] = value
    index = table.schema.get_field_index(column)
    field = table.schema.field(index)
    return table.set_column(index, field, pa.array(values, field.type))
