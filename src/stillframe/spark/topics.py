"""Topics of Kafka as channels: a query reads the records that count, and writes each once.

Both use Spark's own source and sink for Kafka. A reader compares the label of each record with the
timeline of its writer, in SQL. A writer labels its records with the micro-batch. After a crash
Spark repeats a micro-batch that it did not commit. Some of its records may be in the topic: only
the missing ones are written.
"""

import functools
import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from stillframe.errors import NotConsistent, Unavailable, UsageError, text_of
from stillframe.pipeline import checkpoint
from stillframe.pipeline.dataflow import Dataflow, Topic
from stillframe.pipeline.kafka import Broker, BrokerAway, brokers
from stillframe.pipeline.kafka_login import VARIABLE, spark_settings
from stillframe.pipeline.known_topics import KnownTopics, held_topic, known_id, start_positions
from stillframe.pipeline.locks import participant_lock
from stillframe.pipeline.metadata import Metadata, read_metadata
from stillframe.pipeline.outages import Outages
from stillframe.pipeline.pipeline import Pipeline
from stillframe.pipeline.query_runs import current_run
from stillframe.pipeline.retained import RETAIN, RETAIN_MIN
from stillframe.pipeline.topics import (
    HEADER,
    Counting,
    Label,
    counting,
    has_joined,
    join_topic,
    joined_record,
    rejoin_topic,
)
from stillframe.spark.driver_process import take_over, wait_until, writer_of
from stillframe.spark.kafka_sources import (
    COMMITTED,
    EARLIEST,
    ISOLATION,
    STARTING,
    check_frame,
    plan_of,
)
from stillframe.storage.location import Location

_DELIVERY_S = 20.0
"""How long Kafka's producer tries to deliver a record. It does so even if its task has failed."""
_REQUEST_S = _DELIVERY_S / 2
LINGER_MS_MAX = int((_DELIVERY_S - _REQUEST_S) * 1000)
"""How long a producer may collect records: Kafka wants time for one request after that."""
SETTLING_S = _DELIVERY_S + 2
"""When records that were handed to a producer are in the topic, or never will be."""
_LINGER = "kafka.linger.ms"
COLLECTED = {_LINGER: "100", "kafka.batch.size": str(2**16)}
"""How a sink collects records, unless its user says otherwise. Large requests cost less, and no
micro-batch takes longer: its tasks end with a flush."""
POLLED = {"kafka.max.poll.records": "5000"}
"""How many records a source takes at a time: Spark does something for each poll."""
_HEADERS = "array<struct<key:string,value:binary>>"
KAFKA = "kafka."
"""What the options of Spark begin with that are settings of Kafka's client."""
_LOGIN = ("kafka.sasl.", "kafka.security.", "kafka.ssl.")
_FIXED = (
    "kafka.acks",
    "kafka.bootstrap.servers",
    "kafka.delivery.timeout.ms",
    "kafka.enable.idempotence",
    "kafka.interceptor.classes",
    "kafka.key.serializer",
    "kafka.max.in.flight.requests.per.connection",
    "kafka.request.timeout.ms",
    "kafka.retries",
    "kafka.transactional.id",
    "kafka.value.serializer",
)
"""Settings of a producer that decide what is written, where, and whether once. An interceptor may
add a header after the label."""
_SINK_COLUMNS = {"key", "value", "headers", "partition"}
_AWAY = re.compile(
    r"org\.apache\.kafka\.common\.errors\.(?:Timeout|Disconnect|Network|NotLeaderOrFollower|"
    r"(?:Leader|Broker|Coordinator)NotAvailable|NotEnoughReplicas(?:AfterAppend)?|KafkaStorage)"
    r"Exception: [^\n]*|Cannot fetch record for offset [^\n]*"
)
"""Errors of Kafka's clients in those of Spark, which end when the brokers are back."""
_ONE_ATTEMPT = {
    "spark.task.maxFailures": "1",
    "spark.stage.maxConsecutiveAttempts": "1",
}
_counted: dict[tuple[Location, str, str], int] = {}
"""Pipeline, query and channel -> the epoch of the DataFrame that reads it."""


