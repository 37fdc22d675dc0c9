"""How steps are executed: by an Estimator or by a TPUEstimator."""
