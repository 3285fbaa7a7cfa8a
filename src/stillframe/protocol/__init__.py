"""The rules, pure: no clock, no chance, no I/O. Hosts call them and carry out the returned
effects."""
