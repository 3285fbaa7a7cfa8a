"""What does not fit together is refused by name, and where snapshots begin reaches everybody."""

from typing import Any

import pyarrow as pa
import pytest

from stillframe.errors import UsageError
from stillframe.pipeline.dataflow import Dataflow, Log, Topic, channel, dataflow, kafka_channel
from stillframe.pipeline.metadata import initial_metadata
from stillframe.protocol.aligner import Mode
from tests.pipeline.money import SCHEMA, Account

INT = pa.int64()


def flow(*edges: str) -> Dataflow:
    """Return a dataflow of services from edges such as ``a>b``."""
    logs = [channel(e.replace(">", "-"), SCHEMA, source=e[0], targets=[e[2]]) for e in edges]
    names = {name for e in edges for name in (e[0], e[2])}
    return dataflow(queries=[], services=dict.fromkeys(names, Account), channels=logs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "x"}, "no query or service 'x'; there are: a, b"),
        ({"targets": ["x"]}, "no query or service 'x'"),
        ({"targets": ["b", "b"]}, "a target is named twice"),
        ({"targets": ["a"]}, "a would read its own output"),
        ({"partition_count": 0}, "0 partitions"),
        ({"partition_count": 1025}, "1025 partitions"),
        ({"schema": pa.schema([])}, "its schema has no column"),
        (
            {"schema": pa.schema([("at", pa.timestamp("s"))])},
            r"ab: column 'at' is of type timestamp\[s\], .* timestamp\[ms\]: declare that type",
        ),
        ({"schema": pa.schema([("day", pa.date64())])}, r"'day' .* as date32\[day\]: declare that"),
        ({"schema": pa.schema([("at", pa.time32("s"))])}, r"'at' .* as time32\[ms\]: declare that"),
        (
            {"schema": pa.schema([("x", pa.struct([("at", pa.timestamp("s"))]))])},
            r"'x' .* as struct<at: timestamp\[ms\]>",
        ),
        ({"schema": pa.schema([("x", pa.struct([]))])}, "'x' .* cannot be stored: Cannot write"),
        ({"schema": pa.schema([("a", pa.int64()), ("a", pa.int64())])}, "'a' and 'a'"),
        ({"schema": pa.schema([("a", pa.int64()), ("A", pa.int64())])}, "'a' and 'A'"),
        (
            {"schema": pa.schema([("l", pa.list_(pa.struct([("b", INT), ("B", INT)])))])},
            "'b' and 'B'",
        ),
        ({"key": ["x"]}, "the key 'x' is not a column; the columns are amount"),
    ],
)
def test_a_channel_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    """The error names the channel and what is wrong."""
    described = {"name": "ab", "schema": SCHEMA, "source": "a", "targets": ["b"], **changes}
    with pytest.raises(UsageError, match=message):
        dataflow(queries=["a"], services={"b": Account}, channels=[channel(**described)])


def test_names_are_given_once() -> None:
    """Neither two participants nor two channels share a name; nothing at all is not a pipeline."""
    with pytest.raises(UsageError, match="two queries or services are called 'a'"):
        dataflow(queries=["a"], services={"a": Account}, channels=[])
    twice = [channel("ab", SCHEMA, source="a", targets=["b"])] * 2
    with pytest.raises(UsageError, match="two channels are called 'ab'"):
        dataflow(queries=["a", "b"], services={}, channels=twice)
    with pytest.raises(UsageError, match="at least one query or service"):
        dataflow(queries=[], services={}, channels=[])


@pytest.mark.parametrize(
    ("edges", "initiators", "cycle"),
    [
        (["a>b", "b>c"], ("a",), ()),
        (["a>b", "a>c", "b>d", "c>d"], ("a",), ()),
        (["a>b", "b>a"], ("a",), ("a", "b")),
        (["a>b", "b>c", "c>b"], ("a",), ("b", "c")),
        (["b>a", "c>b", "b>c"], ("b",), ("b", "c")),
        (["a>b", "b>a", "c>d", "d>c"], ("a", "c"), ("a", "b")),
    ],
)
def test_a_snapshot_begins_where_it_reaches_everybody(
    edges: list[str], initiators: tuple[str, ...], cycle: tuple[str, ...]
) -> None:
    """At those that read nothing, and at one of each cycle that nobody else reaches."""
    found = flow(*edges)
    assert found.initiators() == initiators
    assert found.cycle() == cycle


def beside_topics(*channels: Log | Topic) -> Dataflow:
    """Return a dataflow of the service `s` and the query `q`, which a topic leads to."""
    entry = kafka_channel("entry", topic="entry", servers="one:1", targets=["q"])
    return dataflow(queries=["q"], services={"s": Account}, channels=[entry, *channels])


def test_a_service_uses_topics_or_logs() -> None:
    """All that it writes to topics is one transaction, which a log could not be part of. With logs
    its state is in memory, and with topics in its ledger."""
    log = channel("log", SCHEMA, source="s", targets=["q"])
    out = kafka_channel("out", topic="out", servers="one:1", source="s")
    with pytest.raises(UsageError, match=r"channels out and log: the service s cannot use a topic"):
        beside_topics(log, out)
    assert beside_topics(log).in_memory == beside_topics().in_memory == ("s",)
    assert beside_topics(out).in_memory == ()
    back = kafka_channel("back", topic="back", servers="two:1", source="q", targets=["s"])
    with pytest.raises(
        UsageError, match=r"back and out: the service s needs both at the same brok"
    ):
        beside_topics(out, back)


def test_a_service_beside_topics_can_be_found_afterwards() -> None:
    """Its transactions are on a timeline like micro-batches, so mode retained is possible."""
    flow = beside_topics(kafka_channel("out", topic="out", servers="one:1", source="s"))
    assert flow.versioned == ("q", "s")
    assert flow.asked(Mode.RETAINED) == flow.in_memory == ()
    flow.check_mode(Mode.RETAINED)
    assert initial_metadata("p", flow).batches.keys() == {"q", "s"}
