"""Feature extractors of CenterNet: `recipe`, and the networks."""
