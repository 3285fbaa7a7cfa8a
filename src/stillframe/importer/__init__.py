"""Executions of other systems: logs with vector clocks become traces.

``clocks`` checks that the clocks of a log do not contradict each other, ``execution`` finds the
messages and makes the trace, ``shiviz`` and ``jsonlines`` read the two forms of such logs.
"""

from stillframe.importer.execution import Execution, Imported
from stillframe.importer.jsonlines import JsonPaths
from stillframe.importer.log import read_log

__all__ = ["Execution", "Imported", "JsonPaths", "read_log"]
