"""estimator-det: object detection training, evaluation and export on `tf.estimator`."""

import importlib.util
import os
import sys

__version__ = "0.3.0"

# Programs set it before TensorFlow is imported: warnings and garbage collection of another
# process belong to that process.
is_program = False


def _refuse_files_of_the_same_name() -> None:
    """Raises ImportError if another file takes the place of a package of this installation."""
    home = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    for name in ("inputs", "model_fn", "exporters"):
        module = sys.modules.get(name) or importlib.util.find_spec(name)
        file = getattr(module, "__file__", None) or getattr(module, "origin", None)
        if file and os.path.dirname(os.path.realpath(file)) != os.path.join(home, name):
            # With this name, `python -m estimator_det.…` prints the message without a traceback.
            raise ImportError(
                f"{file} has the name of the package {name!r} of estimator-det, and is imported "
                f"in place of {os.path.join(home, name)}. Remedy: rename the file, or take its "
                "folder out of PYTHONPATH and start in another one",
                name=__name__,
            )


_refuse_files_of_the_same_name()
