"""Observations of services that keep their transports, such as HTTP and gRPC."""
