"""The Kafka sources in a query's plan: they read channels of its pipeline, each with ``counted``.

A restore deletes no record of a topic. A source that is not filtered by ``counted`` delivers those
that the restore took back as well. So the sources in the plan are compared with the channels that
the query is declared to read: when ``start_query`` starts it, or else in its first micro-batch.

Spark's analyzed plan has each streaming source with its options, and the filters above it. What a
program reads with ``spark.read``, in its own ``foreachBatch`` or in a join with a stream, is not
compared.
"""

import os.path
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

import msgspec
from pyspark.sql import DataFrame

from stillframe.errors import UsageError
from stillframe.pipeline.dataflow import Dataflow, Topic
from stillframe.pipeline.metadata import Metadata
from stillframe.pipeline.topics import counting
from stillframe.storage.location import Location

ISOLATION = "kafka.isolation.level"
COMMITTED = "read_committed"
STARTING = "startingOffsets"
EARLIEST = "earliest"
_SERVERS = "kafka.bootstrap.servers"
_ON_LOSS = "failOnDataLoss"
_STARTING_BY_TIME = ("startingTimestamp", "startingOffsetsByTimestamp")
_SUBSCRIBE = "subscribe"
_SELECTIONS = {
    _SUBSCRIBE: "does not read one topic with each source",
    "subscribePattern": "reads whatever topics have such a name, now or later",
    "assign": "reads these partitions only, and none that is added later",
}
"""The options that say which topics a source reads; a plan has one of them. If that is not one
topic, this is why it is refused."""
_OPTIONS = (_SERVERS, *_SELECTIONS, ISOLATION, _ON_LOSS, STARTING, *_STARTING_BY_TIME)


class StreamingSource(msgspec.Struct, frozen=True):
    """A streaming source in a plan: those of its options that matter here, and the conditions, in
    SQL, of the filters above it."""

    options: Mapping[str, str]
    conditions: tuple[str, ...] = ()

    @property
    def is_kafka(self) -> bool:
        """Return whether it reads Kafka, whatever its format is called."""
        return _SERVERS in self.options

    @property
    def selection(self) -> tuple[str, str]:
        """Return the option that says which topics it reads, and its value."""
        found = (name for name in _SELECTIONS if name in self.options)
        name = next(found, _SUBSCRIBE)
        return name, self.options.get(name, "")


def sources_in(plan: Any) -> Iterator[StreamingSource]:
    """Yield the streaming sources in an analyzed plan of Spark.

    Raises:
        UsageError: the plan has a streaming source of an unknown kind.
    """
    pending: list[tuple[Any, tuple[str, ...]]] = [(plan, ())]
    while pending:
        part, conditions = pending.pop()
        kind = part.getClass().getSimpleName()
        children = part.children()
        if kind == "Filter":
            conditions = (*conditions, part.condition().sql())
        elif not children.size() and part.isStreaming() and kind != "CTERelationRef":
            # What a reference refers to is in the plan as well.
            yield StreamingSource(_options_of(part, kind), conditions)
        pending += [(children.apply(number), conditions) for number in range(children.size())]


def _options_of(relation: Any, kind: str) -> dict[str, str]:
    """Return those options of a streaming source that matter here. Their case does not."""
    if kind == "StreamingRelationV2":
        given = relation.extraOptions().asCaseSensitiveMap()
        values = {str(name).lower(): str(given[name]) for name in given}
    elif kind == "StreamingRelation":
        given = relation.dataSource().options()
        names = given.keySet().toSeq()
        each = [names.apply(number) for number in range(names.size())]
        values = {str(name).lower(): str(given.apply(name)) for name in each}
    else:
        raise UsageError(
            f"Spark's plan has a streaming source of the kind {kind}, and it is not known whether "
            "that reads a topic: read topics with spark.readStream.format('kafka'), and other "
            "sources with spark.readStream"
        )
    return {name: values[name.lower()] for name in _OPTIONS if name.lower() in values}


def plan_of(frame: DataFrame) -> Any:
    """Return the analyzed plan of a DataFrame."""
    return frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - there is no public way


def running_query(batch: DataFrame, query: str, checkpoint: str) -> Any:
    """Return Spark's object for the query that runs this micro-batch. The plan of the micro-batch
    itself does not show where it comes from.

    Raises:
        UsageError: no query that runs in this session has this checkpoint.
    """
    place = os.path.normpath(checkpoint.partition("://")[2] or checkpoint)
    shared = batch.sparkSession._jsparkSession.sharedState()  # noqa: SLF001 - there is no public way
    for running in shared.activeStreamingQueries().values():
        if unquote(running.resolvedCheckpointRoot()).endswith(unquote(place)):
            return running
    raise UsageError(
        f"query {query} does not run at its checkpoint in the pipeline, {checkpoint}: start it "
        "with the option checkpointLocation set to the result of checkpoint_location"
    )


def check_frame(plan: Any, root: Location, flow: Dataflow, query: str, topic: Topic) -> None:
    """Raise UsageError if a DataFrame is not of this topic alone, or its options let it skip
    records or read those that do not count."""
    for source in sources_in(plan):
        if source.is_kafka and (read := _topic_of(source, root, flow, query)) != topic:
            raise UsageError(
                f"the DataFrame of channel {topic.name} reads topic {read.topic}, and the channel "
                f"is topic {topic.topic}: use kafka_options(pipeline, {topic.name!r})"
            )
        _check_options(source, topic, is_committed=topic.source in flow.services)


