"""What the tests of analytics share besides the session."""

import secrets

import pytest
from pyspark.sql import SparkSession

from stillframe.storage.location import ObjectPath, locate
from tests.s3_servers import at_night, environment


@pytest.fixture(params=["moto_bucket", *at_night("hdfs")])
def spark_bucket(
    spark: SparkSession, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> ObjectPath:
    """An empty bucket that Spark's workers find as the driver does, in their environment. Java was
    started with another one. At night also an empty directory in HDFS."""
    found = locate(str(request.getfixturevalue(request.param)))
    assert isinstance(found, ObjectPath)
    if request.param == "moto_bucket":
        for name, value in environment(request.getfixturevalue("moto_server")).items():
            monkeypatch.setitem(spark.sparkContext.environment, name, value)
    return found


@pytest.fixture(params=["memory", *at_night("versitygw_bucket")])
def empty_place(request: pytest.FixtureRequest) -> ObjectPath:
    """An empty place in an object store, for what needs no Spark; at night on a real server."""
    return _place(request)


@pytest.fixture(params=["memory", *at_night("versitygw_bucket", "hdfs")])
def remote_place(request: pytest.FixtureRequest) -> ObjectPath:
    """The same, at night also in HDFS, whose requests cannot be made to fail."""
    return _place(request)


def _place(request: pytest.FixtureRequest) -> ObjectPath:
    if request.param == "memory":
        return ObjectPath(f"memory://test-{secrets.token_hex(8)}", "place")
    found = locate(f"{request.getfixturevalue(request.param)}/place")
    assert isinstance(found, ObjectPath)
    return found
