"""Real processes and the real recording rules in one thread: by chance, by script, or every way."""