def check_reads(plan: Any, root: Location, head: Metadata, query: str) -> None:
    """Raise UsageError if a query reads Kafka otherwise than it is declared to, without
    ``counted``, or with what that returned before a restore."""
    flow = head.dataflow
    for source in sources_in(plan):
        if not source.is_kafka:
            continue
        topic = _topic_of(source, root, flow, query)
        _check_options(source, topic, is_committed=topic.source in flow.services)
        if topic.source is None:
            continue  # all its records count
        one = counting(root, head, topic)
        if any(one.is_condition(found) for found in source.conditions):
            continue
        call = f"counted(frame, pipeline, {query!r}, {topic.name!r})"
        if any(one.is_condition_of_writer(found) for found in source.conditions):
            raise UsageError(
                f"the pipeline {root} was restored since the DataFrame of channel {topic.name} was "
                f"made: make it again, with {call}"
            )
        raise UsageError(
            f"query {query} of {root} reads topic {topic.topic} of channel {topic.name} without "
            f"counted ({_given(source)}), so it would read records again that a restore took back: "
            f"use {call} on the DataFrame of that source"
        )


def _topic_of(source: StreamingSource, root: Location, flow: Dataflow, query: str) -> Topic:
    """Return the topic that a source reads; UsageError unless it is one that is declared."""
    option, value = source.selection
    names = [name for part in value.split(",") if (name := part.strip())]
    if option != _SUBSCRIBE or len(names) != 1:
        own = [topic.name for topic in flow.incoming_topics(query)]
        raise UsageError(
            f"query {query} of {root} {_SELECTIONS[option]} ({_given(source)}), and a pipeline "
            "decides for each channel which records count: read each topic with its own source, "
            f"with kafka_options(pipeline, channel) and counted(frame, pipeline, {query!r}, "
            f"channel). The topics that {query} is declared to read are the channels "
            f"{', '.join(own) or '(none)'}"
        )
    name, servers = names[0], source.options[_SERVERS]
    alike = [topic for topic in flow.topics if topic.topic == name]
    topic = next((one for one in alike if _addresses(one.servers) & _addresses(servers)), None)
    if topic is None:
        where = f"query {query} of {root} reads topic {name} at {servers} ({_given(source)})"
        if alike:
            raise UsageError(
                f"{where}, and channel {alike[0].name} is the topic of this name at "
                f"{alike[0].servers}: if these are the same brokers, use the address of the "
                f"channel, with kafka_options(pipeline, {alike[0].name!r}); if not, declare "
                "another channel"
            )
        raise UsageError(
            f"{where}, which is no channel of the pipeline: declare it with "
            f"kafka_channel({name!r}, topic={name!r}, servers={servers!r}, "
            f"targets=[{query!r}]), and use "
            f"counted(frame, pipeline, {query!r}, {name!r})"
        )
    if query not in topic.targets:
        raise UsageError(
            f"query {query} of {root} reads topic {name} ({_given(source)}), and is no target of "
            f"channel {topic.name}: declare it as one, and use counted(frame, pipeline, "
            f"{query!r}, {topic.name!r})"
        )
    return topic


def _given(source: StreamingSource) -> str:
    """Return the option that says which topics a source reads, as its user wrote it."""
    option, value = source.selection
    return f"{option}={value!r}"


def _addresses(servers: str) -> set[str]:
    """Return the brokers that servers name, which may be in any order."""
    return {one.strip().rpartition("//")[2].lower() for one in servers.split(",")}


def _check_options(source: StreamingSource, topic: Topic, *, is_committed: bool) -> None:
    """Refuse a source that skips deleted records, or does not start at the first that is left. A
    query with a checkpoint continues there, but a restore may let it start again. If a service
    writes the topic, only what `is_committed` counts: refuse one that reads the records of aborted
    transactions. Their labels may be those of later ones."""
    options = source.options
    if options.get(_ON_LOSS, "").lower() == "false":
        raise UsageError(
            f"with {_ON_LOSS}=false the DataFrame of topic {topic.topic} would skip records "
            f"that Kafka has deleted: leave out the source's option {_ON_LOSS}"
        )
    for name in _STARTING_BY_TIME:
        if name in options:
            raise UsageError(
                f"with {name} the DataFrame of topic {topic.topic} would skip records when the "
                f"query first starts: leave out the source's option {name}"
            )
    if options.get(STARTING, "").strip().lower() != EARLIEST:
        raise UsageError(
            f"the DataFrame of topic {topic.topic} would skip the records that are there when "
            f"the query first starts: set the source's option {STARTING} to {EARLIEST}"
        )
    if is_committed and options.get(ISOLATION) != COMMITTED:
        raise UsageError(
            f"service {topic.source} writes topic {topic.topic} in transactions, and the "
            f"DataFrame would read records that it did not commit: set the source's option "
            f"{ISOLATION} to {COMMITTED}"
        )
