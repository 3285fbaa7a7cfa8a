"""The Spark driver of the kill soak over Kafka: ``topics_driver.py ROOT [SETTING=...]``.

It does what that of the other soak does (``pipeline_driver``). After ``start QUERY``, that query
says ``written`` when its topic has a micro-batch, and never commits it.
"""

import functools
import sys

from stillframe.pipeline import Pipeline
from stillframe.storage.location import locate
from tests.soak.pipeline_driver import work
from tests.soak.topics_shop import start_queries
from tests.spark.ends_program import session


def main(root: str, settings: list[str]) -> None:
    """Start Spark and work."""
    spark = session()
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    for setting in settings:
        spark.conf.set(*setting.split("=", 1))
    work(functools.partial(start_queries, spark, Pipeline(locate(root))), lambda: None)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
