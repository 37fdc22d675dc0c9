"""Compares the formats of an export: speed, memory, file size and mAP."""
