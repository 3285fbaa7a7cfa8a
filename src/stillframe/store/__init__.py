"""Snapshots on disk: published whole by one rename, every byte checked when read.

``store.Store`` is the entrance; plain Parquet readers can query the same files.
"""
