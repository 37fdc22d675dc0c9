"""Imports published detectors: their weights become a checkpoint under the names of this model."""
