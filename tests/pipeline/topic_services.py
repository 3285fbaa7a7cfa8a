"""Services whose channels are topics of Kafka, and what must be in these topics exactly once.

    till -> orders -> ledger -> sums     a chain: numbers from 0 on, and how they add up
    left -> there -> right -> back       a cycle: numbers that each adds 1 to, up to a limit

Also a program: ``python -m tests.pipeline.topic_services ROOT NAME STAGE`` runs one service until
it is at that stage, and then ends by SIGKILL.
"""

import importlib
import os
import signal
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import confluent_kafka

from stillframe.pipeline import Pipeline, kafka_channel, ledger, topic_service, transactions
from stillframe.pipeline import kafka as kafka_module
from stillframe.pipeline.kafka import Broker
from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.topic_service import JoinedTopicService, join
from stillframe.pipeline.topics import counting
from tests.kafka_topics import create_topics

ADMIN: Any = importlib.import_module("confluent_kafka.admin")
ORDER_COUNT = 60
LIMIT = 20
"""The last number in the cycle."""
START_COUNT = 3
"""How many numbers are on their way in the cycle."""
ENDLESS_COUNT = 10**6
"""More than a program handles before it is killed."""
KILLED_COMMIT = 4
STAGES = (
    "topics joined",
    "ledger created",
    "writer opened",
    "first entry written",
    "state written",
    "records sent",
    "committed",
)


@dataclass
class Till:
    """The state of what sends numbers."""

    sent_count: int = 0


@dataclass
class Ledger:
    """The state of what adds them up."""

    count: int = 0
    total: int = 0
    ballast: str = ""


@dataclass
class Player:
    """The state of both services of the cycle."""

    seen: list[int] = field(default_factory=list)
    parked: list[int] = field(default_factory=list)


def made_topics(servers: str, *names: str, settings: Mapping[str, str] = {}) -> list[str]:
    """Create topics with new names that begin like these."""
    topics = [f"{name}-{uuid.uuid4().hex[:8]}" for name in names]
    create_topics(servers, *topics, settings=settings)
    return topics


def chain(path: Path, servers: str) -> Pipeline:
    """Make the chain."""
    orders, sums = made_topics(servers, "orders", "sums")
    return Pipeline.create(
        path,
        services={"till": Till, "ledger": Ledger},
        channels=[
            kafka_channel(
                "orders", topic=orders, servers=servers, source="till", targets=["ledger"]
            ),
            kafka_channel("sums", topic=sums, servers=servers, source="ledger"),
        ],
    )


def cycle(path: Path, servers: str) -> Pipeline:
    """Make the cycle."""
    there, back = made_topics(servers, "there", "back")
    return Pipeline.create(
        path,
        services={"left": Player, "right": Player},
        channels=[
            kafka_channel("there", topic=there, servers=servers, source="left", targets=["right"]),
            kafka_channel("back", topic=back, servers=servers, source="right", targets=["left"]),
        ],
    )


def run_till(root: Path, count: int = ORDER_COUNT) -> Till:
    """Send numbers until `count` are sent; every tenth ends an action."""
    till = Till()
    with join("till", pipeline=root, state=till) as me:
        while till.sent_count < count:
            me.append("orders", str(till.sent_count), key=str(till.sent_count % 5))
            till.sent_count += 1
            if till.sent_count % 10 == 0:
                me.boundary()
    return till


def run_ledger(root: Path, count: int = ORDER_COUNT) -> Ledger:
    """Add up numbers until there were `count`."""
    state = Ledger()
    with join("ledger", pipeline=root, state=state) as me:
        if state.count < count:
            add_up(me, state, count)
    return state


def add_up(me: JoinedTopicService, state: Ledger, count: int) -> None:
    """Receive numbers until there were `count`, and send how they add up."""
    for channel, records in me:
        assert channel == "orders"
        for record in records:
            assert record.value is not None
            state.count += 1
            state.total += int(record.value)
            me.append("sums", f"{state.count}", headers=[("total", str(state.total))])
        if state.count >= count:
            me.leave()


def run_player(root: Path, name: str, limit: int = LIMIT) -> Player:
    """Pass numbers on, each plus 1, until it has seen all up to `limit`; these it keeps."""
    player = Player(parked=[100 * n - 1 for n in range(START_COUNT)] if name == "left" else [])
    channel = {"left": "there", "right": "back"}[name]
    with join(name, pipeline=root, state=player) as me:
        for number in player.parked:
            me.append(channel, str(number + 1))
        player.parked = []
        while sorted(player.seen) != numbers_of(name, limit):
            _, records = me.receive()
            for number in [int(record.value or b"") for record in records]:
                player.seen.append(number)
                if number % 100 < limit:
                    me.append(channel, str(number + 1))
                else:
                    player.parked.append(number)
    return player


def numbers_of(name: str, limit: int = LIMIT) -> list[int]:
    """Return the numbers that a service of the cycle receives."""
    odd = {"left": 1, "right": 0}[name]
    every = (100 * n + i for n in range(START_COUNT) for i in range(limit + 1))
    return [number for number in every if number % 2 == odd]


def counting_values(pipeline: Pipeline, channel: str) -> list[int]:
    """Return the numbers in a topic that count, sorted."""
    return sorted(int(record.value or b"") for record in counting_records(pipeline, channel))


def counting_records(pipeline: Pipeline, channel: str) -> Iterator[Any]:
    """Yield the records of a topic that count."""
    metadata = read_metadata(pipeline.path)
    topic = metadata.dataflow.topic(channel)
    one = counting(pipeline.path, metadata, topic)
    with Broker(topic.servers) as broker:
        ends = broker.end_offsets(topic.topic)
        for record in broker.records(topic.topic, {p: (0, end) for p, end in ends.items()}):
            if record.label is not None and one.counts(record.label):
                yield record


# --- a program that ends at a stage


def _die(*args: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _then_die(module: Any, name: str) -> None:
    function = getattr(module, name)

    @wraps(function)
    def called(*args: Any, **more: Any) -> Any:
        result = function(*args, **more)
        _die()
        return result

    setattr(module, name, called)


class _Killed(confluent_kafka.Producer):
    """Ends the program at a commit."""

    stage = ""
    commit_count = 0

    def commit_transaction(self, *args: Any) -> None:
        """See the class."""
        _Killed.commit_count += 1
        if _Killed.commit_count < KILLED_COMMIT:
            super().commit_transaction(*args)
            return
        self.flush()
        if self.stage == "committed":
            super().commit_transaction(*args)
        _die()


def prepare(stage: str) -> None:
    """Let this program end at a stage."""
    match stage:
        case "topics joined":
            _then_die(topic_service, "_join_topics")
        case "ledger created":
            _then_die(topic_service, "open_ledger")
        case "writer opened":
            _then_die(transactions.TransactionWriter, "__init__")
        case "first entry written":
            _then_die(transactions.TransactionWriter, "commit")
        case "state written":
            ledger.STATE_BYTES_MAX = 5
            _then_die(ledger.Ledger, "entry")
        case _:
            _Killed.stage = stage
            confluent_kafka.Producer = _Killed  # type: ignore[misc]


def main() -> None:
    """Run a service that ends at a stage."""
    root, name, stage = sys.argv[1:]
    # Small actions, each a transaction.
    topic_service.COMMIT_S = 0.0
    topic_service._COST_FACTOR = 0
    kafka_module._CONSUMED_COUNT = 5
    prepare(stage)
    run = {"till": run_till, "ledger": run_ledger}[name]
    run(Path(root), ENDLESS_COUNT)


if __name__ == "__main__":
    main()
