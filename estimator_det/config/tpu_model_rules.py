"""Rules for TPU about the model: shapes that are static, and operations that TPUs have."""

from __future__ import annotations

from typing import Any, Iterator, Tuple

from estimator_det.config.problem import Problem
from estimator_det.config.tpu_rules import Config, Target, rule, setting, unless

FOCAL = "{ weighted_sigmoid_focal { alpha: 0.25 gamma: 2.0 } }"
# Decays at which moving averages of batch norm follow within the few steps of large batches.
LEAST_DECAY, MOST_DECAY = 0.97, 0.997
_ROUNDING = 1e-6  # relative rounding of fields that are 32-bit floats
# Backbones whose own moving averages are slower than that: 0.9997.
_SLOW_BACKBONES = (
    "embedded_ssd_mobilenet_v1",
    "ssd_inception",
    "ssd_mobilenet_edgetpu",
    "ssd_mobilenet_v1",
    "ssd_mobilenet_v2",
    "ssd_mobilenet_v3",
    "ssd_pnasnet",
)
_OTHER_BACKBONES = ("ssd_mobilenet_v2_mnasfpn",)
# Switches of two-stage models that choose other kernels for the same result, with the reason.
_TWO_STAGE_SWITCHES = (
    ("use_static_shapes", "the number of proposals depends on the image"),
    (
        "use_matmul_gather_in_matcher",
        "targets are gathered row by row, which the TPU does one after the other",
    ),
    ("use_matmul_crop_and_resize", "regions are cropped by an operation that TPUs do not have"),
)
_TRAINABLE = ("ssd", "faster_rcnn")
# Switches for inference alone.
_STATIC_KERNELS = (
    "model.ssd.post_processing.batch_non_max_suppression.static_kernel=true",
    "model.faster_rcnn.use_static_shapes_for_eval=true",
    "model.faster_rcnn.second_stage_post_processing.batch_non_max_suppression.static_kernel=true",
)
_RESIZERS_BY_IMAGE = (
    "identity_resizer",
    "conditional_shape_resizer",
    "pad_to_multiple_resizer",
)


@rule("model-kind")
def _model_kind(config: Config, _: Target) -> Iterator[Problem]:
    kind = config.model.WhichOneof("model")
    if kind is None:
        yield Problem("error", "model", "no model is chosen", remedy="add model { ssd { … } }")
    elif kind not in _TRAINABLE:
        yield Problem(
            "error",
            f"model.{kind}",
            "is neither a single-shot nor a two-stage model",
            remedy="train an SSD (model.ssd) or a Faster R-CNN (model.faster_rcnn)",
        )


@rule("two-stage")
def _two_stage(config: Config, _: Target) -> Iterator[Problem]:
    if config.model.WhichOneof("model") != "faster_rcnn":
        return
    model, path = config.model.faster_rcnn, "model.faster_rcnn"
    for name, why in _TWO_STAGE_SWITCHES:
        yield from unless(config, f"{path}.{name}=true", why)
    yield from unless(
        config,
        f"{path}.clip_anchors_to_image=true",
        "anchors across the border are not trained, as in the reference's models for CPU and GPU; "
        "its models for TPU are trained on all anchors, cut at the border",
        "advice",
        safe=False,
    )
    if model.HasField("hard_example_miner"):
        yield Problem(
            "error",
            f"{path}.hard_example_miner",
            "selects examples by non-maximum suppression within the train step",
            edits=(f"{path}.hard_example_miner=null",),
            remedy="a sample of second_stage_batch_size regions then replaces it; "
            "second_stage_balance_fraction sets the share of objects",
        )


