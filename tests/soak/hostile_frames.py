"""Hostile streams at every place where one can come: what is refused there, and how.

Each place is the real thing (links, lines, hosts, coordinator) on a transport in memory. An input
is answered by an error that says why, which closes the connection, or by legal frames; everything
else is raised as ``Found``.
"""

import asyncio
import copy
from collections.abc import Awaitable, Callable
from typing import cast

import msgspec

from stillframe.errors import StillframeError, Unavailable
from stillframe.model import (
    Abandoned,
    Batch,
    Fragment,
    IncomingRecord,
    KeyedChange,
    KeyedRows,
    Marker,
    ProcessState,
    Snapshot,
    SnapshotId,
)
from stillframe.protocol import wire
from stillframe.protocol.handshake import Challenge, Connector, Hello, Listener, Proof, Welcome
from stillframe.protocol.recorder import Phase
from stillframe.protocol.stragglers import EndpointStatus, ProcessStatus, RecordingStatus
from stillframe.restore import Start
from stillframe.runtime import control
from stillframe.runtime.coordinator.coordinator import Coordinator
from stillframe.runtime.coordinator.membership import CoordinatorConfig, EpochStart
from stillframe.runtime.network.addresses import ANY_PORT
from stillframe.runtime.network.connection import Connection
from stillframe.runtime.process.handlers import HandlerHost
from stillframe.runtime.process.link import ConnectingLink
from stillframe.runtime.process.process_runtime import CoordinatorConnection, ProcessRuntime
from stillframe.store.history import HistoryEvent
from stillframe.store.manifest import SnapshotEntry
from stillframe.store.snapshot_directory import check_described
from stillframe.store.store import Store
from stillframe.store.tables import Tables
from tests.runtime.links import SECRET
from tests.soak.hostile_shop import MESSAGES
from tests.soak.hostile_trial import NONCE, SHOP, Trial, feed

SNAPSHOT = SnapshotId("A", 1)
MARKER = Marker(SNAPSHOT)
STATUS = ProcessStatus(
    is_busy=False,
    snapshots=(RecordingStatus(SNAPSHOT, Phase.RECORDING, ("B",), 0.5),),
    incoming={"B": EndpointStatus(is_connected=True, unhandled_bytes=7)},
    outgoing={"B": EndpointStatus(is_connected=True, unhandled_bytes=7, is_full=True)},
)
ROWS = KeyedRows(1, msgspec.msgpack.encode(["x"]), msgspec.msgpack.encode([{"amount": 1}]))
HUNG_UP = "the coordinator "
"""How the end of every trial at a process begins: there is no more to hear."""

Take = Callable[[Trial, bytes, int], Awaitable[str]]


async def stranger_at_process(trial: Trial, data: bytes, piece: int) -> str:
    """Before the handshake, at who listens for a channel."""
    link = trial.listener()
    trial.watch(link)
    feed(link, data, piece)
    return trial.end(link)


async def source_at_process(trial: Trial, data: bytes, piece: int) -> str:
    """After the handshake, at the target of a channel."""
    link = trial.listener()
    trial.watch(link)
    introduce(trial, link, trial.hello("A", "B"))
    feed(link, data, piece)
    trial.settle()
    return trial.end(link)


async def stranger_at_source(trial: Trial, data: bytes, piece: int) -> str:
    """Before the handshake, at who connects a channel."""
    [outgoing] = (host := trial.host("A")).outgoing.values()
    link = ConnectingLink(host, outgoing, trial.credentials("A"), lambda channel: None)
    trial.watch(link)
    feed(link, data, piece)
    return trial.end(link)


async def target_at_source(trial: Trial, data: bytes, piece: int) -> str:
    """After the handshake, at the source of a channel that has sent something."""
    [outgoing] = (host := trial.host("A")).outgoing.values()
    link = ConnectingLink(host, outgoing, trial.credentials("A"), lambda channel: None)
    trial.watch(link)
    listen_to(trial, link, "B")
    for message in MESSAGES:
        host.send("B", message)
        host.flush()
    feed(link, data, piece)
    trial.settle()
    return trial.end(link)


async def stranger_at_coordinator(trial: Trial, data: bytes, piece: int) -> str:
    """Before the handshake, at the coordinator."""
    coordinator = coordinator_of(trial)
    line = coordinator.membership._answer()
    trial.watch(line)
    feed(line, data, piece)
    await coordinator.close()
    return trial.end(line)


async def process_at_coordinator(trial: Trial, data: bytes, piece: int) -> str:
    """After the handshake, at the coordinator, which waits for the last part of a snapshot."""
    coordinator = coordinator_of(trial)
    line, other = coordinator.membership._answer(), coordinator.membership._answer()
    Trial.watch(helper := Trial(), other)
    introduce(helper, other, trial.hello("B", None))
    trial.watch(line)
    introduce(trial, line, trial.hello("A", None))
    for connection in (other, line):
        feed(connection, wire.encode_control(control.JoinRequest()), 2**20)
    result = coordinator.begin("A")
    feed(other, wire.encode_control(control.FragmentComplete(part("B"))), 2**20)
    question = coordinator.monitor._request(coordinator.under_way)
    feed(line, data, piece)
    for under_way in coordinator.monitor._close(question, coordinator.under_way):
        assert all(under_way.sentences(coordinator.now()))
    if coordinator._writing:
        await asyncio.gather(*coordinator._writing)
    reached = "legal"
    if result.done():
        outcome = result.result()
        reached = "published"
        if isinstance(outcome, Abandoned):
            reached = f"abandoned: {outcome.reason.name}"
    await coordinator.close()
    return trial.end(line, reached)


