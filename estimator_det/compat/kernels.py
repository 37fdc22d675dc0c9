"""Kernels and devices of operations from TensorFlow's registry, and the number of TPU cores."""

from __future__ import annotations

import functools
from typing import Any, List, Optional

import tensorflow as tf
from tensorflow.python.framework import kernels as _kernels
from tensorflow.python.framework import op_def_registry as _op_def_registry
from tensorflow.python.tpu import tpu_function as _tpu_function


@functools.cache
def _register_xla_kernels() -> None:
    """Compiles a function, because XLA registers its kernels at its first compilation."""
    with tf.init_scope():
        tf.function(tf.identity, jit_compile=True)(0.0)


def registered_kernels(operation_type: str, device_type: str) -> List[Any]:
    """Returns the `KernelDef` messages of an operation for a device, e.g. CPU or XLA_CPU_JIT."""
    if device_type.startswith("XLA"):
        _register_xla_kernels()
    kernels = _kernels.get_registered_kernels_for_op(operation_type).kernel
    return [kernel for kernel in kernels if kernel.device_type == device_type]


def operation_definition(operation_type: str) -> Optional[Any]:
    """Returns the `OpDef` message of an operation; None if this TensorFlow does not have it."""
    return _op_def_registry.get(operation_type)


def num_tpu_shards() -> Optional[int]:
    """Returns the number of cores of the TPU computation being built; None outside of one."""
    shards: Optional[int] = _tpu_function.get_tpu_context().number_of_shards
    return shards
