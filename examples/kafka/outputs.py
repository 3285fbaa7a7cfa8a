"""What the pipeline has made: the records of its topics that count, and the states of its services.

They are compared with the data itself, because an unbroken run makes exactly what follows from it.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from examples.kafka.flows import FLIGHT, SENT_COUNT, Account, Ledger, Replay, account_of
from stillframe.pipeline import Pipeline
from stillframe.pipeline.kafka import Broker, brokers
from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.snapshot_manifest import Manifest
from stillframe.pipeline.topics import Counting, Label, counting


@dataclass
class Outputs:
    """All results of a finished pipeline.

    Attributes:
        sent: how often each flight was sent.
        unique: the flights that `dedup` left, by id.
        totals: the last total of each carrier.
        total_count: how many totals there were.
        entries: the sum of the entries of each carrier.
        entry_count: how many entries there are.
        abandoned: how many records of each topic do not count.
        replay: the state of the feed.
        ledger: the state of the ledger.
    """

    sent: Counter[int] = field(default_factory=Counter)
    unique: pa.Table | None = None
    totals: dict[str, Account] = field(default_factory=dict)
    total_count: int = 0
    entries: dict[str, Account] = field(default_factory=dict)
    entry_count: int = 0
    abandoned: dict[str, int] = field(default_factory=dict)
    replay: Replay = field(default_factory=Replay)
    ledger: Ledger = field(default_factory=Ledger)

    def errors(self, flights: pa.Table) -> list[str]:
        """Return the names of the results that differ from what follows from the flights."""
        accounts = accounts_of(flights)
        right = {
            "topic flights": self.sent == dict.fromkeys(range(flights.num_rows), SENT_COUNT),
            "topic unique": self.unique is not None and self.unique.equals(flights),
            "topic totals": self.totals == accounts,
            "topic entries": self.entries == accounts,
            "the number of entries": self.entry_count == self.total_count,
            "the feed": self.replay == Replay(flights.num_rows),
            "the ledger": self.ledger == Ledger(self.entry_count, accounts),
        }
        return [name for name, is_right in right.items() if not is_right]


def outputs_at(pipeline: Pipeline, manifest: Manifest) -> Outputs:
    """Return the results of a finished pipeline, whose last snapshot is this one."""
    found = Outputs()
    found.sent = Counter(flight["id"] for flight in _counted(pipeline, "flights", found))
    ordered = sorted(_counted(pipeline, "unique", found), key=lambda flight: flight["id"])
    found.unique = pa.Table.from_pylist(ordered, schema=FLIGHT)
    for carrier, total in map(account_of, _counted(pipeline, "totals", found)):
        found.totals[carrier] = total
        found.total_count += 1
    for carrier, change in map(account_of, _counted(pipeline, "entries", found)):
        found.entries[carrier] = change.plus(found.entries.get(carrier, Account()))
        found.entry_count += 1
    found.replay = feed_state(manifest)
    found.ledger = ledger_state(manifest)
    return found


def accounts_of(flights: pa.Table) -> dict[str, Account]:
    """Return the account of each carrier, computed from the flights alone."""
    accounts: dict[str, Account] = {}
    for flight in flights.to_pylist():
        one = Account(1, max(flight["arr_delay"] or 0, 0), flight["distance"])
        accounts[flight["carrier"]] = one.plus(accounts.get(flight["carrier"], Account()))
    return accounts


def feed_state(manifest: Manifest) -> Replay:
    """Return the state of the feed in a snapshot."""
    recorded = manifest.fragment("feed").service
    assert recorded is not None
    return msgspec.msgpack.decode(recorded.encoded, type=Replay)


def ledger_state(manifest: Manifest) -> Ledger:
    """Return the state of the ledger in a snapshot."""
    recorded = manifest.fragment("ledger").service
    assert recorded is not None
    return msgspec.msgpack.decode(recorded.encoded, type=Ledger)


def is_in_transit(pipeline: Pipeline, manifest: Manifest) -> bool:
    """Return whether a topic has a record that counts, and that was not consumed at the cut."""
    metadata = read_metadata(pipeline.path)
    with brokers() as broker_of:
        for cut in manifest.topics:
            topic = metadata.dataflow.topic(cut.channel)
            one = counting(pipeline.path, metadata, topic)
            for positions in cut.positions.values():
                ranges = {p: (positions.get(p, 0), end) for p, end in cut.ends.items()}
                records = broker_of(topic).records(topic.topic, ranges)
                if any(_counts(one, record.label) for record in records):
                    return True
    return False


def _counted(pipeline: Pipeline, channel: str, found: Outputs) -> Iterator[dict[str, Any]]:
    """Yield the records of a topic that count, and count the others."""
    topic = pipeline.dataflow.topic(channel)
    one = counting(pipeline.path, read_metadata(pipeline.path), topic)
    found.abandoned[channel] = 0
    with Broker(topic.servers) as broker:
        ranges = {p: (0, end) for p, end in broker.end_offsets(topic.topic).items()}
        for record in broker.records(topic.topic, ranges):
            if _counts(one, record.label):
                yield json.loads(record.value or b"")
            else:
                found.abandoned[channel] += 1


def _counts(one: Counting, label: Label | None) -> bool:
    return label is not None and one.is_own(label) and one.counts(label)
