"""The programs and commands of docs/kafka.md are run, as they stand there."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from stillframe.pipeline import Pipeline
from stillframe.pipeline.kafka import Broker
from stillframe.pipeline.metadata import read_metadata
from stillframe.pipeline.topics import counting
from tests.kafka_topics import create_topics
from tests.spark.flows import wait_until
from tests.spark.outside import kafka, spark_variables

PAGE = Path(__file__).parent.parent.parent / "docs" / "kafka.md"
STILLFRAME = Path(sys.executable).with_name("stillframe")
PROGRAM = re.compile(r"^```python\n# (\w+\.py):.*?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SESSION = re.compile(r"^```console\n(.*?)^```$", re.DOTALL | re.MULTILINE)
CUSTOMER_COUNT = 5
SETTINGS = ("spark.sql.shuffle.partitions=1", "spark.ui.enabled=false", "spark.log.level=ERROR")


def commands() -> list[list[str]]:
    """Return every command of the page as words."""
    lines = [line for block in SESSION.findall(PAGE.read_text()) for line in block.splitlines()]
    return [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]


def send(address: str, numbers: range) -> None:
    """Send each order twice."""
    producer = Producer({"bootstrap.servers": address})
    for number in numbers:
        order = {"id": number, "customer": f"c{number % CUSTOMER_COUNT}", "amount": number}
        for _ in range(2):
            producer.produce("orders", json.dumps(order))
    producer.flush()


def totals(count: int) -> dict[str, int]:
    """Return what the customers have ordered with the first `count` orders."""
    found: Counter[str] = Counter()
    for number in range(count):
        found[f"c{number % CUSTOMER_COUNT}"] += number
    return dict(found)


def sums_in(address: str, pipeline: Pipeline | None) -> dict[str, int]:
    """Return the last total of each customer, of the records that count, or of all."""
    metadata = None if pipeline is None else read_metadata(pipeline.path)
    one = None
    if pipeline is not None and metadata is not None:
        one = counting(pipeline.path, metadata, metadata.dataflow.topic("sums"))
    last: dict[str, int] = {}
    with Broker(address) as broker:
        ends = broker.end_offsets("sums")
        for record in broker.records("sums", {p: (0, end) for p, end in ends.items()}):
            label = record.label
            if one is None or label is None or one.counts(label):
                row = json.loads(record.value or b"")
                last[row["customer"]] = max(row["total"], last.get(row["customer"], 0))
    return last


@contextmanager
def running(program: str, directory: Path, address: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a program of the page until the body ends; then kill -9 all of it."""
    with (directory / f"{program}.log").open("ab") as log:
        started = subprocess.Popen(
            [sys.executable, program],
            cwd=directory,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={
                **os.environ,
                **spark_variables(*SETTINGS),
                "KAFKA": address,
                "PYTHONPATH": str(directory),
            },
        )
    try:
        yield started
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def wait_for(
    count: int, program: "subprocess.Popen[bytes]", address: str, pipeline: Pipeline | None
) -> None:
    """Wait until all orders are in the sums."""
    wanted = totals(count)
    wait_until(lambda: program.poll() is not None or sums_in(address, pipeline) == wanted, 120)
    assert program.poll() is None


@pytest.mark.slow
@pytest.mark.spark
def test_two_ordinary_queries_become_a_pipeline(tmp_path: Path) -> None:
    """They adopt their checkpoints and go on; each command ends with 0; after both restores every
    order counts once."""
    for name, text in PROGRAM.findall(PAGE.read_text()):
        (tmp_path / name).write_text(text)

    def run(command: list[str]) -> None:
        done = subprocess.run(
            [str(STILLFRAME), *command[1:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    snapshot, listing, back, newest, counting_ones, termination = commands()
    with kafka(tmp_path) as address:
        create_topics(address, "orders", "unique", "sums")
        send(address, range(100))
        with running("before.py", tmp_path, address) as before:
            wait_for(100, before, address, None)
        with running("driver.py", tmp_path, address) as driver:
            send(address, range(100, 200))
            wait_for(200, driver, address, None)
            pipeline = Pipeline(tmp_path / "shop.pipeline")
            run(snapshot)
            run(listing)
            send(address, range(200, 300))
            wait_for(300, driver, address, pipeline)
        run(newest)
        run(back)
        with running("driver.py", tmp_path, address) as driver:
            wait_for(300, driver, address, pipeline)
        assert pipeline.epoch == 3
        run(newest)
        run(counting_ones)
        run(termination)
        with running("reader.py", tmp_path, address) as reader:
            out = tmp_path / "reader.py.log"
            wait_until(lambda: reader.poll() is not None or out.read_bytes().count(b"}") >= 300)
        lines = out.read_text().splitlines()
        epochs = {
            json.loads(line[2 : line.index("}") + 1])["id"]: line.rpartition(" ")[2]
            for line in lines
        }
        assert sorted(epochs) == list(range(300))
        assert len(lines) == 300
        # Those from before the queries joined have no label, in whatever order they are read.
        assert [number for number in epochs if epochs[number] == "None"] == [
            number for number in epochs if number < 100
        ]
