"""Evaluations: metrics, and diagnostics that explain them."""