@rule("resizer")
def _resizer(config: Config, _: Target) -> Iterator[Problem]:
    kind, model = _model(config)
    if not hasattr(model, "image_resizer"):
        return
    path = f"model.{kind}.image_resizer"
    resizer = model.image_resizer.WhichOneof("image_resizer_oneof")
    if resizer == "keep_aspect_ratio_resizer":
        side = model.image_resizer.keep_aspect_ratio_resizer.max_dimension
        yield from unless(
            config,
            f"{path}.{resizer}.pad_to_max_dimension=true",
            "the size of a batch depends on its images",
            remedy=f"images become {side} x {side}",
        )
    elif resizer in _RESIZERS_BY_IMAGE:
        yield Problem(
            "error",
            f"{path}.{resizer}",
            "the size of a batch depends on its images",
            edits=(f"{path}={{ fixed_shape_resizer {{ height: 640 width: 640 }} }}",),
            remedy="choose the height and width that the objects need",
        )
    elif resizer is None:
        yield Problem(
            "error",
            path,
            "no resizer is chosen",
            edits=(f"{path}={{ fixed_shape_resizer {{ height: 300 width: 300 }} }}",),
        )


@rule("matcher")
def _matcher(config: Config, _: Target) -> Iterator[Problem]:
    path = "model.ssd.matcher"
    if config.model.ssd.matcher.HasField("bipartite_matcher"):
        yield Problem(
            "error",
            f"{path}.bipartite_matcher",
            "matches in a loop whose length depends on the boxes",
            edits=(
                f"{path}={{ argmax_matcher {{ force_match_for_each_row: true "
                "use_matmul_gather: true } }",
            ),
            remedy="choose its thresholds",
        )
    yield from unless(
        config,
        f"{path}.argmax_matcher.use_matmul_gather=true",
        "targets are gathered row by row, which the TPU does one after the other",
    )


@rule("hard-example-miner")
def _miner(config: Config, _: Target) -> Iterator[Problem]:
    loss, path = config.model.ssd.loss, "model.ssd.loss"
    if not loss.HasField("hard_example_miner"):
        return
    edits: Tuple[str, ...] = (f"{path}.hard_example_miner=null",)
    if not loss.classification_loss.HasField("weighted_sigmoid_focal"):
        edits += _focal_edits()
    yield Problem(
        "error",
        f"{path}.hard_example_miner",
        "selects anchors by non-maximum suppression within the train step",
        edits=edits,
        remedy="the focal loss replaces it; start the class biases at about -4.6 with "
        "class_prediction_bias_init of the box predictor",
    )


@rule("sampler")
def _sampler(config: Config, _: Target) -> Iterator[Problem]:
    loss, path = config.model.ssd.loss, "model.ssd.loss"
    if loss.HasField("random_example_sampler"):
        yield Problem(
            "warning",
            f"{path}.random_example_sampler",
            "sorts all anchors twice in each step, which is slow on TPU",
            edits=(
                f"{path}.random_example_sampler=null",
                f"{path}.expected_loss_weights=EXPECTED_SAMPLING",
            ),
            remedy="the expected loss needs no sample; or use the focal loss",
        )


@rule("class-imbalance")
def _imbalance(config: Config, target: Target) -> Iterator[Problem]:
    """Without mining, something else must limit the weight of the many easy negatives."""
    del target
    loss, path = config.model.ssd.loss, "model.ssd.loss"
    kind = loss.classification_loss.WhichOneof("classification_loss")
    held = (
        loss.HasField("hard_example_miner")  # has a rule of its own
        or loss.HasField("random_example_sampler")
        or loss.expected_loss_weights
    )
    if kind not in (None, "weighted_sigmoid_focal", "custom") and not held:
        yield Problem(
            "warning",
            f"{path}.classification_loss.{kind}",
            "all anchors have the same weight: the background outweighs the objects",
            edits=_focal_edits(),
            remedy="start the class biases at about -4.6 with class_prediction_bias_init",
        )


def _focal_edits() -> Tuple[str, ...]:
    return (
        f"model.ssd.loss.classification_loss={FOCAL}",
        "model.ssd.post_processing.score_converter=SIGMOID",
    )