def counted(
    frame: DataFrame,
    pipeline: Pipeline,
    query: str,
    channel: str,
    *,
    report: Callable[[str], object] = lambda words: sys.stderr.write(f"{words}\n"),
) -> DataFrame:
    """Return the records of a topic that count, from a DataFrame of Spark's source ``kafka``.

    A restore deletes no record of a topic: this leaves out those that it took back. If the query
    or service that writes the topic has not joined the pipeline yet, it waits for that.

    Args:
        frame: a streaming DataFrame of the topic alone, with all columns of the source and the
            options of ``kafka_options``; of these it needs ``subscribe`` with this topic,
            ``includeHeaders`` and ``startingOffsets``, and if a service writes the topic,
            ``kafka.isolation.level``.
        pipeline: the pipeline.
        query: the name of the query that reads.
        channel: the name of the channel, made with ``stillframe.pipeline.kafka_channel``.
        report: receives a sentence if it waits for longer than a second.

    Raises:
        UsageError: there is no such query or channel, or the query is not a target of it. The
            DataFrame has no headers, or does not read this topic alone. The topic does not keep its
            records. A service writes the topic, and the DataFrame reads what was not committed. The
            DataFrame skips records that Kafka has deleted, or those that are in the topic before
            the query starts.
        NotConsistent: the topic was deleted, or created again, since the pipeline has used it.
        Unavailable: Kafka does not answer.
    """
    flow = pipeline.dataflow
    flow.check_participant(query, "query")
    topic = flow.topic(channel)
    if query not in topic.targets:
        raise UsageError(f"query {query} is no target of channel {channel}: declare it as one")
    if topic.source is not None and not {"headers", "partition", "offset"} <= set(frame.columns):
        raise UsageError(
            f"the DataFrame of topic {topic.topic} has the columns {', '.join(frame.columns)}, and "
            "needs all of the source, with its headers: set the source's option includeHeaders to "
            "true, and use counted before any other operator"
        )
    check_frame(plan_of(frame), pipeline.path, flow, query, topic)
    join_topics(pipeline.path, flow, query)
    wait_until(
        lambda: topic.source is None or has_joined(pipeline.path, topic),
        f"waiting for {topic.source} to join the pipeline {pipeline.path}: start it, so that it is "
        f"known which records of topic {topic.topic} are its own",
        report,
    )
    metadata = read_metadata(pipeline.path)
    _counted[pipeline.path, query, channel] = metadata.epoch
    if topic.source is None:
        return frame
    return frame.where(F.expr(counting(pipeline.path, metadata, topic).condition()))


def join_topics(root: Location, flow: Dataflow, query: str) -> None:
    """Let a query join the pipeline as the writer of its topics, and check all that it uses.

    The writers of topics that it reads join as well if it feeds them: on a cycle each would wait
    for the other one.
    """
    outgoing = flow.outgoing_topics(query)
    with brokers() as broker_of:
        KnownTopics(root, flow.topics_of(query), broker_of).adopt()
        for topic in (*flow.incoming_topics(query), *outgoing):
            broker_of(topic).check(topic, is_written=topic in outgoing)
        joining = [topic for topic in outgoing if _may_join(root, topic, broker_of)]
        lock = participant_lock(root, query)
        # Another program that runs the query has joined, or is about to.
        if joining and lock.acquire():
            try:
                for topic in joining:
                    _join(root, topic, broker_of)
            finally:
                lock.release()
        for topic in _of_peers(flow, query):
            if not has_joined(root, topic):
                join_topic(root, topic, broker_of(topic).end_offsets(topic.topic))


def _may_join(root: Location, topic: Topic, broker_of: Callable[[Topic], Broker]) -> bool:
    """Return whether the source of a topic has not joined, or may join again: its first start
    failed, and the program that wrote the topic before has written more since."""
    if not has_joined(root, topic):
        return True
    assert topic.source is not None
    if checkpoint.has_started(
        current_run(root, read_metadata(root).epoch, topic.source).checkpoint
    ):
        return False
    return joined_record(root, topic).has_other_ends(broker_of(topic).end_offsets(topic.topic))


