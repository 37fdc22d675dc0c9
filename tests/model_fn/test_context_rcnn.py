"""Context R-CNN through the runner, with frames of sequence records."""

from __future__ import annotations

import pathlib
from typing import Any, List

import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.compat import estimator, tf, tf1
from estimator_det.detectors.base import make_preprocessor
from estimator_det.protos import input_reader_pb2
from inputs import create_eval_input_fn, schema
from model_fn.model_fn import create_model_fn
from tests.detectors.two_stage import configs
from tests.inputs import examples
from tests.model_fn import fake

pytestmark = pytest.mark.usefixtures("small_network")
LENGTH = 5
CONTEXT = f"""context_config {{
  max_num_context_features: 3 context_feature_length: {LENGTH} attention_bottleneck_dimension: 4
}}"""
READER = """
  input_type: TF_SEQUENCE_EXAMPLE load_context_features: true label_map_path: "{labels}"
  max_number_of_boxes: 2 tf_record_input_reader {{ input_path: "{records}" }}
"""
TRAINING = """
  train_config {{ batch_size: 2 optimizer {{ momentum_optimizer {{ learning_rate {{
    constant_learning_rate {{ learning_rate: 0.01 }} }} }} }} }}
  train_input_reader {{ {reader} }}
  eval_config {{ batch_size: 1 metrics_set: "coco_detection_metrics" }}
  eval_input_reader {{ {reader} shuffle: false }}
"""


def camera(number: int, num_features: int) -> bytes:
    """A sequence of two frames with a box each, and features of other frames of its camera."""
    random = np.random.default_rng(number)
    images = [examples.encoded(random.integers(0, 255, (64, 64, 3), np.uint8)) for _ in range(2)]
    low, high = [[0.1], [0.2]], [[0.6], [0.9]]
    context = {
        "image/filename": f"camera_{number}",
        "image/context_features": random.normal(size=num_features * LENGTH),
        "image/context_feature_length": LENGTH,
    }
    frames = {
        "image/encoded": images,
        "image/source_id": [f"camera_{number}_frame_{i}" for i in range(2)],
        **dict.fromkeys(("region/bbox/ymin", "region/bbox/xmin"), low),
        **dict.fromkeys(("region/bbox/ymax", "region/bbox/xmax"), high),
        "region/label/string": [["zebra"], ["gnu"]],
        "region/is_annotated": [1, 1],
    }
    return examples.sequence(context, frames)


def make_config(folder: pathlib.Path, records: List[bytes]) -> Any:
    labels = folder / "labels.pbtxt"
    labels.write_text('item { id: 1 name: "zebra" } item { id: 2 name: "gnu" }')
    path = examples.write(folder / "frames.record", records)
    config = fake.pipeline_config("")
    for field in ("train_config", "train_input_reader", "eval_config", "eval_input_reader"):
        config.ClearField(field)
    reader = READER.format(labels=labels, records=path)
    text_format.Merge(TRAINING.format(reader=reader), config)
    config.model.CopyFrom(configs.small_config(CONTEXT))
    assert config.train_input_reader.input_type == input_reader_pb2.TF_SEQUENCE_EXAMPLE
    return config


def test_evaluation_attends_to_what_records_contain(tmp_path):
    """As many features as there are, cut at the model's number, padded with zeros."""
    config = make_config(tmp_path, [camera(0, 2), camera(1, 5), camera(2, 0)])
    input_fn = create_eval_input_fn(config, make_preprocessor(config.model))
    with tf.Graph().as_default(), tf1.Session() as session:
        tf1.set_random_seed(0)
        batches = tf1.data.make_initializable_iterator(input_fn())
        features, labels = batches.get_next()
        assert features[schema.CONTEXT_FEATURES].shape == (1, 3, LENGTH)
        spec = create_model_fn(config)(features, labels, estimator.ModeKeys.EVAL, {})
        session.run(tf1.global_variables_initializer())
        session.run([tf1.tables_initializer(), batches.initializer])
        fetched = [features[schema.VALID_CONTEXT_SIZE], features[schema.CONTEXT_FEATURES]]
        seen = [session.run([*fetched, spec.predictions, spec.loss]) for _ in range(3)]
    assert [count.tolist() for count, *_ in seen] == [[2], [3], [0]]
    assert [np.any(rows[0] != 0, axis=1).sum() for _, rows, *_ in seen] == [2, 3, 0]
    for _, _, found, loss in seen:
        assert np.isfinite(loss) and np.isfinite(found["detection_scores"]).all()
