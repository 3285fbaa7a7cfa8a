"""A year of flights as a data pipeline: Spark queries and Python services, one snapshot of all.

``python -m examples.flights`` photographs it, kills it, brings it back, and compares what it made
with what a run without interruption makes. ``flows`` says what the pipeline consists of.
"""