def _join(root: Location, topic: Topic, broker_of: Callable[[Topic], Broker]) -> None:
    """Let the source of a topic, whose lock is held, join, or join again."""
    broker = broker_of(topic)
    ends = broker.end_offsets(topic.topic)
    if not has_joined(root, topic):
        join_topic(root, topic, ends)
    elif _may_join(root, topic, broker_of) and not broker.has_written(
        # If it was restored to its start, it may have written.
        joined_record(root, topic),
        topic.topic,
        ends,
    ):
        rejoin_topic(root, topic, ends)


def _of_peers(flow: Dataflow, query: str) -> list[Topic]:
    """Return the topics that a query reads, and that are written by one on a cycle with it."""
    return [
        topic
        for topic in flow.incoming_topics(query)
        if topic.source is not None and flow.feeds(query, topic.source)
    ]


def check_topics_of(frame: DataFrame, root: Location, head: Metadata, query: str) -> None:
    """Raise UsageError if a query cannot read or write its topics exactly once."""
    for topic in head.dataflow.incoming_topics(query):
        epoch = _counted.get((root, query, topic.name))
        if epoch is None:
            raise UsageError(
                f"query {query} of {root} is declared to read channel {topic.name}: use "
                f"counted(frame, pipeline, {query!r}, {topic.name!r}) on the DataFrame of topic "
                f"{topic.topic}"
            )
        if epoch != head.epoch:
            raise UsageError(
                f"the pipeline {root} was restored since the DataFrame of channel {topic.name} was "
                "made: make it again"
            )
    retained = str(frame.sparkSession.conf.get(RETAIN, "100"))
    if int(retained) < RETAIN_MIN:
        raise UsageError(
            f"with {RETAIN}={retained} the queries of a pipeline with topics are hardly ever in a "
            f"consistent cut: set it to {RETAIN_MIN} or more; 100 is the default"
        )
    if head.dataflow.outgoing_topics(query):
        _check_attempts(frame)


def check_positions(root: Location, flow: Dataflow, query: str, place: Location) -> None:
    """Raise NotConsistent if Kafka does not have the records with which a query continues its
    checkpoint. The log says which ones a first start misses."""
    incoming = flow.incoming_topics(query)
    if not incoming:
        return
    done = checkpoint.last_committed(place)
    batch = checkpoint.START if done is None else done.batch
    stored = checkpoint.topic_positions(place, batch, is_earlier=True)
    with brokers() as broker_of:
        for topic in incoming:
            held = held_topic(broker_of(topic), topic.topic, known_id(root, topic))
            start_positions(f"query {query}", held, stored.get(topic.topic))


def topic_comparison(root: Location, flow: Dataflow, query: str) -> Callable[[], None]:
    """Return what raises NotConsistent if a topic of a query was deleted, or created again. Each
    micro-batch calls it before it writes anything."""
    # Nothing is read from these, so there is nothing to close.
    connected = functools.cache(Broker)
    topics = flow.topics_of(query)
    return KnownTopics(root, topics, lambda topic: connected(topic.servers)).compare


def check_is_new(root: Location, flow: Dataflow, query: str) -> None:
    """Raise UsageError if a query without a checkpoint may have run before it joined the pipeline:
    its topic has records. It would write again what follows from all that it reads."""
    for topic in flow.outgoing_topics(query):
        if has_joined(root, topic) and any(joined_record(root, topic).first_offsets.values()):
            raise UsageError(
                f"topic {topic.topic} has records from before query {query} joined the pipeline, "
                "and the query has no checkpoint. If it wrote them, give its old checkpoint as "
                "adopt, or it writes them a second time; if another program did, give adopt=False"
            )


