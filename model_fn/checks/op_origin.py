"""The line that made an operation of a graph, and the configuration field that it serves."""

from __future__ import annotations

import os
from typing import List, NamedTuple, Tuple

import estimator_det
from estimator_det.compat import tf
from estimator_det.compat.private import forward_operation
from estimator_det.config.rules import Tpu, check_tpu, components
from estimator_det.protos import pipeline_pb2

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(estimator_det.__file__))) + os.sep
_PACKAGES = ("estimator_det/", "inputs/", "model_fn/")
# Their lines are in the stack of every operation.
_DRIVERS = ("model_fn/checks/", "model_fn/model_fn.py")
# Fields of parts without a registry that have operations a TPU cannot run.
_UNFIT = ("use_matmul_crop_and_resize", "hard_example_miner")
_ELSEWHERE = "remove this part of the model, or train it on another device"


class Origin(NamedTuple):
    """The source line of an operation, and the part of the configuration that it serves."""

    location: str  # "estimator_det/losses/mining.py:152, in suppress_all_pairs"; "" if not ours
    field: str  # path of the part of the configuration, in the form that `--set` takes
    remedy: str


def origin_of(
    operation: tf.Operation, pipeline_config: pipeline_pb2.TrainEvalPipelineConfig
) -> Origin:
    """The innermost line of ours that made an operation, and the field to change.

    For a gradient, the names of the operation it is the gradient of.
    """
    frames = _own_frames(forward_operation(operation))
    location = "{}:{}, in {}".format(*frames[0]) if frames else ""
    advice = {  # by module of the makers
        getattr(maker, "module", maker.__module__): (path, registry.tpu)  # a recipe has its own
        for path, registry, *_ in components(pipeline_config)
        if registry.tpu
        for maker in map(registry.get, registry)
    }
    modules = (file.removesuffix(".py").replace("/", ".") for file, *_ in frames)
    nearest = next((advice[module] for module in modules if module in advice), None)
    return Origin(location, *nearest or _advice_of_rules(pipeline_config))


def _advice_of_rules(pipeline_config: pipeline_pb2.TrainEvalPipelineConfig) -> Tuple[str, str]:
    """Field and remedy for an operation of a part without a registry; several may be to blame."""
    problems = [each for each in check_tpu(pipeline_config, Tpu()) if each.field.endswith(_UNFIT)]
    remedy = "; ".join(problem.full_remedy() for problem in problems)
    if len(problems) == 1:
        return problems[0].field, remedy
    return f"model.{pipeline_config.model.WhichOneof('model')}", remedy or _ELSEWHERE


def _own_frames(operation: tf.Operation) -> List[Tuple[str, int, str]]:
    """File below the folder of our packages, line and function of each frame, innermost first."""
    frames = []
    for frame in reversed(list(operation.traceback)):
        path = os.path.abspath(frame.filename)
        file = path[len(_ROOT) :].replace(os.sep, "/") if path.startswith(_ROOT) else ""
        if file.startswith(_PACKAGES) and not file.startswith(_DRIVERS):
            frames.append((file, frame.lineno, frame.name))
    return frames
