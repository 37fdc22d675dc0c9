"""Exports checkpoints as models for serving, and runs such models on images."""

from exporters.formats.export import ExportedModel, export_saved_model

__all__ = ["ExportedModel", "export_saved_model"]
