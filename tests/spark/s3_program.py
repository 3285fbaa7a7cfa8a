"""A session with Hadoop's S3A: follows a store twice, with the checkpoint in a bucket.

    python -m tests.spark.s3_program STORE s3://BUCKET

Prints a JSON object. Its Java has the packages from PYSPARK_SUBMIT_ARGS.
"""

import json
import sys
from pathlib import Path

from stillframe.analytics import follow
from stillframe.spark import spark_session
from stillframe.spark.session import check_reachable, checkpoint_address
from stillframe.storage.location import locate


def main() -> None:
    """Follow, and read the checkpoint with the other scheme."""
    store, bucket = Path(sys.argv[1]), sys.argv[2]
    spark = spark_session(app_name="s3", master="local[2]")
    checkpoint = checkpoint_address(locate(f"{bucket}/judged"))
    check_reachable(spark, checkpoint)
    verdicts = []
    for _ in range(2):
        query = (
            follow(spark, store)
            .writeStream.format("parquet")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start(f"{bucket}/verdicts")
        )
        query.awaitTermination()
        rows = spark.read.parquet(f"{bucket}/verdicts").collect()
        verdicts.append(sorted((row["snapshot"], row["verdict"]) for row in rows))
    [query_id] = spark.read.text(f"{bucket}/judged/metadata").collect()
    report = {"checkpoint": checkpoint, "id": query_id.value, "verdicts": verdicts}
    print(json.dumps(report))  # noqa: T201 - its caller reads it
    spark.stop()


if __name__ == "__main__":
    main()
