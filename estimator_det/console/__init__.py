"""Terminals, logs and signals: escaped lines, progress bars, stops; no TensorFlow."""
