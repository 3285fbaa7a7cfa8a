"""One Spark session for the whole run: it takes seconds to start."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from stillframe.spark.session import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A quiet session on two cores."""
    session = spark_session(app_name="tests", master="local[2]")
    yield session
    session.stop()
