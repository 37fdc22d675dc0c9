"""The model as an evaluation builds it."""

from __future__ import annotations

import copy
from typing import Any

from estimator_det.protos import model_pb2


def evaluated_model(pipeline_config: Any) -> model_pb2.DetectionModel:
    """The model of a `TrainEvalPipelineConfig`, for the preprocessing of an evaluation.

    With `eval_config.force_no_resize` it is a copy whose resizer leaves images as they are, as in
    the reference: the network then gets images of any size.
    """
    model = pipeline_config.model
    kind = model.WhichOneof("model")
    if kind is None or not pipeline_config.eval_config.force_no_resize:
        return model
    changed = copy.deepcopy(model)
    getattr(changed, kind).image_resizer.identity_resizer.SetInParent()
    return changed
