"""What every test shares: where and when it runs, and what it costs."""

import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests import costs, json_page, nightly, sparks
from tests.emulators import azurite, azurite_bucket, fake_gcs, fake_gcs_bucket
from tests.hdfs_server import hdfs, hdfs_server
from tests.nightly import figure
from tests.s3_servers import bucket, moto_bucket, moto_server, versitygw_bucket, versitygw_server
from tests.sparks import spark
from tests.topics import kafka_address, kafka_server, topic_shop
from tests.wheels import distributions

__all__ = [
    "azurite",
    "azurite_bucket",
    "bucket",
    "distributions",
    "fake_gcs",
    "fake_gcs_bucket",
    "figure",
    "hdfs",
    "hdfs_server",
    "kafka_address",
    "kafka_server",
    "moto_bucket",
    "moto_server",
    "spark",
    "topic_shop",
    "versitygw_bucket",
    "versitygw_server",
]


def pytest_configure(config: pytest.Config) -> None:
    """Measure costs; choose the number of examples; let no gRPC of another test end what a test
    forks."""
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
    nightly.configure()
    sparks.configure()
    config.pluginmanager.register(costs.Costs())
    config.pluginmanager.register(json_page.Written())
    config.pluginmanager.register(sparks.NoQueryOutlivesItsTest())
    config.pluginmanager.register(_First())


class _First:
    """What must be known of the tests before xdist asks."""

    @staticmethod
    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what only runs at night, and say what runs together."""
        nightly.select(config, items)
        costs.group(items)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest."""
    costs.put_longest_first(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Fail a test after which signals end nothing: in another order of tests, another one would
    hang. Only a session of Spark may keep SIGINT."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    assert [signal.getsignal(number) for number in numbers] == before, "handlers of signals stayed"


def pytest_sessionstart(session: pytest.Session) -> None:
    """Begin a part of the night."""
    nightly.begin(session.config)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Check that groups are in force, and keep thousands of collected tests out of every later
    garbage collection: one that visits them takes half a second, and some tests collect hundreds of
    times."""
    if session.config.getoption("loadgroup", False):
        assert all("@" in item.nodeid for item in session.items), "pytest-xdist makes no groups"
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let the interpreter free at its end what was kept: some libraries report what is left.
    Delete what Java has left."""
    gc.unfreeze()
    sparks.unconfigure()


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int) -> None:
    """Report the figures of a night."""
    nightly.report(terminalreporter, exitstatus)
