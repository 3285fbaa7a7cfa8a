"""A year of flights through topics of Kafka: two Spark queries and two Python services, one cut.

``python -m examples.kafka`` takes snapshots while all of them run, kills them twice, restores them,
and compares every output with the data. ``flows`` says what the pipeline consists of.
"""