def _check_attempts(frame: DataFrame) -> None:
    """Refuse a session that writes some records of a failed task again, at any time."""
    context = frame.sparkSession.sparkContext
    conf = context.getConf()
    if str(conf.get("spark.speculation", "false")).lower() == "true":
        raise UsageError(
            "with spark.speculation two tasks write the same records into a topic: turn it off"
        )
    master = str(context.master).replace(" ", "")
    if master == "local" or master.startswith("local["):
        wrong = {} if "," not in master or master.endswith(",1]") else {"master": "local[N]"}
    else:
        wrong = {name: want for name, want in _ONE_ATTEMPT.items() if conf.get(name) != want}
    if wrong:
        settings = " and ".join(f"{name} to {value}" for name, value in wrong.items())
        raise UsageError(
            "a task that Spark repeats writes its records into the topic a second time: set "
            f"{settings}. A micro-batch that failed is repeated when the query is started again, "
            "and then only its missing records are written"
        )


def settled_at(
    root: Location, query: str, spark: SparkSession, report: Callable[[str], object]
) -> float:
    """Return when no record of an earlier run can reach a topic any more (``time.monotonic``).

    It first waits for the end of the Java process that ran the query before."""
    is_over = take_over(root, query, writer_of(spark), report)
    return time.monotonic() + (0 if is_over else SETTLING_S)


def topic_appender(
    root: Location,
    head: Metadata,
    topic: Topic,
    *,
    planned: int | None,
    settled: float,
    report: Callable[[str], object],
    outages: Outages,
    check: Callable[[], None],
    options: Mapping[str, str],
) -> Callable[[DataFrame, int], None]:
    """Return what writes each micro-batch of a query into a topic, once, through `outages`. Earlier
    runs have planned micro-batches up to `planned`, and their records arrive until `settled`.
    `check` raises an error if the query may not write any more, or if no broker answers. `options`
    are those of the user for the sink."""
    if not has_joined(root, topic):
        raise Unavailable(
            f"query {topic.source} could not join the pipeline: another program runs it"
        )
    one = counting(root, head, topic)
    sink = sink_options(topic, options)
    written: int | None = None
    failed: tuple[float, float] | None = None
    """Since when a broker may not have answered an attempt that failed, and when that failed."""

    def spans_of(label: Label) -> dict[int, tuple[int, int]]:
        """Return where records of a micro-batch are that was begun before."""
        if failed is not None:
            check()
            arrived = _arrival_end(*failed, time.monotonic())
            outages.exclude(_settle(arrived, topic, label, report))
            check()
        elif planned is not None and label.batch <= planned:
            outages.exclude(_settle(settled, topic, label, report))
        with Broker(topic.servers) as broker:
            return broker.span_of(one, label)

    def attempt(batch: DataFrame, label: Label) -> None:
        nonlocal failed
        labelled = _records(batch, topic, label)
        # An earlier run, or a call that failed, may have begun this micro-batch.
        is_new = written is not None and label.batch > written and failed is None
        spans = {} if is_new else spans_of(label)
        began = time.monotonic()
        try:
            if spans:
                _write_missing(_records(batch, topic), one, label, spans, sink)
            else:
                _write(labelled, sink)
        except BaseException as error:
            now = time.monotonic()
            failed = max(began, now - _DELIVERY_S), now
            _raise_if_away(error, topic, failed[0])
            raise

    def append(batch: DataFrame, number: int) -> None:
        nonlocal written, failed
        outages.through(functools.partial(attempt, batch, one.label(head.epoch, number)))
        written, failed = number, None

    return append


def _raise_if_away(error: BaseException, topic: Topic, since: float) -> None:
    """Raise BrokerAway if Spark's `error` is that no broker answered Kafka's clients in it."""
    if (found := _AWAY.search(text_of(error))) is not None:
        raise BrokerAway(
            topic.servers,
            f"topic {topic.topic}: {found[0]}",
            f"Spark could not write topic {topic.topic} at {topic.servers}: {found[0]}",
            remedy="check that the brokers run and can be reached from here",
            since=since,
        ) from error


def _arrival_end(since: float, failed_at: float, back_at: float) -> float:
    """Return when no record of a failed attempt can reach the topic any more, if the broker may
    have been away from `since` until `back_at`. TCP sends again what was sent meanwhile, even after
    its sender has given it up: at intervals that double, so after the outage at most for as long as
    that has lasted."""
    return max(failed_at + SETTLING_S, back_at + (back_at - since))


