"""What an evaluation reads."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from estimator_det.compat import estimator, tf
from model_fn.preflight.placeholders import placeholders
from model_fn.runs import evaluator
from tests.inputs.examples import BOXES, example, picture, pipeline, write

EXTRACTOR = "model { ssd { feature_extractor { type: 'ssd_mobilenet_v1' } } }"


@pytest.mark.parametrize(("text", "size"), [("", (6, 10)), ("force_no_resize: true", (8, 12))])
def test_images_keep_their_size_where_nothing_is_resized(
    text: str, size: tuple[int, int], tmp_path: pathlib.Path
) -> None:
    config = pipeline(f"{EXTRACTOR} eval_config {{ {text} }}")
    path = write(tmp_path / "in.record", [example({**BOXES, "image/object/class/label": [2, 1]})])
    config.eval_input_reader[0].tf_record_input_reader.input_path.append(path)
    (reader,) = evaluator.evaluation_inputs(config)
    ((features, labels),) = reader.make_input_fn(None)().as_numpy_iterator()
    assert features["image"].shape == (1, *size, 3)
    assert features["true_image_shape"].tolist() == [[*size, 3]]
    assert features["original_image"].shape == (1, *size, 3)
    np.testing.assert_allclose(labels["groundtruth_boxes"][0, 0], [0, 0, 0.5, 0.25])
    if text:
        assert picture().shape == (*size, 3)
        np.testing.assert_allclose(features["image"][0], picture() / 127.5 - 1, atol=1e-5)
    with tf.Graph().as_default():
        shape = placeholders(config, estimator.ModeKeys.EVAL)[0]["image"].shape.as_list()
        training = placeholders(config, estimator.ModeKeys.TRAIN)[0]["image"].shape.as_list()
    assert shape[1:3] == ([None, None] if text else list(size))
    assert training[1:3] == [6, 10]
