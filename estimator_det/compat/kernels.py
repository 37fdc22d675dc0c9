"""What TensorFlow's registry of operations tells: kernels, devices, TPU cores."""

from __future__ import annotations

import functools
from typing import Any, List, Optional

import tensorflow as tf
from tensorflow.python.framework import kernels as _kernels
from tensorflow.python.tpu import tpu_function as _tpu_function

from estimator_det.compat import quiet


def kernel_devices(op_type: str) -> List[str]:
    """Kinds of devices that an operation has kernels for, e.g. "CPU"."""
    return [entry.device_type for entry in _kernels.get_registered_kernels_for_op(op_type).kernel]


@functools.cache
def _wake_xla() -> None:
    """XLA registers its kernels when it first compiles something."""
    with quiet.start_notes(), tf.init_scope():
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
