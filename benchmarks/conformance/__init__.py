"""Compares what this package computes with numbers measured on the Object Detection API."""
