"""Makes record files: from arrays in memory, and the coloured shapes of the demo."""
