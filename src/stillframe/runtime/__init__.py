"""Real operating-system processes over real TCP: one host for the same processes as everywhere."""
