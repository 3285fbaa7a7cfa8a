"""What the tests of Spark share besides the session."""

from collections.abc import Iterator

import pytest

from tests.spark.standalone import Cluster, Driver, driver_in, standalone


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two machines with a core each."""
    with standalone(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A driver for that cluster."""
    with driver_in(tmp_path_factory.mktemp("driver")) as running:
        yield running
