"""One serialized record to one decoded sample."""
