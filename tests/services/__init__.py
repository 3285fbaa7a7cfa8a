"""Tests of observations of real services."""
