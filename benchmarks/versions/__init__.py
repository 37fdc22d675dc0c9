"""Compares two TensorFlow versions, and what each does with the files of the other."""
