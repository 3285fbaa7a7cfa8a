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


@pytest.fixture(autouse=True)
def no_query_outlives_its_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """End the queries of a test that failed: the next one starts some of the same names."""
    yield
    if "spark" in request.fixturenames:
        for query in request.getfixturevalue("spark").streams.active:
            query.stop()
