"""Stable predicates on snapshots: once true, always true (Chandy & Lamport 1985, section 1).

If such a predicate holds in a snapshot, it holds in the system now; if it held before the snapshot
was initiated, it holds in the snapshot.
"""
