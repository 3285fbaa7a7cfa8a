"""The micro-batches of queries that Stillframe has seen, in a pipeline with topics of Kafka.

    ROOT/participants/epoch-2/batches/sums.json     the newest one

What ``start_query`` starts, and what ``to_channel`` returns, writes this file in each micro-batch,
before that has any effect. So if Spark has committed a later one, a program runs the query at its
checkpoint with neither. No lock shows that it runs, and what it reads is not compared with the
channels that it is declared to read.
"""

from typing import Annotated

import msgspec

from stillframe.pipeline import checkpoint
from stillframe.pipeline.checkpoint import START
from stillframe.pipeline.locks import PARTICIPANTS
from stillframe.pipeline.metadata import Metadata
from stillframe.pipeline.query_runs import of_current_checkpoint
from stillframe.storage.files import below, mapped
from stillframe.storage.location import Location
from stillframe.storage.opened import storage_of
from stillframe.storage.reading import is_there
from stillframe.store.layout import explain_io_errors
from stillframe.store.sealed_json import FORMAT, read_sealed, seal

_BATCHES = "batches"


class SeenBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``participants/epoch-2/batches/QUERY.json``: the number of a micro-batch, or
    ``START``."""

    format: int = FORMAT
    batch: Annotated[int, msgspec.Meta(ge=START)]


def note_batch(root: Location, epoch: int, query: str, batch: int) -> None:
    """Record a micro-batch that begins; the lock of its query is held."""
    path = _path(root, epoch, query)
    with explain_io_errors(path, "written"):
        storage_of(path).put(path, seal(SeenBatch(batch=batch)))


def note_start(root: Location, metadata: Metadata, query: str) -> str | None:
    """Record what a query of a pipeline with topics has committed when it starts, or adopts a
    checkpoint; its lock is held. Return ``unseen_sentence``."""
    if not metadata.dataflow.topics:
        return None
    words = unseen_sentence(root, metadata, query)
    note_batch(root, metadata.epoch, query, _committed(root, metadata, query))
    return words


def unseen_sentences(root: Location, metadata: Metadata) -> list[str]:
    """Return a sentence about each query with committed micro-batches that Stillframe has not
    seen, if the pipeline has topics."""
    if not metadata.dataflow.topics:
        return []
    queries = metadata.dataflow.queries
    found = mapped(root, lambda query: unseen_sentence(root, metadata, query), queries)
    return [words for words in found if words is not None]


def unseen_sentence(root: Location, metadata: Metadata, query: str) -> str | None:
    """Return what to do about micro-batches of a query that Stillframe has not seen; None if there
    are none."""
    # In this order: each is recorded before it is committed.
    committed = _committed(root, metadata, query)
    seen = metadata.batches[query][-1].first - 1
    path = _path(root, metadata.epoch, query)
    if committed > seen and is_there(path):
        seen = max(seen, read_sealed(path, SeenBatch).batch)
    if committed <= seen:
        return None
    return (
        f"query {query} has committed micro-batch {committed} at its checkpoint with neither "
        "start_query nor to_channel: what it reads was not compared with its channels, what it "
        "writes is not seen, and a restore does not find it running. Stop it, and start it with "
        "start_query, or call what to_channel returns in each micro-batch. If it has read a topic "
        f"without counted, restore a snapshot from before micro-batch {seen + 1}"
    )


def _committed(root: Location, metadata: Metadata, query: str) -> int:
    done = of_current_checkpoint(root, metadata.epoch, query, checkpoint.last_committed)
    return START if done is None else done.batch


def _path(root: Location, epoch: int, query: str) -> Location:
    return below(root, PARTICIPANTS, f"epoch-{epoch}", _BATCHES, f"{query}.json")
