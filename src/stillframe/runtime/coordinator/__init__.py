"""The coordinator of one epoch: its members, their fragments, and the published snapshots."""
