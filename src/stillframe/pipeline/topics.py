"""Which records of a topic count: the label of each record, and what a pipeline knows of a topic.

    ROOT/topics/unique.json     the id of the one writer, and where its records begin

Each record that a participant writes into a topic of Kafka carries a header, its label: the id of
the writer, the epoch, and the micro-batch; of a service it is the number of the transaction. A
restore does not delete records. Those that count are the records of the micro-batches on the
timeline of the writer (``Pipeline.timeline``). Its labels are ordered as bytes, so that a reader
compares them with two bounds and takes nothing apart.

A service that was stopped while it wrote uses the number of that transaction again. So what reads
its topics must read committed records only: the label of an aborted one may count.

Records that were in a topic before its writer joined the pipeline have no label, and count. A later
record without a label, or with one of another writer, is an error.
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
    """The content of ``topics/CHANNEL.json``, written once, when the source of the topic joined.

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


class Counting(msgspec.Struct, frozen=True):
    """What decides whether a record counts: the record of its topic, and the timeline of the
    micro-batches of its writer."""

    topic: Topic
    record: TopicRecord
    timeline: tuple[Segment, ...]

    def counts(self, label: Label) -> bool:
        """Return whether records with this label of the writer count."""
        return any(
            label.epoch == segment.epoch
            and segment.first <= label.batch
            and (end is None or label.batch < end)
            for segment, end in with_ends(self.timeline)
        )

    def is_own(self, label: Label | None) -> bool:
        """Return whether this writer wrote a record with this label."""
        return label is not None and label.writer == self.record.writer_id

    def is_adopted(self, partition: int, offset: int) -> bool:
        """Return whether a record was in the topic before its writer joined."""
        return offset < self.record.first_offsets.get(partition, 0)

    def label(self, epoch: int, batch: int) -> Label:
        """Return the label of a micro-batch of the writer."""
        return Label(self.record.writer_id, epoch, batch)

    def condition(self) -> str:
        """Return the condition, in SQL, that a record counts, for the columns of Spark's source
        ``kafka`` with the option ``includeHeaders``. It is an error, with the topic, the partition
        and the offset, if a record neither counts nor is of an abandoned timeline."""
        value = "get(headers, size(headers) - 1).value"
        *before, (present, _) = with_ends(self.timeline)
        # Nearly every record is of the present epoch, which has no other micro-batches than these.
        epoch = self.label(present.epoch, 0).encoded[:_EPOCH_BYTES]
        cases = [f"WHEN startswith({value}, X'{epoch.hex()}') THEN true"]
        for segment, end in reversed(before):
            assert end is not None
            low, high = (self.label(segment.epoch, n).encoded for n in (segment.first, end))
            bounds = f"{value} >= X'{low.hex()}' AND {value} < X'{high.hex()}'"
            cases.append(f"WHEN {bounds} THEN true")
        cases.append(
            f"WHEN length({value}) = {_LABEL_BYTES} AND "
            f"substring({value}, 1, {_WRITER_BYTES}) = X'{self.record.writer}' THEN false"
        )
        if self.record.first_offsets:
            adopted = " ".join(
                f"WHEN {partition} THEN {offset}"
                for partition, offset in sorted(self.record.first_offsets.items())
            )
            cases.append(f"WHEN offset < CASE partition {adopted} ELSE 0 END THEN true")
        strange = (
            f"concat('the record with offset ', offset, ' in partition ', partition, "
            f"' of topic ', topic, ' was not written by {self.topic.source}, the only writer of "
            f"channel {self.topic.name}: stop the other writer')"
        )
        return f"CASE {' '.join(cases)} ELSE raise_error({strange}) END"


def write_once(path: Location, content: msgspec.Struct) -> None:
    """Write a sealed file, unless it is there."""
    with explain_io_errors(path, "written"), contextlib.suppress(FileExistsError):
        storage_of(path).put_if_absent(path, seal(content))


def join_topic(root: Location, topic: Topic, first_offsets: Mapping[int, int]) -> None:
    """Record that the source of a topic joins the pipeline, if it has not joined before. Its
    records begin at `first_offsets`. The caller holds the lock of the source."""
    if has_joined(root, topic):
        return
    record = TopicRecord(
        writer=secrets.token_hex(_WRITER_BYTES), first_offsets=dict(sorted(first_offsets.items()))
    )
    write_once(_record_path(root, topic), record)


def has_joined(root: Location, topic: Topic) -> bool:
    """Return whether the source of a topic has joined the pipeline."""
    return is_there(_record_path(root, topic))


def counting(root: Location, metadata: Metadata, topic: Topic) -> Counting:
    """Return what decides whether a record of a topic counts; its source has joined."""
    assert topic.source is not None
    return counting_on(root, topic, metadata.batches[topic.source])


def counting_on(root: Location, topic: Topic, timeline: Sequence[Segment]) -> Counting:
    """Return what decides whether a record counts on a timeline of its writer."""
    return Counting(topic, read_sealed(_record_path(root, topic), TopicRecord), tuple(timeline))


def _record_path(root: Location, topic: Topic) -> Location:
    return root / TOPICS / f"{topic.name}.json"
