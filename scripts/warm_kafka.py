"""Starts Kafka and lets it end in order: what Java has loaded by then is kept for tests.

``scripts/setup.sh`` runs it as ``python -m scripts.warm_kafka``.
"""

import tempfile
from pathlib import Path

from tests.kafka_topics import create_topics
from tests.spark.outside import KAFKA_CLASSES, KafkaServer


def main() -> None:
    """Format its directory, start it, make a topic."""
    option = f"-XX:ArchiveClassesAtExit={KAFKA_CLASSES}"
    with tempfile.TemporaryDirectory() as place:
        server = KafkaServer(Path(place), archive=option)
        server.start()
        create_topics(server.address, "warm")
        server.stop()


if __name__ == "__main__":
    main()
