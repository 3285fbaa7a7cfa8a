"""Banks behind a bad network, which keep their HTTP and are observed all the same."""
