"""The options of ``format("stillframe")`` say what is wrong with them."""

import pytest

from stillframe.errors import UsageError
from stillframe.spark.scan_planner import read_options


@pytest.mark.parametrize("rows", ["0", "-1", "x", "", "1.5", "\N{SUPERSCRIPT TWO}"])
def test_a_number_of_records_is_above_zero(rows: str) -> None:
    """Anything else is refused with what was given, also what Python alone takes for a digit."""
    options = {"pipeline": "p", "query": "q", "channels": "c", "maxRowsPerTrigger": rows}
    with pytest.raises(UsageError, match=r"maxRowsPerTrigger is .*: give a number of records"):
        read_options(options)
