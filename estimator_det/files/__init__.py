"""Formats of files, each in one place: JSON values and lines, run lengths, image headers.

The bottom of the house: imports NumPy and Pillow, and TensorFlow only for remote paths.
"""
