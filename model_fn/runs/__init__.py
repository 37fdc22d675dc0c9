"""Training and evaluation runs: roles, backends, hooks, saving, evaluating, ending."""
