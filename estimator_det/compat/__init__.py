"""The only package that handles differences between TensorFlow, Keras and tf-slim versions.

All other packages import from here `tf` and `tf1`, its `tf.compat.v1` namespace; `slim`, tf-slim
with patches for newer TensorFlows; the TF1 namespaces `estimator` and `tpu_estimator`; and
functions that need internals of TensorFlow.

Modules: `versions` defines the supported versions and the necessary switches of TensorFlow 2;
`patches` adds what each version lacks; `building` makes TensorFlow build graphs faster; `removed`
contains modules that newer versions removed and Estimator still imports; `failures` reads messages
of errors; `private` is for parts without a public interface, `replicas` and `coordination` are for
loops of `tf.distribute`.

The package switches no global TensorFlow behaviour: it runs in a TF2 process, and an Estimator
builds its own graphs.
"""
# ruff: noqa: E402

from __future__ import annotations

from typing import Any

import estimator_det
from estimator_det.compat import versions

# First, because the other modules import TensorFlow without a check of its version.
tf: Any = versions.import_tensorflow()

from estimator_det.compat import building, patches
from estimator_det.compat.coordination import WorkerPool, iterator_spec
from estimator_det.compat.patches import keras_initializer, track_tf1_style_variables
from estimator_det.compat.private import num_tpu_shards, quick_callable, registered_kernels
from estimator_det.compat.replicas import (
    apply_summed,
    eagerly,
    global_seed,
    limit_waiting,
    make_slots,
    shared_state,
)
from estimator_det.compat.versions import require_v2_behavior

building.apply()
patches.apply_needed()
if estimator_det.is_program:
    patches.hide_deprecations()

tf1: Any = tf.compat.v1
estimator: Any = versions.import_estimator()
# Without the wrapper that advises other names: to say who uses an old one, it reads the sources of
# all callers, 0.2 s of a process.
tpu_estimator: Any = getattr(estimator.tpu, "_tfmw_wrapped_module", estimator.tpu)
slim: Any = versions.import_slim()

__all__ = [
    "WorkerPool",
    "apply_summed",
    "eagerly",
    "estimator",
    "global_seed",
    "iterator_spec",
    "keras_initializer",
    "limit_waiting",
    "make_slots",
    "num_tpu_shards",
    "quick_callable",
    "registered_kernels",
    "require_v2_behavior",
    "shared_state",
    "slim",
    "tf",
    "tf1",
    "tpu_estimator",
    "track_tf1_style_variables",
]