def _settle(moment: float, topic: Topic, label: Label, report: Callable[[str], object]) -> float:
    """Wait until no record of an attempt that was interrupted can arrive any more. Return for how
    many seconds."""
    left_s = moment - time.monotonic()
    if left_s <= 0:
        return 0.0
    report(
        f"waiting {left_s:.0f} s before micro-batch {label.batch} of query {topic.source} is "
        f"repeated: records of the attempt that was interrupted may still reach topic {topic.topic}"
    )
    time.sleep(left_s)
    return left_s


def _records(batch: DataFrame, topic: Topic, label: Label | None = None) -> DataFrame:
    """Return the columns of a micro-batch that are written, with an array of headers; the last one
    is the label, if there is one. All in SQL: each column made in Python takes a call for each part
    of it, in every micro-batch."""
    names = set(batch.columns)
    if unknown := names - _SINK_COLUMNS:
        raise UsageError(
            f"query {topic.source} writes the topic {topic.topic}, and its DataFrame has the "
            f"column {min(unknown)}: it may have key, value, headers and partition"
        )
    if "value" not in names:
        raise UsageError(f"the DataFrame of query {topic.source} has no column value for Kafka")
    if topic.has_unique_keys and "key" not in names:
        raise UsageError(
            f"channel {topic.name} is declared with has_unique_keys, and the DataFrame of query "
            f"{topic.source} has no column key"
        )
    columns = [
        f"cast({'key' if 'key' in names else 'null'} AS binary) AS key",
        "cast(value AS binary) AS value",
    ]
    if "partition" in names:
        # A null would leave the choice to the producer: a repeated record would not be found.
        columns.append(
            f"coalesce(cast(partition AS int), cast(raise_error('the column partition of channel "
            f"{topic.name} has a null: leave it out, or give each record its partition') AS int)) "
            "AS partition"
        )
    headers = f"cast(array() AS {_HEADERS})"
    if "headers" in names:
        headers = f"coalesce(cast(headers AS {_HEADERS}), {headers})"
    return batch.selectExpr(*columns, f"{_labelled(headers, label)} AS headers")


def _labelled(headers: str, label: Label | None) -> str:
    """Return the SQL of an array of headers with the label at its end."""
    return headers if label is None else f"concat({headers}, array({_header(label)}))"


def _header(label: Label) -> str:
    return f"struct('{HEADER}' AS key, X'{label.encoded.hex()}' AS value)"


def _write(labelled: DataFrame, sink: dict[str, str]) -> None:
    labelled.write.format("kafka").options(**sink).save()


def kafka_options(pipeline: Pipeline, channel: str) -> dict[str, str]:
    """Return the options with which Spark's source ``kafka`` reads a channel: servers, topic,
    headers, only what was committed, from the first record that is left, and how to log in. It
    reads more records at a time than Spark does by default, which takes less time for each.

    The login is what the file holds that the environment variable ``STILLFRAME_KAFKA`` names; only
    the driver needs it. Do not print the options: they hold passwords and keys.

    Raises:
        UsageError: there is no such channel, or the file cannot be used.
    """
    topic = pipeline.dataflow.topic(channel)
    return {
        **_client_options(topic),
        "subscribe": topic.topic,
        "includeHeaders": "true",
        ISOLATION: COMMITTED,
        STARTING: EARLIEST,
        **POLLED,
    }


def check_sink_options(options: Mapping[str, str], query: str, topics: Sequence[Topic]) -> None:
    """Raise UsageError if a user's options for the sinks of a query's topics decide what is
    written, or where; or if it has no topics."""
    if options and not topics:
        raise UsageError(
            f"the option {min(options)} is for topics, and query {query} writes none: leave it out"
        )
    for name, value in options.items():
        if name.lower().startswith(_LOGIN):
            raise UsageError(
                f"the option {name} is part of a login: put it into the file that {VARIABLE} names"
            )
        if not name.lower().startswith(KAFKA) or name.lower() in _FIXED:
            raise UsageError(
                f"the option {name} cannot be set for a topic of a pipeline, which decides what is "
                "written, into which topic, and that it is written once: leave it out"
            )
        if name.lower() == _LINGER and not (value.isdecimal() and int(value) <= LINGER_MS_MAX):
            raise UsageError(
                f"the option {name} is {value!r}: set it to a number of milliseconds up to "
                f"{LINGER_MS_MAX}, because delivery of a record may take {_DELIVERY_S:g} s in all"
            )


