"""The line that made an operation of a graph, and the configuration field that it serves."""

from __future__ import annotations

import os
from typing import Any, List, NamedTuple, Optional, Tuple

import estimator_det
from estimator_det.compat import tf
from estimator_det.config import tpu_advice
from estimator_det.config.tpu_model_rules import check_model
from estimator_det.config.tpu_rules import Target

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(estimator_det.__file__))) + os.sep
_PACKAGES = ("estimator_det/", "inputs/", "model_fn/")
# Their lines are in the stack of every operation.
_DRIVERS = ("model_fn/checks/", "model_fn/model_fn.py")
_ELSEWHERE = ("", "remove this part of the model, or train it on another device")


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
    field = _full_field(field, pipeline_config)
    if remedy == tpu_advice.BY_RULE:
        remedy = _remedy_of_rule(field, pipeline_config)
    location = "{}:{}, in {}".format(*frames[0]) if frames else ""
    return Origin(location, field, remedy)


def _advice_of(file: str, detector: Any) -> Optional[Tuple[str, str]]:
    """The first advice declared for a file or a package around it whose field the detector has."""
    advices = tpu_advice.remedies_of(file.removesuffix(".py").replace("/", "."))
    return next((advice for advice in advices if _is_in(advice[0], detector)), None)


def _remedy_of_rule(field: str, pipeline_config: Any) -> str:
    problems = check_model(pipeline_config, Target(inference=True))
    broken = (problem for problem in problems if problem.field.startswith(field))
    return next((problem.full_remedy() for problem in broken), _ELSEWHERE[1])


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
