"""Additions to TensorFlow that tf-slim 1.1.0 and tensorflow-estimator 2.15.0 need.

Both are the last releases of packages that import TensorFlow's internals. A patch is applied only
if its addition is missing.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
import types
import warnings
from typing import Any, Callable, List

import tensorflow as tf
from tensorflow.python.layers import normalization as _normalization
from tensorflow.python.util import lazy_loader as _lazy_loader
from tensorflow.python.util import tf_export as _tf_export

from estimator_det.compat import removed, versions

tf1: Any = tf.compat.v1


def _add_names(module_name: str, **members: Any) -> None:
    module = importlib.import_module(module_name)
    for name, value in members.items():
        # In the module's dict, because getattr may import a name lazily.
        vars(module).setdefault(name, value)


def _add_module(module_name: str, make: Callable[[str], types.ModuleType]) -> None:
    if module_name not in sys.modules and importlib.util.find_spec(module_name) is None:
        module = make(module_name)
        # Both places: `import a.b` reads the first, `a.b` as an attribute the second.
        sys.modules[module_name] = module
        parent, _, child = module_name.rpartition(".")
        setattr(importlib.import_module(parent), child, module)


def _label_estimator_names() -> None:
    """Adds the API name under which Estimator registers its exports in TensorFlow 2.15."""
    if hasattr(_tf_export, "ESTIMATOR_API_NAME"):
        return
    # The class has a private name, so it is taken from an entry.
    labels = type(_tf_export.API_ATTRS[_tf_export.TENSORFLOW_API_NAME])
    _tf_export.ESTIMATOR_API_NAME = "estimator"
    _tf_export.API_ATTRS["estimator"] = labels("_estimator_api_names", "_estimator_api_constants")
    _tf_export.API_ATTRS_V1["estimator"] = labels(
        "_estimator_api_names_v1", "_estimator_api_constants_v1"
    )


def _keras_package() -> str:
    """Name of the package with Keras 2 for this TensorFlow."""
    return "keras" if versions.release(tf.__version__) < versions.WITHOUT_ESTIMATOR else "tf_keras"


def _find_legacy_batch_norm() -> None:
    """Corrects the lazy import of the TF1 batch norm layer."""
    name = f"{_keras_package()}.src.legacy_tf_layers.normalization"
    if _normalization.normalization.__name__ != name:
        # Still lazy: Keras takes a second to import, and most runs never use it.
        _normalization.normalization = _lazy_loader.LazyLoader(
            "normalization", vars(_normalization), name
        )


def apply_needed() -> None:
    """Adds what this TensorFlow lacks; parts that it still has are never replaced."""
    # From 2.13 on, for tf-slim: parts that moved to other modules.
    _add_names(
        "tensorflow.python.ops.control_flow_ops",
        Assert=tf1.Assert,
        case=tf1.case,
        cond=tf1.cond,
        while_loop=tf1.while_loop,
    )
    _add_names("tensorflow.python.ops.array_ops", stack=tf1.stack, unstack=tf1.unstack)
    _add_names(
        "tensorflow.python.framework.ops", Tensor=tf1.Tensor, IndexedSlices=tf1.IndexedSlices
    )
    _add_names("tensorflow.python.ops.variable_scope", variable=tf1.Variable)
    # The lazy import behind slim.batch_norm names a folder that Keras moved under keras.src.
    _find_legacy_batch_norm()
    # From 2.16 on, for tensorflow-estimator: parts that no longer exist.
    _label_estimator_names()
    _add_module("tensorflow.python.distribute.estimator_training", removed.estimator_training)
    _add_module("tensorflow.python.tpu.session_support", removed.session_support)
    _add_module("tensorflow.python.tpu.tpu_embedding", removed.tpu_embedding)
    _add_module("tensorflow.python.tpu.tpu_embedding_gradient", removed.tpu_embedding_gradient)


def keras_initializer(name: str) -> Any:
    """Creates an initializer of Keras 2 by its name, e.g. "he_normal"; ValueError if unknown.

    Keras 3 in newer TensorFlows draws other numbers for the same seed.
    """
    keras = tf.keras if _keras_package() == "keras" else importlib.import_module("tf_keras")
    return keras.initializers.get(name)


def track_tf1_style_variables(method: Any) -> Any:
    """Decorates a method of a `tf.Module`: its `get_variable` variables belong to the module.

    In a TF2 loop, where no graph has collections of variables, each call reuses these variables.
    """
    shim = importlib.import_module(f"{_keras_package()}.src.legacy_tf_layers.variable_scope_shim")
    return shim.track_tf1_style_variables(method)


# Packages whose calls of deprecated functions a user of this library cannot change.
_CALLERS = (
    *("estimator_det", "inputs", "model_fn", "exporters"),
    *("tensorflow", "tensorflow_estimator", "tf_slim", "tf_keras", "keras"),
)


def hide_deprecations() -> None:
    """Drops TensorFlow's advice on deprecated functions that this library or TensorFlow calls.

    Advice on calls from other packages is still logged.
    """
    # TensorFlow's advice begins with the file of the caller.
    prefixes = tuple(f"From {folder}/" for name in _CALLERS for folder in _folders(name))

    def is_shown(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(prefixes)

    logging.getLogger("tensorflow").addFilter(is_shown)
    # tf-slim uses parts of layers that Keras renamed, or does not need in TensorFlow 2.
    warnings.filterwarnings("ignore", r"`layer\.(apply|updates)`", UserWarning)
    # Newer TensorFlows advise another package for TFLite, and against raw predictions.
    advice = r"\s*Warning: (tf\.lite\.Interpreter|Enabling `experimental_preserve_all_tensors`)"
    warnings.filterwarnings("ignore", advice, UserWarning)


def _folders(package: str) -> List[str]:
    spec = importlib.util.find_spec(package)
    return list(spec.submodule_search_locations or ()) if spec else []
