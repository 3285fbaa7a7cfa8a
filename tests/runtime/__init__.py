"""The runtime: hosts in memory, hosts over TCP in one loop, and operating-system processes."""
