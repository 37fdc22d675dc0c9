from __future__ import annotations

import pathlib

import pytest

from estimator_det.compat import tf, tf1
from model_fn.checkpoints.errors import RunError
from model_fn.checkpoints.savers import evaluation_saver


def test_a_float_checkpoint_has_no_ranges_for_a_quantized_model(tmp_path: pathlib.Path) -> None:
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.get_variable("weights", [2])
        session.run(tf1.global_variables_initializer())
        prefix = tf1.train.Saver().save(session, str(tmp_path / "model.ckpt"))
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.get_variable("weights", [2])
        tf1.get_variable("net/act_quant/min", [])
        message = "(?s)act_quant/min is missing.*of a float model.*set graph_rewriter=null"
        with pytest.raises(RunError, match=message):
            evaluation_saver().restore(session, prefix)


def test_other_missing_variables_are_named(tmp_path: pathlib.Path) -> None:
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.get_variable("weights", [2])
        session.run(tf1.global_variables_initializer())
        prefix = tf1.train.Saver().save(session, str(tmp_path / "model.ckpt"))
        tf1.get_variable("wide", [2])
        with pytest.raises(RunError, match=r"(?s)wide is missing.*Use the pipeline\.config"):
            evaluation_saver().restore(session, prefix)
