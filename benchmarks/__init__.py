"""Measurements: conformance with the Object Detection API's numbers, and speed as ratios."""
