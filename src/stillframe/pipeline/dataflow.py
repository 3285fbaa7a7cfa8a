"""The queries, services and logs of a pipeline: the description that all participants share."""

import base64
import functools
import itertools
import re
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from stillframe.errors import UsageError, check_kind, text_of
from stillframe.model import check_process_id
from stillframe.protocol.aligner import Mode

PARTITION_COUNT_MAX = 1024
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)
_SERVERS = re.compile(r"[^\s@,]+:\d+(?:,[^\s@,]+:\d+)*", re.ASCII)

PARTITION_COLUMN = "_partition"
OFFSET_COLUMN = "_offset"
"""The place of a record in its log, as columns next to its own when the log is read as a table."""


class Log(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A channel that is kept on disk: one participant appends to it, any number read it.

    Each pair of the source and a target is a channel in the sense of the rules, with its own
    position. `schema` is an Arrow schema as ``encode_schema`` writes it. Records keep their order
    within each of the `partition_count` partitions; `key` names the columns whose values select the
    partition. Without a key they are used round-robin.
    """

    name: str
    source: str
    targets: tuple[str, ...]
    schema: str
    partition_count: int = 1
    key: tuple[str, ...] = ()

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of its records."""
        return decode_schema(self.schema)


class Topic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A channel that is a topic of Kafka. Without a source, other programs write it: the records
    enter the pipeline there. Without targets they leave it there.

    Attributes:
        name: of the channel.
        topic: its name in Kafka.
        servers: the brokers to ask first, ``HOST:PORT`` with commas between them.
        source: the query or service that writes it; None if other programs do.
        targets: the queries and services that read it.
        has_unique_keys: whether each micro-batch of the source has at most one record of a key.
    """

    name: str
    topic: str
    servers: str
    source: str | None
    targets: tuple[str, ...]
    has_unique_keys: bool = False


_Channel = TypeVar("_Channel", Log, Topic)


class Dataflow(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Queries, services, and the channels between them; each has a unique name.

    Attributes:
        queries: the names of the queries.
        services: the name of each service, and that of the class of its state.
        logs: the channels that are logs.
        topics: the channels that are topics of Kafka.
    """

    queries: tuple[str, ...]
    services: dict[str, str]
    logs: tuple[Log, ...]
    topics: tuple[Topic, ...] = ()

    @property
    def participants(self) -> tuple[str, ...]:
        """Every query and service, sorted."""
        return tuple(sorted((*self.queries, *self.services)))

    def log(self, name: str) -> Log:
        """Return one log.

        Raises:
            UsageError: there is no log of that name; the error lists those that exist.
        """
        return _named(self.logs, name, "channel")

    @property
    def channels(self) -> tuple[Log | Topic, ...]:
        """Every channel: the logs, and then the topics."""
        return (*self.logs, *self.topics)

    def topic(self, name: str) -> Topic:
        """Return one channel that is a topic; UsageError if there is none of that name."""
        return _named(self.topics, name, "Kafka channel")

    @property
    def versioned(self) -> tuple[str, ...]:
        """The participants whose micro-batches, or transactions, are on a timeline, sorted: the
        queries, and the services that read or write topics of Kafka."""
        return tuple(name for name in self.participants if name not in self.in_memory)

    @property
    def in_memory(self) -> tuple[str, ...]:
        """The services that keep their states in memory, sorted: those that read and write no topic
        of Kafka. Without any, the newest consistent cut can be found after a crash, too."""
        return tuple(sorted(name for name in self.services if not self.topics_of(name)))

    def asked(self, mode: Mode) -> tuple[str, ...]:
        """Return the participants that are asked to record for a snapshot in this mode."""
        return self.in_memory if mode is Mode.RETAINED else self.participants

    def described(self, participant: str) -> str:
        """Return a participant with its kind, such as ``service till``."""
        return f"{'query' if participant in self.queries else 'service'} {participant}"

    @property
    def default_mode(self) -> Mode:
        """The mode of a snapshot if none is asked for."""
        return Mode.RETAINED if self.topics else Mode.ALIGNED

    def incoming_topics(self, participant: str) -> tuple[Topic, ...]:
        """Return the topics that a participant reads, sorted by name."""
        return tuple(topic for topic in self.topics if participant in topic.targets)

    def outgoing_topics(self, participant: str) -> tuple[Topic, ...]:
        """Return the topics that a participant writes, sorted by name."""
        return tuple(topic for topic in self.topics if topic.source == participant)

    def topics_of(self, participant: str) -> tuple[Topic, ...]:
        """Return the topics that a participant reads or writes."""
        return (*self.incoming_topics(participant), *self.outgoing_topics(participant))

    def incoming(self, participant: str) -> tuple[Log, ...]:
        """Return the logs that a participant reads, sorted by name."""
        return tuple(log for log in self.logs if participant in log.targets)

    def outgoing(self, participant: str) -> tuple[Log, ...]:
        """Return the logs that a participant writes, sorted by name."""
        return tuple(log for log in self.logs if log.source == participant)

    def check_participant(self, name: str, kind: str) -> None:
        """Raise UsageError if a name is no `kind` ("query" or "service") of this dataflow."""
        names = self.queries if kind == "query" else tuple(self.services)
        if name not in names:
            raise UsageError(
                f"there is no {kind} {name!r} in this pipeline; there are: "
                f"{', '.join(sorted(names)) or 'none'}"
            )

    def initiators(self) -> tuple[str, ...]:
        """Return the participants that start a snapshot, from which barriers reach all others:
        those that read no log, and one of each cycle without such a participant before it."""
        chosen = [name for name in self.participants if not self.incoming(name)]
        reached = self._reachable(chosen)
        while rest := [name for name in self.participants if name not in reached]:
            # First the one that reaches most: no participant before it can remain.
            first = min(rest, key=lambda name: (-len(self._reachable([name])), name))
            chosen.append(first)
            reached |= self._reachable([first])
        return tuple(sorted(chosen))

    def cycle(self) -> tuple[str, ...]:
        """Return the participants of a cycle in its order, or nothing if there is none."""
        sources = {p: [log.source for log in self.incoming(p)] for p in self.participants}
        try:
            TopologicalSorter(sources).prepare()
        except CycleError as error:
            return tuple(error.args[1][:-1])
        return ()

    def feeds(self, first: str, second: str) -> bool:
        """Return whether records of a participant lead to another one, over channels of any kind.
        Two that feed each other are on a cycle."""
        frontier, reached = [first], set[str]()
        while frontier:
            source = frontier.pop()
            next_ones = {one for c in self.channels if c.source == source for one in c.targets}
            frontier += next_ones - reached
            reached |= next_ones
        return second in reached

    def check_mode(self, mode: Mode) -> None:
        """Raise UsageError if a snapshot in this mode cannot be taken. On a cycle all participants
        would wait for each other's barriers. No barrier travels in a topic."""
        if self.topics and mode is not Mode.RETAINED:
            raise UsageError(
                f"a snapshot in mode {mode} needs barriers in every channel, and "
                f"{self.topics[0].name} is a topic of Kafka: use mode retained"
            )
        cycle = self.cycle()
        if cycle and mode not in (Mode.UNALIGNED, Mode.RETAINED):
            raise UsageError(
                f"a snapshot in mode {mode} waits for the barriers of all incoming channels, "
                f"and {' -> '.join((*cycle, cycle[0]))} would wait for each other: use mode "
                "unaligned"
            )

    def _targets(self, participant: str) -> set[str]:
        return {target for log in self.outgoing(participant) for target in log.targets}

    def _reachable(self, starts: Iterable[str]) -> set[str]:
        frontier = list(starts)
        reached = set(frontier)
        while frontier:
            for target in self._targets(frontier.pop()) - reached:
                reached.add(target)
                frontier.append(target)
        return reached


def _named(channels: tuple[_Channel, ...], name: str, kind: str) -> _Channel:
    """Return the channel of that name; UsageError names those that exist."""
    for channel in channels:
        if channel.name == name:
            return channel
    names = ", ".join(channel.name for channel in channels) or "none"
    raise UsageError(f"there is no {kind} {name!r} in this pipeline; there are: {names}")


def dataflow(
    *, queries: Iterable[str], services: Mapping[str, type], channels: Iterable[Log | Topic]
) -> Dataflow:
    """Return a dataflow, with its names sorted and checked; arguments as ``Pipeline.create``."""
    check_kind("queries", queries, Iterable, "a list of names")
    check_kind("services", services, Mapping, "a mapping from names to the classes of states")
    channels = [*channels]
    for one in channels:
        check_kind("a channel", one, Log | Topic, "what channel or kafka_channel has returned")
    every = sorted(channels, key=lambda channel: channel.name)
    described = Dataflow(
        queries=tuple(sorted(check_process_id(name, "a query") for name in queries)),
        services={
            check_process_id(name, "a service"): services[name].__name__
            for name in sorted(services)
        },
        logs=tuple(one for one in every if isinstance(one, Log)),
        topics=tuple(one for one in every if isinstance(one, Topic)),
    )
    check_dataflow(described)
    return described


def check_dataflow(described: Dataflow) -> None:
    """Raise UsageError if names or channels of a dataflow do not fit together, or are not valid."""
    every = [check_process_id(name) for name in described.participants]
    if not every:
        raise UsageError("a pipeline needs at least one query or service")
    for name, following in itertools.pairwise(every):
        if name == following:
            raise UsageError(f"two queries or services are called {name!r}: rename one")
    names = sorted(one.name for one in described.channels)
    for name, next_name in itertools.pairwise(names):
        if name == next_name:
            raise UsageError(
                f"two channels are called {name!r}: a channel has one writer; give each of "
                "several writers its own channel"
            )
    for log in described.logs:
        _check_log(log, every)
    for topic in described.topics:
        _check_topic(topic, every)
    topics = sorted(topic.topic for topic in described.topics)
    for name, next_name in itertools.pairwise(topics):
        if name == next_name:
            raise UsageError(f"two channels are the topic {name!r}: declare it once")
    for service in described.services:
        _check_topics_of_service(described, service)


def _check_topics_of_service(described: Dataflow, service: str) -> None:
    """Raise UsageError unless a service with topics can write all that it writes in one transaction
    of Kafka, with its state."""
    if not (own := described.topics_of(service)):
        return
    first = own[0]
    for log in (*described.incoming(service), *described.outgoing(service)):
        raise UsageError(
            f"channels {first.name} and {log.name}: the service {service} cannot use a topic of "
            "Kafka and a log, because it commits its work in one transaction of Kafka: make both "
            "channels topics, or both logs"
        )
    if other := next((topic for topic in own if topic.servers != first.servers), None):
        raise UsageError(
            f"channels {first.name} and {other.name}: the service {service} needs both at the same "
            f"brokers, because it commits its work in one transaction: {first.servers!r} and "
            f"{other.servers!r} differ"
        )


def channel(
    name: str,
    schema: pa.Schema,
    *,
    source: str,
    targets: Iterable[str] = (),
    partition_count: int = 1,
    key: Iterable[str] = (),
) -> Log:
    """Return the description of a channel that is kept on disk.

    Args:
        name: its name; letters, digits, ``_``, ``.`` and ``-``.
        schema: of its records.
        source: the query or service that appends to it.
        targets: the participants that read it; none for the end of the dataflow.
        partition_count: number of partitions of its records.
        key: columns whose values select the partition.
    """
    return Log(
        name=name,
        source=source,
        targets=tuple(sorted(targets)),
        schema=encode_schema(schema),
        partition_count=partition_count,
        key=tuple(key),
    )


def kafka_channel(
    name: str,
    *,
    topic: str,
    servers: str,
    source: str | None = None,
    targets: Iterable[str] = (),
    has_unique_keys: bool = False,
) -> Topic:
    """Return the description of a channel that is a topic of Kafka.

    Args:
        name: its name; letters, digits, ``_``, ``.`` and ``-``.
        topic: the name of the topic.
        servers: the brokers to ask first, ``HOST:PORT`` with commas between them. They must be the
            same for every program of the pipeline. How to log in is not part of the description.
        source: the query or service that writes it, and nothing else may; None if other programs
            do. A service writes in transactions, so everything that reads the topic must have
            Kafka's ``isolation.level`` ``read_committed``.
        targets: the queries and services that read it; none for the end of the dataflow.
        has_unique_keys: whether each micro-batch of the source has at most one record of a key, as
            after an aggregation by that key. Then a micro-batch that Spark repeats after a crash
            may have other values. Without it, it must have the same records, in any order. For a
            service it means nothing: what it did not commit does not count.
    """
    return Topic(
        name=name,
        topic=topic,
        servers=servers,
        source=source,
        targets=tuple(sorted(targets)),
        has_unique_keys=has_unique_keys,
    )


def encode_schema(schema: pa.Schema) -> str:
    """Return an Arrow schema as text: its IPC message in base 64, without metadata."""
    check_kind("schema", schema, pa.Schema, "a pyarrow.Schema")
    bare = schema.remove_metadata()
    return base64.b64encode(bare.serialize().to_pybytes()).decode("ascii")


def decode_schema(text: str) -> pa.Schema:
    """Return the schema that ``encode_schema`` wrote; UsageError if `text` is none."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (ValueError, pa.ArrowException, OSError) as error:
        raise UsageError(f"a channel's schema cannot be read: {text_of(error)}") from error


def schema_difference(
    declared: pa.Schema, found: pa.Schema, *, with_zones: bool = True
) -> str | None:
    """Return how the columns of `found` differ from the declared ones, in order; None if they do
    not. Whether a column may be null, metadata, and the names of zones, do not count; without
    `with_zones` it does not matter either whether times have a zone at all."""
    pairs = itertools.zip_longest(declared, found)
    for number, (expected, actual) in enumerate(pairs, start=1):
        if expected is None:
            return f"column {actual.name!r} is not declared"
        if actual is None:
            return f"column {expected.name!r} ({expected.type}) is missing"
        is_same = _is_same(expected.type, actual.type, with_zones=with_zones)
        if expected.name != actual.name or not is_same:
            return (
                f"column {number} is {actual.name!r} ({actual.type}), but {expected.name!r} "
                f"({expected.type}) is declared"
            )
    return None


def _is_same(first: pa.DataType, second: pa.DataType, *, with_zones: bool) -> bool:
    """Return whether two types hold the same values, as ``schema_difference`` takes that."""
    if pa.types.is_struct(first) and pa.types.is_struct(second):
        inner = pa.schema(list(first)), pa.schema(list(second))
        return schema_difference(*inner, with_zones=with_zones) is None
    if pa.types.is_map(first) and pa.types.is_map(second):
        pairs = ((first.key_type, second.key_type), (first.item_type, second.item_type))
        return all(_is_same(*pair, with_zones=with_zones) for pair in pairs)
    if pa.types.is_list(first) and pa.types.is_list(second):
        return _is_same(first.value_type, second.value_type, with_zones=with_zones)
    if pa.types.is_timestamp(first) and pa.types.is_timestamp(second):
        # A zone says how an instant is shown; with no zone at all it is no instant.
        is_instant = first.tz is not None, second.tz is not None
        return first.unit == second.unit and (not with_zones or is_instant[0] == is_instant[1])
    return bool(first == second)


@functools.lru_cache(maxsize=256)
def _unsupported_column(encoded_schema: str) -> str | None:
    """Return which column of a schema Parquet, or Spark, would change; None if none."""
    schema = decode_schema(encoded_schema)
    if (pair := _alike(schema)) is not None:
        return (
            f"columns {pair[0]!r} and {pair[1]!r} are the same to Spark, which ignores upper "
            "and lower case: rename one"
        )
    for field in schema:
        declared = pa.schema([field])
        file = pa.BufferOutputStream()
        try:
            # Every program of a pipeline runs this: an array of no values would import pandas, and
            # pq.read_table the data sets of Arrow.
            pq.write_table(pa.Table.from_batches([], schema=declared), file)
            found = pq.ParquetFile(file.getvalue()).read().schema
        except pa.ArrowException as error:
            return f"column {field.name!r} is of type {field.type}, which cannot be stored: {error}"
        if schema_difference(declared, found) is not None:
            return (
                f"column {field.name!r} is of type {field.type}, which Parquet returns as "
                f"{found.field(0).type}: declare that type"
            )
    return None


def _alike(fields: Iterable[Any]) -> tuple[str, str] | None:
    """Return two columns, or two fields of a nested one, whose names differ in case at most."""
    names: dict[str, str] = {}
    for field in fields:
        if field.name.lower() in names:
            return names[field.name.lower()], field.name
        names[field.name.lower()] = field.name
        inner = [field.type.field(index) for index in range(field.type.num_fields)]
        if (pair := _alike(inner)) is not None:
            return pair
    return None


def _check_ends(channel: Log | Topic, participants: list[str]) -> None:
    check_process_id(channel.name, "a channel")
    for name in (*([] if channel.source is None else [channel.source]), *channel.targets):
        if name not in participants:
            raise UsageError(
                f"channel {channel.name}: there is no query or service {name!r}; there are: "
                f"{', '.join(participants)}"
            )
    if len(set(channel.targets)) != len(channel.targets):
        raise UsageError(
            f"channel {channel.name}: a target is named twice: {', '.join(channel.targets)}"
        )
    if channel.source in channel.targets:
        raise UsageError(
            f"channel {channel.name}: {channel.source} would read its own output: keep that in its "
            "state, or insert another query"
        )


def _check_topic(topic: Topic, participants: list[str]) -> None:
    _check_ends(topic, participants)
    if topic.source is None and not topic.targets:
        raise UsageError(f"channel {topic.name}: nothing writes or reads it: name one, or drop it")
    if _TOPIC_NAME.fullmatch(topic.topic) is None or topic.topic in (".", ".."):
        raise UsageError(f"channel {topic.name}: Kafka has no topic {topic.topic!r}")
    if _SERVERS.fullmatch(topic.servers) is None:
        raise UsageError(
            f"channel {topic.name}: {topic.servers!r} does not name brokers: give HOST:PORT, with "
            "commas between several, and nothing else"
        )


def _check_log(log: Log, participants: list[str]) -> None:
    _check_ends(log, participants)
    if not 1 <= log.partition_count <= PARTITION_COUNT_MAX:
        raise UsageError(
            f"channel {log.name}: {log.partition_count} partitions; the number must be from 1 "
            f"to {PARTITION_COUNT_MAX}"
        )
    columns = log.arrow_schema.names
    if not columns:
        raise UsageError(f"channel {log.name}: its schema has no column")
    if (wrong := _unsupported_column(log.schema)) is not None:
        raise UsageError(f"channel {log.name}: {wrong}")
    for name in columns:
        if name.lower() in (PARTITION_COLUMN, OFFSET_COLUMN):
            raise UsageError(
                f"channel {log.name}: a column cannot be called {name!r}, which gives the "
                "position of a record in the log; rename it"
            )
    if unknown := [name for name in log.key if name not in columns]:
        raise UsageError(
            f"channel {log.name}: the key {unknown[0]!r} is not a column; the columns are "
            f"{', '.join(columns)}"
        )
    nested = [name for name in log.key if log.arrow_schema.field(name).type.num_fields]
    if nested and log.partition_count > 1:
        raise UsageError(
            f"channel {log.name}: the key {nested[0]!r} is of type "
            f"{log.arrow_schema.field(nested[0]).type}: choose columns of numbers, text, bytes or "
            "times"
        )
