"""Systems whose money tells whether a snapshot is right: it is nowhere made and nowhere lost.

    ring      a -> b -> c -> a              a cycle: for snapshots in mode unaligned
    diamond   mint -> left, right -> till   for those in mode aligned

Also a program: ``python -m tests.pipeline.money ROOT NAME [DIR]`` runs one service until the file
``ROOT/stop``, or ``DIR/stop``, is there.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from stillframe.pipeline import Pipeline, channel
from stillframe.pipeline.dataflow import Log
from stillframe.pipeline.locks import is_running
from stillframe.pipeline.log import LogReader
from stillframe.pipeline.service import JoinedService, join
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.state_codec import StateCodec
from stillframe.storage.location import Location, locate

SCHEMA = pa.schema([("amount", pa.int64())])
END = -1
"""Who receives it passes it on and leaves; it is no money."""
TOTAL = 1_000_000
PAUSE_S = 0.02
STOP = "stop"


@dataclass
class Account:
    """The state of every service here."""

    balance: int = 0
    received_count: int = 0
    ended_count: int = 0


def records(*amounts: int) -> pa.Table:
    """Return records of money."""
    return pa.table({"amount": list(amounts)}, schema=SCHEMA)


def ring(path: Location, name: str | None = None) -> Pipeline:
    """Make a pipeline that is a cycle of three services."""
    return _made(path, name, {"ab": ("a", ["b"]), "bc": ("b", ["c"]), "ca": ("c", ["a"])})


def diamond(path: Location, name: str | None = None) -> Pipeline:
    """Make a pipeline in which two ways lead from the first service to the last."""
    return _made(
        path,
        name,
        {
            "to-left": ("mint", ["left"]),
            "to-right": ("mint", ["right"]),
            "from-left": ("left", ["till"]),
            "from-right": ("right", ["till"]),
        },
    )


def line(path: Location, name: str | None = None) -> Pipeline:
    """Make a pipeline of two services and one channel, ``mint -> till``."""
    return _made(path, name, {"coins": ("mint", ["till"])})


def _made(path: Location, name: str | None, logs: dict[str, tuple[str, list[str]]]) -> Pipeline:
    channels: list[Log] = [
        channel(log, SCHEMA, source=source, targets=targets)
        for log, (source, targets) in logs.items()
    ]
    services = {end: Account for log in channels for end in (log.source, *log.targets)}
    return Pipeline.create(path, services=services, channels=channels, name=name)


def account(manifest: Manifest, service: str) -> Account:
    """Return the state of a service in a snapshot."""
    part = manifest.fragment(service)
    assert part.service is not None
    found = Account()
    StateCodec(Account).restore(found, part.service.encoded)
    return found


def amounts(reader: LogReader, first: int, end: int) -> list[int]:
    """Return the money in some entries of a log, record by record."""
    tables = [reader.table(entry) for entry in reader.entries(first, end)]
    return [amount for table in tables for amount in table["amount"].to_pylist() if amount != END]


def money_in(pipeline: Pipeline, manifest: Manifest) -> int:
    """Return all the money of a snapshot: in states, and on channels, less what is doubled."""
    total = sum(account(manifest, part.participant).balance for part in manifest.fragments)
    for cut in manifest.channels:
        log = manifest.dataflow.log(cut.log)
        reader = LogReader(pipeline.path, log, manifest.segments[cut.log])
        on_the_way = amounts(reader, cut.position, cut.barrier)
        doubled = amounts(reader, cut.barrier, cut.position)
        total += sum(on_the_way) - sum(doubled)
    return total


def money_now(pipeline: Pipeline) -> int:
    """Return all the money of a pipeline of which nothing runs, by a snapshot that shows it."""
    outcome = pipeline.snapshot("unaligned")
    assert isinstance(outcome, Manifest), str(outcome)
    return money_in(pipeline, outcome)


def run_service(root: Location, name: str, is_over: Callable[[], bool]) -> None:
    """Take part as the service `name` until `is_over`, or until others say that it is."""
    state = Account(balance=TOTAL if name in ("a", "mint") else 0)
    with join(name, pipeline=root, state=state) as me:
        if name == "mint":
            _mint(me, Pipeline(root), state, is_over)
        else:
            _pass_on(me, Pipeline(root), state, is_over)


def _mint(
    me: JoinedService, pipeline: Pipeline, state: Account, is_over: Callable[[], bool]
) -> None:
    outgoing = pipeline.dataflow.outgoing("mint")
    turn = threading.Event()
    while state.balance and not is_over():
        for log in outgoing:
            state.balance -= 3
            me.append(log.name, records(1, 2))
        me.boundary()
        turn.wait(PAUSE_S)
    for log in outgoing:
        me.append(log.name, records(END))


def _pass_on(
    me: JoinedService, pipeline: Pipeline, state: Account, is_over: Callable[[], bool]
) -> None:
    flow = pipeline.dataflow
    outgoing = [log.name for log in flow.outgoing(me.id)]
    awaited = len(flow.incoming(me.id))
    if me.id == "a" and state.balance == TOTAL:
        for _ in range(5):
            state.balance -= 10
            me.append("ab", records(10))
    for _, table in me:
        arrived = [amount for amount in table["amount"].to_pylist() if amount != END]
        state.received_count += len(arrived)
        state.balance += sum(arrived)
        if me.id == "a" and is_over():
            me.append("ab", records(END))
            return
        if len(arrived) < table.num_rows:
            state.ended_count += 1
            if me.id != "c":
                _send(me, outgoing, END)
            if state.ended_count % awaited == 0:
                return
        elif outgoing:
            # A little stays, and comes along another time.
            part = max(1, state.balance - 1)
            state.balance -= part
            _send(me, outgoing, part)


def _send(me: JoinedService, outgoing: list[str], amount: int) -> None:
    for log in outgoing:
        me.append(log, records(amount))


@contextmanager
def running(pipeline: Pipeline) -> Iterator[None]:
    """Run every service of a pipeline in a thread of its own while the body runs."""
    over = threading.Event()
    failed: list[BaseException] = []

    def go(name: str) -> None:
        try:
            run_service(pipeline.path, name, over.is_set)
        except BaseException as error:
            failed.append(error)
            raise

    names = pipeline.dataflow.participants
    threads = [threading.Thread(target=go, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(30)
    assert not failed
    assert not any(is_running(pipeline.path, name) for name in names)


def changed(path: Path) -> None:
    """Change a byte in the middle."""
    content = path.read_bytes()
    place = len(content) // 2
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])


def leave_behind(pipeline: Pipeline, *sent: int, received_count: int = 0) -> None:
    """Let the services of a ``line`` take part one after the other, and leave: entries with `sent`,
    the first `received_count` of which are received."""
    with join("mint", pipeline=pipeline.path, state=(state := Account(balance=TOTAL))) as mint:
        for amount in sent:
            state.balance -= amount
            mint.append("coins", records(amount))
    with join("till", pipeline=pipeline.path, state=(got := Account())) as till:
        if received_count:
            for _, table in till:
                got.balance += sum(table["amount"].to_pylist())
                got.received_count += table.num_rows
                if got.received_count >= received_count:
                    break


if __name__ == "__main__":
    stop = Path(sys.argv[3] if len(sys.argv) > 3 else sys.argv[1]) / STOP
    run_service(locate(sys.argv[1]), sys.argv[2], stop.exists)
