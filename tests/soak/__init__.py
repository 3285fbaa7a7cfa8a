"""Load, random kills and a ledger that notices every message that is lost or doubled."""
