"""Measurements: what Stillframe costs."""
