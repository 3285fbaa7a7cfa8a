"""Streams of hostile frames: what is valid at each place, changed so that some shape is left."""

import random
from typing import Any

import msgspec

from stillframe.model import ARRAY32, Batch, Marker, SnapshotId
from stillframe.protocol import wire
from stillframe.protocol.handshake import Challenge, Declined, Hello, Proof, Welcome
from stillframe.runtime import control
from stillframe.runtime.network.addresses import LOOPBACK, Address
from stillframe.runtime.os_process import current_process
from tests.soak import hostile_commands
from tests.soak import hostile_frames as frames
from tests.soak.hostile_shop import MESSAGES, shop
from tests.soak.hostile_trial import NONCE
from tests.soak.mutation import DEPTH, mutated, mutated_value

HEAD_BYTES = 5
ADDRESS = Address(LOOPBACK, 4242)
PIECES = (1, 3, 64, 2**20)
_GREETING_EXTRA = 6
_BATCH_EXTRA = 20

_HELLO = Hello("A", "B", 1, shop().description.hash, NONCE)
GREETINGS = [
    wire.encode_greeting(greeting)
    for greeting in (
        _HELLO,
        msgspec.structs.replace(_HELLO, target=None),
        Challenge(NONCE, b"p" * 32),
        Proof(b"p" * 32),
        Welcome(0),
        Declined("no"),
    )
]
# A valid answer to who connects is a proof for a number that was just drawn: no fixed greeting is
# legal there, except for one whose end may still come.
GREETINGS.append(GREETINGS[0][:-1])
CHANNEL = [
    bytes(wire.encode_messages(1, 1, [*MESSAGES])),
    bytes(wire.encode_messages(1, 1, [MESSAGES[0]], frames.MARKER)),
    wire.encode_marker(1, frames.MARKER),
    bytes(wire.encode_messages(2, len(MESSAGES) + 1, [MESSAGES[1]])),
    wire.encode_marker(2, Marker(SnapshotId("B", 2))),
]
ACKS = [wire.encode_ack(number) for number in range(4)]
TO_COORDINATOR = [
    wire.encode_control(message)
    for message in (
        control.FragmentComplete(frames.part("A")),
        control.FragmentComplete(frames.part_with_changes("A")),
        control.FragmentRows(frames.SNAPSHOT, "rows", frames.ROWS),
        control.FragmentChunk(frames.SNAPSHOT, b"\x83\xa5count\x07"),
        control.ListeningOn(ADDRESS),
        control.Ready(),
        control.SnapshotDeclined(frames.SNAPSHOT, "why"),
        control.SnapshotRequested(),
        control.ConnectionWarning("some"),
        control.Failure("it", "story"),
        control.JoinRequest(),
        control.RejoinRequest(is_connected=True),
        control.StatusReply(1, frames.STATUS),
    )
]
_BEGINNINGS = [
    wire.encode_control(control.Setup(1, "run", start, 0.0)) + wire.encode_control(addresses)
    for addresses in [control.Addresses(dict.fromkeys("AB", ADDRESS))]
    for start in (None, frames.start_of("A"))
]
FROM_COORDINATOR = [
    *_BEGINNINGS,
    *(
        _BEGINNINGS[0] + wire.encode_control(message)
        for message in (
            control.Initiate(frames.SNAPSHOT),
            control.Abandon(frames.SNAPSHOT),
            control.Published(frames.SNAPSHOT),
            control.SnapshotDurable(frames.SNAPSHOT),
            control.SnapshotDurable(None),
            control.StatusRequest(1, (frames.SNAPSHOT,)),
            control.Dismissed("why"),
            control.Rejoined(1, frames.SNAPSHOT, current_process(), 0.0),
        )
    ),
]

PLACES: dict[str, tuple[frames.Take, list[bytes]]] = {
    "a stranger at a process": (frames.stranger_at_process, GREETINGS),
    "a source at its target": (frames.source_at_process, CHANNEL),
    "a stranger at a source": (frames.stranger_at_source, GREETINGS),
    "a target at its source": (frames.target_at_source, ACKS),
    "a stranger at the coordinator": (frames.stranger_at_coordinator, GREETINGS),
    "a process at the coordinator": (frames.process_at_coordinator, TO_COORDINATOR),
    "a stranger at a line": (frames.stranger_at_line, GREETINGS),
    "the coordinator at a process": (frames.coordinator_at_process, FROM_COORDINATOR),
    hostile_commands.PLACE: (hostile_commands.anybody_at_commands, hostile_commands.LINES),
}
"""Where frames come: what happens with them there, and what is valid there."""

_EVERYTHING = [*GREETINGS, *CHANNEL, *ACKS, *TO_COORDINATOR]


