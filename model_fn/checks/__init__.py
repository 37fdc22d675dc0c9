"""Checks before step 1: configuration, data, anchors, memory, TPU graph."""
