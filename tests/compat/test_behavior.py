"""Processes that switched TensorFlow 2 off."""

import pytest

PROGRAM = """
import tensorflow as tf
tf.compat.v1.{call}()
import exporters
from estimator_det.programs import demo
from estimator_det.config import pipeline
from model_fn.runs import evaluator, runner

paths = {{"train_input_path": "t", "eval_input_path": "e", "label_map_path": "l"}}
config = pipeline.override(pipeline.read_pipeline(demo.CONFIG_FILE), **paths)
for entry in (
    lambda: runner.train(config, {folder!r}),
    lambda: runner.train_and_evaluate(config, {folder!r}),
    lambda: evaluator.evaluate(config, {checkpoint!r}),
    lambda: exporters.export_saved_model(config, {checkpoint!r}, {folder!r}),
):
    try:
        entry()
    except RuntimeError as error:
        print("refused:", error)
"""


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ("disable_v2_behavior", "disable_v2_tensorshape(), disable_control_flow_v2()"),
        ("disable_control_flow_v2", ": disable_control_flow_v2()"),
    ],
)
def test_every_entry_point_refuses_such_a_process(forker, tmp_path, call, named):
    folder = str(tmp_path / "new")
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    run = forker.program(PROGRAM.format(call=call, folder=folder, checkpoint=str(checkpoint)))
    assert run.wait() == 0, run.output()
    told = run.output()
    assert told.count("refused: this process switched parts of TensorFlow 2 off") == 4, told
    assert told.count(f"{named}; tf.compat.v1.disable_v2_behavior() calls both") == 4
    assert not (tmp_path / "new").exists()


def test_graph_mode_alone_is_not_refused(forker):
    program = """
import tensorflow as tf
tf.compat.v1.disable_eager_execution()
tf.compat.v1.disable_resource_variables()
from estimator_det.compat import require_v2_behavior
require_v2_behavior()
"""
    run = forker.program(program)
    assert run.wait() == 0, run.output()
