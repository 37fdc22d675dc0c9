"""Throughput, latency, memory and losses of `estimator-det serve`."""
