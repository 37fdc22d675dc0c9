"""Record ids: the index of a file and the number of a record in it, packed into one int64."""

from __future__ import annotations

from typing import Tuple

from estimator_det.compat import tf

NUMBER_BITS = 40


def pack_record_ids(file: tf.Tensor, numbers: tf.Tensor) -> tf.Tensor:
    """int64 file index and record numbers of any shape -> int64 ids of that shape."""
    return tf.bitwise.left_shift(file, NUMBER_BITS) + numbers


def unpack_record_ids(record_ids: tf.Tensor) -> tf.Tensor:
    """int64 [k] -> [k, 2]: file index and record number."""
    bits = tf.constant(NUMBER_BITS, record_ids.dtype)
    file = tf.bitwise.right_shift(record_ids, bits)
    return tf.stack([file, record_ids - tf.bitwise.left_shift(file, bits)], axis=1)


def split_record_id(record_id: int) -> Tuple[int, int]:
    """File index and record number of one id, in Python."""
    return record_id >> NUMBER_BITS, record_id & ((1 << NUMBER_BITS) - 1)
