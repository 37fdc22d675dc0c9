"""Checkpoints of a model_dir: found, checked, repaired; what exports need beside them."""
