"""A broker of Kafka and an S3 server on this machine, for as long as the demonstration runs.

They are the ones that the tests use: the broker is Apache Kafka, the S3 server is moto, which keeps
objects in memory. ``./demo kafka`` gets their packages.
"""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from examples.kafka.flows import TOPICS
from stillframe.pipeline.kafka import settings_of
from tests.s3_servers import OTHERS, environment, moto
from tests.spark.outside import jars, kafka

PARTITION_COUNT = 2


@dataclass(frozen=True)
class Servers:
    """The addresses of both: ``HOST:PORT`` of the broker, ``s3://BUCKET`` of the other one."""

    broker: str
    bucket: str


@contextlib.contextmanager
def servers() -> Iterator[Servers]:
    """Run both, with empty topics and an empty bucket. This program, and those that it starts, find
    the S3 server in the variables of AWS."""
    with (
        tempfile.TemporaryDirectory(prefix="stillframe-kafka-") as directory,
        moto() as s3,
        kafka(Path(directory)) as broker,
        mock.patch.dict(os.environ, environment(s3)),
    ):
        for name in OTHERS:
            os.environ.pop(name, None)
        admin = AdminClient(settings_of(broker))
        made = admin.create_topics([NewTopic(name, PARTITION_COUNT, 1) for name in TOPICS.values()])
        for future in made.values():
            future.result()
        yield Servers(broker, f"s3://{s3.new_bucket()}")


def spark_variables() -> dict[str, str]:
    """Return the variables with which PySpark can use Kafka and S3."""
    found = ",".join(map(str, (*jars("spark"), *jars("s3a"))))
    return {"PYSPARK_SUBMIT_ARGS": f"--jars {found} pyspark-shell"}
