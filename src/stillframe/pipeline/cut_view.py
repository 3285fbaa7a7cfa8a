"""A snapshot of a pipeline as predicates see it, and the predicates that are built in.

A query or service acts when it receives a record, and only then. That is what makes them stable.
It is not so if one reads anything that is no channel of the pipeline, or acts at certain times.

Termination: no record is in flight on any channel. That includes the records that other programs
had written into a topic when the snapshot was taken. The pipeline stays as it is until they write
more. Nor is a message in transit over TCP between the processes of a system.

Deadlock: queries and services that wait for each other's records forever. None of them has a
record in flight to it, and only they write the channels that they read. A query that reads a topic
of other programs is not blocked, since these can write at any time. A participant that reads no
channel is not blocked either, nor a process of a system, which may get a message over TCP.

Loss: a conserved sum over states and channels is not what it was in the oldest snapshot. A
consistent cut counts each amount once, in a state or on a channel.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stillframe.detect.predicate import (
    Number,
    Places,
    Verdict,
    deadlock_among,
    differences,
    total,
    verdict_on,
)
from stillframe.detect.view import yes_or_no
from stillframe.errors import ApplicationError, UsageError, call, repr_of
from stillframe.model import SnapshotId
from stillframe.pipeline.dataflow import Dataflow
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.pipeline.topic_records import select
from stillframe.storage.location import Location, locate
from stillframe.store.store import Store
from stillframe.waiting import Waiting, for_any

_COUNTED_MAX = 1000
"""How many records of a channel are counted to say that there are some."""
QueryStates = Callable[..., Any]
"""Returns the state of a query as a DataFrame of Spark, of a snapshot and the name of the query."""
PipelinePredicate = Callable[["PipelineView"], Verdict]


class PipelineView:
    """A snapshot of a pipeline, as predicates take it: ``Pipeline.view`` returns it.

    Attributes:
        snapshot: the id of the snapshot.
        dataflow: the queries, services and channels at that time.
    """

    snapshot: SnapshotId
    dataflow: Dataflow

    def __init__(
        self, root: Location, manifest: Manifest, query_states: QueryStates | None = None
    ) -> None:
        self.snapshot = manifest.snapshot
        self.dataflow = manifest.dataflow
        self._root = root
        self._manifest = manifest
        self._query_states = query_states

    @property
    def channels(self) -> list[tuple[str, str]]:
        """Each channel with each of its targets."""
        return [(one.name, target) for one in self.dataflow.channels for target in one.targets]

    @property
    def message_count(self) -> int:
        """The number of messages in transit over TCP between processes that are services.

        Raises:
            UsageError, StoreError: the store of such a system, or its snapshot, cannot be read.
        """
        return sum(
            Store.open(locate(cut.store)).entry(cut.snapshot).message_count
            for cut in self._manifest.systems
        )

    def is_process(self, participant: str) -> bool:
        """Return whether a participant was a process of a system, with channels over TCP."""
        return self._manifest.fragment(participant).system is not None

    def in_flight(self, channel: str, target: str | None = None) -> Iterator[Any]:
        """Return an iterator over the records on a channel at the cut.

        Args:
            channel: its name.
            target: who reads it; may be left out if there is only one.

        Returns:
            a dict of the columns of each record of a log; a ``KafkaRecord`` for each one of a
            topic.

        Raises:
            UsageError: there is no such channel or target.
            NotConsistent: Kafka has deleted some of the records.
            Unavailable: Kafka does not answer.
        """
        target = self._target(channel, target)
        if not self._is_log(channel):
            return select(self._root, self._manifest, channel, target=target).records()
        cut = self._manifest.cut(channel, target)
        reader = self._manifest.reader(self._root, channel)
        batches = reader.batches(min(cut.position, cut.barrier), cut.barrier)
        return (row for batch in batches for row in batch.records.to_pylist())

    def in_flight_count(
        self, channel: str, target: str | None = None, *, most: int | None = None
    ) -> int:
        """Return how many records were on a channel at the cut; as ``in_flight``.

        Args:
            channel: its name.
            target: who reads it; may be left out if there is only one.
            most: how far to count. The records of a topic have to be read for that: with 1, it is
                asked whether there is any.
        """
        target = self._target(channel, target)
        if self._is_log(channel):
            count = self._manifest.cut(channel, target).record_count
            return count if most is None else min(count, most)
        return select(self._root, self._manifest, channel, target=target).count(most)

    def states(self, participant: str, **options: Any) -> Iterator[dict[str, Any]]:
        """Return an iterator over the state of a query or service at the cut.

        Args:
            participant: its name.
            options: for a query, as for ``stillframe.spark.query_state``: ``operator=1``.

        Returns:
            each row of the state of a query, with `key` and `value`, which are dictionaries; of a
            service one dictionary of its fields.

        Raises:
            UsageError: there is no such participant; or it is a query, and the view was made
                without `query_states`.
        """
        fragment = self._manifest.fragment(participant)
        if fragment.service is not None:
            return iter([fragment.service.fields()])
        if fragment.query is None or fragment.query.batch is None:
            return iter(())
        if self._query_states is None:
            raise UsageError(
                f"Spark is needed to read the state of query {participant}: make the view with "
                "query_states, as in Pipeline.view"
            )
        rows = self._query_states(self.snapshot, participant, **options).toLocalIterator()
        return (row.asDict(recursive=True) for row in rows)

    def _is_log(self, channel: str) -> bool:
        return any(log.name == channel for log in self.dataflow.logs)

    def _target(self, channel: str, target: str | None) -> str:
        """Return the target of a channel, which may be left out if there is only one."""
        for one in self.dataflow.channels:
            if one.name == channel and target is None and len(one.targets) == 1:
                return one.targets[0]
            if one.name == channel and target in one.targets:
                return str(target)
            if one.name == channel:
                names = ", ".join(one.targets) or "none"
                raise UsageError(f"name a target of channel {channel}; it has {names}")
        names = ", ".join(one.name for one in self.dataflow.channels) or "none"
        raise UsageError(f"there is no channel {channel!r} in this pipeline; there are: {names}")


def termination(view: PipelineView) -> Verdict:
    """Return whether a pipeline has consumed everything: no record is in flight."""
    most = _COUNTED_MAX + 1
    counts = {pair: view.in_flight_count(*pair, most=most) for pair in view.channels}
    full = [f"{name} to {target} {_some(n)}" for (name, target), n in counts.items() if n]
    if not full and (count := view.message_count):
        return Verdict(holds=False, sentence=f"messages in transit over TCP: {count:,}")
    sentence = f"records in flight: {', '.join(full)}" if full else "no record is in flight"
    return Verdict(not full, sentence)


def _some(count: int) -> str:
    return f"{count:,}" if count <= _COUNTED_MAX else f"more than {_COUNTED_MAX:,}"


def deadlock(view: PipelineView) -> Verdict:
    """Return whether queries and services wait for each other's records forever."""
    waits: dict[str, Waiting] = {}
    for name in view.dataflow.participants:
        incoming = [one for one in view.dataflow.channels if name in one.targets]
        sources = [one.source for one in incoming if one.source is not None]
        # One that can be written to from outside is not blocked, whatever is in flight.
        if len(sources) == len(incoming) > 0 and not view.is_process(name):
            waits[name] = for_any(*sources)
    # Only those that could be in a deadlock are looked at: Kafka may have to be read for that.
    while (found := deadlock_among(waits)) is not None:
        moving = {
            target
            for name, target in view.channels
            if target in found.processes and view.in_flight_count(name, target, most=1)
        }
        if not moving:
            return verdict_on(found)
        waits = {name: waiting for name, waiting in waits.items() if name not in moving}
    return Verdict(
        holds=False, sentence="no queries or services wait for each other's records forever"
    )


