"""Topics of Kafka that tests make."""

import contextlib
from collections.abc import Mapping
from typing import Any

from confluent_kafka import admin

from stillframe.errors import StillframeError
from stillframe.pipeline.kafka import Broker


def create_topics(
    servers: str, *names: str, partition_count: int = 2, settings: Mapping[str, str] = {}
) -> None:
    """Make topics, and wait until the broker leads their partitions."""
    client: Any = admin.AdminClient({"bootstrap.servers": servers, "log_level": 0})
    new: Any = getattr(admin, "NewTopic")  # noqa: B009 - its types do not have the name
    topics = [new(name, partition_count, 1, config=dict(settings)) for name in names]
    for future in client.create_topics(topics).values():
        future.result()
    with Broker(servers) as broker:
        for name in names:
            wait_for(broker, name)


def wait_for(broker: Broker, topic: str) -> None:
    """Wait until the broker leads the partitions of a topic that the controller has made."""
    while True:
        with contextlib.suppress(StillframeError):
            broker.end_offsets(topic)
            return


def create_again(servers: str, topic: str, partition_count: int = 2) -> None:
    """Delete a topic and make one with the same name; wait until the broker knows that one."""
    client: Any = admin.AdminClient({"bootstrap.servers": servers, "log_level": 0})
    with Broker(servers) as broker:
        former = broker.topic_ids([topic])[topic]
        client.delete_topics([topic])[topic].result()
        while broker.topic_ids([topic])[topic] == former:
            pass
        create_topics(servers, topic, partition_count=partition_count)
