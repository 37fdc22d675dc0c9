"""The training step: optimizer, train op, warm start, and what a step reports."""
