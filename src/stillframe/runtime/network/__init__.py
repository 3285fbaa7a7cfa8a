"""What carries bytes between programs: addresses, certificates, connections, plain and over TLS."""
