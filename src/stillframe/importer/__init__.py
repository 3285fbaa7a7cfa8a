"""Executions of other people's systems: logs with vector clocks become traces.

``clocks`` checks that the clocks of a log contradict themselves nowhere, ``execution`` finds the
messages and makes the trace, ``shiviz`` and ``jsonlines`` read the two forms that such logs have.
"""
