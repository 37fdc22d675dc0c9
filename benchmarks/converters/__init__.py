"""Conversion of data sets: images per second, memory, and resumption after SIGKILL."""
