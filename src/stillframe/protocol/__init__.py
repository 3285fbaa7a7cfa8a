"""The rules, pure: no clock, no chance, no I/O. Hosts call in and carry out what comes back."""
