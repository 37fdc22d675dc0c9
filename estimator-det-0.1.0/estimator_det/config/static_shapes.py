"""The one switch that makes every tensor of a model's graph static, as TPU and XLA need them."""

from __future__ import annotations

import copy

from estimator_det.protos import model_pb2

# Fields of each detector's message; what they bring about has the same results, but other kernels.
_NMS = ("use_static_shapes", "static_kernel")
_SWITCHES = {
    "ssd": {"post_processing.batch_non_max_suppression": _NMS},
    "faster_rcnn": {
        "": ("use_static_shapes", "use_static_shapes_for_eval"),
        "second_stage_post_processing.batch_non_max_suppression": _NMS,
    },
}


def with_static_shapes(model: model_pb2.DetectionModel) -> model_pb2.DetectionModel:
    """A copy of a model's configuration that is built of what TPU and XLA can run."""
    static = copy.deepcopy(model)
    kind = static.WhichOneof("model")
    for path, switches in _SWITCHES.get(kind or "", {}).items():
        message = getattr(static, str(kind))
        for name in filter(None, path.split(".")):
            message = getattr(message, name)
        for switch in switches:
            setattr(message, switch, True)
    return static
