"""Terminals, logs and signals: escaped lines, lines of JSON, progress bars, stops; no TensorFlow."""