setting(
    "in-place-batch-norm",
    "model.ssd.inplace_batchnorm_update=true",
    "batch norm adds the updates of its moving averages to a graph collection; training on a TPU "
    "needs them inside the layers",
)


@rule("batch-norm-decay")
def _decay(config: Config, _: Target) -> Iterator[Problem]:
    if config.model.WhichOneof("model") != "ssd" or config.model.ssd.freeze_batchnorm:
        return
    for path, hyperparams in _hyperparams(config.model.ssd):
        kind = hyperparams.WhichOneof("normalizer_oneof")
        if kind not in ("batch_norm", "sync_batch_norm"):
            continue
        decay = getattr(hyperparams, kind).decay
        nearest = min(max(decay, LEAST_DECAY), MOST_DECAY)
        if abs(decay - nearest) > _ROUNDING:
            yield Problem(
                "warning",
                f"{path}.{kind}.decay",
                f"is {decay:g}: the moving averages would follow too "
                + ("slowly for the few steps of large batches" if decay > nearest else "fast"),
                edits=(f"{path}.{kind}.decay={nearest}",),
                safe=True,
            )


@rule("backbone-batch-norm")
def _backbone(config: Config, _: Target) -> Iterator[Problem]:
    if config.model.WhichOneof("model") != "ssd" or config.model.ssd.freeze_batchnorm:
        return
    kind = config.model.ssd.feature_extractor.type
    slow = kind.startswith(_SLOW_BACKBONES) and not kind.startswith(_OTHER_BACKBONES)
    if slow:
        yield from unless(
            config,
            "model.ssd.feature_extractor.override_base_feature_extractor_hyperparams=true",
            "the backbone keeps its own batch norm with decay 0.9997, whose averages follow too "
            "slowly for the few steps of large batches",
            "warning",
            safe=False,
            remedy="conv_hyperparams then apply to the backbone too: state batch_norm in them",
        )


def _hyperparams(model: Any) -> Iterator[Tuple[str, Any]]:
    if model.feature_extractor.HasField("conv_hyperparams"):
        yield (
            "model.ssd.feature_extractor.conv_hyperparams",
            model.feature_extractor.conv_hyperparams,
        )
    kind = model.box_predictor.WhichOneof("box_predictor_oneof")
    predictor: Any = getattr(model.box_predictor, kind) if kind else None
    if hasattr(predictor, "conv_hyperparams") and predictor.HasField("conv_hyperparams"):
        yield f"model.ssd.box_predictor.{kind}.conv_hyperparams", predictor.conv_hyperparams


@rule("raw-detections")
def _raw_detections(config: Config, _: Target) -> Iterator[Problem]:
    kind, model = _model(config)
    if hasattr(model, "return_raw_detections_during_predict"):
        yield from unless(
            config,
            f"model.{kind}.return_raw_detections_during_predict=false",
            "every train step decodes all boxes, and nothing reads them",
            "advice",
            safe=False,
            remedy="set it in the configuration that exports the model",
        )


@rule("quantization")
def _quantization(config: Config, _: Target) -> Iterator[Problem]:
    if config.HasField("graph_rewriter"):
        yield Problem(
            "error",
            "graph_rewriter",
            "asks for simulated quantization, which is not supported yet on a TPU",
            edits=("graph_rewriter=null",),
            remedy="the model then trains in float; or train on CPU or GPU",
        )


@rule("static-suppression")
def _suppression(config: Config, target: Target) -> Iterator[Problem]:
    if not target.inference:
        return
    for edit in _STATIC_KERNELS:
        yield from unless(
            config,
            edit,
            "training on TPU works, but an exported model suppresses boxes with kernels that TPUs "
            "do not have",
            "warning",
            remedy="results are the same; it is slower on CPU",
        )


def _model(config: Config) -> Tuple[str, Any]:
    kind = config.model.WhichOneof("model") or ""
    return kind, getattr(config.model, kind) if kind else None
