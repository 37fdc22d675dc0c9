from __future__ import annotations

from typing import Any, List

import pytest
from google.protobuf import text_format

from estimator_det.compat import estimator, tf, tf1
from model_fn.checks import tpu_graph, xla_check
from tests.detectors.configs import small_config
from tests.detectors.two_stage import configs as two_stage_configs
from tests.model_fn import fake

# A prediction is a part of an evaluation.
MODES = (estimator.ModeKeys.TRAIN, estimator.ModeKeys.EVAL)
TRAINING = "train_config { batch_size: 16 } train_input_reader { max_number_of_boxes: 5 }"
FIT = """
inplace_batchnorm_update: true
matcher { argmax_matcher { use_matmul_gather: true } }
loss { classification_loss { weighted_sigmoid_focal { alpha: 0.75 gamma: 2.0 } } }
"""
PADDED = (
    "image_resizer { keep_aspect_ratio_resizer { "
    "min_dimension: 48 max_dimension: 64 pad_to_max_dimension: "
)


def a_config(ssd: str = "", top: str = "") -> Any:
    config = fake.pipeline_config(TRAINING)
    config.ClearField("eval_input_reader")
    config.model.CopyFrom(small_config(FIT))
    text_format.Merge(f"model {{ ssd {{ {ssd} }} }} {top}", config)
    return config


def findings_of(config: Any, *modes: str) -> List[Any]:
    modes = modes or (estimator.ModeKeys.TRAIN,)
    return tpu_graph.compile_check(config, xla=False, batch_per_core=2, modes=modes)[0]


@pytest.mark.parametrize(
    "ssd",
    [
        "loss { classification_loss { weighted_sigmoid {} } localization_loss { weighted_giou {} }"
        " random_example_sampler { positive_sample_fraction: 0.3 } }"
        "matcher { argmax_matcher { use_matmul_gather: false } }"
        "post_processing { batch_non_max_suppression { soft_nms_sigma: 0.5 } }"
        + PADDED
        + "true } }",
        "loss { classification_loss { weighted_softmax {} } }"
        "post_processing { batch_non_max_suppression { use_class_agnostic_nms: true } }"
        "use_confidences_as_targets: true return_raw_detections_during_predict: true "
        "box_coder { mean_stddev_box_coder {} }"
        "anchor_generator { ssd_anchor_generator { reduce_boxes_in_lowest_layer: false } }"
        "box_predictor { weight_shared_convolutional_box_predictor {"
        " depth: 8 num_layers_before_predictor: 1 use_dropout: true conv_hyperparams {} } }"
        "loss { equalization_loss { weight: 1 } expected_loss_weights: EXPECTED_SAMPLING }"
        "post_processing { calibration_config { class_id_function_approximations {"
        " class_id_xy_pairs_map { key: 1 value { x_y_pair { x: 0 y: 0 } } } } } }",
    ],
)
@pytest.mark.usefixtures("small_network")
def test_what_else_is_static(ssd):
    assert findings_of(a_config(ssd), *MODES) == []


@pytest.mark.parametrize(
    ("ssd", "field", "operations"),
    [
        (
            "loss { hard_example_miner { iou_threshold: 0.99 num_hard_examples: 3000 } }",
            "model.ssd.loss.hard_example_miner",
            ["StatelessWhile", "(estimator_det/losses/mining.py:", "in _close_pairs)"],
        ),
        pytest.param(
            "loss { hard_example_miner { iou_threshold: 0.6 num_hard_examples: 64 } }",
            "model.ssd.loss.hard_example_miner",
            ["NonMaxSuppressionV3", "unknown shape, [?]", "in suppress_image)"],
            marks=pytest.mark.exhaustive,
        ),
        ("matcher { bipartite_matcher {} }", "model.ssd.matcher.bipartite_matcher",
         ["unknown shape", "(estimator_det/boxes/matching.py:", "in take_best)"]),
        (PADDED + "false } }", "model.ssd.image_resizer.keep_aspect_ratio_resizer",
         ["image is [2, ?, ?, 3]"]),
    ],
)  # fmt: skip
@pytest.mark.optimized  # operations know the lines that built them
@pytest.mark.usefixtures("small_network")
def test_one_unfit_part_is_named(ssd, field, operations):
    config = a_config()
    if "resizer" in ssd:
        config.model.ssd.ClearField("image_resizer")
    text_format.Merge(f"model {{ ssd {{ {ssd} }} }}", config)
    found = findings_of(config)
    assert {problem.field for problem in found} == {field}
    assert {problem.severity for problem in found} == {"error"}
    text = "\n".join(str(problem) for problem in found)
    for part in operations:
        assert part in text


