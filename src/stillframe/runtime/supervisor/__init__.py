"""The supervisor, which starts the processes of a system, and restores it when one of them dies."""
