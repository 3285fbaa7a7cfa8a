"""The demonstrations of ``./demo``, and a notebook; ``stillframe.examples`` has small systems."""
