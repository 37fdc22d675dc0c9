"""The one place that knows which TensorFlow, Keras and tf-slim versions differ, and how.

Everything else imports these names from here:

* `tf`: TensorFlow itself; `tf1`: its `tf.compat.v1` namespace.
* `slim`: tf-slim, made importable on TensorFlow 2.15 by supplying what it expects to find.
* `estimator`: the TF1 Estimator namespace (`Estimator`, `RunConfig`, `EstimatorSpec`, …).
* `tpu_estimator`: `TPUEstimator`, `TPUEstimatorSpec` and `RunConfig` for TPU.
* `registered_kernels`: which devices can run an operation, and on what types.
* `kernel_devices`: where an operation can run.
* `num_tpu_shards`: how many cores of a TPU share the computation being built.

No global TensorFlow behaviour is switched: the library lives in a TF2 process, and an Estimator
builds its graphs for itself.
"""

from __future__ import annotations

import functools
import types
from typing import Any, List, Optional

import tensorflow as tf
from tensorflow.python.framework import kernels as _kernels
from tensorflow.python.framework import ops as _ops
from tensorflow.python.layers import normalization as _normalization
from tensorflow.python.ops import array_ops as _array_ops
from tensorflow.python.ops import control_flow_ops as _control_flow_ops
from tensorflow.python.ops import variable_scope as _variable_scope
from tensorflow.python.tpu import tpu_function as _tpu_function

SUPPORTED_TENSORFLOW = ("2.15",)

tf1: Any = tf.compat.v1


def _check_version() -> None:
    release = ".".join(tf.__version__.split(".")[:2])
    if release not in SUPPORTED_TENSORFLOW:
        raise ImportError(
            f"estimator-det runs on TensorFlow {', '.join(SUPPORTED_TENSORFLOW)}; found "
            f"{tf.__version__}. Remedy: pip install 'tensorflow==2.15.1' "
            "'tensorflow-estimator==2.15.0'"
        )


def _supply(module: types.ModuleType, **names: Any) -> None:
    """Sets the names a module lacks; looks in its own dict, for getattr may import lazily."""
    for name, value in names.items():
        if name not in vars(module):
            setattr(module, name, value)


def _prepare_for_slim() -> None:
    """Names that tf-slim 1.1 (the last release) reads and TensorFlow 2.13+ moved elsewhere."""
    _supply(
        _control_flow_ops,
        Assert=tf1.Assert,
        case=tf1.case,
        cond=tf1.cond,
        while_loop=tf1.while_loop,
    )
    _supply(_array_ops, stack=tf1.stack, unstack=tf1.unstack)
    _supply(_ops, Tensor=tf1.Tensor, IndexedSlices=tf1.IndexedSlices)
    _supply(_variable_scope, variable=tf1.Variable)
    # The module's own attribute is a lazy import of Keras internals that are gone.
    vars(_normalization)["BatchNormalization"] = tf1.layers.BatchNormalization


def kernel_devices(op_type: str) -> List[str]:
    """Kinds of devices that an operation has kernels for, e.g. "CPU"."""
    return [entry.device_type for entry in _kernels.get_registered_kernels_for_op(op_type).kernel]


@functools.cache
def _wake_xla() -> None:
    """XLA registers its kernels when it first compiles something."""
    with tf.init_scope():
        tf.function(tf.identity, jit_compile=True)(0.0)


def registered_kernels(operation_type: str, device_type: str) -> List[Any]:
    """The `KernelDef` messages of an operation for a device such as CPU or XLA_CPU_JIT."""
    if device_type.startswith("XLA"):
        _wake_xla()
    found = _kernels.get_registered_kernels_for_op(operation_type).kernel
    return [kernel for kernel in found if kernel.device_type == device_type]


def num_tpu_shards() -> Optional[int]:
    """Over how many cores the TPU computation being built is replicated; None outside of one."""
    shards: Optional[int] = _tpu_function.get_tpu_context().number_of_shards
    return shards


_check_version()
_prepare_for_slim()

import tf_slim as slim  # noqa: E402  (the names above must be in place first)

estimator: Any = tf1.estimator
tpu_estimator: Any = tf1.estimator.tpu

__all__ = [
    "SUPPORTED_TENSORFLOW",
    "estimator",
    "kernel_devices",
    "num_tpu_shards",
    "registered_kernels",
    "slim",
    "tf",
    "tf1",
    "tpu_estimator",
]
