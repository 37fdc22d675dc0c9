"""The line that made an operation of a graph, and the configuration field that it serves."""

from __future__ import annotations

import os
from typing import Any, Iterator, List, NamedTuple, Tuple

import estimator_det
from estimator_det.compat import tf
from estimator_det.compat.private import forward_operation
from estimator_det.config import tpu_advice
from estimator_det.config.tpu_model_rules import Target, check_model

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(estimator_det.__file__))) + os.sep
_PACKAGES = ("estimator_det/", "inputs/", "model_fn/")
# Their lines are in the stack of every operation.
_DRIVERS = ("model_fn/checks/", "model_fn/model_fn.py")
_ELSEWHERE = "remove this part of the model, or train it on another device"


class Origin(NamedTuple):
    """The source line of an operation, and the part of the configuration that it serves."""

    location: str  # "estimator_det/losses/mining.py:152, in suppress_all_pairs"; "" if not ours
    field: str  # path of the part of the configuration, in the form that `--set` takes
    remedy: str


def origin_of(operation: tf.Operation, pipeline_config: Any) -> Origin:
    """The innermost line of ours that made an operation, and the field to change.

    For a gradient, those of the operation it is the gradient of.
    """
    frames = _own_frames(forward_operation(operation))
    advice = (each for file, *_ in frames for each in advice_for(file, pipeline_config))
    nothing = (f"model.{pipeline_config.model.WhichOneof('model')}", _ELSEWHERE)
    location = "{}:{}, in {}".format(*frames[0]) if frames else ""
    return Origin(location, *next(advice, nothing))


def advice_for(file: str, pipeline_config: Any) -> Iterator[Tuple[str, str]]:
    """Paths and remedies declared for a file, then those for the packages around it.

    Fields that the detector does not have are left out.
    """
    for field, remedy in tpu_advice.remedies_of(file.removesuffix(".py").replace("/", ".")):
        path = _path_of(field, pipeline_config)
        if path:
            if remedy == tpu_advice.BY_RULE:
                remedy = _remedy_of_rule(path, pipeline_config)
            yield path, remedy


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


def _own_frames(operation: tf.Operation) -> List[Tuple[str, int, str]]:
    """File below the folder of our packages, line and function of each frame, innermost first."""
    frames = []
    for frame in reversed(list(operation.traceback)):
        path = os.path.abspath(frame.filename)
        file = path[len(_ROOT) :].replace(os.sep, "/") if path.startswith(_ROOT) else ""
        if file.startswith(_PACKAGES) and not file.startswith(_DRIVERS):
            frames.append((file, frame.lineno, frame.name))
    return frames
