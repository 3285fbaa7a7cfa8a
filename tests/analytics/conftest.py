"""What the tests of analytics share besides the session."""

import secrets

import pytest
from pyspark.sql import SparkSession

from stillframe.storage.location import ObjectPath, locate
from tests.s3_servers import S3Server, at_night, environment


@pytest.fixture
def spark_bucket(
    spark: SparkSession,
    moto_bucket: str,
    moto_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
) -> ObjectPath:
    """An empty bucket that Spark's workers find as the driver does, in their environment. Java was
    started with another one."""
    for name, value in environment(moto_server).items():
        monkeypatch.setitem(spark.sparkContext.environment, name, value)
    found = locate(moto_bucket)
    assert isinstance(found, ObjectPath)
    return found


@pytest.fixture(params=["memory", *at_night("versitygw_bucket")])
def empty_place(request: pytest.FixtureRequest) -> ObjectPath:
    """An empty place in an object store, for what needs no Spark; at night on a real server."""
    if request.param == "memory":
        return ObjectPath(f"memory://test-{secrets.token_hex(8)}", "place")
    found = locate(f"{request.getfixturevalue(request.param)}/place")
    assert isinstance(found, ObjectPath)
    return found
