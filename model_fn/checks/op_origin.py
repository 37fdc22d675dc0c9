"""The line that made an operation of a graph, and the configuration field that it serves."""

from __future__ import annotations

import os
import pathlib
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

import estimator_det
from estimator_det.compat import tf
from estimator_det.config.tpu_model_rules import Target, check_model

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(estimator_det.__file__))) + os.sep
_PACKAGES = ("estimator_det/", "inputs/", "model_fn/")
# Their lines are in the stack of every operation.
_DRIVERS = ("model_fn/checks/", "model_fn/model_fn.py")
_ELSEWHERE = "remove this part of the model, or train it on another device"

BY_RULE = ""  # the remedy of the rule for TPU that the field breaks, so that it has one wording
_MATCHING = {
    "matcher": "use argmax_matcher with use_matmul_gather: true",
    "use_matmul_gather_in_matcher": BY_RULE,
}
# File or folder -> field -> what to do with it if a TPU cannot run an operation of the file. The
# first field that the detector has counts. It is one of the detector's message, or begins with
# train_config.
ADVICE: Dict[str, Dict[str, str]] = {
    "estimator_det/boxes/anchors": {
        "anchor_generator": "use ssd_anchor_generator",
        "first_stage_anchor_generator": "use grid_anchor_generator",
    },
    "estimator_det/boxes/assign": _MATCHING,
    "estimator_det/boxes/coders": {"box_coder": "use faster_rcnn_box_coder"},
    "estimator_det/boxes/matching": _MATCHING,
    "estimator_det/boxes/nms/multiclass": {"post_processing.batch_non_max_suppression": BY_RULE},
    "estimator_det/boxes/sampling": {"loss.random_example_sampler": BY_RULE},
    "estimator_det/boxes/score_conversion": {
        "post_processing": "remove the calibration",
        "second_stage_post_processing": "remove the calibration",
    },
    "estimator_det/detectors/equalization": {
        "loss.equalization_loss": "remove the equalization_loss block"
    },
    "estimator_det/detectors/loss_weights": {"loss.expected_loss_weights": "set it to NONE"},
    "estimator_det/detectors/two_stage/masks": {"use_matmul_crop_and_resize": BY_RULE},
    "estimator_det/detectors/two_stage/proposals": {"use_static_shapes": BY_RULE},
    "estimator_det/detectors/two_stage/regions": {
        "second_stage_post_processing.batch_non_max_suppression": BY_RULE
    },
    "estimator_det/extractors/ssd": {
        "feature_extractor": "use ssd_mobilenet_v1 or another feature extractor made for TPU"
    },
    "estimator_det/extractors/two_stage": {
        "feature_extractor": "use faster_rcnn_resnet50, whose layers all run on TPU"
    },
    "estimator_det/images/resize": {"image_resizer": "use fixed_shape_resizer"},
    "estimator_det/losses/classification": {
        "loss.classification_loss": "use weighted_sigmoid_focal",
        "second_stage_classification_loss": "use weighted_softmax",
    },
    "estimator_det/losses/localization": {"loss.localization_loss": "use weighted_smooth_l1"},
    "estimator_det/losses/mining": {
        "loss.hard_example_miner": BY_RULE,
        "hard_example_miner": BY_RULE,
    },
    "estimator_det/nets/roi": {"use_matmul_crop_and_resize": BY_RULE},
    "estimator_det/predictors": {
        "box_predictor": "use convolutional_box_predictor without dropout",
        "second_stage_box_predictor": "use mask_rcnn_box_predictor without dropout",
    },
    "model_fn/training/optimizers": {"train_config.optimizer": "use momentum_optimizer"},
    "model_fn/training/train_op": {
        "train_config": "switch off what the operation's name says, for example summarize_gradients"
    },
}


class Origin(NamedTuple):
    """The source line of an operation, and the part of the configuration that it serves."""

    location: str  # "estimator_det/losses/mining.py:152, in suppress_all_pairs"; "" if not ours
    field: str  # path of the part of the configuration, in the form that `--set` takes
    remedy: str


def origin_of(operation: tf.Operation, pipeline_config: Any) -> Origin:
    """The innermost line of ours that made an operation, and the field to change.

    For a gradient, those of the operation it is the gradient of.
    """
    frames = _own_frames(_forward(operation))
    advice = (each for file, *_ in frames for each in advice_for(file, pipeline_config))
    nothing = (f"model.{pipeline_config.model.WhichOneof('model')}", _ELSEWHERE)
    location = "{}:{}, in {}".format(*frames[0]) if frames else ""
    return Origin(location, *next(advice, nothing))


def advice_for(file: str, pipeline_config: Any) -> Iterator[Tuple[str, str]]:
    """Paths and remedies of `ADVICE` for a file, then those for the folders around it.

    Fields that the detector does not have are left out.
    """
    for place in (file.removesuffix(".py"), *map(str, pathlib.PurePosixPath(file).parents)):
        for field, remedy in ADVICE.get(place, {}).items():
            if path := _path_of(field, pipeline_config):
                yield path, remedy or _remedy_of_rule(path, pipeline_config)


def _path_of(field: str, pipeline_config: Any) -> str:
    """The path from the top; if one of several options is chosen, down to that one.

    "" if the configuration's detector does not have the field.
    """
    is_of_training = field.startswith("train_config")
    kind = pipeline_config.model.WhichOneof("model")
    path = field if is_of_training else f"model.{kind}.{field}"
    message: Any = pipeline_config
    for name in path.split("."):
        if name not in message.DESCRIPTOR.fields_by_name:
            return ""
        message = getattr(message, name)
    oneofs: Any = message.DESCRIPTOR.oneofs if hasattr(message, "DESCRIPTOR") else ()
    chosen = message.WhichOneof(oneofs[0].name) if len(oneofs) == 1 else None
    return f"{path}.{chosen}" if chosen else path


def _remedy_of_rule(field: str, pipeline_config: Any) -> str:
    problems = check_model(pipeline_config, Target(inference=True))
    broken = (problem for problem in problems if problem.field.startswith(field))
    return next((problem.full_remedy() for problem in broken), _ELSEWHERE)


def _forward(operation: tf.Operation) -> tf.Operation:
    """Follows `_original_op`, which TensorFlow sets on what computes a gradient."""
    while getattr(operation, "_original_op", None) is not None:
        operation = operation._original_op
    return operation


def _own_frames(operation: tf.Operation) -> List[Tuple[str, int, str]]:
    """File below the folder of our packages, line and function of each frame, innermost first."""
    frames = []
    for frame in reversed(list(operation.traceback)):
        path = os.path.abspath(frame.filename)
        file = path[len(_ROOT) :].replace(os.sep, "/") if path.startswith(_ROOT) else ""
        if file.startswith(_PACKAGES) and not file.startswith(_DRIVERS):
            frames.append((file, frame.lineno, frame.name))
    return frames
