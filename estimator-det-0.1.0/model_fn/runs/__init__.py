"""Training and evaluation runs: backends, saving, progress, history, signals."""
