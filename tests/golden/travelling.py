"""One example of everything that is encoded, on the wire or in a file of JSON, and its codec.

When a class is renamed its name changes here; the bytes in ``wire.json`` do not.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from stillframe.analytics.assembly import _Mark
from stillframe.analytics.compaction import CatalogFile, CatalogMember, Compacted, TablePart
from stillframe.eventlog.reader import SegmentHeader
from stillframe.json_values import plain
from stillframe.migration import Change
from stillframe.model import (
    Abandoned,
    Batch,
    Channel,
    Fragment,
    IncomingRecord,
    KeyedChange,
    KeyedRows,
    Marker,
    MarkerTimes,
    ProcessState,
    Reason,
    SnapshotId,
)
from stillframe.pipeline.coordinator import LastSnapshot
from stillframe.pipeline.dataflow import Dataflow, Log, Topic
from stillframe.pipeline.ledger import Entry, LedgerTopic, StateFile
from stillframe.pipeline.log import Barrier, DataFile, LogEntry, Rows
from stillframe.pipeline.metadata import Metadata as PipelineMetadata
from stillframe.pipeline.metadata import Segment
from stillframe.pipeline.participant_logs import ReportedPositions
from stillframe.pipeline.pending_snapshot import (
    Outcome,
    ParticipantFragment,
    QueryState,
    Request,
    ServiceState,
    SystemCut,
)
from stillframe.pipeline.snapshot_manifest import ChannelCut, PinnedFile, TopicCut
from stillframe.pipeline.snapshot_manifest import Manifest as PipelineManifest
from stillframe.pipeline.stopped import ServiceRecord
from stillframe.pipeline.topics import TopicRecord
from stillframe.protocol import handshake, stragglers, wire
from stillframe.protocol.aligner import Mode
from stillframe.protocol.recorder import Phase
from stillframe.restore import Start
from stillframe.runtime import control, events
from stillframe.runtime.coordinator.snapshot_monitor import SnapshotTimeline
from stillframe.runtime.network.addresses import Address
from stillframe.runtime.os_process import OsProcess
from stillframe.runtime.run_file import RunFile
from stillframe.runtime.supervisor import admin_socket
from stillframe.store import history
from stillframe.store.fragments import FragmentManifest, FragmentTopology, Received
from stillframe.store.manifest import FileRecord, Head, Manifest, SnapshotEntry
from stillframe.store.sealed_json import read_sealed, seal
from stillframe.topology import Column, Description, KeyedColumns
from stillframe.trace import Event, MarkerStep, MessageId, Step


class Case(NamedTuple):
    """An example, and what makes bytes of it and an equal object of these."""

    example: Any
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


P1_17, P2_18 = SnapshotId("P1", 17), SnapshotId("P2", 18)
CHANNEL = Channel("P1", "P2")
BATCH = Batch.of(41, [b"\x01", b"\xa1x"])
OS_PROCESS = OsProcess(4711, 103032, "the boot")
HASH = "0123456789abcdef" * 4
STATE = ProcessState(
    "P1",
    "Account",
    b"\x81\xa7balance\x05",
    P1_17,
    {"accounts": KeyedChange((KeyedRows(1, b"\x91\xa1a", b"\x91\x07"),), 1, b"\x91\xa1b")},
)
INCOMING = (IncomingRecord("P2", 40, (BATCH,)),)
TIMES = MarkerTimes(1000.5, "P2", {"P2": 0.25})
FRAGMENT = Fragment(P2_18, STATE, {"P2": 7}, INCOMING, 0.125, 0.5, TIMES)
STATUS = stragglers.ProcessStatus(
    True,
    (stragglers.RecordingStatus(P1_17, Phase.RECORDING, ("P2",), 1.5),),
    {"P2": stragglers.EndpointStatus(True, 300, True, 40)},
    {"P2": stragglers.EndpointStatus(False, 200, False, 42)},
    {"money": 5, "energy": 0.5},
    12.5,
)
UNDER_WAY = stragglers.PendingSnapshot(
    P1_17,
    1000.25,
    1010.25,
    ("P2",),
    (stragglers.Straggler("P2", stragglers.Cause.HELD, 1001.5, (CHANNEL,), 300, ("P1",)),),
)
WAVE = SnapshotTimeline(P1_17, 1000.25, 1000.75, True, {"P1": TIMES}, {"P1": 1000.5}, 3)
ENTRY = SnapshotEntry(
    id=P1_17,
    sequence=5,
    epoch=3,
    initiated_at=1000.25,
    completed_at=1000.5,
    published_at=1000.75,
    pause_s=0.125,
    capture_s=0.25,
    excluded={"P3": P2_18},
    is_restore_point=True,
    savepoints=("gold",),
    bases=(P2_18,),
    chain_length=2,
    process_count=3,
    channel_count=2,
    message_count=1,
    bytes=4096,
    directory=Path("/store/snapshots/P1-17"),
)
ABANDONED = Abandoned(P1_17, Reason.DEADLINE, ("P2",), "it took too long")
DESCRIPTION = Description(
    processes={"P1": "Account", "P2": "Account"},
    channels=(CHANNEL,),
    states={"Account": (Column("balance", "int"), Column("accounts", "keyed"))},
    messages={"Transfer": (Column("amount", "int"),)},
    accepts={"P1": (), "P2": ("Transfer",)},
    shapes={"Account": "a shape"},
    keyed={"Account": {"accounts": KeyedColumns("string", "map", (Column("name", "string"),))}},
)
FILES = (FileRecord("processes.parquet", 300, HASH),)
DATAFLOW = Dataflow(
    queries=("audit",),
    services={"till": "Till"},
    logs=(
        Log(
            name="sales",
            source="till",
            targets=("audit",),
            schema="a schema",
            partition_count=2,
            key=("amount",),
        ),
    ),
)
WITH_TOPICS = Dataflow(
    queries=("audit",),
    services={"till": "Till"},
    logs=(),
    topics=(
        Topic(
            name="sales",
            topic="shop-sales",
            servers="kafka:9092",
            source="till",
            targets=("audit",),
            has_unique_keys=True,
        ),
    ),
)
SEGMENTS: dict[str, tuple[Segment, ...]] = {"sales": (Segment(1, 0), Segment(2, 5))}
BATCHES: dict[str, tuple[Segment, ...]] = {"audit": (Segment(1, 0),)}
PIPELINE_FRAGMENT = ParticipantFragment(
    snapshot=P1_17,
    participant="till",
    recorded_at=1000.5,
    positions={"orders": 3},
    barriers={"sales": 7},
    service=ServiceState("Till", b"\x81\xa4sold\x05"),
    query=QueryState(4),
    system="P1",
    failure="it could not",
)
SYSTEM_CUT = SystemCut(
    name="P1", store="/store", snapshot=P2_18, outcome=Outcome.ABANDONED, detail="it died"
)

FRAMES: dict[str, tuple[Any, bytes | bytearray]] = {
    "hello to a process": (handshake.Hello("P1", "P2", 3, HASH, b"0123456789abcdef"), b""),
    "hello to the coordinator": (handshake.Hello("P1", None, 0, HASH, b"0123456789abcdef"), b""),
    "challenge": (handshake.Challenge(b"0123456789abcdef", b"a proof"), b""),
    "proof": (handshake.Proof(b"a proof"), b""),
    "welcome": (handshake.Welcome(12), b""),
    "declined": (handshake.Declined("no"), b""),
    "messages": (wire.Messages(6, BATCH), wire.encode_messages(6, 41, [1, "x"])),
    "messages with a marker": (
        wire.Messages(6, BATCH, Marker(P1_17)),
        wire.encode_messages(6, 41, [1, "x"], Marker(P1_17)),
    ),
    "marker": (wire.Marked(7, Marker(P1_17)), wire.encode_marker(7, Marker(P1_17))),
    "acknowledgement": (wire.Ack(8), wire.encode_ack(8)),
    "control": (wire.Control(b"\x05"), wire.encode_control(5)),
}
"""Frames, and how they are encoded if they are no greetings."""

FROM_PROCESS: dict[str, control.FromProcess] = {
    "is new": control.JoinRequest(),
    "comes back": control.RejoinRequest(is_connected=True),
    "listens": control.ListeningOn(Address("127.0.0.1", 8641)),
    "is connected": control.Ready(),
    "rows": control.FragmentRows(P1_17, "accounts", KeyedRows(1, b"\x91\xa1a", b"\x91\x07")),
    "bytes of a state": control.FragmentChunk(P1_17, b"\x01\x02"),
    "fragment": control.FragmentComplete(FRAGMENT),
    "could not record": control.SnapshotDeclined(P1_17, "no"),
    "wants a snapshot": control.SnapshotRequested(),
    "answers": control.StatusReply(9, STATUS),
    "trouble with a connection": control.ConnectionWarning("a frame was cut short"),
    "trouble with the event log": control.OutputFailed("the disk is full"),
    "fails": control.Failure("KeyError: 'x'", "Traceback"),
}
TO_PROCESS: dict[str, control.ToProcess] = {
    "set up": control.Setup(
        3, "a run", Start("Account", b"\x80", {"P2": 7}, INCOMING, P1_17), 0.005
    ),
    "taken back": control.Rejoined(18, P1_17, OS_PROCESS, 0.005),
    "over": control.Dismissed("this epoch is over"),
    "addresses": control.Addresses({"P1": Address("127.0.0.1", 8641)}),
    "initiate": control.Initiate(P1_17),
    "abandon": control.Abandon(P1_17),
    "ask": control.StatusRequest(9, (P1_17, P2_18), has_quantities=True),
    "published": control.Published(P1_17),
    "in the store": control.SnapshotDurable(P1_17),
}
REQUESTS: dict[str, admin_socket.Request] = {
    "take": admin_socket.TriggerSnapshot("P1"),
    "go back": admin_socket.RestoreSnapshot(P1_17),
    "save": admin_socket.CreateSavepoint(P1_17, "gold"),
    "drop": admin_socket.DropSnapshot("gold"),
    "look": admin_socket.GetPendingSnapshots(),
    "observe": admin_socket.GetStatus(1000.5),
}
ANSWERS: dict[str, admin_socket.Reply] = {
    "observed": admin_socket.SystemStatus(3, True, {"P1": STATUS}, (UNDER_WAY,), (WAVE,), 1001.5),
    "done": admin_socket.Done(3, "it is needed", ENTRY, ABANDONED, (UNDER_WAY,), 1001.5),
    "failed": admin_socket.Failed(
        "there is no such snapshot", True, "/store", "P1", "P1-17", "list them"
    ),
}
HISTORY: dict[str, history.HistoryEvent] = {
    "epoch": history.EpochBegan(3, P1_17),
    "taken over": history.TakenOver(3),
    "death": history.ProcessDied("P1", "it was ended by SIGKILL"),
    "begun": history.SnapshotBegan(P1_17),
    "published": history.SnapshotPublished(P1_17, is_removal_noted=True),
    "removed": history.SnapshotRemoved(P1_17),
    "abandoned": history.SnapshotAbandoned(P1_17, "DEADLINE", ("P2",), "it took too long"),
    "continued": history.Rollover(
        17, (P1_17,), history.EventCounts(9, 8, {"DEADLINE": 1}, 1, 2, 3, {"P1": 1})
    ),
}
STEPS: dict[str, Step] = {
    "event": Event(
        "P1", "pays", "receive", (MessageId(CHANNEL, 4),), (MessageId(CHANNEL, 5),), 1.5, {"a": 1}
    ),
    "marker": MarkerStep("P1", P1_17, "P2", True, ("P2",), 1.5),
}
TOLD: dict[str, events.Event] = {
    "runs": events.SystemRunning(3, 1.5, P1_17, 0.5, 0.25, 0.75),
    "epoch": events.EpochBegan(3, P1_17),
    "not shared": events.NotShared("it has 3 threads"),
    "code changed": events.CodeChanged(P1_17, (Change("class Account", "rate is new", True),)),
    "taken over": events.TakenOver(3, 1.5),
    "ended": events.OrphansKilled(("P1",), "one is missing"),
    "waits": events.AwaitingProcesses(("P1",), ("P2",)),
    "published": events.SnapshotPublished(ENTRY),
    "abandoned": events.SnapshotAbandoned(ABANDONED, P2_18),
    "skipped": events.SnapshotSkipped(P1_17),
    "death": events.ProcessDied("P1", "it was ended by SIGKILL", "Traceback"),
    "trouble with the store": events.StoreUnavailable("the disk is full"),
    "trouble with a connection": events.ConnectionWarning("a frame was cut short"),
    "trouble with the event log": events.OutputFailed("the disk is full"),
}
"""What ``run --json`` writes."""

SEALED: dict[str, msgspec.Struct] = {
    "store.json": Head(
        reference="examples.bank:bank",
        description=DESCRIPTION,
        epoch=3,
        restored_from=P1_17,
        former=(DESCRIPTION,),
        savepoints={"gold": P1_17},
    ),
    "manifest.json": Manifest(
        snapshot=P1_17,
        sequence=5,
        epoch=3,
        initiated_at=1000.25,
        completed_at=1000.5,
        published_at=1000.75,
        pause_s=0.125,
        capture_s=0.25,
        excluded={"P3": P2_18},
        is_restore_point=True,
        bases={"P1": P2_18},
        process_count=3,
        channel_count=2,
        message_count=1,
        topology=HASH,
        files=FILES,
    ),
    "manifest.json of a fragment": FragmentManifest(
        snapshot=P1_17,
        process="P1",
        epoch=3,
        run="a run",
        began_from=P2_18,
        topology=HASH,
        moment_s=12.5,
        recorded_at=1000.25,
        completed_at=1000.5,
        pause_s=0.125,
        capture_s=0.25,
        base=P2_18,
        sent={"P2": 7},
        received={"P2": Received(40, 2)},
        files=FILES,
    ),
    "topologies of fragments": FragmentTopology(
        reference="examples.bank:bank", description=DESCRIPTION
    ),
    "assembled.json": _Mark(epoch=3, runs={3: "a run"}),
    "tables.json": Compacted(
        version=2,
        snapshots={"P1-17": CatalogMember(5, 1000.75)},
        columns={"processes": (Column("balance", "int"),)},
        parts=(TablePart(1, (P1_17,), {"processes": (CatalogFile("a.parquet", 3, 300, HASH),)}),),
        index=CatalogFile("b.parquet", 1, 100, HASH),
    ),
    "pipeline.json": PipelineMetadata(
        name="shop",
        dataflow=DATAFLOW,
        epoch=2,
        restored_from=P1_17,
        segments=SEGMENTS,
        batches=BATCHES,
        starts={"audit": {"sales": 3}, "till": {}},
    ),
    "last-snapshot.json": LastSnapshot(last=17),
    "request.json": Request(
        snapshot=P1_17,
        epoch=2,
        mode=Mode.AT_LEAST_ONCE,
        name="gold",
        initiated_at=1000.25,
        deadline_at=1060.25,
    ),
    "fragment of a participant": PIPELINE_FRAGMENT,
    "fragment of a system": SYSTEM_CUT,
    "manifest.json of a pipeline": PipelineManifest(
        snapshot=P1_17,
        name="gold",
        epoch=2,
        mode=Mode.UNALIGNED,
        initiated_at=1000.25,
        completed_at=1000.5,
        published_at=1000.75,
        dataflow=DATAFLOW,
        segments=SEGMENTS,
        batches=BATCHES,
        fragments=(PIPELINE_FRAGMENT,),
        systems=(SYSTEM_CUT,),
        channels=(ChannelCut("sales", "audit", 3, 7, (5, 6), (8, 9)),),
        files=(PinnedFile("audit", "commits/4", 29, HASH, 12345, 1000000001),),
    ),
    "pipeline.json with topics": PipelineMetadata(
        name="shop",
        dataflow=WITH_TOPICS,
        epoch=2,
        restored_from=P1_17,
        segments=SEGMENTS,
        batches=BATCHES,
        starts={"audit": {"sales": 3}, "till": {}},
    ),
    "manifest.json of a pipeline with topics": PipelineManifest(
        snapshot=P1_17,
        name="gold",
        epoch=2,
        mode=Mode.RETAINED,
        initiated_at=1000.25,
        completed_at=1000.5,
        published_at=1000.75,
        dataflow=WITH_TOPICS,
        segments=SEGMENTS,
        batches=BATCHES,
        fragments=(
            msgspec.structs.replace(
                PIPELINE_FRAGMENT, service=ServiceState("Till", b"\x81\xa4sold\x05", 6)
            ),
        ),
        systems=(SYSTEM_CUT,),
        channels=(ChannelCut("sales", "audit", 3, 7, (5, 6), (8, 9)),),
        files=(PinnedFile("audit", "commits/4", 29, HASH, 12345, 1000000001),),
        topics=(TopicCut("sales", {"audit": {0: 5, 1: 6}}, {0: 8, 1: 9}, "an id"),),
        staleness_s=0.5,
        data_age_s=1.5,
    ),
    "topic": TopicRecord(writer="0123456789abcdef", first_offsets={0: 5, 1: 6}),
    "topic of a ledger": LedgerTopic(topic="stillframe-shop-till-0123456789abcdef"),
    "service with topics": ServiceRecord(
        epoch=2,
        positions={"orders": 3},
        state=ServiceState("Till", b"\x81\xa4sold\x05", 6),
        topic_positions={"orders": {0: 5, 1: 6}},
    ),
    "service": ServiceRecord(
        epoch=2, positions={"orders": 3}, state=ServiceState("Till", b"\x81\xa4sold\x05")
    ),
    "positions of a service": ReportedPositions(positions={"orders": 3}),
    "records in a log": LogEntry(
        number=7,
        epoch=2,
        offsets=(8, 9),
        content=Rows((DataFile("part-0.parquet", 1, 3, 305419896),), 4),
    ),
    "barrier in a log": LogEntry(
        number=8, epoch=2, offsets=(8, 12), content=Barrier(P1_17, Mode.ALIGNED, 4)
    ),
}
LEDGER = Entry(
    epoch=2,
    version=6,
    recorded_at=1000.5,
    positions={"orders": {0: 5, 1: 6}},
    kind="Till",
    encoded=b"\x81\xa4sold\x05",
    file=StateFile("till/epoch-2/6-0123", 6, HASH),
)
PLAIN: dict[str, msgspec.Struct] = {
    "running.json": RunFile(
        supervisor=OS_PROCESS,
        directory="65024:4711",
        epoch=3,
        topology_hash=HASH,
        coordinator=Address("127.0.0.1", 8640),
        has_tls=True,
        secret=b"a secret",
        commands="/tmp/stillframe-x/commands",
        children={"P1": OS_PROCESS},
        pipeline="/shop.pipeline",
        snapshot_s=10.0,
    ),
    "span of an event log": SegmentHeader(
        process="P1", epoch=3, number=2, event_count=9, sent={"P2": 7}, received={}, lost_count=1
    ),
}


def cases() -> dict[str, Case]:
    """Return every example by a name that no class has."""
    found: dict[str, Case] = {}
    for name, (frame, encoded) in FRAMES.items():
        encode = wire.encode_greeting if not encoded else _constant(bytes(encoded))
        found[f"frame, {name}"] = Case(frame, encode, _decode_frame)
    for name, message in FROM_PROCESS.items():
        found[f"from a process, {name}"] = _packed(message, control.FromProcess)
    for name, told in TO_PROCESS.items():
        found[f"to a process, {name}"] = _packed(told, control.ToProcess)
    for name, request in REQUESTS.items():
        found[f"command, {name}"] = Case(
            request, admin_socket._encode, admin_socket._decode_request
        )
    for name, answer in ANSWERS.items():
        found[f"answer, {name}"] = Case(answer, admin_socket._encode, admin_socket._decode_reply)
    for name, what in HISTORY.items():
        line = history.HistoryRecord(1000.5, what)
        found[f"history, {name}"] = Case(line, _encode_line, _decode_line)
    for name, step in STEPS.items():
        found[f"trace, {name}"] = _json(step, Step)
    for name, event in TOLD.items():
        found[f"run --json, {name}"] = Case(event, _encode_plain, lambda encoded, e=event: e)  # type: ignore[misc]
    for name, content in SEALED.items():
        found[f"sealed, {name}"] = Case(content, seal, _unsealed(type(content)))
    found["entry of a ledger"] = _packed(LEDGER, Entry)
    for name, struct in PLAIN.items():
        found[f"file, {name}"] = _json(struct, type(struct))
    return found


def text_of(encoded: bytes) -> str:
    """Return bytes as a text with one character for each, so that names can be read."""
    return encoded.decode("latin-1")


def bytes_of(text: str) -> bytes:
    """Return the bytes that ``text_of`` made the text of."""
    return text.encode("latin-1")


def _packed(example: Any, union: Any) -> Case:
    return Case(
        example, msgspec.msgpack.encode, lambda encoded: msgspec.msgpack.decode(encoded, type=union)
    )


def _json(example: Any, union: Any) -> Case:
    return Case(
        example, msgspec.json.encode, lambda encoded: msgspec.json.decode(encoded, type=union)
    )


def _constant(encoded: bytes) -> Callable[[Any], bytes]:
    return lambda example: encoded


def _decode_frame(encoded: bytes) -> wire.Frame:
    reader = wire.FrameReader()
    if encoded[4] != wire.Kind.GREETING:
        reader.open(*wire.Kind, frame_bytes_max=wire.FRAME_BYTES_MAX)
    reader.writable()[: len(encoded)] = encoded
    reader.written(len(encoded))
    frame = reader.next_frame()
    assert frame is not None
    return frame


def _encode_line(line: history.HistoryRecord) -> bytes:
    return history.line_of(line.what, line.at)


def _decode_line(encoded: bytes) -> object:
    (line,) = history.parse_lines(Path("history.ndjson"), encoded.splitlines())
    return line


def _encode_plain(event: events.Event) -> bytes:
    return msgspec.json.encode(plain(event))


def _unsealed(kind: type[msgspec.Struct]) -> Callable[[bytes], Any]:
    def read(encoded: bytes) -> Any:
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "sealed.json"
            path.write_bytes(encoded)
            return read_sealed(path, kind)

    return read
