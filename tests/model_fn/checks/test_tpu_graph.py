from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.compat import estimator, tf, tf1
from estimator_det.config import pipeline
from estimator_det.protos import pipeline_pb2
from model_fn import model_fn
from model_fn.checks import tpu_graph, xla_check
from tests import small_extractor
from tests.detectors.configs import small_config
from tests.detectors.two_stage import configs as two_stage_configs

TRAINING = """
train_config {
  batch_size: 16
  optimizer {
    momentum_optimizer {
      learning_rate { constant_learning_rate { learning_rate: 0.1 } }
      momentum_optimizer_value: 0.9
    }
    use_moving_average: false
  }
}
train_input_reader { max_number_of_boxes: 5 }
"""
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
    config = text_format.Parse(TRAINING, pipeline_pb2.TrainEvalPipelineConfig())
    config.model.CopyFrom(small_config(FIT))
    text_format.Merge(f"model {{ ssd {{ {ssd} }} }} {top}", config)
    return config


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_extractor.use(monkeypatch)


def findings_of(config: Any, *modes: str) -> List[Any]:
    modes = modes or (estimator.ModeKeys.TRAIN,)
    return tpu_graph.compile_check(config, xla=False, batch_per_core=2, modes=modes).findings


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
        "use_confidences_as_targets: true return_raw_detections_during_predict: true",
        pytest.param(
            "box_coder { keypoint_box_coder { num_keypoints: 2 } }"
            "box_predictor { convolutional_box_predictor { box_code_size: 8 } }",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
@pytest.mark.usefixtures("small")
def test_what_else_is_static(ssd: str) -> None:
    more = "train_input_reader { num_keypoints: 2 }" if "keypoint" in ssd else ""
    assert findings_of(a_config(ssd, more), *tpu_graph.MODES) == []


@pytest.mark.parametrize(
    ("ssd", "field", "operations"),
    [
        (
            "loss { hard_example_miner { iou_threshold: 0.99 num_hard_examples: 3000 } }",
            "model.ssd.loss.hard_example_miner",
            ["StatelessWhile", "(estimator_det/losses/mining.py:", "in _close_pairs)"],
        ),
        (
            "loss { hard_example_miner { iou_threshold: 0.6 num_hard_examples: 64 } }",
            "model.ssd.loss.hard_example_miner",
            ["NonMaxSuppressionV3", "unknown shape, [?]", "in suppress_image)"],
        ),
        (
            "matcher { bipartite_matcher {} }",
            "model.ssd.matcher.bipartite_matcher",
            ["unknown shape", "(estimator_det/boxes/matching.py:", "in take_best)"],
        ),
        (
            PADDED + "false } }",
            "model.ssd.image_resizer.keep_aspect_ratio_resizer",
            ["image is [2, ?, ?, 3]"],
        ),
    ],
)
@pytest.mark.usefixtures("small")
def test_one_unfit_part_is_named(ssd: str, field: str, operations: List[str]) -> None:
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


@pytest.mark.usefixtures("small")
def test_all_unfit_parts_are_named_at_once() -> None:
    config = a_config("loss { hard_example_miner {} }")
    config.model.ssd.image_resizer.Clear()
    text_format.Merge(f"model {{ ssd {{ {PADDED} false }} }} }} }}", config)
    fields = {problem.field for problem in findings_of(config)}
    assert fields == {
        "model.ssd.image_resizer.keep_aspect_ratio_resizer",
        "model.ssd.loss.hard_example_miner",
    }


@pytest.mark.usefixtures("small")
def test_no_summaries_on_a_core() -> None:
    # The rules for TPU announce that the option has no effect there.
    assert findings_of(a_config(top="train_config { summarize_gradients: true }")) == []


def test_what_cannot_be_built_is_reported() -> None:
    (found,) = findings_of(a_config("num_classes: 0"))
    assert found.field == "model.ssd.num_classes" and "is 0; allowed are 1 to" in found.message


def test_types_that_xla_does_not_know_and_gradients() -> None:
    config = a_config()
    with tf.Graph().as_default() as graph:

        def step(values: tf.Tensor) -> List[tf.Tensor]:
            texts = tf.tile(tf.fill([2], "text"), [2])
            kept = tf.boolean_mask(values, values > 0.0)
            (slope,) = tf.gradients(tf.reduce_sum(tf.sqrt(kept)), values)
            return [tf.gather(slope, tf.strings.length(texts))]

        tf1.tpu.shard(step, [tf1.placeholder(tf.float32, [10])], num_shards=1)
    operations = list(tpu_graph.core_operations(graph))
    found = tpu_graph.as_problems(tpu_graph.troubles_of(operations), config)
    told = {problem.message.split()[1]: problem.message for problem in found}
    assert told["Tile"].endswith("has no XLA kernel")
    assert told["StringLength"].endswith("has no XLA kernel")
    assert told["Where"].endswith("has an output of unknown shape, [?, 1]")
    # What flows from there is not told again, its gradient neither.
    assert "Sqrt" not in told and "SqrtGrad" not in told


def feed_of(core: tpu_graph.CoreGraph) -> List[np.ndarray]:
    rng = np.random.default_rng(0)
    values = {
        "image": rng.uniform(-1, 1, [2, 64, 64, 3]),
        "true_image_shape": np.tile([64, 64, 3], [2, 1]),
        "num_groundtruth_boxes": np.array([1, 2]),
        "groundtruth_boxes": np.tile(
            [[0.1, 0.1, 0.6, 0.5], [0.3, 0.4, 0.9, 0.9], *[[0] * 4] * 3], [2, 1, 1]
        ),
        "groundtruth_classes": np.tile(np.eye(5, 2), [2, 1, 1]),
        "groundtruth_weights": np.tile([1, 1, 0, 0, 0], [2, 1]),
    }
    return [
        np.asarray(values.get(tensor.op.name, np.zeros(tensor.shape)), tensor.dtype.as_numpy_dtype)
        for tensor in core.inputs
    ]


@pytest.mark.slow
@pytest.mark.exhaustive  # test_tpu_agreement compares the same with a smaller network
def test_xla_compiles_the_step_and_its_numbers_are_those_of_the_plain_graph() -> None:
    config = a_config()
    problems: List[Any] = []
    core = tpu_graph.build_core_graph(config, estimator.ModeKeys.TRAIN, 2, problems)
    assert problems == []
    step = xla_check.XlaStep(core.graph, core.inputs, core.outputs)
    feed = feed_of(core)
    rng = np.random.default_rng(1)
    start = {
        name: np.asarray(
            rng.normal(0.0, 0.05, variable.shape)
            if variable.shape.rank != 1
            else np.ones(variable.shape) * ("variance" in name or "gamma" in name),
            variable.dtype.as_numpy_dtype,
        )
        for name, variable in step.variables.items()
        if not name.endswith("/Momentum")
    }
    for name, value in start.items():
        step.variables[name].assign(value)
    (loss,) = step(*feed)

    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        inputs = [tf1.placeholder(tensor.dtype, tensor.shape) for tensor in core.inputs]
        named = {tensor.op.name: given for tensor, given in zip(core.inputs, inputs)}
        labels = {name: given for name, given in named.items() if "groundtruth" in name}
        features = {name: given for name, given in named.items() if name not in labels}
        spec = model_fn.create_model_fn(config)(features, labels, estimator.ModeKeys.TRAIN)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            variables = {variable.op.name: variable for variable in tf1.global_variables()}
            assert set(variables) == set(step.variables)
            for name, value in start.items():
                variables[name].load(value, session)
            wanted = session.run(spec.train_op, dict(zip(inputs, feed)))
            after = session.run(variables)
    np.testing.assert_allclose(loss, wanted, rtol=1e-4)
    # Batch norm magnifies roundings; how much, test_tpu_agreement tells.
    moved = {name: value - start.get(name, 0) for name, value in after.items()}
    largest = {name: np.abs(move).max() for name, move in moved.items()}
    errors = {
        name: np.abs(step.variables[name].numpy() - value).max() / largest[name]
        for name, value in after.items()
        if largest[name]
    }
    assert max(errors.values()) < 2e-3
    assert step.variables["global_step"].numpy() == 1


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_xla_refuses_by_itself() -> None:
    config = a_config("loss { hard_example_miner {} }")
    core = tpu_graph.build_core_graph(config, estimator.ModeKeys.TRAIN, 2, [])
    with core.graph.as_default():
        bad = tf1.image.non_max_suppression_with_scores(
            tf.zeros([4, 4]), core.outputs[0] * tf.ones([4]), 2
        )[1]
        total = tf.reduce_sum(bad)
    found = xla_check.check(core.graph, core.inputs, [total], config)
    assert found and "NonMaxSuppressionV5" in found[0].message


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_evaluation_and_prediction_compile() -> None:
    modes = (estimator.ModeKeys.EVAL, estimator.ModeKeys.PREDICT)
    report = tpu_graph.compile_check(a_config(), batch_per_core=2, modes=modes)
    assert report.findings == []
    assert report.num_operations > 1000


@pytest.mark.exhaustive  # the tests above have a smaller network
def test_a_mobilenet_has_nothing_to_report() -> None:
    report = tpu_graph.compile_check(a_config(), batch_per_core=2)
    assert report.findings == []
    assert report.num_operations > 1000


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name",
    [
        "ssd_mobilenet_v1_300x300_coco14_sync",
        "ssd_mobilenet_v1_ppn_shared_box_predictor_300x300_coco14_sync",
        "ssd_resnet50_v1_fpn_shared_box_predictor_640x640_coco14_sync",
    ],
)
def test_shipped_with_the_reference_as_fit(shared: Any, name: str) -> None:
    config = pipeline.read_pipeline(str(shared / "data" / "configs" / f"{name}.config"))
    assert findings_of(config, *tpu_graph.MODES) == []


