import types

import numpy as np

from estimator_det.compat import tf, tf1
from estimator_det.nets.quantization import QuantizedTensor
from model_fn.training.step import range_summaries


def test_the_table_shows_ranges_and_what_they_cut_off():
    with tf.Graph().as_default(), tf1.Session() as session:
        values = tf.constant([-1.0, 0.0, 2.0, 7.0])
        tensors = [
            QuantizedTensor("one/act_quant", values, tf.constant(0.0), tf.constant(6.0), False),
            QuantizedTensor("two/weights_quant", values, tf.constant(-1.0), tf.constant(7.0), True),
        ]
        (summary,) = range_summaries(types.SimpleNamespace(quantized=tensors))
        (value,) = tf1.Summary.FromString(session.run(summary)).value
    assert (value.tag, value.metadata.plugin_data.plugin_name) == ("quantization", "text")
    table = np.vectorize(bytes.decode)(tf.make_ndarray(value.tensor))
    assert table.tolist() == [
        ["tensor", "min", "max", "cut off"],
        ["one/act_quant", "0.0000", "6.0000", "50.00 %"],
        ["two/weights_quant", "-1.0000", "7.0000", "0.00 %"],
    ]
