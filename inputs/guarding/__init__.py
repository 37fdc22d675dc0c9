"""Watches a running pipeline: which records are lost, why, and when they are too many."""
