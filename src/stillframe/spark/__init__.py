"""Snapshots and Spark: a session, the store as DataFrames, audits."""
