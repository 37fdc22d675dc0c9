"""Detections of any tool in files, to be scored against records."""