def sink_options(topic: Topic, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of Spark's sink for a topic, with those of the user."""
    return {
        **COLLECTED,
        # To wait for metadata or for memory is also a part of the delivery.
        "kafka.max.block.ms": str(int(_DELIVERY_S * 1000)),
        **{name.lower(): value for name, value in options.items()},
        **_client_options(topic),
        "topic": topic.topic,
        "kafka.request.timeout.ms": str(int(_REQUEST_S * 1000)),
        "kafka.delivery.timeout.ms": str(int(_DELIVERY_S * 1000)),
    }


def _client_options(topic: Topic) -> dict[str, str]:
    return {**spark_settings(), "kafka.bootstrap.servers": topic.servers}


def _check_keys(records: DataFrame, topic: Topic, label: Label) -> None:
    """Raise UsageError if a micro-batch has records that their keys do not distinguish."""
    counted_keys = records.groupBy("key").count().where("key IS NULL OR count > 1")
    if not counted_keys.isEmpty():
        raise UsageError(
            f"channel {topic.name} is declared with has_unique_keys, and micro-batch {label.batch} "
            f"of query {topic.source}, which was interrupted, has a key twice or a record without "
            "one. Give each record its own key, and restore the pipeline from a snapshot "
            "(stillframe pipeline restore --newest-consistent)"
        )


def _write_missing(
    records: DataFrame,
    one: Counting,
    label: Label,
    spans: dict[int, tuple[int, int]],
    sink: dict[str, str],
) -> None:
    """Write the records of a micro-batch that an earlier attempt has not written."""
    topic = one.topic
    records.persist()
    found = _written(records, topic, label, spans).persist()
    try:
        if topic.has_unique_keys:
            _check_keys(records, topic, label)
            is_same = records["key"].eqNullSafe(found["key"])
            missing = records.join(found.select("key"), is_same, "left_anti")
            strange = found.join(records.select("key"), is_same, "left_anti")
        else:
            missing, strange = records.exceptAll(found), found.exceptAll(records)
        if (count := strange.count()) > 0:
            kind = "keys" if topic.has_unique_keys else "records"
            raise NotConsistent(
                f"micro-batch {label.batch} of query {topic.source} was interrupted, and has other "
                f"{kind} when it is repeated: {count} in topic {topic.topic} are not among them",
                remedy="restore the pipeline from a snapshot (stillframe pipeline restore "
                "--newest-consistent); if the records depend on the order in which Spark reads, "
                "declare the channel with has_unique_keys",
            )
        columns = [name for name in missing.columns if name != "headers"]
        _write(missing.selectExpr(*columns, f"{_labelled('headers', label)} AS headers"), sink)
    finally:
        found.unpersist()
        records.unpersist()


def _written(
    records: DataFrame, topic: Topic, label: Label, spans: dict[int, tuple[int, int]]
) -> DataFrame:
    """Return the records of a label in a topic, with the columns of those to be written."""
    options = {
        **_client_options(topic),
        "assign": json.dumps({topic.topic: sorted(spans)}),
        STARTING: json.dumps({topic.topic: {p: start for p, (start, _) in spans.items()}}),
        "endingOffsets": json.dumps({topic.topic: {p: end for p, (_, end) in spans.items()}}),
        "includeHeaders": "true",
    }
    found = records.sparkSession.read.format("kafka").options(**options).load()
    is_of_label = F.expr(f"try_element_at(headers, -1) = {_header(label)}")
    own = F.expr("slice(headers, 1, size(headers) - 1)").cast(_HEADERS)
    return found.where(is_of_label).withColumn("headers", own).select(*records.columns)
