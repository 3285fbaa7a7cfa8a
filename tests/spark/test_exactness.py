"""The state of every query at a snapshot is that of exactly the records before the barriers."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.nightly import by_night
from tests.spark.exactness import EVERY_CASE, SHORT_CASE, Case, judge


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.nightly(part="exactness")
@pytest.mark.parametrize("case", [SHORT_CASE, *by_night(EVERY_CASE, check=[])], ids=str)
def test_states_at_snapshots_are_exact(spark: SparkSession, tmp_path: Path, case: Case) -> None:
    """Snapshots in every mode while records flow, and a run that goes on from one, are exact."""
    judge(spark, tmp_path / "flows.pipeline", case)
