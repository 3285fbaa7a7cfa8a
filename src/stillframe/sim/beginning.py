"""What an epoch of a simulated world begins with: counts, recording rules, what was on channels."""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from stillframe.errors import Refused
from stillframe.model import Batch, Channel, ProcessId, Snapshot
from stillframe.protocol.handshake import Hello, Listener
from stillframe.protocol.performer import Performer
from stillframe.protocol.replay import RESTORED
from stillframe.restore import Start
from stillframe.topology import Description
from stillframe.trace import Event, MessageId

AnyRecorder = TypeVar("AnyRecorder")


def sent_counts(description: Description, starts: Mapping[ProcessId, Start]) -> dict[Channel, int]:
    """Return for each channel how many messages were sent on it before the epoch."""
    return {
        channel: starts[channel.source].sent_counts[channel.target] if starts else 0
        for channel in description.channels
    }


def recorders(
    make: Callable[..., AnyRecorder],
    description: Description,
    starts: Mapping[ProcessId, Start],
    performers: Mapping[ProcessId, Performer],
) -> dict[ProcessId, AnyRecorder]:
    """Return the recording rules of every process, with the books as they were recorded."""
    sent = sent_counts(description, starts)
    received = {
        Channel(record.source, name): record.received_count
        for name, start in starts.items()
        for record in start.incoming
    }
    return {
        name: make(
            name,
            incoming={s: received.get(Channel(s, name), 0) for s in description.incoming(name)},
            outgoing={t: sent[Channel(name, t)] for t in description.outgoing(name)},
            capture=performer.capture,
        )
        for name, performer in performers.items()
    }


def restored_events(start: Snapshot, description: Description, now: float) -> Iterator[Event]:
    """Yield the first event of every process: it "sends" what was recorded on its channels."""
    for name in description.processes:
        sent = tuple(
            MessageId(state.channel, number)
            for state in start.state.channels
            if state.channel.source == name
            for number in range(state.received_count + 1, state.sent_count + 1)
        )
        yield Event(name, RESTORED, RESTORED, sent=sent, at=now)


def recorded_messages(start: Snapshot) -> Iterator[tuple[Channel, Batch]]:
    """Yield what was recorded on the channels, message by message."""
    for state in start.state.channels:
        for batch in state.batches:
            for single in batch.singles():
                yield state.channel, single


def refused_count(description: Description, topology_hash: str, epoch: int) -> int:
    """Let every channel's source of the epoch before try to connect; return how many are refused:
    it must be all."""
    count = 0
    for channel in description.channels:
        hello = Hello(channel.source, channel.target, epoch - 1, topology_hash, b"")
        listener = Listener(
            secret=b"",
            epoch=epoch,
            topology_hash=topology_hash,
            target=channel.target,
            sources=description.incoming(channel.target),
            nonce=b"",
        )
        try:
            listener.receive(hello)
        except Refused:
            count += 1
    return count
