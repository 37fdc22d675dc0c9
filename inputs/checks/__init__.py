"""Examines records and counts what they contain, before a training or for `check-data`."""
