"""Lai-Yang for one process: snapshots over channels that do not keep order.

Chandy-Lamport's marker divides a channel's messages into those sent before the cut and those sent
after it by its place among them. Where messages overtake each other, and markers, a place says
nothing: there a marker that is late lets a message from after the cut in, and one that is early
leaves a message from before the cut out. So each message itself says on which side it was sent.

The rules (Lai & Yang, *On Distributed Snapshots*, Information Processing Letters 25, 1987; in our
words):

* *Colouring.* Every process is white at first and turns red when it records its state. A message
  has the colour that its sender had: white if it was sent before the sender's cut, red if after.
* *Receiving.* A white process may record its state when it likes, but at the latest before it
  accepts a red message. So nothing that was sent after a cut is accepted before one: the cut is
  consistent, in whatever order messages come.
* *Channels.* A channel held what had been sent white and was not accepted white. These are the
  white messages that a red process accepts.
* *Counting* (Mattern, *Efficient Algorithms for Distributed Snapshots and Global Virtual Time
  Approximation*, Journal of Parallel and Distributed Computing 18, 1993; in our words). When has
  the last of them come? When as many white messages were accepted as were sent, a number that the
  source knows at its cut.

What we add: the number is in a marker on the channel (`CountingMarker`), which turns the target
red, too, if nothing else does, so that a snapshot ends even if no message is sent; any number of
snapshots at once, so that a message's colour is the set of those for which it is red; and
abandonment. Unlike Chandy-Lamport's, this marker may come before, between or after the messages,
and a channel stays open after its marker until everything sent before the cut has arrived.

*The same books.* ``ChannelState`` numbers the recorded messages from received + 1 to sent. Without
order a count says how many messages were received before the cut, not which, and the recorded ones
may have had any numbers up to sent. In the fragment they stand in the order in which they were
sent, but are numbered received + 1 .. sent: as if those that had been received had been sent first.
On a channel without order there is no observable difference, and a restore works as usual: it
delivers them in that order and continues numbering after sent.

*Each message is checked twice.* A white message has a number up to the marker's count, a red one a
higher one. If colour and number contradict each other the snapshot could be wrong, so this process
declines it (`NotRecorded`). It is no violation that would end a connection: a source that has been
notified of the end of a snapshot stops colouring before its target has.

The host's duties, in order:

1. Put `LaiYangRecorder.colour` on everything that is sent, as it is at the time of sending. A batch
   has one colour: it ends where the colour changes.
2. Report how much was sent on each channel (`sent`) before a call of `initiate`, `meet` or
   `marker`.
3. Call `meet` with a batch's colour before its messages are delivered to the application, and
   `receive` after that, with no other call in between.
4. Carry out the effects in the order given before anything else happens in the process. A
   `SendMarker` may be overtaken, but neither lost nor doubled.
5. Call `ended` when a snapshot was published or abandoned. Until then its colour travels, since
   others may still be white.
"""

from functools import cached_property
from itertools import accumulate
from typing import Annotated

import msgspec

from stillframe.errors import ProtocolViolation
from stillframe.model import Batch, Channel, Marker, ProcessId, ProcessState, SnapshotId
from stillframe.protocol.recorder import Effect, Phase, Recording, Recordings

Colour = tuple[SnapshotId, ...]
"""The snapshots for which a process, or a message, is red."""


class CountingMarker(Marker, frozen=True):
    """Says how many messages the source had sent on this channel at its cut; it may come before,
    between or after them."""

    sent_count: Annotated[int, msgspec.Meta(ge=0)]


class _Numbers:
    """The numbers that have arrived on a channel: all up to a low-water mark, and some above it. So
    memory is bounded by the disorder. A number that never arrives would keep all later ones here:
    channels may disorder messages, not lose them."""

    def __init__(self, count: int) -> None:
        self._low = count
        self._above: set[int] = set()

    @property
    def count(self) -> int:
        return self._low + len(self._above)

    @property
    def last(self) -> int:
        """The highest number that has come."""
        return max(self._above, default=self._low)

    def doubled(self, batch: Batch) -> int:
        """Return a number of `batch` that has come before; 0 if there is none."""
        if batch.first <= self._low:
            return batch.first
        numbers = range(batch.first, batch.last + 1)
        return min(self._above.intersection(numbers), default=0) if self._above else 0

    def add(self, batch: Batch) -> None:
        if batch.first == self._low + 1:
            self._low = batch.last
        else:
            self._above.update(range(batch.first, batch.last + 1))
        while self._low + 1 in self._above:
            self._low += 1
            self._above.remove(self._low)


class _Counts:
    """The counts of one channel in one snapshot."""

    def __init__(self, received: _Numbers) -> None:
        self.white_count = received.count
        self.white_last = received.last
        self.red_first: int | None = None
        self.sent_count: int | None = None

    def add(self, batch: Batch, *, is_red: bool) -> None:
        if is_red:
            first = self.red_first
            self.red_first = batch.first if first is None else min(first, batch.first)
        else:
            self.white_count += batch.count
            self.white_last = max(self.white_last, batch.last)

    @property
    def is_whole(self) -> bool:
        """Whether all that was sent before the source's cut has come, and the marker."""
        return self.white_count == self.sent_count

    @property
    def contradiction(self) -> str:
        """How colour and number contradict each other; empty if they do not."""
        sent_count = self.sent_count
        if sent_count is None:
            return ""
        if self.white_last > sent_count:
            return (
                f"message {self.white_last} did not carry the snapshot's colour, but the source "
                f"had sent {sent_count} at its cut: either the snapshot has ended there, or "
                "colours are lost in transit"
            )
        if self.red_first is not None and self.red_first <= sent_count:
            return (
                f"message {self.red_first} carried the snapshot's colour, but the source had sent "
                f"{sent_count} at its cut: it coloured a message too early, or counted wrongly"
            )
        return ""


