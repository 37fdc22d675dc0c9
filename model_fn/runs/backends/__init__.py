"""Backends: what executes the steps of a run: an Estimator, a TPUEstimator, or a TF2 loop."""
