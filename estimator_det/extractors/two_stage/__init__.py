"""Feature extractors of two-stage detectors: `recipe`, and one file per family of networks."""
