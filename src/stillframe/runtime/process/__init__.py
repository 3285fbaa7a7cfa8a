"""The part that runs in the operating-system process of one process of a system."""
