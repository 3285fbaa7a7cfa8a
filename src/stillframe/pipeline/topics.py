"""The records of a topic that count: their labels, and what a pipeline records about a topic.

    ROOT/topics/unique.json     the id of the one writer, and where its records begin

Each record that a participant writes into a topic of Kafka carries a header, its label: the id of
the writer, the epoch, and the micro-batch; of a service it is the number of the transaction. A
restore does not delete records. Those that count are the records of the micro-batches on the
timeline of the writer (``Pipeline.timeline``). Its labels are ordered as bytes, so that a reader
compares them with two bounds and takes nothing apart.

A service that was stopped while it wrote uses the number of that transaction again. So what reads
its topics must read committed records only: the label of an aborted one may count.

Whatever was in a topic before its writer joined the pipeline counts: all records with lower
offsets, with any headers. A later record without a label, or with one of another writer, is an
error.
``kafka.is_counted`` and ``Counting.condition`` say the same, in Python and in SQL.
"""

import contextlib
import secrets
import struct
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from stillframe.pipeline.dataflow import Topic
from stillframe.pipeline.metadata import Metadata, Segment, with_ends
from stillframe.storage.location import Location
from stillframe.storage.opened import storage_of
from stillframe.storage.reading import is_there
from stillframe.store.layout import explain_io_errors
from stillframe.store.sealed_json import FORMAT, read_sealed, seal

HEADER = "stillframe"
"""The key of the header; it is the last one of its record."""
TOPICS = "topics"
_NUMBERS = struct.Struct(">IQ")
_WRITER_BYTES = 8
_LABEL_BYTES = _WRITER_BYTES + _NUMBERS.size
_EPOCH_BYTES = _WRITER_BYTES + 4

Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Partition = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
TopicPositions = dict[str, dict[Partition, Offset]]
"""Channel -> partition -> the offset of the next record to read."""


class Label(msgspec.Struct, frozen=True, order=True):
    """The header of a record: who wrote it, in which epoch and micro-batch, or transaction."""

    writer: bytes
    epoch: int
    batch: int

    @property
    def encoded(self) -> bytes:
        """The value of the header."""
        return self.writer + _NUMBERS.pack(self.epoch, self.batch)


def decode_label(value: bytes) -> Label | None:
    """Return the label with this value; None if it is none."""
    if len(value) != _LABEL_BYTES:
        return None
    epoch, batch = _NUMBERS.unpack(value[_WRITER_BYTES:])
    return Label(value[:_WRITER_BYTES], epoch, batch)


class TopicRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``topics/CHANNEL.json``, written when the source of the topic joined. It stays
    from the first start on that does not fail: until then the source may join again.

    `writer` is its id, in hexadecimal. `first_offsets` are the ends of the partitions at that time;
    a partition that is not named was added later.
    """

    format: int = FORMAT
    writer: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
    first_offsets: dict[Partition, Offset]

    @property
    def writer_id(self) -> bytes:
        """The id of the writer as labels hold it."""
        return bytes.fromhex(self.writer)

    def has_other_ends(self, ends: Mapping[int, int]) -> bool:
        """Return whether partitions end elsewhere than when the source joined."""
        return any(
            ends.get(partition, 0) != self.first_offsets.get(partition, 0)
            for partition in ends.keys() | self.first_offsets.keys()
        )


class LabelRange(msgspec.Struct, frozen=True):
    """The labels of some micro-batches that count: as bytes, from `low` up to and without `high`.

    Attributes:
        epoch: the epoch of the micro-batches.
        first: the first one.
        end: the one after the last; None if the writer still adds to them.
        low: the lowest label.
        high: the lowest label above them.
    """

    epoch: int
    first: int
    end: int | None
    low: bytes
    high: bytes

    def condition(self, value: str) -> str:
        """Return the condition, in SQL, that a label is in the range."""
        lowest = f"{value} >= X'{self.low.hex()}'"
        if self.end is None:
            # Nearly every record is of the present epoch: each comparison costs.
            is_of_epoch = f"startswith({value}, X'{self.low[:_EPOCH_BYTES].hex()}')"
            return f"{is_of_epoch} AND {lowest}" if self.first > 0 else is_of_epoch
        return f"{lowest} AND {value} < X'{self.high.hex()}'"


class Counting(msgspec.Struct, frozen=True):
    """A filter for the records of a topic that count. A restore deletes no record: those that it
    took out of the timeline of their writer stay in the topic, and do not count.

    ``Pipeline.topic_filter`` returns it. Each restore of the pipeline needs a new one.

    Attributes:
        topic: the channel.
        record: the id of its writer, and the offsets at which the records of the writer begin.
        timeline: the micro-batches of the writer, by epoch.
        end: the micro-batch that is the first one not to count; None if there is none yet.
    """

    topic: Topic
    record: TopicRecord
    timeline: tuple[Segment, ...]
    end: int | None = None

    def counts(self, label: Label) -> bool:
        """Return whether records with this label of the writer count."""
        return any(
            label.epoch == segment.epoch
            and segment.first <= label.batch
            and (end is None or label.batch < end)
            for segment, end in self._segments()
        )

    def ranges(self) -> list[LabelRange]:
        """Return the labels that count, the newest ones first."""
        return [
            LabelRange(
                epoch=segment.epoch,
                first=segment.first,
                end=end,
                low=self.label(segment.epoch, segment.first).encoded,
                high=(
                    self.label(segment.epoch + 1, 0)
                    if end is None
                    else self.label(segment.epoch, end)
                ).encoded,
            )
            for segment, end in reversed(self._segments())
        ]

    def _segments(self) -> list[tuple[Segment, int | None]]:
        """Return the parts of the timeline that count, each with its end."""
        if self.end is None:
            return list(with_ends(self.timeline))
        return [
            (segment, self.end if end is None else min(end, self.end))
            for segment, end in with_ends(self.timeline)
            if segment.first < self.end
        ]

    def is_own(self, label: Label | None) -> bool:
        """Return whether this writer wrote a record with this label."""
        return label is not None and label.writer == self.record.writer_id

    def is_adopted(self, partition: int, offset: int) -> bool:
        """Return whether a record was in the topic before its writer joined: then it counts,
        whatever its headers."""
        return offset < self.record.first_offsets.get(partition, 0)

    def label(self, epoch: int, batch: int) -> Label:
        """Return the label of a micro-batch of the writer."""
        return Label(self.record.writer_id, epoch, batch)

    def condition(self) -> str:
        """Return the condition, in SQL, that a record counts, for the columns of Spark's source
        ``kafka`` with the option ``includeHeaders``. It is an error, with the topic, the partition
        and the offset, if a record neither counts nor is of an abandoned timeline."""
        last = "get(headers, size(headers) - 1)"
        value = f"{last}.value"
        is_label = f"length({value}) = {_LABEL_BYTES} AND {last}.key = '{HEADER}'"
        cases = [f"WHEN {one.condition(value)} AND {is_label} THEN true" for one in self.ranges()]
        adopted = {p: offset for p, offset in self.record.first_offsets.items() if offset > 0}
        if adopted:
            # Spark makes this one constant, however many partitions there are.
            firsts = ",".join(str(adopted.get(p, 0)) for p in range(max(adopted) + 1))
            array = f"cast(split('{firsts}', ',') AS array<bigint>)"
            cases.append(f"WHEN offset < get({array}, partition) THEN true")
        is_own = f"startswith({value}, X'{self.record.writer}')"
        cases.append(f"WHEN {is_own} AND {is_label} THEN false")
        strange = (
            f"concat('the record with offset ', offset, ' in partition ', partition, "
            f"' of topic ', topic, ' was not written by {self.topic.source}, the only writer of "
            f"channel {self.topic.name}: start this query again; if that does not help, stop the "
            "other writer')"
        )
        return f"CASE {' '.join(cases)} ELSE raise_error({strange}) END"

    def is_condition(self, sql: str) -> bool:
        """Return whether this is such a condition of the present epoch, as Spark prints it."""
        return f"X'{self.ranges()[0].low[:_EPOCH_BYTES].hex().upper()}'" in sql

    def is_condition_of_writer(self, sql: str) -> bool:
        """Return whether this is such a condition of any epoch, as Spark prints it."""
        return f"X'{self.record.writer.upper()}'" in sql


def write_once(path: Location, content: msgspec.Struct) -> None:
    """Write a sealed file, unless it is there."""
    with explain_io_errors(path, "written"), contextlib.suppress(FileExistsError):
        storage_of(path).put_if_absent(path, seal(content))


def join_topic(root: Location, topic: Topic, first_offsets: Mapping[int, int]) -> None:
    """Record that the source of a topic joins the pipeline, if it has not joined before. Its
    records begin at `first_offsets`: it writes none before it has joined."""
    if has_joined(root, topic):
        return
    write_once(_record_path(root, topic), _new_record(first_offsets))


def rejoin_topic(root: Location, topic: Topic, first_offsets: Mapping[int, int]) -> None:
    """Record that the source of a topic joins only now, with a new id. Its lock is held, and it has
    written nothing since it joined: an earlier start of it failed."""
    path = _record_path(root, topic)
    with explain_io_errors(path, "written"):
        storage_of(path).put(path, seal(_new_record(first_offsets)))


def _new_record(first_offsets: Mapping[int, int]) -> TopicRecord:
    return TopicRecord(
        writer=secrets.token_hex(_WRITER_BYTES), first_offsets=dict(sorted(first_offsets.items()))
    )


def has_joined(root: Location, topic: Topic) -> bool:
    """Return whether the source of a topic has joined the pipeline."""
    return is_there(_record_path(root, topic))


def counting(root: Location, metadata: Metadata, topic: Topic) -> Counting:
    """Return what decides whether a record of a topic counts; its source has joined."""
    assert topic.source is not None
    return counting_on(root, topic, metadata.batches[topic.source])


def counting_on(root: Location, topic: Topic, timeline: Sequence[Segment]) -> Counting:
    """Return what decides whether a record counts on a timeline of its writer."""
    return Counting(topic, joined_record(root, topic), tuple(timeline))


def joined_record(root: Location, topic: Topic) -> TopicRecord:
    """Return what was recorded when the source of a topic joined."""
    return read_sealed(_record_path(root, topic), TopicRecord)


def _record_path(root: Location, topic: Topic) -> Location:
    return root / TOPICS / f"{topic.name}.json"
