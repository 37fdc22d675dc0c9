"""A server on a free port, in a thread, with a model that answers at once."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any, Callable, Dict, Iterator, List, NamedTuple

import numpy as np
import requests
import uvicorn

from exporters import Detector
from exporters.loaded_model import LoadedModel
from exporters.server.app import Limits, Server
from exporters.server.batching import Batcher
from exporters.server.metrics import ServerCounters
from exporters.server.versions import ModelVersions

EVIL = "<script>document.title='evil'</script>"


LIMITS = Limits()


class Brightness(LoadedModel):
    """Detects two objects in every image; the first has its mean brightness as score."""

    def __init__(self, path: str = "") -> None:
        super().__init__(path, {1: EVIL, 2: "cup, red"}, "")
        self.batches: List[int] = []
        self.running = self.most_running = 0
        self.may_end = threading.Event()
        self.may_end.set()

    def run(self, images: np.ndarray) -> Dict[str, np.ndarray]:
        self.batches.append(len(images))
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        self.may_end.wait()
        self.running -= 1
        count = len(images)
        scores = np.full([count, 3], 0.25, np.float32)
        scores[:, 0] = images.mean(axis=(1, 2, 3)) / 255
        boxes = np.tile(np.array([0.25, 0.25, 0.5, 0.75], np.float32), [count, 3, 1])
        return {
            "num_detections": np.full([count], 2, np.float32),
            "detection_boxes": boxes,
            "detection_scores": scores,
            "detection_classes": np.tile(np.array([1, 2, 1], np.float32), [count, 1]),
            "unbatched": np.zeros([7]),
        }


class Address(NamedTuple):
    url: str
    models: ModelVersions
    server: Server

    def get(self, path: str, **options: Any) -> requests.Response:
        return requests.get(self.url + path, timeout=30, **options)

    def post(self, path: str, data: Any = None, **options: Any) -> requests.Response:
        return requests.post(self.url + path, data=data, timeout=30, **options)


@contextlib.contextmanager
def serving(
    path: str = "",
    load: Callable[[str], Detector] = lambda path: Detector(Brightness(path)),
    limits: Limits = LIMITS,
    max_batch: int = 4,
    max_wait: float = 0.002,
    **options: Any,
) -> Iterator[Address]:
    metrics = ServerCounters()
    models = ModelVersions(
        path, lambda each: Batcher(each, max_batch, max_wait, metrics.batches.observe), load
    )
    server = Server("detector", models, metrics, limits, **options)
    listening = socket.create_server(("127.0.0.1", 0), backlog=500)
    web = uvicorn.Server(uvicorn.Config(server.app("127.0.0.1"), log_level="error"))
    thread = threading.Thread(target=web.run, args=([listening],))
    thread.start()
    try:
        yield Address(f"http://127.0.0.1:{listening.getsockname()[1]}", models, server)
    finally:
        web.should_exit = True
        thread.join(30)
        server.close()