STATIC_TWO_STAGE = """
use_static_shapes: true use_matmul_gather_in_matcher: true use_matmul_crop_and_resize: true
"""


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    "more",
    [two_stage_configs.MASKS, pytest.param(two_stage_configs.RFCN, marks=pytest.mark.exhaustive)],
)
def test_two_stages_are_static_in_training_and_evaluation(more: str) -> None:
    config = a_config()
    config.model.CopyFrom(two_stage_configs.small_config(STATIC_TWO_STAGE + more))
    config.train_input_reader.load_instance_masks = "predict_instance_masks" in more
    assert findings_of(config, *tpu_graph.MODES) == []


TWO_STAGE_TROUBLES = [
    ("hard_example_miner {}", "hard_example_miner", "remove the hard_example_miner block"),
    ("use_matmul_crop_and_resize: false", "use_matmul_crop_and_resize", "set it to true"),
    (
        "image_resizer { keep_aspect_ratio_resizer { min_dimension: 48 max_dimension: 64 } }",
        "image_resizer.keep_aspect_ratio_resizer",
        "fixed_shape_resizer",
    ),
]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("unfit", "field", "remedy"), TWO_STAGE_TROUBLES)
def test_an_unfit_part_of_a_two_stage_detector_is_named(
    unfit: str, field: str, remedy: str
) -> None:
    config = a_config()
    config.model.CopyFrom(two_stage_configs.small_config(STATIC_TWO_STAGE + unfit))
    found = findings_of(config)
    assert {problem.field for problem in found} == {f"model.faster_rcnn.{field}"}
    assert all(remedy in problem.remedy for problem in found)
