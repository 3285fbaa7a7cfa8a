"""A year of flights as a data pipeline: Spark queries and Python services, one snapshot of all.

``python -m examples.flights`` takes snapshots of it, kills it, restores it, and compares its
results with those of a run without interruption. ``flows`` says what the pipeline consists of.
"""
