"""estimator-det: object detection training, evaluation and export on `tf.estimator`.

`import estimator_det as ed` offers the public API; a name is imported when it is first used.
"""

import importlib
import importlib.util
import os
import sys
from typing import Any, List

__version__ = "0.4.0"

# Programs set it before TensorFlow is imported: warnings and garbage collection of another
# process belong to that process.
is_program = False

_NAMES = {
    "estimator_det.config.pipeline": ("read_pipeline",),
    "inputs.pipeline": ("create_eval_input_fn", "create_train_input_fn"),
    "inputs.serving": ("create_predict_input_fn",),
    "model_fn.model_fn": ("ModelFn", "create_model_fn"),
    "model_fn.runs.context": ("Hook", "RunContext", "StepResult"),
    "model_fn.runs.evaluator": ("continuous_eval", "evaluate"),
    "model_fn.runs.options": (
        "CheckpointOptions",
        "EvaluationOptions",
        "LoopOptions",
        "TpuOptions",
        "TrainOptions",
    ),
    "model_fn.runs.runner": ("train_and_evaluate",),
    "exporters.detector": ("Detections", "Detector"),
    "exporters.formats.export": ("ExportedModel", "export_saved_model"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> List[str]:
    return sorted([*globals(), *_MODULES])


def _refuse_files_of_the_same_name() -> None:
    """Raises ImportError if another file takes the place of a package of this installation."""
    home = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    for name in ("inputs", "model_fn", "exporters"):
        module = sys.modules.get(name) or importlib.util.find_spec(name)
        file = getattr(module, "__file__", None) or getattr(module, "origin", None)
        if file and os.path.dirname(os.path.realpath(file)) != os.path.join(home, name):
            message = (
                f"{file} has the name of the package {name!r} of estimator-det, and is imported "
                f"in place of {os.path.join(home, name)}. Remedy: rename the file, or take its "
                "folder out of PYTHONPATH and start in another one"
            )
            if os.path.basename(sys.argv[0]) == "estimator-det":  # the installed command
                sys.exit(f"error: {message}")
            # With this name, `python -m estimator_det.…` prints the message without a traceback.
            raise ImportError(message, name=__name__)


_refuse_files_of_the_same_name()