def test_types_that_xla_does_not_know_and_gradients():
    config = a_config()
    with tf.Graph().as_default() as graph:

        def step(values: tf.Tensor) -> List[tf.Tensor]:
            texts = tf.tile(tf.fill([2], "text"), [2])
            kept = tf.boolean_mask(values, values > 0.0)
            (slope,) = tf.gradients(tf.reduce_sum(tf.sqrt(kept)), values)
            return [tf.gather(slope, tf.strings.length(texts))]

        tf1.tpu.shard(step, [tf1.placeholder(tf.float32, [10])], num_shards=1)
    operations = list(tpu_graph.core_operations(graph))
    found = tpu_graph.problems_of(operations, config)
    told = {problem.message.split()[1]: problem.message for problem in found}
    assert told["Tile"].endswith("has no XLA kernel")
    assert told["StringLength"].endswith("has no XLA kernel")
    assert told["Where"].endswith("has an output of unknown shape, [?, 1]")
    # What flows from there is not told again, its gradient neither.
    assert "Sqrt" not in told and "SqrtGrad" not in told


@pytest.mark.slow
@pytest.mark.usefixtures("small_network")
def test_xla_refuses_by_itself():
    config = a_config("loss { hard_example_miner {} }")
    core = tpu_graph.build_core_graph(config, estimator.ModeKeys.TRAIN, 2)
    with core.graph.as_default():
        bad = tf1.image.non_max_suppression_with_scores(
            tf.zeros([4, 4]), core.outputs[0] * tf.ones([4]), 2
        )[1]
        total = tf.reduce_sum(bad)
    found = xla_check.check(core.graph, core.inputs, [total], config)
    assert found and "NonMaxSuppressionV5" in found[0].message


@pytest.mark.slow
@pytest.mark.usefixtures("small_network")
def test_evaluation_and_prediction_compile():
    modes = (estimator.ModeKeys.EVAL, estimator.ModeKeys.PREDICT)
    findings, num_operations = tpu_graph.compile_check(a_config(), batch_per_core=2, modes=modes)
    assert findings == [] and num_operations > 1000


STATIC_TWO_STAGE = """
use_static_shapes: true use_matmul_gather_in_matcher: true use_matmul_crop_and_resize: true
"""


@pytest.mark.usefixtures("small_network")
def test_two_stages_are_static_in_training_and_evaluation():
    config = a_config()
    model = two_stage_configs.small_config(STATIC_TWO_STAGE + two_stage_configs.MASKS)
    config.model.CopyFrom(model)
    config.train_input_reader.load_instance_masks = True
    assert findings_of(config, *MODES) == []


@pytest.mark.usefixtures("small_network")
def test_an_unfit_part_of_a_two_stage_detector_is_named():
    config = a_config()
    unfit = "use_matmul_crop_and_resize: false"
    config.model.CopyFrom(two_stage_configs.small_config(STATIC_TWO_STAGE + unfit))
    found = findings_of(config)
    assert {problem.field for problem in found} == {"model.faster_rcnn.use_matmul_crop_and_resize"}
    assert all("_crop_and_resize=true" in problem.remedy for problem in found)


def test_what_cannot_be_built_is_reported():
    (found,) = findings_of(a_config(top="train_config { freeze_variables: '.' }"))
    assert found.field == "train_config.freeze_variables" and "leave no variable" in found.message
