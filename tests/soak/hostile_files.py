"""Hostile files in a store: changed, cut, swapped, and forged so that every hash is right again."""

import hashlib
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from stillframe import tracefile
from stillframe.errors import StillframeError
from stillframe.model import (
    Channel,
    ChannelState,
    Fragment,
    GlobalState,
    ProcessState,
    Snapshot,
    SnapshotId,
)
from stillframe.protocol import wire
from stillframe.restore import start_states
from stillframe.runtime import run_file
from stillframe.runtime.network.addresses import ANY_PORT
from stillframe.runtime.os_process import current_process
from stillframe.store.manifest import FILES, MANIFEST
from stillframe.store.parquet import read_parquet
from stillframe.store.store import Store
from stillframe.trace import Event, MessageId, Trace
from tests.soak import hostile_frames as frames
from tests.soak.hostile_trial import SHOP
from tests.soak.mutation import mutated, mutated_value

TRACE = "trace.jsonl"
SNAPSHOT_COUNT = 2


def fragment_state(number: int) -> Snapshot:
    """Return a snapshot of the shop."""
    parts: list[Fragment] = [frames.part(process) for process in ("A", "B")]
    channels = []
    for part in parts:
        [record] = part.incoming
        channel = Channel(record.source, part.state.process)
        sent = sum(batch.count for batch in record.batches)
        channels.append(ChannelState(channel, sent, 0, record.batches))
    states: list[ProcessState] = [part.state for part in parts]
    state = GlobalState(tuple(states), tuple(sorted(channels, key=lambda c: c.channel)))
    return Snapshot(SnapshotId("A", number), 1, 1e9 + number, 1e9 + number + 0.5, state)


class Sample:
    """A store, a trace and an announcement that are right, and hostile changes of them.

    Args:
        directory: where they are made.
    """

    def __init__(self, directory: Path) -> None:
        self.store = directory / "store"
        self.description = SHOP.description
        with closing(Store.create(self.store, description=self.description)) as store:
            store.raise_epoch(None)
            for number in range(1, SNAPSHOT_COUNT + 1):
                store.publish(fragment_state(number))
        identity = run_file.identity(self.store)
        system = run_file.RunFile(
            supervisor=current_process(),
            directory=identity,
            epoch=1,
            topology_hash="0" * 64,
            coordinator=ANY_PORT,
            has_tls=False,
            secret=b"s" * 32,
            commands="commands",
            children={"A": current_process()},
            pipeline=None,
            protocol_version=wire.VERSION,
        )
        run_file.write_run_file(self.store, system)
        message = MessageId(Channel("A", "B"), 1)
        steps = [Event("A", "pays", sent=(message,)), Event("B", "gets", accepted=(message,))]
        tracefile.write(self.store / TRACE, Trace(["A", "B"], steps))
        self._files = {path: path.read_bytes() for path in self.paths()}
        self.corpus = [content for path, content in self._files.items() if path.name in FILES]

    def paths(self) -> list[Path]:
        """Return the files, sorted."""
        return sorted(path for path in self.store.rglob("*") if path.is_file())

    def right(self) -> None:
        """Put everything right again."""
        shutil.rmtree(self.store / "snapshots")
        for path, content in self._files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    # Each way changes something and returns its name.

    def change(self, chance: random.Random) -> str:
        """Change the store in one of the ways; return which."""
        way = chance.choices(WAYS, WEIGHTS)[0]
        way(self, chance)
        return way.__name__.strip("_").replace("_", " ")

    def _changed_bytes(self, chance: random.Random) -> None:
        path = chance.choice(list(self._files))
        path.write_bytes(mutated(chance, [self._files[path]]))

    def _cut_short(self, chance: random.Random) -> None:
        path = chance.choice(list(self._files))
        path.write_bytes(self._files[path][: chance.randrange(len(self._files[path]) + 1)])

    def _swapped_or_lost(self, chance: random.Random) -> None:
        one, other = chance.sample(list(self._files), 2)
        match chance.randrange(4):
            case 0:
                one.write_bytes(self._files[other])
            case 1:
                one.unlink()
            case 2:
                directory = self.store / "snapshots" / "A-1"
                directory.rename(directory.with_name(chance.choice(("B-7", "A-9", "x", "A-1-"))))
            case _:
                (self.store / "snapshots" / chance.choice(("A-7", "x"))).mkdir()

    def _forged_words(self, chance: random.Random) -> None:
        """A manifest, the store's own words, or an announcement with a value changed."""
        path = chance.choice([path for path in self._files if path.suffix == ".json"])
        document = msgspec.json.decode(self._files[path])
        is_sealed = "content" in document
        changed = mutated_value(chance, document["content"] if is_sealed else document)
        encoded = _json(changed)
        path.write_bytes(sealed(encoded) if is_sealed else encoded)

    def _forged_trace(self, chance: random.Random) -> None:
        lines = self._files[self.store / TRACE].splitlines()
        at = chance.randrange(len(lines))
        lines[at] = _json(mutated_value(chance, msgspec.json.decode(lines[at])))
        (self.store / TRACE).write_bytes(b"\n".join(lines) + b"\n")

    def _forged_file(self, chance: random.Random) -> None:
        """A Parquet file with bytes changed, and a manifest that has its hash."""
        path = self._table(chance)
        self.forge(path, mutated(chance, [self._files[path], *self.corpus[-50:]]))

    def _forged_table(self, chance: random.Random) -> None:
        """A Parquet file that is one, with other columns, types, values or counts."""
        path = self._table(chance)
        table = read_parquet(self._files[path])
        for _ in range(chance.randrange(1, 4)):
            table = _changed_table(chance, table)
        options = {"compression": chance.choice(("zstd", "none", "snappy"))}
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, **options)
        self.forge(path, bytes(sink.getvalue()), table.num_rows if chance.random() < 0.5 else None)

    def _table(self, chance: random.Random) -> Path:
        return chance.choice([path for path in self._files if path.name in FILES])

    def forge(self, path: Path, content: bytes, row_count: int | None = None) -> None:
        """Write a file of a snapshot, and its hash (and count of rows) into the manifest."""
        path.write_bytes(content)
        manifest = path.with_name(MANIFEST)
        document = msgspec.json.decode(self._files[manifest])["content"]
        for record in document["files"]:
            if record["name"] == path.name:
                record["bytes"] = len(content)
                record["hash"] = hashlib.sha256(content).hexdigest()
        if row_count is not None:
            noun = {"processes": "process", "channels": "channel", "messages": "message"}
            document[f"{noun[path.stem]}_count"] = row_count
        manifest.write_bytes(sealed(_json(document)))

    async def ask(self) -> str:
        """Read everything that is read of a store; return the first refusal, or that all is legal.

        Raises:
            Exception: anything but a ``StillframeError``.
        """
        outcomes = [_outcome(ask) for ask in self._questions()]
        refusals = [outcome for outcome in outcomes if outcome != "legal"]
        return refusals[0] if refusals else "legal"

    def _questions(self) -> Iterator[Callable[[], object]]:
        """Ask what can see the change: of the store, and of the snapshots that are not as they
        were."""
        path = self.store
        yield lambda: Store.open(path).entries()
        yield lambda: Store.open(path).current()
        yield lambda: Store.open(path).next_number()
        for snapshot in self._changed_snapshots():
            yield lambda snapshot=snapshot: self._start(snapshot)  # type: ignore[misc]
            yield lambda snapshot=snapshot: Store.open(path).verify(snapshot)  # type: ignore[misc]
            yield lambda snapshot=snapshot: Store.open(path).tables(snapshot)  # type: ignore[misc]
        yield lambda: Store.open_writer(path).close()
        yield lambda: run_file.find_running(path)
        yield lambda: tracefile.read(path / TRACE)

    def _changed_snapshots(self) -> list[SnapshotId]:
        present = {path: path.read_bytes() for path in self.paths()}
        different = {
            path.parent.name
            for path, content in self._files.items()
            if path.name in (*FILES, MANIFEST) and present.get(path) != content
        }
        return [SnapshotId.parse(name) for name in sorted(different)] or [SnapshotId("A", 1)]

    def _start(self, snapshot: SnapshotId) -> None:
        """What is read must be what a system can begin with."""
        loaded = Store.open(self.store).load(snapshot)
        starts = start_states(loaded, self.description)
        for process, start in starts.items():
            SHOP.codecs[process].decode(start.encoded)


