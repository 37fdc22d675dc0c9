"""Cost of the checks of records on clean data: the training pipeline with them and without."""

from __future__ import annotations

import contextlib
import statistics
import time
from typing import Any, Callable, Dict, Iterator, List, Sequence
from unittest import mock

from estimator_det.compat import tf
from inputs import batch, pipeline
from inputs.bad_records.kinds import FAULT_COUNTS
from inputs.checks.guard import RECORD_ID, SEQUENCE_NUMBER
from inputs.decoding import decoder
from inputs.decoding.box_checks import NUM_COUNTS, Checked
from inputs.records.cursor import CursorState
from inputs.records.stream import Order, Record
from inputs.schema import FILENAME, SOURCE_ID, STREAM_INDEX

WARM_UP = 260  # batches: caches and buffers fill
ROUNDS = 40
ROUND_BATCHES = 16
SETTLE_SECONDS = 0.25  # buffers fill again; images take a few ms each


class _Blind:
    """A guard that checks nothing."""

    def __init__(self, paths: Sequence[str], *_: Any, **__: Any) -> None:
        self.paths = list(paths)

    def add_pending(
        self, sequence_number: tf.Tensor, record_id: tf.Tensor, serialized: tf.Tensor
    ) -> tf.Tensor:
        del sequence_number, record_id
        return serialized

    def check_batches(self, batches: tf.data.Dataset, **_: Any) -> tf.data.Dataset:
        """Removes the keys that only the guard needs."""
        extra = (SEQUENCE_NUMBER, RECORD_ID, FAULT_COUNTS, SOURCE_ID, FILENAME, STREAM_INDEX)

        def without(features: Any, labels: Any) -> Any:
            return {key: x for key, x in features.items() if key not in extra}, labels

        return batches.map(without)


def _plain_records(
    config: Any, guard: _Blind, order: Order, start: CursorState, *_: Any
) -> tf.data.Dataset:
    serialized = tf.data.TFRecordDataset(guard.paths).shuffle(
        config.shuffle_buffer_size, start.seed
    )
    numbers = tf.data.Dataset.range(tf.int64.max)
    return tf.data.Dataset.zip(Record(numbers, numbers, serialized.repeat()))


def _accept_all(boxes: Any, *_: Any) -> Checked:
    counts = tf.zeros([NUM_COUNTS], tf.int32)
    return Checked(boxes.boxes, tf.where(boxes.classes > 0)[:, 0], counts)


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Context manager: training pipelines are built without checks of their records."""

    def nothing(*_: Any) -> Any:
        return tf.no_op()

    replaced = (
        (pipeline, "Guard", _Blind),
        (pipeline, "record_dataset", _plain_records),
        (decoder, "check_boxes", _accept_all),
        (decoder, "claimed_pixels", lambda _: tf.constant(1.0)),
        (decoder, "require", nothing),
        (batch, "require", nothing),
    )
    with contextlib.ExitStack() as stack:
        for module, name, substitute in replaced:
            stack.enter_context(mock.patch.object(module, name, substitute))
        yield


def compare(make_batches: Callable[[], tf.data.Dataset], batch_size: int) -> Dict[str, float]:
    """Processor time per image, the two pipelines in turns; the ratio is the median of rounds."""
    checked = iter(make_batches())
    with unchecked():
        bare = iter(make_batches())
    for iterator in (checked, bare):
        _processor_seconds(iterator, WARM_UP)
    seconds: List[List[float]] = [[], []]
    for turn in range(ROUNDS):
        for which in (0, 1) if turn % 2 else (1, 0):
            seconds[which].append(_processor_seconds((checked, bare)[which], ROUND_BATCHES))
    images = ROUND_BATCHES * batch_size
    return {
        "checked_cpu_us": 1e6 * statistics.median(seconds[0]) / images,
        "unchecked_cpu_us": 1e6 * statistics.median(seconds[1]) / images,
        "checks_cpu_ratio": statistics.median(a / b for a, b in zip(*seconds)),
    }


def _processor_seconds(iterator: Iterator[Any], count: int) -> float:
    """Processor time of all threads until the buffers are as full as at the start.

    Otherwise a pipeline with more room in its buffers would leave work to the turn of the other.
    """
    start = time.process_time()
    for _ in range(count):
        next(iterator)
    time.sleep(SETTLE_SECONDS)
    return time.process_time() - start
