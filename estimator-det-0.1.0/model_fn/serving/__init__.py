"""Served models: their graph, constants in place of variables, and warm-up requests."""
