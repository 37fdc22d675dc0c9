"""The line that made an operation of a graph, and the configuration field that it serves."""

from __future__ import annotations

import os
import pathlib
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import estimator_det
from estimator_det.compat import tf

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(estimator_det.__file__))) + os.sep
_PACKAGES = ("estimator_det/", "inputs/", "model_fn/")
# Their lines are in the stack of every operation.
_DRIVERS = ("model_fn/checks/", "model_fn/model_fn.py")
_ELSEWHERE = ("", "remove this part of the model, or train it on another device")

_ADVICE_ON_MATCHER = (
    ("matcher", "use argmax_matcher with use_matmul_gather: true"),
    ("use_matmul_gather_in_matcher", "set it to true"),
)
# Source file or folder -> (field, remedy) for parts of it that a TPU cannot run. A field is one of
# the detector's message, or begins with train_config. The first that the detector has counts; if
# it has none, the advice for the calling file does.
ADVICE: Dict[str, Tuple[Tuple[str, str], ...]] = {
    "estimator_det/boxes/anchors.py": (
        ("anchor_generator", "use ssd_anchor_generator"),
        ("first_stage_anchor_generator", "use grid_anchor_generator"),
    ),
    "estimator_det/boxes/assign.py": _ADVICE_ON_MATCHER,
    "estimator_det/boxes/coders.py": (("box_coder", "use faster_rcnn_box_coder"),),
    "estimator_det/boxes/matching.py": _ADVICE_ON_MATCHER,
    "estimator_det/boxes/nms/multiclass.py": (
        ("post_processing.batch_non_max_suppression", "set static_kernel: true"),
    ),
    "estimator_det/boxes/sampling.py": (
        (
            "loss.random_example_sampler",
            "remove the random_example_sampler block and use weighted_sigmoid_focal as "
            "classification_loss",
        ),
    ),
    "estimator_det/boxes/score_conversion.py": (
        ("post_processing", "remove the calibration"),
        ("second_stage_post_processing", "remove the calibration"),
    ),
    "estimator_det/detectors/equalization.py": (
        ("loss.equalization_loss", "remove the equalization_loss block"),
    ),
    "estimator_det/detectors/loss_weights.py": (("loss.expected_loss_weights", "set it to NONE"),),
    "estimator_det/detectors/two_stage/masks.py": (
        ("use_matmul_crop_and_resize", "set it to true"),
    ),
    "estimator_det/detectors/two_stage/proposals.py": (("use_static_shapes", "set it to true"),),
    "estimator_det/detectors/two_stage/regions.py": (
        ("second_stage_post_processing.batch_non_max_suppression", "set static_kernel: true"),
    ),
    "estimator_det/extractors/": (
        ("feature_extractor", "use ssd_mobilenet_v1 or another feature extractor made for TPU"),
    ),
    "estimator_det/extractors/two_stage/": (
        ("feature_extractor", "use faster_rcnn_resnet50, whose layers all run on TPU"),
    ),
    "estimator_det/images/resize.py": (("image_resizer", "use fixed_shape_resizer"),),
    "estimator_det/losses/classification.py": (
        ("loss.classification_loss", "use weighted_sigmoid_focal"),
        ("second_stage_classification_loss", "use weighted_softmax"),
    ),
    "estimator_det/losses/localization.py": (("loss.localization_loss", "use weighted_smooth_l1"),),
    "estimator_det/losses/mining.py": (
        (
            "loss.hard_example_miner",
            "remove the hard_example_miner block and use weighted_sigmoid_focal as "
            "classification_loss: it needs no mining",
        ),
        ("hard_example_miner", "remove the hard_example_miner block"),
    ),
    "estimator_det/nets/roi.py": (("use_matmul_crop_and_resize", "set it to true"),),
    "estimator_det/predictors/": (
        ("box_predictor", "use convolutional_box_predictor without dropout"),
        ("second_stage_box_predictor", "use mask_rcnn_box_predictor without dropout"),
    ),
    "model_fn/training/optimizers.py": (("train_config.optimizer", "use momentum_optimizer"),),
    "model_fn/training/train_op.py": (
        (
            "train_config",
            "switch off what the operation's name says, for example summarize_gradients",
        ),
    ),
}


class Origin(NamedTuple):
    """The source line of an operation, and the part of the configuration that it serves."""

    location: str  # "estimator_det/losses/mining.py:152, in suppress_all_pairs"; "" if not ours
    field: str  # path of the part of the configuration, in the form that `--set` takes
    remedy: str


class _Frame(NamedTuple):
    file: str  # below the folder of our packages, with slashes
    line: int
    function: str


def origin_of(operation: tf.Operation, pipeline_config: Any) -> Origin:
    """The innermost line of ours that made an operation, and the field to change.

    For a gradient, those of the operation it is the gradient of.
    """
    frames = _own_frames(_forward(operation))
    model = pipeline_config.model
    detector = getattr(model, model.WhichOneof("model")).DESCRIPTOR
    advices = (_advice_of(frame.file, detector) for frame in frames)
    field, remedy = next(filter(None, advices), _ELSEWHERE)
    location = "{}:{}, in {}".format(*frames[0]) if frames else ""
    return Origin(location, _full_field(field, pipeline_config), remedy)


def _advice_of(file: str, detector: Any) -> Optional[Tuple[str, str]]:
    """The first advice for a file, or for the nearest folder around it, that fits the detector."""
    folders = [f"{folder}/" for folder in pathlib.PurePosixPath(file).parents]
    advices = (advice for place in (file, *folders) for advice in ADVICE.get(place, ()))
    return next((advice for advice in advices if _is_in(advice[0], detector)), None)


def _is_in(field: str, detector: Any) -> bool:
    """True if the detector's descriptor, or for `train_config` the pipeline's, has the field."""
    if field.startswith("train_config"):
        return True
    descriptor = detector
    for name in field.split("."):
        if descriptor is None or name not in descriptor.fields_by_name:
            return False
        descriptor = descriptor.fields_by_name[name].message_type
    return True


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
    frames = []
    for frame in reversed(list(operation.traceback)):
        path = os.path.abspath(frame.filename)
        file = path[len(_ROOT) :].replace(os.sep, "/") if path.startswith(_ROOT) else ""
        if file.startswith(_PACKAGES) and not file.startswith(_DRIVERS):
            frames.append(_Frame(file, frame.lineno, frame.name))
    return frames


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
