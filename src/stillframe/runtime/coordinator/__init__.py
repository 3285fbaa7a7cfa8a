"""What takes the snapshots of one epoch: who takes part, what they send, what is published."""
