"""The one switch that makes every tensor of a model's graph static, as TPU and XLA need them."""

from __future__ import annotations

import copy

from estimator_det.protos import model_pb2

# Fields of each detector's message; what they bring about has the same results, but other kernels.
_SWITCHES = {
    "ssd": ("post_processing.batch_non_max_suppression",),
    "faster_rcnn": ("", "second_stage_post_processing.batch_non_max_suppression"),
}


def with_static_shapes(model: model_pb2.DetectionModel) -> model_pb2.DetectionModel:
    """A copy of a model's configuration that is built of what TPU and XLA can run."""
    static = copy.deepcopy(model)
    kind = static.WhichOneof("model")
    for path in _SWITCHES.get(kind or "", ()):
        message = getattr(static, str(kind))
        for name in filter(None, path.split(".")):
            message = getattr(message, name)
        message.use_static_shapes = True
        if hasattr(message, "static_kernel"):
            message.static_kernel = True
    return static
