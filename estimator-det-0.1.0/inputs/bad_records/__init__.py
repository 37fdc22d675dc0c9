"""Faults of records: their kinds, the policy that handles them, and the log."""
