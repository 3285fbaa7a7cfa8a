"""The network between programs: addresses, certificates, and connections, plain or over TLS."""