def asking(function: Callable[[PipelineView], bool], name: str) -> PipelinePredicate:
    """Return a predicate that calls a user's function; errors call it `name`."""

    def own(view: PipelineView) -> Verdict:
        found = yes_or_no(function, view, name, f"on snapshot {view.snapshot}")
        return Verdict(found, f"{name} says {found}")

    return own


def loss_against(
    expected: Places, amounts: Callable[[PipelineView], object], name: str
) -> PipelinePredicate:
    """Return the predicate that the sum of what `amounts` returns is not the `expected` one, which
    ``amounts_in`` returned for a snapshot in which nothing was lost."""
    before = ", ".join(f"{total(places)} {quantity}" for quantity, places in expected.items())

    def loss(view: PipelineView) -> Verdict:
        found = differences(expected, amounts_in(view, amounts, name))
        sentence = "; ".join(map(str, found)) or f"nothing is missing: {before}"
        return Verdict(bool(found), sentence)

    return loss


def amounts_in(view: PipelineView, amounts: Callable[[PipelineView], object], name: str) -> Places:
    """Return what a function of the user says of how much is where: a dict of the names of places
    and amounts. The quantity is called like the function, whose `name` is ``module:function``.
    Raises an ApplicationError if it raises, or returns something else."""
    found = call(amounts, view, name=name, where=f", on snapshot {view.snapshot}")
    if not isinstance(found, Mapping) or not all(
        isinstance(place, str) and _is_amount(amount) for place, amount in found.items()
    ):
        raise ApplicationError(
            f"{name} returned {repr_of(found)} on snapshot {view.snapshot}: return a dict "
            "of the names of places and finite numbers"
        )
    return {name.rpartition(":")[2]: {p: amount for p, amount in found.items() if amount}}


def _is_amount(amount: object) -> bool:
    if isinstance(amount, float):
        return math.isfinite(amount)
    return isinstance(amount, Number) and not isinstance(amount, bool)
