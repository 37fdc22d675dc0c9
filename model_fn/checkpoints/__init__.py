"""Finds, compares, repairs and keeps checkpoints, and the positions in the data beside them."""
