"""The guard of a dataset that runs on another machine, where it cannot call Python.

The input pipeline of a TPU with a host of its own runs on that host. There every fault that
`inputs.checks.guard` would examine ends the run with TensorFlow's own message: no record is
skipped, whatever `bad_records` says. Boxes are corrected as usual, but not counted;
`estimator-det check-data` reports them before the run.
"""

from __future__ import annotations

from typing import Any, Sequence, Tuple

from estimator_det.compat import tf
from inputs import schema
from inputs.bad_records.kinds import FAULT_COUNTS
from inputs.checks.guard import POSITION, RECORD_ID, unpack_record_id


class GraphGuard:
    """Does what `guard.Guard` does in the graph, with TensorFlow's operations alone.

    Args:
        paths: Files, in the order that `schema.RECORD` counts in; none of them compressed.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = list(paths)
        self._sizes = [tf.io.gfile.stat(path).length for path in self.paths]

    def is_full(self) -> tf.Tensor:
        """Never: nothing fails unnoticed, so nothing piles up."""
        return tf.constant(False)

    def goes_on(self) -> tf.Tensor:
        """Always: what must stop the run is an error."""
        return tf.constant(True)

    def length(self, file: tf.Tensor) -> tf.Tensor:
        """-1: all records are counted, so that an end before the file's is seen."""
        del file
        return tf.constant(-1, tf.int64)

    def note_whole(self, file: tf.Tensor, length: tf.Tensor) -> tf.Operation:
        """Notes nothing."""
        del file, length
        return tf.no_op()

    def note_missing(self, file: tf.Tensor) -> tf.Operation:
        """Is not called, where lengths are not known."""
        del file
        return tf.no_op()

    def rest_of_file(
        self, file: tf.Tensor, number: tf.Tensor, read: tf.Tensor
    ) -> Tuple[tf.Tensor, tf.Tensor]:
        """No record, int64 [0] and string [0]; an error unless the reader got to the file's end."""
        size = tf.gather(tf.constant(self._sizes, tf.int64), file)
        path = tf.gather(tf.constant(self.paths), file)
        told = [path, ": damaged after records:", number, "bytes read, bytes there:", read, size]
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(read, size), told)]):
            return tf.zeros([0], tf.int64), tf.zeros([0], tf.string)

    def from_start(self, records: tf.data.Dataset, first: int) -> tf.data.Dataset:
        """The records as they are."""
        del first
        return records

    def begin(self, position: tf.Tensor, place: tf.Tensor, serialized: tf.Tensor) -> tf.Tensor:
        """The bytes as they are."""
        del position, place
        return serialized

    def watch(
        self,
        batches: tf.data.Dataset,
        *,
        keep_source_id: bool,
        base_seed: int,
        **_: Any,
    ) -> tf.data.Dataset:
        """Batches as those of `Guard.watch`."""

        @tf.autograph.experimental.do_not_convert
        def place(features: Any, labels: Any) -> Any:
            features = dict(features)
            positions = features.pop(POSITION)
            del features[FAULT_COUNTS]
            features[schema.RECORD] = unpack_record_id(features.pop(RECORD_ID))
            if not keep_source_id:
                del features[schema.SOURCE_ID]
            seeds = tf.fill(tf.shape(positions), tf.constant(base_seed, tf.int64))
            features[schema.AUGMENTATION_SEED] = tf.stack([seeds, positions], axis=1)
            return features, labels

        return batches.map(place)
