"""Summaries of simulated quantization: the range of each tensor, and the share that it cuts."""

from __future__ import annotations

from typing import Any, List, Sequence

from estimator_det.compat import tf, tf1
from estimator_det.nets.quantization import QuantizedTensor

TAG = "quantization"
COLUMNS = ("tensor", "min", "max", "cut off")


def range_summaries(predictions: Any) -> List[tf.Tensor]:
    """A table of all quantized tensors as a serialized summary; nothing for a float network.

    "cut off" is the share of this step's values that are out of the range.
    """
    quantized: Sequence[QuantizedTensor] = getattr(predictions, "quantized", ())
    if not quantized:
        return []
    with tf1.name_scope("quantized_ranges"):
        numbers = [
            tf.stack([each.least for each in quantized]),
            tf.stack([each.most for each in quantized]),
        ]
        shares = tf.stack([100.0 * _share_cut_off(each) for each in quantized])
        columns = [
            tf.constant([each.scope for each in quantized]),
            *(tf.strings.as_string(column, precision=4) for column in numbers),
            tf.strings.join([tf.strings.as_string(shares, precision=2), " %"]),
        ]
        table = tf.concat([[list(COLUMNS)], tf.stack(columns, axis=1)], axis=0)
    return [tf1.summary.text(TAG, table, collections=[])]


def _share_cut_off(quantized: QuantizedTensor) -> tf.Tensor:
    values = tf.cast(quantized.values, tf.float32)
    out = (values < quantized.least) | (values > quantized.most)
    return tf.reduce_mean(tf.cast(out, tf.float32))
