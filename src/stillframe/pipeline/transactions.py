"""Kafka for a service: it reads topics endlessly, and writes in transactions.

A transaction is open for milliseconds only, while it is written: what a service has to say is kept
in memory until then. So no reader waits for an action of the service that takes long.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from stillframe.errors import StillframeError, Unavailable, UsageError
from stillframe.pipeline.kafka import TIMEOUT_S, BrokerAway, Connection, consumed

TRANSACTION_S = 60.0
"""Timeout after which a broker aborts a transaction whose writer has crashed. Until then its
records, and those behind them, are not read."""
VALUE_BYTES_MAX = 1_000_000
"""How large a record may be that is sent to a broker, its headers included."""
_FULL_S = 0.05
_AWAY = (
    *("_TIMED_OUT", "_MSG_TIMED_OUT", "_TIMED_OUT_QUEUE", "_TRANSPORT", "_ALL_BROKERS_DOWN"),
    *("_RESOLVE", "REQUEST_TIMED_OUT", "NETWORK_EXCEPTION", "BROKER_NOT_AVAILABLE"),
    *("LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "COORDINATOR_NOT_AVAILABLE"),
    *("COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR", "NOT_ENOUGH_REPLICAS"),
    *("NOT_ENOUGH_REPLICAS_AFTER_APPEND", "KAFKA_STORAGE_ERROR", "CONCURRENT_TRANSACTIONS"),
)
"""Errors of a writer that end when the brokers are back."""
_REMEDY = (
    "check that the brokers run, and start the service again: it continues after its last "
    "transaction"
)


class Output(msgspec.Struct, frozen=True):
    """A record to be written; partition -1 if its key selects one, or chance."""

    topic: str
    value: bytes
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int = -1

    @property
    def byte_count(self) -> int:
        """About how long it is."""
        return len(self.value) + len(self.key or b"") + sum(len(v or b"") for _, v in self.headers)


def superseded(service: str) -> Unavailable:
    """Return the error that a later program runs a service."""
    return Unavailable(
        f"another program has taken the place of service {service}, and nothing that this one did "
        "since its last transaction counts",
        process=service,
        remedy="stop this one, and run the service once",
    )


class TransactionWriter:
    """Writes records in transactions. A later writer with the same id, which is the topic of the
    ledger, ends this one: its next commit is an Unavailable.

    After an error the outcome of that commit may be unknown. No other one is possible, unless it
    was BrokerAway: then ``reopen`` decides the outcome.

    Attributes:
        service: the service that writes.
        offset: that of the last record of the latest commit in the ledger; None if the broker did
            not confirm it, so that the commit cannot have taken effect.
        is_cut_short: whether the latest commit ended with BrokerAway.
    """

    def __init__(self, servers: str, transactional_id: str, service: str) -> None:
        self._connection = Connection(servers)
        self._kafka = self._connection.kafka
        self.service = service
        self._id = transactional_id
        self._rejected: Any = None
        self.offset: int | None = None
        self.is_cut_short = False
        self._producer = self._opened()

    def _opened(self) -> Any:
        own = {
            "transactional.id": self._id,
            "transaction.timeout.ms": int(TRANSACTION_S * 1000),
            # As in Java and Spark: each writer puts the records of a key into one partition.
            "partitioner": "murmur2_random",
        }
        producer = self._connection.client(self._kafka.Producer, own)
        try:
            # Only with a connection it begins at once, and not after half a second.
            producer.list_topics(self._id, TIMEOUT_S)
            producer.init_transactions(TIMEOUT_S)
        except self._kafka.KafkaException as error:
            producer.poll(0)
            self._connection.check_login()
            raise self._failed(
                error.args[0],
                f"does not let service {self.service} begin transactions",
                "check that the brokers run, and as many of them as their setting "
                "transaction.state.log.replication.factor",
            ) from None
        return producer

    def reopen(self) -> None:
        """Begin again after a commit that was cut short. When this returns, that commit has taken
        effect or never will: the transaction coordinator ends it first.

        Raises:
            Unavailable: Kafka does not allow it; BrokerAway if no broker answers.
        """
        self._producer.purge()
        self._producer = self._opened()

    def commit(self, outputs: Iterable[Output], check: Callable[[], None] = lambda: None) -> int:
        """Write records in one transaction; return the offset of the last one. `check` is called
        before they are committed: if it raises an error, they are not.

        Raises:
            BrokerAway: no broker answers.
            Unavailable: another writer has taken over, or Kafka does not allow it.
            UsageError: a broker rejected a record.
        """
        self._rejected = self.offset = None
        self.is_cut_short = False
        try:
            self._producer.begin_transaction()
            for one in outputs:
                self._produce(one)
            self._await_delivery()
            check()
            self._producer.commit_transaction(TIMEOUT_S)
        except self._kafka.KafkaException as error:
            raise self._failure(error.args[0]) from None
        except BrokerAway:
            self.is_cut_short = True
            raise
        except StillframeError:
            self._abort()
            raise
        assert self.offset is not None
        return self.offset

    def _produce(self, one: Output) -> None:
        until = time.monotonic() + TIMEOUT_S
        while True:
            try:
                self._producer.produce(
                    one.topic,
                    one.value,
                    key=one.key,
                    headers=list(one.headers),
                    partition=one.partition,
                    on_delivery=self._delivered,
                )
            except BufferError:
                self._producer.poll(_FULL_S)
                self._check_time(until)
            else:
                return

    def _await_delivery(self) -> None:
        until = time.monotonic() + TIMEOUT_S
        # Its flush fails with SystemError if another writer has taken over.
        while len(self._producer) > 0:
            self._producer.poll(_FULL_S)
            self._check_time(until)

    def _check_time(self, until: float) -> None:
        if time.monotonic() > until:
            timed_out = self._kafka.KafkaError._TIMED_OUT  # noqa: SLF001 - its name
            raise self._kafka.KafkaException(self._kafka.KafkaError(timed_out))

    def _delivered(self, error: Any, message: Any) -> None:
        codes = self._kafka.KafkaError
        if error is None:
            # Those of other topics may be confirmed after it.
            if message.topic() == self._id:
                self.offset = message.offset()
        elif error.code() not in (codes._PURGE_QUEUE, codes._PURGE_INFLIGHT):  # noqa: SLF001 - their names
            # The others are not sent because of this one.
            self._rejected = self._rejected or (error, message.topic())

    def _failure(self, error: Any) -> Unavailable | UsageError:
        """End the transaction, and return the error for the service."""
        codes = self._kafka.KafkaError
        fenced = (codes._FENCED, codes.PRODUCER_FENCED, codes.INVALID_PRODUCER_EPOCH)  # noqa: SLF001 - their names
        if error.code() in fenced:
            return superseded(self.service)
        cause = error if self._rejected is None else self._rejected[0]
        self.is_cut_short = cause.name() in _AWAY
        if not (error.fatal() or self.is_cut_short):
            self._abort()
        if self._rejected is not None and self._rejected[0].code() == codes.MSG_SIZE_TOO_LARGE:
            return UsageError(
                f"service {self.service}: a record is larger than topic {self._rejected[1]} "
                "takes, and nothing was written: append smaller ones, or raise the topic's "
                "max.message.bytes"
            )
        return self._failed(cause, f"does not commit the work of service {self.service}", _REMEDY)

    def _failed(self, error: Any, what: str, remedy: str) -> Unavailable:
        servers = self._connection.servers
        text = f"Kafka at {servers} {what}: {error.str()}"
        if error.name() in _AWAY:
            return BrokerAway(servers, f"it {what}: {error.str()}", text, remedy=remedy)
        return Unavailable(text, process=self.service, remedy=remedy)

    def _abort(self) -> None:
        # Without a broker that fails, too. Then the next writer of this id ends it.
        with contextlib.suppress(self._kafka.KafkaException):
            self._producer.abort_transaction(TIMEOUT_S)


class TopicReader:
    """Reads committed records of topics from given positions on. Close it at the end."""

    def __init__(self, servers: str) -> None:
        self._connection = Connection(servers)
        self._kafka = self._connection.kafka
        own = {
            "group.id": "stillframe",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 100,
            "queued.max.messages.kbytes": 2**14,
        }
        self._consumer = self._connection.client(self._kafka.Consumer, own)
        self._partitions: dict[str, set[int]] = {}

    def close(self) -> None:
        """End the connection."""
        self._consumer.close()

    def add(self, topic: str, positions: Mapping[int, int]) -> None:
        """Read these partitions of a topic, too."""
        partition = self._kafka.TopicPartition
        self._partitions.setdefault(topic, set()).update(positions)
        self._consumer.incremental_assign([partition(topic, p, at) for p, at in positions.items()])

    def partitions(self, topic: str) -> set[int]:
        """Return the partitions of a topic that are read."""
        return self._partitions.get(topic, set())

    def read(self, wait_s: float) -> list[Any]:
        """Return the next messages, those of a partition in their order; none if none arrived.

        Raises:
            NotConsistent: Kafka has deleted the next record.
            Unavailable: a broker refuses to send records.
        """
        self._connection.check_login()
        found = []
        for message in consumed(self._consumer, wait_s):
            error = message.error()
            if error is not None and error.retriable():
                continue
            if self._connection.is_record(message, message.topic()):
                found.append(message)
        return found