async def stranger_at_line(trial: Trial, data: bytes, piece: int) -> str:
    """Before the handshake, at a process that looks for its coordinator."""
    line = CoordinatorConnection(trial.credentials("A"), control.JoinRequest)
    trial.watch(line)
    feed(line, data, piece)
    return trial.end(line)


class AloneMember(ProcessRuntime):
    """A process to which no coordinator comes back."""

    async def _rejoin(self) -> control.Rejoined:
        raise Unavailable(HUNG_UP)


async def coordinator_at_process(trial: Trial, data: bytes, piece: int) -> str:
    """After the handshake, at a process that does what its coordinator says."""
    line = CoordinatorConnection(trial.credentials("A"), control.JoinRequest)
    trial.watch(line)
    listen_to(trial, line, None)
    member = AloneMember(trial.credentials("A"), ANY_PORT, ANY_PORT)
    member._connection = line
    feed(line, data, piece)
    line.received.put_nowait(None)
    try:
        await obey(trial, member)
    except StillframeError as error:
        trial.failure = error
    if isinstance(trial.failure, Unavailable) and HUNG_UP in str(trial.failure):
        trial.failure = None
    return trial.end(line)


async def obey(trial: Trial, member: ProcessRuntime) -> None:
    """Begin where the coordinator says, and do what it says then, until it has said all."""
    setup = await member._expect(control.Setup)
    subject = copy.copy(trial.topology.processes["A"])
    host = member.host(HandlerHost, trial.topology, subject, setup.start)
    host.loop = cast(asyncio.AbstractEventLoop, trial.scheduler)
    host.begin(is_fresh=setup.start is None)
    _ = await member._expect(control.Addresses)
    await member._follow_coordinator(host)
    trial.settle()
    if member.failed.done():
        trial.fail(member.failed.result())


def introduce(trial: Trial, connection: Connection, hello: Hello) -> None:
    """Go through the handshake with who listens."""
    connector = Connector(hello, SECRET)
    feed(connection, wire.encode_greeting(hello), 2**20)
    [challenge] = trial.wire.greetings()
    feed(connection, wire.encode_greeting(cast(Proof, connector.receive(challenge))), 2**20)
    trial.wire.written.clear()
    assert trial.refusal is None, trial.refusal


def listen_to(trial: Trial, connection: Connection, target: str | None) -> None:
    """Go through the handshake with who connects."""
    [hello] = trial.wire.greetings()
    listener = Listener(
        secret=SECRET,
        epoch=1,
        topology_hash=trial.topology.description.hash,
        target=target,
        sources=("A",),
        nonce=NONCE,
    )
    feed(connection, wire.encode_greeting(cast(Challenge, listener.receive(hello))), 2**20)
    [proof] = trial.wire.greetings()
    assert listener.receive(proof) == "A"
    feed(connection, wire.encode_greeting(Welcome(0)), 2**20)
    assert trial.refusal is None, trial.refusal


class QuietStore:
    """A store that goes all the way to the disk, and not onto it."""

    epoch = 1
    restored_from = None
    is_remote = False

    def __init__(self, trial: Trial) -> None:
        self.description = trial.topology.description
        self.history = QuietHistory()
        self._tables = Tables(trial.topology.description)
        self._trial = trial

    def publish(self, snapshot: Snapshot) -> SnapshotEntry:
        """Check and convert a snapshot as a store does."""
        try:
            check_described(snapshot, self.description)
            snapshot.state.check_books()
            self._tables.of(snapshot.id, self._tables.split(snapshot.id, snapshot.state))
        except StillframeError:
            raise
        except Exception as error:
            self._trial.found = error
            raise
        return cast(SnapshotEntry, msgspec.convert({"is_restore_point": True}, _QuietEntry))


class QuietHistory:
    """A history that forgets."""

    def append(self, what: HistoryEvent) -> None:
        """Forget what happened."""


class _QuietEntry(msgspec.Struct):
    is_restore_point: bool


def coordinator_of(trial: Trial) -> Coordinator:
    """Return a coordinator of the trial's system."""

    def check(state: ProcessState) -> None:
        try:
            trial.topology.check_state(state)
        except StillframeError:
            raise
        except Exception as error:
            trial.found = error
            raise

    return Coordinator(
        cast(Store, QuietStore(trial)),
        CoordinatorConfig(timeout_s=30.0),
        EpochStart(
            emit=lambda event: None, departed=lambda process, failure: None, epoch=1, secret=SECRET
        ),
        check=check,
    )


def part(process: str) -> Fragment:
    """Return a process's part of the snapshot."""
    topology = SHOP
    other = "B" if process == "A" else "A"
    state = ProcessState(
        process, "Keeper", topology.codecs[process].capture(topology.processes[process])
    )
    batches = (Batch.of(1, [msgspec.msgpack.encode(message) for message in MESSAGES]),)
    incoming = (IncomingRecord(other, 0, batches),)
    return Fragment(SNAPSHOT, state, {other: len(MESSAGES)}, incoming)


def part_with_changes(process: str) -> Fragment:
    """Return the same with the keyed field as changes."""
    change = KeyedChange((ROWS,), 1, msgspec.msgpack.encode(["y"]))
    rest = msgspec.msgpack.encode({"count": 0, "texts": []})
    state = ProcessState(process, "Keeper", rest, None, {"rows": change})
    return msgspec.structs.replace(part(process), state=state)


def start_of(process: str) -> Start:
    """Return where a process begins after a restore."""
    whole = part(process)
    return Start(whole.state.kind, whole.state.encoded, whole.sent_counts, whole.incoming)