class _ColourRecording(Recording):
    """One snapshot that is being recorded, with what is known of each channel. The batches of an
    awaited channel have the numbers that they were sent with; those of a closed one the numbers of
    the books."""

    def __init__(
        self,
        state: ProcessState,
        sent_counts: dict[ProcessId, int],
        received: dict[ProcessId, _Numbers],
    ) -> None:
        super().__init__(state, sent_counts, {s: numbers.count for s, numbers in received.items()})
        self.counts = {source: _Counts(numbers) for source, numbers in received.items()}

    def is_marked(self, source: ProcessId) -> bool:
        return self.counts[source].sent_count is not None

    def add(self, source: ProcessId, batch: Batch, *, is_red: bool) -> None:
        self.counts[source].add(batch, is_red=is_red)
        if not is_red:
            self.awaited[source].append(batch)

    def close(self, source: ProcessId) -> None:
        in_order = sorted(self.awaited.pop(source), key=lambda batch: batch.first)
        counts = (batch.count for batch in in_order)
        numbers = accumulate(counts, initial=self.received_counts[source] + 1)
        self.closed[source] = tuple(
            Batch(number, batch.count, batch.encoded)
            for number, batch in zip(numbers, in_order, strict=False)
        )


class LaiYangRecorder(Recordings[_ColourRecording]):
    """Lai and Yang's rules for one process.

    A subclass may override `initiate`, `meet`, `receive`, `marker`, `abandon`, `ended` and
    `colour`, as that of a `Recorder` may.
    """

    _colour: Colour = ()

    @cached_property
    def _received(self) -> dict[ProcessId, _Numbers]:
        """What has come on each channel, beginning with what had been received at first."""
        return {source: _Numbers(count) for source, count in self._received_counts.items()}

    @property
    def colour(self) -> Colour:
        """What every message that is sent now must carry: the snapshots whose cut lies behind this
        process and that are not over. At most as many as are being recorded or remembered."""
        return self._colour

    def meet(self, colour: Colour) -> list[Effect]:
        """Take the colour of a message that is about to be delivered to the application. The state
        is recorded now for each of the message's snapshots for which this process is still white.
        Snapshots that have ended here change nothing."""
        return [effect for snapshot in colour for effect in self.initiate(snapshot)]

    def receive(self, source: ProcessId, batch: Batch, colour: Colour) -> list[Effect]:
        """Count the messages of `batch`, which were delivered to the application in any order.
        Raises ProtocolViolation if one of them had come before; AssertionError if `colour` was not
        met before the delivery: a state recorded from now on would hold a message from after the
        cut."""
        numbers = self._received[source]
        if doubled := numbers.doubled(batch):
            raise ProtocolViolation(
                f"channel {Channel(source, self._process)}: message {doubled} arrived twice"
            )
        for snapshot in colour:
            assert self.phase(snapshot) is not Phase.IDLE, (
                f"channel {Channel(source, self._process)}: message {batch.first} of snapshot "
                f"{snapshot} was delivered before the state was recorded: call meet() first"
            )
        numbers.add(batch)
        effects: list[Effect] = []
        for snapshot, recording in list(self._recordings.items()):
            if source in recording.awaited:
                recording.add(source, batch, is_red=snapshot in colour)
                effects += self._settle(source, snapshot, recording)
        return effects

    def marker(self, source: ProcessId, marker: CountingMarker) -> list[Effect]:
        """Take a marker that came on the channel from `source`, before or after any message. Raises
        ProtocolViolation if it is the second marker of its snapshot on this channel."""
        effects, recording = self._marked(source, marker.snapshot)
        if recording is None:
            return effects
        recording.counts[source].sent_count = marker.sent_count
        return effects + self._settle(source, marker.snapshot, recording)

    def ended(self, snapshot: SnapshotId) -> None:
        """End `snapshot`, which was published or abandoned: its colour need not travel any more,
        and if it is still being recorded here, that stops."""
        self.abandon(snapshot)
        self._colour = tuple(red for red in self._colour if red != snapshot)

    def _settle(
        self, source: ProcessId, snapshot: SnapshotId, recording: _ColourRecording
    ) -> list[Effect]:
        """Close the channel from `source` if it is complete, or decline if it never can be."""
        counts = recording.counts[source]
        if contradiction := counts.contradiction:
            channel = Channel(source, self._process)
            return self._cannot_record(snapshot, f"channel {channel}: {contradiction}")
        if not counts.is_whole:
            return []
        recording.close(source)
        return self._complete(snapshot)

    def _cut(self, snapshot: SnapshotId) -> list[Effect]:
        effects = super()._cut(snapshot)
        if self._is_red(snapshot):
            self._colour += (snapshot,)
        return effects

    def _end(self, snapshot: SnapshotId, phase: Phase) -> None:
        super()._end(snapshot, phase)
        # An abandoned or forgotten snapshot is not coloured: there is no fragment to protect.
        self._colour = tuple(red for red in self._colour if self._is_red(red))

    def _is_red(self, snapshot: SnapshotId) -> bool:
        return self.phase(snapshot) in (Phase.RECORDING, Phase.RECORDED)

    def _begin_recording(self, state: ProcessState) -> _ColourRecording:
        return _ColourRecording(state, dict(self._sent_counts), self._received)

    def _marker_to(self, target: ProcessId, snapshot: SnapshotId) -> CountingMarker:
        return CountingMarker(snapshot, self._sent_counts[target])
