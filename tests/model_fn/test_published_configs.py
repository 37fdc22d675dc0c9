"""Published configurations of the TF2 line: steps of training, and graphs for TPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from estimator_det.compat import estimator, tf, tf1
from estimator_det.config import pipeline, rules
from estimator_det.detectors import make_detector
from inputs import create_train_input_fn
from inputs.datasets import shapes
from model_fn import model_fn
from model_fn.checks import tpu_graph, tpu_lint
from tests.conftest import MODELS

FOLDER = MODELS / "tf2" / "pipelines"
# Configurations of the TF2 line with networks of their own; D2 has none that is published.
EFFICIENTDETS = sorted(path.stem for path in FOLDER.glob("ssd_efficientdet_*.config"))
CENTER_NETS = sorted(path.stem for path in FOLDER.glob("*centernet_*.config"))
D1, D2 = "ssd_efficientdet_d1_640x640_coco17_tpu-8", "d2"
REDUCED = 128  # pixels
_CLASSES = 4  # of the shapes


def _reduced(name: str, record: Any) -> Any:
    """A configuration of the TF2 line with small images of shapes."""
    config = pipeline.read_pipeline(FOLDER / f"{D1 if name == D2 else name}.config")
    model = getattr(config.model, config.model.WhichOneof("model"))
    model.num_classes = _CLASSES
    resizer = model.image_resizer.keep_aspect_ratio_resizer
    resizer.min_dimension = resizer.max_dimension = REDUCED
    resizer.pad_to_max_dimension = True
    if name == D2:
        model.feature_extractor.type = "ssd_efficientnet-b2_bifpn_keras"
        model.feature_extractor.bifpn.num_filters = 112
        model.feature_extractor.bifpn.num_iterations = 5
        model.box_predictor.weight_shared_convolutional_box_predictor.depth = 112
    for step in config.train_config.data_augmentation_options:
        if step.HasField("random_scale_crop_and_pad_to_square"):
            step.random_scale_crop_and_pad_to_square.output_size = REDUCED
    if config.model.center_net.keypoint_estimation_task:
        keypoints = MODELS / "tf2" / "person_keypoints_label_map.pbtxt"
        config.model.center_net.keypoint_label_map_path = str(keypoints)
    config.train_config.fine_tune_checkpoint = ""
    paths = dict.fromkeys(("train_input_path", "eval_input_path"), record.train_pattern)
    return pipeline.override(config, batch_size=2, label_map_path=record.label_map, **paths)


@pytest.fixture(scope="module")
def shape_record(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return shapes.make_dataset(str(tmp_path_factory.mktemp("shapes")), seed=0, size="tiny")


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [*EFFICIENTDETS, D2, *CENTER_NETS])
def test_a_step_of_efficientdet_and_center_net(shape_record, name):
    config = _reduced(name, shape_record)
    tpu = rules.Tpu(num_shards=1, model_dir="", inference=False, local_files=True)
    problems = [*rules.check(config), *tpu_lint.lint(config, tpu)]
    assert not [each for each in problems if each.severity == "error"]
    with tf.Graph().as_default():
        preprocess = make_detector(config.model, is_training=True).preprocess
        dataset = create_train_input_fn(config, preprocess, seed=0)()
        batches = tf1.data.make_initializable_iterator(dataset)
        tf1.train.get_or_create_global_step()
        features, labels = batches.get_next()
        spec = model_fn.create_model_fn(config)(features, labels, estimator.ModeKeys.TRAIN, {})
        with tf1.Session() as session:
            initial = [tf1.global_variables_initializer(), tf1.tables_initializer()]
            session.run([*initial, batches.initializer])
            losses = [session.run([spec.loss, spec.train_op])[0] for _ in range(2)]
            weights = session.run([tf.reduce_sum(each) for each in tf1.trainable_variables()])
    assert np.isfinite(losses).all() and np.isfinite(weights).all()


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name", [EFFICIENTDETS[0], *(each for each in CENTER_NETS if "kpts" in each)]
)
def test_a_step_on_tpu(shape_record, name):
    """Larger networks of a kind, and those without keypoints, have no other operations."""
    config = _reduced(name, shape_record)
    problems, count = tpu_graph.compile_check(config, xla=False, batch_per_core=2)
    assert problems == [] and count > 5000
