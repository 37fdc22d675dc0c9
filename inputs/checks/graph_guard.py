"""The guard of a dataset that runs on another machine, where it cannot call Python.

The input pipeline of a TPU with a host of its own runs on that host, that of a `tf.data` service on
data workers. There every fault that `inputs.checks.guard` would examine ends the run with
TensorFlow's own message: no record is skipped, whatever `bad_records` says. Boxes are corrected as
usual, but not counted; `estimator-det check-data` reports them before the run.
"""

from __future__ import annotations

from typing import Any, List, Sequence, Tuple

from estimator_det.compat import tf
from estimator_det.config.text import ConfigError
from inputs.checks.guard import without_guard_keys
from inputs.decoding.example import require
from inputs.records.cursor import CursorState
from inputs.records.tfrecord import is_compressed


class GraphGuard:
    """A `guard.Guard` of TensorFlow operations alone: any fault raises InvalidArgumentError."""

    def __init__(self, paths: Sequence[str]) -> None:
        compressed = [path for path in paths if is_compressed(path)]
        if compressed:
            raise ConfigError(
                f"{compressed[0]}: compressed files cannot be read on the host of a TPU or by a "
                "data worker, where damage to them would go unnoticed. Decompress them; reading "
                "becomes faster, too"
            )
        self.paths: List[str] = list(paths)
        self._sizes = [tf.io.gfile.stat(path).length for path in self.paths]

    def may_continue(self) -> tf.Tensor:
        """Always: a fault that must stop the run raises an error."""
        return tf.constant(True)

    def read_rest(
        self, file: tf.Tensor, number: tf.Tensor, num_bytes: tf.Tensor, size: tf.Tensor
    ) -> Tuple[tf.Tensor, tf.Tensor]:
        """No record; raises an error unless the reader got to the end of the file."""
        size = tf.gather(tf.constant(self._sizes, tf.int64), file)
        is_complete = require(
            tf.equal(num_bytes, size),
            tf.strings.join([tf.gather(tf.constant(self.paths), file), ", record ",
                             tf.strings.as_string(number)]),
            ["damaged_record"],
            "Records cannot be skipped here. Bytes read, and bytes of the file:",
            [num_bytes, size],
        )  # fmt: skip
        with tf.control_dependencies([is_complete]):
            return tf.zeros([0], tf.int64), tf.zeros([0], tf.string)

    def add_pending(
        self, sequence_number: tf.Tensor, record_id: tf.Tensor, serialized: tf.Tensor
    ) -> tf.Tensor:
        return serialized

    def check_batches(
        self, batches: tf.data.Dataset, *, start: CursorState, keep_source_id: bool, **_: Any
    ) -> tf.data.Dataset:
        """Batches with the features that `Guard.check_batches` gives them."""

        @tf.autograph.experimental.do_not_convert
        def complete(features: Any, labels: Any) -> Any:
            return without_guard_keys(features, keep_source_id, start), labels

        return batches.map(complete)
