"""The counters of a server, in the text format of Prometheus."""

from __future__ import annotations

from typing import Tuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, exposition

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_SIZES = (1, 2, 4, 8, 16, 32, 64)


class ServerCounters:
    """Counters of one server."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "estimator_det_requests", "Requests by kind and status", ["route", "status"],
            registry=registry,
        )  # fmt: skip
        self.errors = Counter(
            "estimator_det_errors", "Refused requests by reason", ["kind"], registry=registry
        )
        self.seconds = Histogram(
            "estimator_det_request_seconds", "Time to answer", ["route"], buckets=_SECONDS,
            registry=registry,
        )  # fmt: skip
        self.batches = Histogram(
            "estimator_det_batch_images", "Images that ran at once", buckets=_SIZES,
            registry=registry,
        )  # fmt: skip
        self.queue = Gauge("estimator_det_queue", "Requests under way", registry=registry)

    def text(self) -> Tuple[bytes, str]:
        """All values, and their content type."""
        return exposition.generate_latest(self._registry), exposition.CONTENT_TYPE_LATEST
