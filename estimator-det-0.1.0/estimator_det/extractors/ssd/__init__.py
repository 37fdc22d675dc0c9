"""Feature extractors of single-shot detectors: `recipe`, and one file per family of networks."""
