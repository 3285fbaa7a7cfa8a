"""Pipelines with a broker that encrypts, checks who logs in, and allows no more than it must."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stillframe.errors import Unavailable, UsageError
from stillframe.model import Abandoned
from stillframe.pipeline import Pipeline, kafka, kafka_channel, transactions
from stillframe.pipeline.dataflow import Topic
from stillframe.pipeline.kafka import Broker
from stillframe.pipeline.kafka_login import VARIABLE
from stillframe.pipeline.transactions import TransactionWriter
from stillframe.spark.topics import join_topics
from stillframe.watch.pipeline_document import describe
from tests.spark.guarded_kafka import KEY_PASSWORD, PASSWORD, Authority, Guarded, guarded_kafka
from tests.spark.guarded_program import OPERATOR, QUERIES, pipeline_in

pytestmark = [pytest.mark.slow, pytest.mark.spark]

ROOT = Path(__file__).parent.parent.parent
WRONG = "wrong-hunter3"
COUNT = 20
TOPICS = ("orders", "unique", "totals")
ACLS: dict[str, dict[str, tuple[str, ...]]] = {
    "dedup": {
        "orders": ("READ", "DESCRIBE_CONFIGS"),
        "unique": ("READ", "WRITE", "DESCRIBE_CONFIGS"),
    },
    "sums": {
        "unique": ("READ", "DESCRIBE_CONFIGS"),
        "totals": ("READ", "WRITE", "DESCRIBE_CONFIGS"),
    },
    OPERATOR: {"orders": ("DESCRIBE",), "unique": ("READ",), "totals": ("DESCRIBE",)},
}
"""Exactly what the documents say that each may do."""


@dataclass(frozen=True)
class Ran:
    """What a driver left."""

    broker: Guarded
    pipeline: Pipeline
    report: dict[str, Any]
    output: str
    keys: tuple[Path, ...]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A broker with the topics of the pipeline, some records, and users with their ACLs."""
    with guarded_kafka(tmp_path_factory.mktemp("guarded")) as running:
        running.add_users(*ACLS)
        running.create_topics(*TOPICS)
        running.produce("orders", [str(n // 2) for n in range(2 * COUNT)])
        for name, topics in ACLS.items():
            for topic, operations in topics.items():
                running.allow(f"User:{name}", topic, *operations)
        yield running


@pytest.fixture(scope="module")
def ran(broker: Guarded) -> Ran:
    """A driver that used all of it, with Spark's log at level INFO and its log of events."""
    root = broker.directory
    for name in ACLS:
        broker.user(name)
    broker.user("wrong", password=WRONG, user="dedup")
    broker.allow("User:CN=holder", "orders", "READ")
    broker.holder("holder", KEY_PASSWORD)
    broker.holder("stranger")
    (root / "events").mkdir()
    settings = f"--conf spark.eventLog.enabled=true --conf spark.eventLog.dir=file://{root}/events"
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
        "PYSPARK_SUBMIT_ARGS": f"{settings} pyspark-shell",
    }
    program = (sys.executable, "-m", "tests.spark.guarded_program")
    done = subprocess.run(
        [*program, str(root), broker.passwords, broker.certificates],
        cwd=ROOT,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    said = [line for line in done.stderr.splitlines() if " INFO " not in line]
    assert done.returncode == 0, "\n".join(said)[-5000:]
    return Ran(
        broker,
        pipeline_in(root, broker.passwords),
        json.loads(done.stdout.splitlines()[-1]),
        done.stdout + done.stderr,
        (root / "holder.pem", root / "stranger.pem"),
    )


def test_the_least_acls_are_enough(ran: Ran) -> None:
    """Two queries and the commands work with the ACLs of the documents, each as its own user, and
    a certificate with an encrypted key is enough for Spark."""
    assert ran.report["total"] == sum(range(COUNT))
    assert ran.report["epoch"] == 2
    assert ran.report["read"] == 2 * COUNT


def test_no_secret_is_shown(ran: Ran) -> None:
    """Neither a password nor a key is in the files of a pipeline, in Spark's log and log of events,
    its plans, progress and errors, the arguments of programs, the output in JSON, or the page."""
    root = ran.pipeline.path
    assert isinstance(root, Path)
    files = [*root.rglob("*"), *(ran.broker.directory / "events").rglob("*")]
    shown = [ran.output, *(file.read_text(errors="replace") for file in files if file.is_file())]
    for words in (["list", str(root)], ["show", str(root)], ["status", str(root)]):
        command = [sys.executable, "-m", "stillframe", "pipeline", *words, "--json"]
        shown.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    shown.append(json.dumps(describe(str(root), ran.pipeline.dataflow)))
    assert "sasl.jaas.config = [hidden]" in ran.output
    assert "kafka.sasl.jaas.config=*********(redacted)" in ran.output
    assert "kafka.ssl.keystore.key=*********(redacted)" in ran.output
    assert len(ran.report["errors"]) == 2
    bodies = [re.search(r"PRIVATE KEY-----\n(.+)\n", key.read_text()) for key in ran.keys]
    escaped = [PASSWORD.replace("\\", "\\\\").replace('"', '\\"'), json.dumps(PASSWORD)[1:-1]]
    secrets = [PASSWORD, *escaped, "hunter2", WRONG, KEY_PASSWORD]
    secrets += [body[1] for body in bodies if body is not None]
    assert len(secrets) == 8
    assert [secret for secret in secrets for text in shown if secret in text] == []


@pytest.mark.parametrize(
    ("query", "topic", "operation"),
    [
        (query, topic, operation)
        for query in QUERIES
        for topic, operations in ACLS[query].items()
        for operation in operations
    ],
)
def test_a_missing_acl_of_a_query_is_named(
    ran: Ran, query: str, topic: str, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a query starts, the error names the user, the operation and the topic."""
    monkeypatch.setenv(VARIABLE, str(ran.broker.directory / f"{query}.properties"))
    flow = ran.pipeline.dataflow
    join_topics(ran.pipeline.path, flow, query)
    ran.broker.revoke(f"User:{query}", topic, operation)
    words = rf"allow user {query} the operation {operation} on topic {topic}: add an ACL for it"
    try:
        with pytest.raises(Unavailable, match=words):
            join_topics(ran.pipeline.path, flow, query)
    finally:
        ran.broker.allow(f"User:{query}", topic, operation)


@pytest.mark.parametrize("topic", TOPICS)
def test_a_missing_acl_of_a_command_is_named(
    ran: Ran, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot fails with the user, the operation and the topic; then the next one is taken."""
    monkeypatch.setenv(VARIABLE, str(ran.broker.directory / f"{OPERATOR}.properties"))
    operations = ACLS[OPERATOR][topic]
    ran.broker.revoke(f"User:{OPERATOR}", topic, *operations)
    words = rf"not allow user {OPERATOR} the operation DESCRIBE on topic {topic}: add an ACL"
    try:
        with pytest.raises(Unavailable, match=words):
            ran.pipeline.snapshot()
    finally:
        ran.broker.allow(f"User:{OPERATOR}", topic, *operations)
    assert not isinstance(ran.pipeline.snapshot(), Abandoned)


def test_reading_needs_more_than_describing(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who may see where a topic ends may not read its labels; the error names READ."""
    monkeypatch.setenv(VARIABLE, str(ran.broker.directory / f"{OPERATOR}.properties"))
    words = rf"not allow user {OPERATOR} the operation READ on topic totals: add an ACL for it$"
    with Broker(ran.broker.passwords) as one, pytest.raises(Unavailable, match=words):
        list(one.records("totals", {0: (0, 1), 1: (0, 1)}))


def check(servers: str) -> None:
    """Check the topic of orders as a reader does."""
    topic = Topic(name="orders", topic="orders", servers=servers, source=None, targets=("dedup",))
    with Broker(servers) as one:
        one.check(topic)


@dataclass
class Books:
    """The state of a service."""

    order_count: int = 0


BOOKS: dict[tuple[str, str], tuple[str, ...]] = {
    ("TOPIC", "orders"): ("READ", "DESCRIBE_CONFIGS"),
    ("TOPIC", "entries"): ("READ", "WRITE", "DESCRIBE_CONFIGS"),
    ("TOPIC", "stillframe-"): ("CREATE", "READ", "WRITE", "DELETE"),
    ("TRANSACTIONAL_ID", "stillframe-"): ("WRITE",),
}
"""Exactly what the documents say that a service may do, by the prefix of names."""


def test_the_least_acls_of_a_service_are_enough(
    broker: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads without an ACL of any group, makes its ledger, and writes in transactions."""
    broker.add_users("books")
    broker.create_topics("entries")
    for (kind, prefix), operations in BOOKS.items():
        broker.allow_prefix("User:books", kind, prefix, *operations)
    monkeypatch.setenv(VARIABLE, str(broker.user("books")))
    servers = broker.passwords
    pipeline = Pipeline.create(
        tmp_path / "books.pipeline",
        services={"books": Books},
        channels=[
            kafka_channel("orders", topic="orders", servers=servers, targets=["books"]),
            kafka_channel("entries", topic="entries", servers=servers, source="books"),
        ],
    )
    for wanted in (COUNT, 2 * COUNT):
        with pipeline.join_service("books", state=(books := Books())) as me:
            while books.order_count < wanted:
                _, records = me.receive()
                books.order_count += len(records)
                me.append("entries", str(books.order_count))
    assert books.order_count == 2 * COUNT


def test_a_rejected_login_of_a_service_is_named(
    broker: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the user and the file, as that of other programs."""
    path = broker.user("mistaken", "SCRAM-SHA-256", password=WRONG, user="dedup")
    monkeypatch.setenv(VARIABLE, str(path))
    monkeypatch.setattr(transactions, "TIMEOUT_S", 2.0)
    words = rf"rejects the login of user dedup \(.+\): check it in {path}"
    with pytest.raises(Unavailable, match=words):
        TransactionWriter(broker.passwords, "stillframe-any", "books")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram(broker: Guarded, mechanism: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user logs in with either SCRAM."""
    monkeypatch.setenv(VARIABLE, str(broker.user("either", mechanism, user="dedup")))
    check(broker.passwords)


def test_plain(broker: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user logs in with PLAIN."""
    broker.allow("User:plain", "orders", "READ", "DESCRIBE_CONFIGS")
    monkeypatch.setenv(VARIABLE, str(broker.user("plain", "PLAIN")))
    check(broker.passwords)


@pytest.mark.parametrize("password", [None, KEY_PASSWORD])
def test_certificate(
    broker: Guarded, password: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program logs in with a certificate whose key may have a password; its errors name it."""
    monkeypatch.setenv(VARIABLE, str(broker.holder("visitor", password)))
    broker.revoke("User:CN=visitor", "orders", "READ", "DESCRIBE_CONFIGS")
    with pytest.raises(Unavailable, match=r"not allow the holder of .*/visitor\.pem the operation"):
        check(broker.certificates)
    broker.allow("User:CN=visitor", "orders", "READ", "DESCRIBE_CONFIGS")
    check(broker.certificates)


def test_a_rejected_login_is_named(broker: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong password is reported long before the deadline, with the user and the file."""
    path = broker.user("mistaken", "SCRAM-SHA-256", password=WRONG, user="dedup")
    monkeypatch.setenv(VARIABLE, str(path))
    monkeypatch.setattr(kafka, "TIMEOUT_S", 300.0)
    words = (
        r"rejects the login of user dedup \(.* invalid credentials with SASL mechanism .*\): "
        rf"check it in {path}, the file that {VARIABLE} names$"
    )
    with pytest.raises(Unavailable, match=words) as caught:
        check(broker.passwords)
    assert WRONG not in str(caught.value)


@pytest.mark.parametrize("kind", ["other CA", "no certificate", "unknown CA"])
def test_a_failed_handshake_is_named(
    broker: Guarded, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Certificates that the broker or this program does not accept are reported long before the
    deadline, with the file to check."""
    stranger = Authority(tmp_path)
    own = str(stranger.issue("own"))
    settings = {
        "other CA": {"ssl_ca_location": str(stranger.path)},
        "no certificate": {},
        "unknown CA": {"ssl_certificate_location": own, "ssl_key_location": own},
    }[kind]
    path = broker.login("handshake", security_protocol="SSL", **settings)
    monkeypatch.setenv(VARIABLE, str(path))
    monkeypatch.setattr(kafka, "TIMEOUT_S", 300.0)
    words = rf"no connection with TLS to Kafka at .*: check the certificates in {path}"
    with pytest.raises(Unavailable, match=words):
        check(broker.certificates)


def test_a_key_with_another_password_is_refused(
    broker: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What librdkafka cannot read is refused with its setting, and without the password."""
    pem = str(broker.authority.issue("locked", KEY_PASSWORD))
    own = {"ssl_certificate_location": pem, "ssl_key_location": pem, "ssl_key_password": WRONG}
    monkeypatch.setenv(VARIABLE, str(broker.login("locked", security_protocol="SSL", **own)))
    with pytest.raises(
        UsageError, match=r"client rejects its settings: .*ssl\.key\.location"
    ) as caught:
        check(broker.certificates)
    assert WRONG not in str(caught.value)


def test_a_login_that_is_missing(broker: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that needs a login does not say so; the error says how to set one."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(kafka, "TIMEOUT_S", 1.0)
    with pytest.raises(Unavailable, match=rf"if they need a login, set {VARIABLE}$"):
        check(broker.passwords)
