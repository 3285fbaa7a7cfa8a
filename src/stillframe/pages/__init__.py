"""The pages that show executions, snapshots and running systems."""