WAYS = (
    Sample._changed_bytes,
    Sample._cut_short,
    Sample._swapped_or_lost,
    Sample._forged_words,
    Sample._forged_trace,
    Sample._forged_file,
    Sample._forged_table,
)
WEIGHTS = (20, 5, 5, 20, 5, 30, 15)


def _outcome(ask: Callable[[], object]) -> str:
    try:
        ask()
    except StillframeError as error:
        if not str(error).strip():
            raise AssertionError(f"an error that says nothing: {error!r}") from error
        return f"refused: {type(error).__name__}"
    except FileNotFoundError:
        return "refused: there is no such file"
    return "legal"


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=repr)


def sealed(encoded: bytes) -> bytes:
    """Return JSON with its hash around it, as the files of a store have it."""
    digest = hashlib.sha256(encoded).hexdigest().encode()
    return b'{"content":%b,"hash":"%b"}' % (encoded, digest)


def _changed_table(chance: random.Random, table: pa.Table) -> pa.Table:
    if not table.num_columns or len(set(table.column_names)) < table.num_columns:
        return table
    at = chance.randrange(table.num_columns)
    name = table.column_names[at]
    match chance.randrange(7):
        case 0:
            return table.drop_columns([name])
        case 1:
            names = ["x" if column == name else column for column in table.column_names]
            return table.rename_columns(names)
        case 2:
            return pa.concat_tables([table, table.slice(0, 1)])
        case 3:
            return table.slice(chance.randrange(table.num_rows + 1))
        case 4:
            number = chance.choice((None, 1, -(2**63), 2**63 - 1))
            column = pa.array([number] * table.num_rows, pa.int64())
        case 5:
            column = pa.array([None] * table.num_rows, table.column(at).type)
        case _:
            column = _hostile_column(chance, table.column(at))
    return table.set_column(at, name, column)


def _hostile_column(chance: random.Random, column: pa.ChunkedArray) -> pa.Array:
    values = column.to_pylist()
    for index in range(len(values)):
        if chance.random() < 0.5:
            values[index] = mutated_value(chance, values[index])
    for kind in (column.type, pa.string(), pa.binary(), pa.float64()):
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            continue
    return pa.array([repr(value) for value in values])
