"""Event logs: what each process did, row by row, in files that any reader of Parquet can query.

A process writes its own log (``writer``); together, those of one epoch are a trace
(``trace.Trace``) that may be too large for one machine's memory. ``stillframe.analytics`` verifies
snapshots with it.
"""
