"""Facts and speed of every single-stage feature extractor that is registered."""
