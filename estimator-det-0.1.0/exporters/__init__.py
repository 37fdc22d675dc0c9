"""Exports checkpoints as models for serving, and runs such models on images."""

from exporters.saved_model import ExportedModel, export_saved_model

__all__ = ["ExportedModel", "export_saved_model"]
