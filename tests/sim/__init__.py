"""Tests of the simulator, and, with mutants of the rules, tests of those tests."""
