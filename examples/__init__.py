"""Programs to run, read and change."""
