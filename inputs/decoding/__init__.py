"""Decoding of a serialized record to a sample."""
