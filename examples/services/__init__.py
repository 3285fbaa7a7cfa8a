"""Banks behind a bad network, which keep their HTTP and are observed all the same."""

BALANCE = 10_000
"""What each process of a bank has at first, in EUR."""
VAULT_TIMEOUT_S = 6.0
"""How long a bank waits for the next one to open its vault, in seconds."""
