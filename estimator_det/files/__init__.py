"""Formats of files, each read and written in one place: JSON, run lengths, image headers.

The bottom of the house: imports NumPy and Pillow, and TensorFlow only for remote paths.
"""
