"""Reads published models: their weights, the structure of their graphs, and their anchors."""
