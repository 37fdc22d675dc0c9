"""The one place that knows which TensorFlow, Keras and tf-slim versions differ, and how.

Everything else imports these names from here:

* `tf`: TensorFlow itself; `tf1`: its `tf.compat.v1` namespace.
* `slim`: tf-slim, made importable by supplying what it expects to find.
* `estimator`: the TF1 Estimator namespace (`Estimator`, `RunConfig`, `EstimatorSpec`, …).
* `tpu_estimator`: `TPUEstimator`, `TPUEstimatorSpec` and `RunConfig` for TPU.
* `keras_initializer`: a Keras 2 initializer by its name.
* `track_tf1_style_variables`: makes a TF2 module own what `get_variable` creates.
* `registered_kernels`: which devices can run an operation, and on what types.
* `kernel_devices`: where an operation can run.
* `num_tpu_shards`: how many cores of a TPU share the computation being built.

`versions` knows what is supported, `patches` what each version lacks, `removed` holds what newer
versions dropped and Estimator still imports, `quiet` their notes at start, `kernels` what the
registry of operations tells.

No global TensorFlow behaviour is switched: the library lives in a TF2 process, and an Estimator
builds its graphs for itself.
"""

from __future__ import annotations

from typing import Any

from estimator_det.compat import quiet, versions

with quiet.start_notes():
    tf: Any = versions.import_tensorflow()

from estimator_det.compat import patches
from estimator_det.compat.kernels import kernel_devices, num_tpu_shards, registered_kernels

patches.apply_needed()

tf1: Any = tf.compat.v1
estimator: Any = versions.import_estimator()
tpu_estimator: Any = estimator.tpu
slim: Any = versions.import_slim()
keras_initializer = patches.keras_initializer
track_tf1_style_variables = patches.track_tf1_style_variables

__all__ = [
    "estimator",
    "keras_initializer",
    "kernel_devices",
    "num_tpu_shards",
    "registered_kernels",
    "slim",
    "tf",
    "tf1",
    "tpu_estimator",
    "track_tf1_style_variables",
]
