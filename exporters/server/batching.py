"""Runs a detector on the images of many requests, several at once."""

from __future__ import annotations

import collections
import concurrent.futures
import threading
import time
from typing import Callable, Deque, Dict, List, NamedTuple, Optional

import numpy as np

from exporters.detector import Detector

_AT_ONCE = 2  # batches: one runs while images and answers of the other are copied
MOST_BATCH_BYTES = 1 << 27  # bound of the bytes of the images of a batch, if it has several
MOST_WAITING_BYTES = 1 << 30  # bound of the bytes of all images that wait

Outputs = Dict[str, np.ndarray]  # the outputs of a model for one image


class Full(Exception):
    """Too many pixels wait for the detector."""


class _Waiting(NamedTuple):
    pixels: np.ndarray
    since: float
    future: concurrent.futures.Future[Outputs]


class Batcher:
    """Runs a detector on batches of images of one size, in threads of its own.

    A batch begins with the oldest image. Images of its size that arrive within `max_wait` seconds
    join it, since a model takes only images of one size at once and resizing them here would change
    what it detects.

    Args:
        detector: What runs.
        max_batch: Images that run at once at most.
        max_wait: Seconds that the oldest image waits for others.
        count_batch: Called with the size of each batch.
    """

    def __init__(
        self,
        detector: Detector,
        max_batch: int,
        max_wait: float,
        count_batch: Callable[[int], None],
    ) -> None:
        self._detector, self._max_batch, self._max_wait = detector, max_batch, max_wait
        self._count_batch = count_batch
        self._queue: Deque[_Waiting] = collections.deque()
        self._changed = threading.Condition()
        self._choosing = threading.Lock()  # only one thread waits until its batch is full
        self._is_closed = False
        for _ in range(_AT_ONCE):
            threading.Thread(target=self._work, name="detector", daemon=True).start()

    def submit(self, pixels: np.ndarray) -> Optional[concurrent.futures.Future[Outputs]]:
        """The outputs for an image that `Detector.fit` has made; None once the batcher is closed.

        Errors of the model are errors of the future. Raises Full if too many pixels wait.
        """
        waiting = _Waiting(pixels, time.monotonic(), concurrent.futures.Future())
        with self._changed:
            if self._is_closed:
                return None
            if sum(each.pixels.nbytes for each in self._queue) > MOST_WAITING_BYTES:
                raise Full
            self._queue.append(waiting)
            self._changed.notify()
        return waiting.future

    def close(self) -> None:
        """Ends the threads once all that waits has run."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._choosing:
                batch = self._next_batch()
            if not batch:
                return
            self._count_batch(len(batch))
            try:
                rows = self._detector.run(np.stack([each.pixels for each in batch]))
            except Exception as error:  # each request reports it
                for each in batch:
                    each.future.set_exception(error)
                continue
            for each, outputs in zip(batch, rows):
                each.future.set_result(outputs)

    def _next_batch(self) -> List[_Waiting]:
        """The oldest image and others of its size; none once the batcher is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._is_closed)
            if not self._queue:
                return []
            oldest = self._queue[0]
            most = max(1, min(self._max_batch, MOST_BATCH_BYTES // oldest.pixels.nbytes))
            self._changed.wait_for(
                lambda: self._is_closed or len(self._alike(oldest, most)) == most,
                timeout=oldest.since + self._max_wait - time.monotonic(),
            )
            batch = self._alike(oldest, most)
            chosen = set(map(id, batch))
            self._queue = collections.deque(each for each in self._queue if id(each) not in chosen)
            return batch

    def _alike(self, oldest: _Waiting, most: int) -> List[_Waiting]:
        alike = (each for each in self._queue if each.pixels.shape == oldest.pixels.shape)
        return [each for each, _ in zip(alike, range(most))]
