"""What the tests of Spark share besides the session."""

from collections.abc import Iterator

import pytest

from tests.s3_servers import S3Server
from tests.spark.standalone import Cluster, Driver, driver_in, standalone


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, moto_server: S3Server) -> Iterator[Cluster]:
    """Two machines with a core each."""
    with standalone(tmp_path_factory.mktemp("cluster"), moto_server) as running:
        yield running


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory, moto_server: S3Server) -> Iterator[Driver]:
    """A driver for that cluster."""
    with driver_in(tmp_path_factory.mktemp("driver"), moto_server) as running:
        yield running
