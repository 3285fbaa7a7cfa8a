"""What the tests of Spark share besides the session."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_query_outlives_its_test(request: pytest.FixtureRequest) -> Iterator[None]:
    """End the queries of a test that failed: the next one starts some of the same names."""
    yield
    if "spark" in request.fixturenames:
        for query in request.getfixturevalue("spark").streams.active:
            query.stop()
