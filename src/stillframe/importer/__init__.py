"""Imports executions of other systems: logs with vector clocks become traces.

``clocks`` checks that the clocks of a log do not contradict each other, ``execution`` finds the
messages and makes the trace, ``shiviz`` and ``jsonlines`` read the two formats of such logs.
"""
