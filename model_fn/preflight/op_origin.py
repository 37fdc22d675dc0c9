"""Where an operation of a graph comes from: our line that made it, the field that asked for it."""

from __future__ import annotations

import os
from typing import Any, List, NamedTuple, Optional

from estimator_det.compat import tf

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_PACKAGES = ("estimator_det", "inputs", "model_fn")
# Frames that every operation has say nothing of one.
_DRIVERS = (
    "model_fn/preflight/tpu_graph.py",
    "model_fn/model_fn.py",
    "model_fn/preflight/run_check.py",
)


class Part(NamedTuple):
    """A part of the configuration, and the code that it alone brings into a graph."""

    code: str  # how the path of the source file begins
    field: str  # within the detector's message, or from the top where it is train_config's
    remedy: str


# The first that fits, from the innermost frame outward.
PARTS = (
    Part(
        "estimator_det/losses/mining.py",
        "loss.hard_example_miner",
        "remove the hard_example_miner block and take weighted_sigmoid_focal as "
        "classification_loss: it does without mining",
    ),
    Part(
        "estimator_det/boxes/matching.py",
        "matcher",
        "take argmax_matcher with use_matmul_gather: true",
    ),
    Part(
        "estimator_det/boxes/assign.py",
        "matcher",
        "take argmax_matcher with use_matmul_gather: true",
    ),
    Part(
        "estimator_det/boxes/sampling.py",
        "loss.random_example_sampler",
        "remove the random_example_sampler block and take weighted_sigmoid_focal as "
        "classification_loss",
    ),
    Part(
        "estimator_det/boxes/nms",
        "post_processing.batch_non_max_suppression",
        "set static_kernel: true",
    ),
    Part("estimator_det/boxes/score_conversion.py", "post_processing", "remove the calibration"),
    Part("estimator_det/boxes/coders.py", "box_coder", "take faster_rcnn_box_coder"),
    Part("estimator_det/boxes/anchors.py", "anchor_generator", "take ssd_anchor_generator"),
    Part(
        "estimator_det/images/resize.py",
        "image_resizer",
        "take fixed_shape_resizer",
    ),
    Part(
        "estimator_det/losses/classification.py",
        "loss.classification_loss",
        "take weighted_sigmoid_focal",
    ),
    Part(
        "estimator_det/losses/localization.py",
        "loss.localization_loss",
        "take weighted_smooth_l1",
    ),
    Part(
        "estimator_det/detectors/loss_weights.py",
        "loss.expected_loss_weights",
        "set it to NONE",
    ),
    Part(
        "estimator_det/detectors/equalization.py",
        "loss.equalization_loss",
        "remove the equalization_loss block",
    ),
    Part(
        "estimator_det/extractors/",
        "feature_extractor",
        "take ssd_mobilenet_v1 or another feature extractor made for TPU",
    ),
    Part(
        "estimator_det/predictors/",
        "box_predictor",
        "take convolutional_box_predictor without dropout",
    ),
    Part("model_fn/training/optimizers.py", "train_config.optimizer", "take momentum_optimizer"),
    Part(
        "model_fn/training/train_op.py",
        "train_config",
        "switch off what the operation's name tells, e.g. summarize_gradients",
    ),
)
_ELSEWHERE = Part("", "", "leave this part of the model out, or train it on another device")


class Origin(NamedTuple):
    """Where an operation comes from."""

    location: str  # "estimator_det/losses/mining.py:152, in suppress_all_pairs"; "" if not ours
    field: str  # path of the part of the configuration, in the form that `--set` takes
    remedy: str


class _Frame(NamedTuple):
    path: str  # from the folder that holds our packages
    line: int
    function: str


def origin_of(operation: tf.Operation, pipeline_config: Any) -> Origin:
    """The line and the field that brought an operation into its graph.

    Of a gradient, those of the operation it is the gradient of.
    """
    forward = _forward(operation)
    frames = _own_frames(forward)
    location = ""
    if frames:
        path, line, function = frames[0]
        location = f"{path}:{line}, in {function}"
    for frame in frames:
        for part in PARTS:
            if frame.path.startswith(part.code):
                return Origin(location, _full_field(part.field, pipeline_config), part.remedy)
    return Origin(location, _full_field(_ELSEWHERE.field, pipeline_config), _ELSEWHERE.remedy)


def _forward(operation: tf.Operation) -> tf.Operation:
    """Follows `_original_op`, which TensorFlow sets on what computes a gradient."""
    seen = {operation}
    original: Optional[tf.Operation] = getattr(operation, "_original_op", None)
    while original is not None and original not in seen:
        seen.add(original)
        operation, original = original, getattr(original, "_original_op", None)
    return operation


def _own_frames(operation: tf.Operation) -> List[_Frame]:
    """Innermost first."""
    found = []
    for frame in reversed(list(operation.traceback)):
        path = os.path.relpath(frame.filename, _ROOT).replace(os.sep, "/")
        if path.split("/")[0] in _PACKAGES and path not in _DRIVERS:
            found.append(_Frame(path, frame.lineno, frame.name))
    return found


def _full_field(field: str, pipeline_config: Any) -> str:
    """The path from the top; where one of several options is chosen, down to that one."""
    message: Any = pipeline_config
    names = []
    if not field.startswith("train_config"):
        kind = pipeline_config.model.WhichOneof("model")
        names = ["model", kind]
    names += [name for name in field.split(".") if name]
    for name in names:
        message = getattr(message, name)
        if not hasattr(message, "DESCRIPTOR"):
            break
    if field and hasattr(message, "DESCRIPTOR"):
        groups = message.DESCRIPTOR.oneofs
        chosen = message.WhichOneof(groups[0].name) if len(groups) == 1 else None
        if chosen is not None:
            names.append(chosen)
    return ".".join(names)
