"""Networks of the TF2 line: keys and shapes of their checkpoints, numbers, hyperparameters.

All goldens, with training, are the part of `python -m benchmarks.conformance`.
"""

from __future__ import annotations

import json

import pytest
from google.protobuf import text_format

from benchmarks.conformance import checks, goldens
from benchmarks.conformance.compare import Check
from estimator_det.compat import tf, tf1
from estimator_det.config import pipeline
from estimator_det.detectors import make_detector
from estimator_det.predictors.base import make_box_head
from estimator_det.protos import box_predictor_pb2
from tests.conftest import MODELS
from tests.detectors.configs import small_detector

LIGHT = "ssd_mobilenet_v2_fpnlite_320x320_coco17_tpu-8"
USUAL = "faster_rcnn_resnet50_v1_fpn_640x640_coco17_tpu-8"
OTHERS = (
    LIGHT,
    "ssd_efficientdet_d0_512x512_coco17_tpu-8",
    "ssd_mobilenet_v2_320x320_coco17_tpu-8",
    "ssd_resnet50_v1_fpn_640x640_coco17_tpu-8",
    "ssd_efficientdet_d1_640x640_coco17_tpu-8",
    "ssd_mobilenet_v1_fpn_640x640_coco17_tpu-8",
    "faster_rcnn_resnet50_v1_640x640_coco17_tpu-8",
    "mask_rcnn_inception_resnet_v2_1024x1024_coco17_gpu-8",
)
MOBILENET = """feature_extractor { type: "ssd_mobilenet_v2_keras" depth_multiplier: 0.1 min_depth: 4
  num_layers: 3 use_depthwise: true %s
  conv_hyperparams { activation: RELU_6 regularizer { l2_regularizer { weight: 0.003 } }
                     initializer { truncated_normal_initializer { stddev: 0.01 } }
                     %s } }
  anchor_generator { ssd_anchor_generator { num_layers: 3 } }"""
OVERRIDE = "override_base_feature_extractor_hyperparams: true"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [USUAL, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in OTHERS)]
)
def test_keys_and_shapes(name):
    record = json.loads((MODELS / f"tf2/configs/{name}.json").read_text())
    config = pipeline.read_pipeline(MODELS / f"tf2/pipelines/{name}.config")
    with tf.Graph().as_default():
        detector = make_detector(config.model, is_training=False)
        inputs, true_shapes = detector.preprocess(tf.zeros([1, 300, 300, 3]))
        predictions = detector.predict(inputs, true_shapes)
        detector.postprocess(predictions, true_shapes)  # Builds the mask head.
        trainable = {each.op.name for each in tf1.trainable_variables()}
        variables = {each.op.name: each for each in tf1.global_variables()}
        paths = detector.object_paths([*variables])
        classifier = detector.object_paths([*variables], "classification")
        ours = {
            paths[name]: [each.shape.as_list(), name in trainable]
            for name, each in variables.items()
        }
        penalties = len(detector.regularization_losses())
        # Of two stages, Keras counts penalties of weight 0, too.
        assert penalties == record["num_regularization_losses"] or name.startswith(("fas", "mas"))
    assert ours == {key: [shape, trains] for key, shape, trains, _, _ in record["variables"]}
    restored = json.loads((MODELS / f"tf2/restore/{name}.json").read_text())["classification"]
    assert len(classifier) == restored["num"]
    ((root, model),) = restored["prefix_rule"].items()
    for variable, path in classifier.items():
        layer = path.rpartition("/")[0]
        by_rule = layer.replace(root, model, 1)
        expected = restored.get("layers_not_by_the_rule", {}).get(layer, by_rule)
        assert paths[variable].rpartition("/")[0] == expected


@pytest.mark.slow
def test_a_network_has_the_numbers_of_the_object_detection_api():
    """A separable pyramid and towers, whose checkpoint has 384 keys."""
    case = goldens.read(MODELS / "tf2", LIGHT)
    cells = {column: Check() for column in checks.COLUMNS}
    checks.check_evaluation(case, cells)
    for column in ("anchors", "predictions", "detections"):
        assert cells[column].ok, str(cells[column])


