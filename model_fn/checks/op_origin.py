"""Where an operation of a graph comes from: the line that made it, and the configuration field."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from estimator_det.compat import tf
from estimator_det.config.advice import TpuAdvice
from model_fn.model_fn import create_model_fn

_PACKAGES = ("estimator_det", "inputs", "model_fn")
# Their frames are in the stack of every operation.
_DRIVERS = (__name__.rpartition(".")[0], create_model_fn.__module__)
_ELSEWHERE = TpuAdvice("", "remove this part of the model, or train it on another device")


class Origin(NamedTuple):
    """Where an operation comes from."""

    location: str  # "estimator_det/losses/mining.py:152, in suppress_all_pairs"; "" if not ours
    field: str  # path of the part of the configuration, in the form that `--set` takes
    remedy: str


class _Frame(NamedTuple):
    module: ModuleType
    line: int
    function: str


def origin_of(operation: tf.Operation, pipeline_config: Any) -> Origin:
    """The innermost line of ours that made an operation, and the field that its `TPU` names.

    For a gradient, those of the operation it is the gradient of.
    """
    frames = _own_frames(_forward(operation))
    model = pipeline_config.model
    detector = getattr(model, model.WhichOneof("model")).DESCRIPTOR
    advices = (_advice_of(frame.module, detector) for frame in frames)
    advice = next(filter(None, advices), _ELSEWHERE)
    location = _location(frames[0]) if frames else ""
    return Origin(location, _full_field(advice.field, pipeline_config), advice.remedy)


def advices_of(module: ModuleType) -> Sequence[TpuAdvice]:
    """The constant `TPU` of a module as a sequence, empty without one."""
    advice = getattr(module, "TPU", ())
    return [advice] if isinstance(advice, TpuAdvice) else advice


def _advice_of(module: ModuleType, detector: Any) -> Optional[TpuAdvice]:
    """The first advice of a module, or of the nearest package around it, for this detector."""
    name = module.__name__
    while name:
        for advice in advices_of(sys.modules[name]):
            if _is_in(advice.field, detector):
                return advice
        name = name.rpartition(".")[0]
    return None


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


def _location(frame: _Frame) -> str:
    path = frame.module.__name__.replace(".", "/")
    end = "/__init__.py" if hasattr(frame.module, "__path__") else ".py"
    return f"{path}{end}:{frame.line}, in {frame.function}"


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
    modules = _own_modules()
    return [
        _Frame(modules[path], frame.lineno, frame.name)
        for frame in reversed(list(operation.traceback))
        for path in [os.path.abspath(frame.filename)]
        if path in modules
    ]


def _own_modules() -> Dict[str, ModuleType]:
    """Our modules by source file, but for `_DRIVERS`."""
    drivers = tuple(f"{driver}." for driver in _DRIVERS)
    modules = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and name.partition(".")[0] in _PACKAGES and not f"{name}.".startswith(drivers):
            modules[os.path.abspath(file)] = module
    return modules


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
