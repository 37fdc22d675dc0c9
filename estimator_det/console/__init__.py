"""Text for terminals and logs: escaped lines, lines of JSON, progress bars; no TensorFlow."""
