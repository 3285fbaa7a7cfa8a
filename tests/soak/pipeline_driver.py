"""The Spark driver of the kill soak: ``pipeline_driver.py ROOT REPORT CLUSTER [SETTING=...]``.

It starts the queries, says ``running``, and then does what it reads: ``stop`` stops the queries and
``start`` starts them again; ``finish`` lets them work off what is there, stops them and writes
their states to REPORT. If a query fails by itself, the program ends with it, loudly.
"""

import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from stillframe.pipeline import Pipeline
from stillframe.spark.queries import checkpoint_location
from stillframe.spark.session import spark_session
from stillframe.storage.location import locate
from tests.soak.pipeline_shop import QUERIES, query_states, start_queries


def watch(query: StreamingQuery, stopping: threading.Event) -> None:
    """Wait for the end of a query; if it failed before it was to stop, the program ends."""
    try:
        query.awaitTermination()
    except PySparkException:
        # Spark calls a query failed if `stop` interrupts it at some places, such as while it copies
        # a plan (InvocationTargetException): one stop in a hundred.
        if not stopping.is_set():
            traceback.print_exc()
            os._exit(3)


def work(start: Callable[..., list[StreamingQuery]], finish: Callable[[], object]) -> None:
    """Do what standard input says until told to finish, or until nobody is there to tell. Further
    words of the command ``start`` are for `start`."""
    queries: list[StreamingQuery] = []
    stopping = threading.Event()
    command, words = "start", list[str]()
    while command:
        if command == "start":
            stopping = threading.Event()
            queries = start(*words)
            for query in queries:
                threading.Thread(target=watch, args=(query, stopping), daemon=True).start()
            print("running", flush=True)
        else:
            if command == "finish":
                for query in queries:
                    query.processAllAvailable()
            stopping.set()
            for query in queries:
                query.stop()
            print("stopped", flush=True)
        if command == "finish":
            finish()
            return
        command, *words = sys.stdin.readline().split() or [""]


def main(root: str, report: Path, cluster: str, settings: list[str]) -> None:
    """Start Spark and work."""
    spark = spark_session(master=cluster, app_name="soak")
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    for setting in settings:
        spark.conf.set(*setting.split("=", 1))
    pipeline = Pipeline(locate(root))

    def finish() -> None:
        checkpoints = {name: checkpoint_location(pipeline, name) for name in QUERIES}
        report.write_text(json.dumps(query_states(spark, checkpoints)))

    work(lambda: start_queries(spark, pipeline), finish)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
