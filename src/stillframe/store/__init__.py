"""Snapshots on disk: published by one rename, every byte checked when read.

``store.Store`` is the entry point; plain Parquet readers can query the same files.
"""