@pytest.mark.parametrize(
    ("flags", "num_penalties"),
    [
        ("", 1),
        ("apply_conv_hyperparams_pointwise: true", 2),
        ("apply_conv_hyperparams_to_heads: true", 5),
    ],
)
def test_separable_layers_use_hyperparameters_where_flags_say(flags, num_penalties):
    """Without flags, in the depthwise half of the tower only; the TF1 line uses them everywhere."""
    config = text_format.Parse(
        f"""weight_shared_convolutional_box_predictor {{ depth: 4 use_depthwise: true {flags}
        num_layers_before_predictor: 1 share_prediction_tower: true
        conv_hyperparams {{ regularizer {{ l2_regularizer {{ weight: 1 }} }}
                            sync_batch_norm {{}} activation: SWISH }} }}""",
        box_predictor_pb2.BoxPredictor(),
    )
    for tf2_line, expected in ((True, num_penalties), (False, 6)):
        with tf.Graph().as_default() as graph:
            head = make_box_head(
                config, 2, add_background_class=True, is_training=True, norm_is_training=True,
                tf2_line=tf2_line,
            )  # fmt: skip
            head.predict([tf.zeros([1, 3, 3, 4])] * 2, [1, 1])
            penalties = tf1.get_collection(tf1.GraphKeys.REGULARIZATION_LOSSES)
            names = {each.op.name for each in tf1.global_variables()}
            kinds = {operation.type for operation in graph.get_operations()}
        assert len(penalties) == expected and "Relu6" not in kinds
        # Towers of the TF2 line do not know sync_batch_norm, and have a bias instead.
        assert any(name.endswith("conv2d_0/biases") for name in names) == tf2_line


def test_batch_norm_without_offset_leaves_a_bias_and_train_has_no_effect():
    norm = "batch_norm { center: false train: false }"
    with tf.Graph().as_default() as graph:
        small_detector(MOBILENET % (OVERRIDE, norm)).predict(tf.zeros([2, 64, 64, 3]))
        names = {each.op.name for each in tf1.global_variables()}
        learn = {
            operation.get_attr("is_training")
            for operation in graph.get_operations()
            if operation.type == "FusedBatchNormV3"
        }
    assert learn == {True}
    scope = "FeatureExtractor/MobilenetV2_keras/"
    assert {f"{scope}layer_19_2_Conv2d_2_3x3_s2_51/biases"} <= names
    assert not {f"{scope}Conv/biases", f"{scope}Conv/BatchNorm/beta"} & names


def test_paths_of_other_heads():
    """Extra layers before the heads, dropout and depthwise halves move places in lists."""
    predictor = """box_predictor { convolutional_box_predictor { use_depthwise: true
        use_dropout: true dropout_keep_probability: 0.5 kernel_size: 3
        num_layers_before_predictor: 1 max_depth: 8 conv_hyperparams { batch_norm {} } } }"""
    with tf.Graph().as_default():
        detector = small_detector(MOBILENET % ("", "batch_norm {}") + predictor)
        detector.predict(tf.zeros([1, 64, 64, 3]))
        names = [each.op.name for each in tf1.global_variables()]
        paths = detector.object_paths(names)
    heads = "model/_box_predictor/_prediction_heads"
    assert {
        f"{heads}/box_encodings/2/_box_encoder_layers/0/depthwise_kernel",
        f"{heads}/box_encodings/2/_box_encoder_layers/1/beta",
        f"{heads}/box_encodings/2/_box_encoder_layers/3/kernel",
        f"{heads}/class_predictions_with_background/0/_class_predictor_layers/1/depthwise_kernel",
        f"{heads}/class_predictions_with_background/0/_class_predictor_layers/4/bias",
        "model/_box_predictor/_shared_nets/1/0/kernel",
        "model/_box_predictor/_shared_nets/1/1/beta",
        "model/_feature_extractor/feature_map_generator/convolutions/2/6/kernel",
    } <= {*paths.values()}
    assert set(paths) == set(names)


def test_the_tf1_line_has_no_paths():
    detector = small_detector()
    assert not detector.is_tf2_line and detector.object_paths(["FeatureExtractor/a/weights"]) == {}
