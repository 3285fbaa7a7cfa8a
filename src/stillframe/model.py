"""Values: ids, channels, markers, recorded states, snapshots. All are frozen and plain values.

Messages on a channel are numbered from 1. A process counts, per channel, how many it sent and how
many it received, and a snapshot holds these counts at the cut. So a snapshot can be checked without
a trace, by *channel accounting*: sent less received is what was in transit
(``GlobalState.check_books``). On channels that keep order, *the books balance* and *the cut is
consistent* are the same statement (Chandy & Lamport 1985, section 3.1).
"""

import enum
import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from stillframe.channel_accounting import contradiction
from stillframe.errors import NotConsistent, UsageError, describe

DECODING_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Exceptions of msgspec for bytes that cannot be decoded: malformed, no text, or nested too
deeply."""
_Result = TypeVar("_Result")


def decoded(decode: Callable[..., _Result], *arguments: object) -> _Result:
    """Return what a decoder returns. If a class that it makes objects of raises anything, which
    msgspec passes on, that becomes one of `DECODING_ERRORS`."""
    try:
        return decode(*arguments)
    except (KeyboardInterrupt, *DECODING_ERRORS):
        raise
    except BaseException as error:
        raise msgspec.ValidationError(f"its class raised {describe(error)}") from error


ProcessId = str
"""The name of a process: 1 to 64 letters, digits, ``_``, ``.`` or ``-``, a letter first, and a
letter, digit or ``_`` last."""

_PROCESS_ID = re.compile(r"[A-Za-z](?:[A-Za-z0-9_.-]{0,62}[A-Za-z0-9_])?")
_DIGITS = re.compile(r"([0-9]+)")
_decode_raw = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
ARRAY32 = 0xDD
_ARRAY32_HEADER_BYTES = 5
COUNT_MAX = 2**32 - 1


def check_process_id(text: str, what: str = "a process") -> ProcessId:
    """Return `text` if it can name a process, or `what` has such names, too; a UsageError says what
    is allowed."""
    if not isinstance(text, str) or _PROCESS_ID.fullmatch(text) is None:
        raise UsageError(
            f"{text!r} cannot name {what}: use 1 to 64 letters, digits, '_', '.' or '-', "
            "starting with a letter and not ending with '.' or '-'"
        )
    return text


def natural_order(name: str) -> tuple[list[tuple[int, str]], str]:
    """Return the key of the natural order of names: ``P2`` before ``P10``."""
    parts = _DIGITS.split(name)
    for index in range(1, len(parts), 2):
        parts[index] = parts[index].lstrip("0")
    return [(len(p) if index % 2 else 0, p) for index, p in enumerate(parts)], name


class Channel(msgspec.Struct, frozen=True, order=True):
    """A directed channel that keeps order, from one process to another."""

    source: ProcessId
    target: ProcessId

    def __str__(self) -> str:
        return f"{self.source}->{self.target}"


class SnapshotId(msgspec.Struct, frozen=True, order=True):
    """Identifies a snapshot: the process that initiated it, and a number that no other one has."""

    initiator: ProcessId
    number: int

    def __str__(self) -> str:
        return f"{self.initiator}-{self.number}"

    @classmethod
    def parse(cls, text: str) -> "SnapshotId":
        """Read what ``str`` writes, for example ``P1-17``.

        Raises:
            UsageError: `text` is not a snapshot id.
        """
        initiator, dash, number = str(text).rpartition("-")
        plain = number.isascii() and number.isdigit() and len(number) <= 18
        if not dash or not plain or _PROCESS_ID.fullmatch(initiator) is None:
            raise UsageError(f"{text!r} is not a snapshot id, which looks like P1-17")
        return cls(initiator, int(number))


class Marker(msgspec.Struct, frozen=True):
    """Separates the messages before the cut from those after it, on a channel."""

    snapshot: SnapshotId


class Batch(msgspec.Struct, frozen=True, gc=False):
    """Consecutive messages of one channel, as they travel: numbers ``first .. first + count - 1``.
    `encoded` is a MessagePack array of `count` messages; it always has the 32-bit header."""

    first: int
    count: int
    encoded: bytes

    @classmethod
    def of(cls, first: int, messages: list[bytes]) -> "Batch":
        """Join messages that are encoded one by one to a batch that starts with number `first`."""
        return cls(first, len(messages), encode_array(messages))

    @property
    def last(self) -> int:
        """The number of the last message."""
        return self.first + self.count - 1

    def split(self, count: int) -> "tuple[Batch, Batch]":
        """Return the first `count` messages and the rest; neither may be empty."""
        raw = self.messages()
        return Batch.of(self.first, raw[:count]), Batch.of(self.first + count, raw[count:])

    def singles(self) -> "list[Batch]":
        """Return one batch for each message."""
        return [Batch.of(self.first + index, [raw]) for index, raw in enumerate(self.messages())]

    def messages(self) -> list[bytes]:
        """Return the messages one by one, each still encoded."""
        return [bytes(message) for message in _decode_raw(self.encoded)]


def encode_array(messages: list[bytes]) -> bytes:
    """Return a MessagePack array of messages that are already encoded one by one."""
    return b"\xdd%b%b" % (len(messages).to_bytes(4, "big"), b"".join(messages))


def array_count(encoded: bytes) -> int:
    """Return how many messages the array announces; -1 if its header is not that of
    `encode_array`."""
    if len(encoded) < _ARRAY32_HEADER_BYTES or encoded[0] != ARRAY32:
        return -1
    return int.from_bytes(encoded[1:_ARRAY32_HEADER_BYTES], "big")


class KeyedRows(msgspec.Struct, frozen=True):
    """Some keys of a keyed field with their values: two MessagePack arrays of `count` each."""

    count: int
    keys: bytes
    values: bytes


class KeyedChange(msgspec.Struct, frozen=True):
    """The changes of a keyed field since an earlier cut. `rows` are the keys that were set, each
    once, and `removed` is a MessagePack array of the `removed_count` keys that were removed; no key
    is in both."""

    rows: tuple[KeyedRows, ...]
    removed_count: int
    removed: bytes


class ProcessState(msgspec.Struct, frozen=True):
    """The recorded state of one process. `kind` names its class, `encoded` is a MessagePack map
    from field to value. Before it is in the store, a state may hold only changes: then the keyed
    fields are in `keyed`, by name, instead of `encoded`, and hold the changes since the published
    snapshot `base`; without a base, all keys."""

    process: ProcessId
    kind: str
    encoded: bytes
    base: SnapshotId | None = None
    keyed: dict[str, KeyedChange] = {}


class ChannelState(msgspec.Struct, frozen=True):
    """The state of a channel at the cut: messages that the source sent before its cut, and the
    target had not received before its own."""

    channel: Channel
    sent_count: int
    received_count: int
    batches: tuple[Batch, ...]

    @classmethod
    def of(cls, channel: Channel, received_count: int, messages: list[bytes]) -> "ChannelState":
        """Return the state of a channel with these messages, encoded one by one, in one batch."""
        batches = (Batch.of(received_count + 1, messages),) if messages else ()
        return cls(channel, received_count + len(messages), received_count, batches)

    @property
    def message_count(self) -> int:
        """The number of recorded messages."""
        return sum(batch.count for batch in self.batches)

    def check_books(self) -> None:
        """Check that the recorded messages are exactly the numbers received + 1 .. sent, in order;
        NotConsistent if not."""
        batches = ((one.first, one.count, array_count(one.encoded)) for one in self.batches)
        why = contradiction(self.channel, self.sent_count, self.received_count, batches)
        if why is not None:
            raise NotConsistent(why)


class GlobalState(msgspec.Struct, frozen=True):
    """All process states and channel states at one cut, each sorted by id."""

    processes: tuple[ProcessState, ...]
    channels: tuple[ChannelState, ...]

    @property
    def message_count(self) -> int:
        """The number of messages in transit."""
        return sum(state.message_count for state in self.channels)

    def check_books(self) -> None:
        """Check the books of every channel; NotConsistent about the first that is wrong."""
        for state in self.channels:
            state.check_books()


class Snapshot(msgspec.Struct, frozen=True):
    """A consistent global state, with where and when it was taken. Times are by the coordinator's
    clock; the cut itself has no time.

    Attributes:
        id: its id.
        epoch: the epoch of the system.
        initiated_at: when it was requested, in seconds since 1970.
        completed_at: when the last fragment arrived, in seconds since 1970.
        state: the states and messages, encoded.
        pause_s: the longest pause of any process, in seconds; 0 if not measured.
        capture_s: the longest time until a process had encoded its state, in seconds; 0 if not
            measured.
        excluded: processes without channels that took no part, each with the snapshot that its
            recorded state is from.
    """

    id: SnapshotId
    epoch: int
    initiated_at: float
    completed_at: float
    state: GlobalState
    pause_s: float = 0.0
    capture_s: float = 0.0
    excluded: dict[ProcessId, SnapshotId] = {}


class IncomingRecord(msgspec.Struct, frozen=True):
    """The target's record of a channel: its count at its own cut, and the messages after that and
    before the marker."""

    source: ProcessId
    received_count: int
    batches: tuple[Batch, ...]


class MarkerTimes(msgspec.Struct, frozen=True):
    """The times at which the markers of a snapshot arrived at one process. `cut_at` is when it
    recorded its state, in seconds since 1970 by its own clock. `came_s` is how many seconds after
    that the marker of each source arrived. `marked_by` is the source of the first marker, which
    made it record its state; None if it initiated."""

    cut_at: float
    marked_by: ProcessId | None
    came_s: dict[ProcessId, float]


class Fragment(msgspec.Struct, frozen=True):
    """One process's fragment of a snapshot.

    Attributes:
        snapshot: the snapshot.
        state: the process and its state, encoded.
        sent_counts: how many messages it had sent to each target at its cut.
        incoming: for each source, how many messages had come at its cut, and those that came
            between that and the marker.
        pause_s: how long the process was paused in the step that recorded its state, in seconds.
        capture_s: how long it took from there until the state was encoded, in seconds.
        marker_times: when the markers came; None where that is not measured.
    """

    snapshot: SnapshotId
    state: ProcessState
    sent_counts: dict[ProcessId, int]
    incoming: tuple[IncomingRecord, ...]
    pause_s: float = 0.0
    capture_s: float = 0.0
    marker_times: MarkerTimes | None = None


class Reason(enum.Enum):
    """The reason why a snapshot was abandoned; the value is the sentence for the user."""

    DEADLINE = "the deadline passed before every process had recorded its fragment"
    NOT_AT_REST = "a query or service is not running, and its files do not contain its state"
    PROCESS_DIED = "a process died before the snapshot was complete"
    NOT_PUBLISHED = "the snapshot was complete but could not be written to the store"
    NOT_CONSISTENT = "the recorded fragments contradict each other"
    NOT_RECORDED = "a process could not record its state"
    STOPPED = "the system was stopped or restored before the snapshot was complete"
    CONNECTION_BROKE = "the connection of a process to the coordinator broke before its fragment "
    "arrived"
    COORDINATOR_DIED = "the coordinator died before the snapshot was published"

    def __str__(self) -> str:
        return self.value


class Abandoned(msgspec.Struct, frozen=True):
    """A snapshot that was abandoned: nothing of it was published.

    `missing` names the processes without a fragment; `detail` is the cause, if there is more to say
    than the reason does.
    """

    snapshot: SnapshotId
    reason: Reason
    missing: tuple[ProcessId, ...] = ()
    detail: str = ""

    def __str__(self) -> str:
        first = f"snapshot {self.snapshot} was abandoned: {self.reason}"
        missing = f"missing: {', '.join(self.missing)}" if self.missing else ""
        return "; ".join(filter(None, (first, missing, self.detail)))
