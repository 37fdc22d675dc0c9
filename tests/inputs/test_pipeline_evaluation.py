"""The input function of evaluation."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
from google.protobuf import text_format

import inputs
from estimator_det.compat import tf1
from inputs import schema
from tests.inputs.examples import BOXES, encoded, example, picture, pipeline
from tests.inputs.test_pipeline import (
    LABELS,
    preprocess_of,
    reading,
    records_with_boxes,
    run_in_graph,
)


def test_image_level_labels(tmp_path: pathlib.Path) -> None:
    given = {
        "image/class/label": [1, 4],
        "image/neg_category_ids": [2],
        "image/not_exhaustive_category_ids": [3, 9],
    }
    text = "eval_config { image_classes_field_map_empty_to_ones: false batch_size: 2 }"
    config = reading(tmp_path, [example(given), example({})], text)
    ((_, labels),) = run_in_graph(inputs.create_eval_input_fn(config, preprocess_of(config)))
    assert labels["groundtruth_labeled_classes"].tolist() == [[1, 0, 0, 1], [0] * 4]
    assert labels["groundtruth_verified_neg_classes"].tolist() == [[0, 1, 0, 0], [0] * 4]
    assert labels["groundtruth_not_exhaustive_classes"].tolist() == [[0, 0, 1, 0], [0] * 4]
    assert labels["groundtruth_image_classes"].tolist() == [[1, 4, 0, 0], [0] * 4]


def test_evaluation_takes_every_example_once(tmp_path: pathlib.Path) -> None:
    config = reading(tmp_path, records_with_boxes(9), "eval_config { batch_size: 2 }")
    input_fn = inputs.create_eval_input_fn(config, preprocess_of(config), sample_1_of_n=2)
    batches = [features[schema.RECORD][:, 1] for features, _ in input_fn().as_numpy_iterator()]
    assert [batch.tolist() for batch in batches] == [[0, 2], [4, 6], [8]]


def test_evaluation_features(tmp_path: pathlib.Path) -> None:
    config = reading(tmp_path, [example({**BOXES, **LABELS})])
    dataset = inputs.create_eval_input_fn(config, preprocess_of(config))()
    assert dataset.element_spec[0]["image"].shape.as_list() == [1, 6, 10, 3]
    ((features, _),) = dataset.as_numpy_iterator()
    expected = tf1.image.resize(picture().astype(np.float32), [6, 10]).numpy()
    np.testing.assert_array_equal(features["original_image"][0], expected.astype(np.uint8))
    assert features["original_image_spatial_shape"].tolist() == [[8, 12]]


def test_an_evaluation_needs_a_reader() -> None:
    config = pipeline()
    del config.eval_input_reader[:]
    with pytest.raises(ValueError, match="eval_input_reader is missing"):
        inputs.create_eval_input_fn(config, preprocess_of(config))


@pytest.mark.parametrize("channels", [pytest.param(0, marks=pytest.mark.exhaustive), 2])
def test_additional_channels_of_an_evaluation(channels: int, tmp_path: pathlib.Path) -> None:
    text = f"""eval_config {{ retain_original_image_additional_channels: true }}
        eval_input_reader {{ num_additional_channels: {channels} }}
        model {{ ssd {{ image_resizer {{ identity_resizer {{ }} }} }} }}"""
    planes = [picture()[..., 1], picture()[..., 2]]
    extra = {"image/additional_channels/encoded": [encoded(plane) for plane in planes]}
    config = reading(tmp_path, [example({**BOXES, **LABELS, **extra})], "")
    reader = config.eval_input_reader[0]
    config = text_format.Merge(text.replace("eval_input_reader {", "train_input_reader {"), config)
    reader.num_additional_channels = channels
    input_fn = inputs.create_eval_input_fn(config, preprocess_of(config), reader)
    ((features, _),) = input_fn().as_numpy_iterator()
    if channels:
        found = features[schema.ADDITIONAL_CHANNELS][0]
        np.testing.assert_array_equal(found, np.stack(planes, axis=2))
    else:
        assert schema.ADDITIONAL_CHANNELS not in features
