"""Does a little of everything that tests do with Spark: what Java has loaded by the end is kept.

``scripts/setup.sh`` runs it with ``-XX:ArchiveClassesAtExit``.
"""

import tempfile
from collections.abc import Iterable, Iterator

import pandas as pd
from pyspark.sql import functions

from stillframe.spark.session import spark_session

EXIT_S = 120
"""So long Java may take to write what it has loaded, in seconds."""


def _same(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield from frames


def main() -> None:
    """Write, read, join, aggregate and sort tables; run a streaming query to its end."""
    session = spark_session(app_name="warm", master="local[2]")
    with tempfile.TemporaryDirectory() as place:
        path = f"{place}/table"
        numbers = session.range(1000).select("id", (functions.col("id") % 7).alias("key"))
        numbers.write.partitionBy("key").parquet(path)
        table = session.read.parquet(path)
        table.join(numbers, "id").groupBy(numbers.key).agg(functions.sum("id")).orderBy(
            "key"
        ).collect()
        table.mapInPandas(_same, table.schema).toPandas()
        session.createDataFrame([(1, "one")], "id LONG, name STRING").write.json(f"{place}/rows")
        stream = session.readStream.schema(table.schema).parquet(path)
        counts = stream.groupBy("key").count().writeStream.outputMode("complete").format("memory")
        query = counts.queryName("counts").trigger(availableNow=True).start()
        query.awaitTermination()
        query = (
            stream.writeStream.format("parquet")
            .option("path", f"{place}/copy")
            .option("checkpointLocation", f"{place}/checkpoint")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    java = session.sparkContext._gateway.proc  # noqa: SLF001 - there is no other way to it
    session.stop()
    java.stdin.close()  # this ends it
    java.wait(EXIT_S)


if __name__ == "__main__":
    main()
