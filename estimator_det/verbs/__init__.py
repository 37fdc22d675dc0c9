"""The verbs of `estimator-det`, a module each."""