def giants() -> list[bytes]:
    """Return frames that are nested deep, or hold much, or say that they do."""
    deep = b"\x91" * DEPTH + b"\xc0"
    found = [
        frame(wire.Kind.CONTROL, deep),
        frame(wire.Kind.MARKER, bytes(8) + deep),
        frame(wire.Kind.MESSAGES, batch_head(1, 1, 1) + deep),
        bytes(wire.encode_messages(1, 1, [msgspec.Raw(b"\x92\xa4Wide" + deep)])),
        wire.encode_control(control.ConnectionWarning("x" * 10_000_000)),
        wire.encode_control(control.ListeningOn(Address("x" * 300, 2**63))),
        wire.encode_control(control.FragmentComplete(_with_name("A" * 10_000_000))),
        wire.encode_marker(1, Marker(SnapshotId("A" * 10_000_000, 2**63))),
        frame(wire.Kind.MESSAGES, batch_head(1, 1, 2**32 - 1)),
        frame(wire.Kind.MESSAGES, batch_head(2**64 - 1, 2**64 - 1, 1) + b"\xc0"),
    ]
    for kind in wire.Kind:
        found += [bytes([*size.to_bytes(4, "big"), kind]) for size in (0, 2**24, 2**30, 2**32 - 1)]
    return found


def _with_name(name: str) -> Any:
    fragment = frames.part("A")
    return msgspec.structs.replace(
        fragment, sent_counts={name: 1}, snapshot=SnapshotId(name, 2**63 - 1)
    )


def batch_head(sequence: int, first: int, count: int) -> bytes:
    """Return the body of a MESSAGES frame up to its messages."""
    return b"".join(
        (
            sequence.to_bytes(8, "big"),
            first.to_bytes(8, "big"),
            count.to_bytes(4, "big"),
            bytes([ARRAY32]),
            count.to_bytes(4, "big"),
        )
    )


def frame(kind: int, body: bytes) -> bytes:
    """Return a frame whose length is right."""
    return (len(body) + 1).to_bytes(4, "big") + bytes([kind]) + body


def hostile_stream(chance: random.Random, place: str, seeds: list[bytes]) -> bytes:
    """Return a stream for a place: valid frames of it, with a hostile one among them."""
    if place == hostile_commands.PLACE:
        return hostile_commands.hostile_line(chance, seeds)
    if chance.random() < 0.1:
        seeds = _EVERYTHING
    hostile = _hostile_frame(chance, seeds)
    before = chance.choice(seeds) if chance.random() < 0.2 else b""
    after = chance.choice(seeds) if chance.random() < 0.2 else b""
    return before + hostile + after


def _hostile_frame(chance: random.Random, seeds: list[bytes]) -> bytes:
    way = chance.random()
    if way < 0.25:
        return mutated(chance, seeds)
    valid = chance.choice(seeds)
    start = _last_frame(valid)
    if len(valid) < start + HEAD_BYTES:
        return mutated(chance, seeds)
    kind, body = valid[start + 4], valid[start + HEAD_BYTES :]
    if way < 0.5:
        return valid[:start] + frame(kind, mutated(chance, [body]))
    try:
        return valid[:start] + frame(kind, _changed_body(chance, kind, body))
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError, OverflowError):
        return valid[:start] + frame(kind, mutated(chance, [body]))  # it was no frame any more


def _last_frame(stream: bytes) -> int:
    """Return where the last frame of a stream begins."""
    start = following = 0
    while following + HEAD_BYTES <= len(stream):
        start = following
        following += 4 + int.from_bytes(stream[start : start + 4], "big")
    return start


def _changed_body(chance: random.Random, kind: int, body: bytes) -> bytes:
    """Return the body with a value in it changed, and the sizes around it right."""
    encode, decode = msgspec.msgpack.encode, msgspec.msgpack.decode
    match kind:
        case wire.Kind.GREETING:
            extra = _GREETING_EXTRA
            return body[:extra] + encode(mutated_value(chance, decode(body[extra:])))
        case wire.Kind.CONTROL:
            return encode(mutated_value(chance, _opened(chance, decode(body))))
        case wire.Kind.MARKER:
            return body[:8] + encode(mutated_value(chance, decode(body[8:])))
        case wire.Kind.MESSAGES:
            messages = mutated_value(chance, decode(body[_BATCH_EXTRA:]))
            raw = [encode(message) for message in messages]
            first = int.from_bytes(body[8:16], "big")
            return body[:16] + len(raw).to_bytes(4, "big") + Batch.of(first, raw).encoded
        case wire.Kind.MARKED_MESSAGES:
            size = int.from_bytes(body[:2], "big")
            marker = encode(mutated_value(chance, decode(body[2 : 2 + size])))
            return len(marker).to_bytes(2, "big") + marker + body[2 + size :]
        case _:
            return mutated(chance, [body])


def _opened(chance: random.Random, value: Any) -> Any:
    """Return a value in which something that is encoded within it has been changed, sometimes."""
    if isinstance(value, dict):
        return {key: _opened(chance, item) for key, item in value.items()}
    if isinstance(value, list):
        return [_opened(chance, item) for item in value]
    if isinstance(value, bytes) and chance.random() < 0.3:
        if chance.random() < 0.5:
            return mutated(chance, [value])
        return msgspec.msgpack.encode(mutated_value(chance, msgspec.msgpack.decode(value)))
    return value
