"""Throughput and memory of copies to and from Cloud Storage, with an emulator."""
