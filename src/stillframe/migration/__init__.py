"""Change of code: what was recorded of one topology becomes a start for another."""
