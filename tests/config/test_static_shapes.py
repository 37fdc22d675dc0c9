from __future__ import annotations

import pytest
from google.protobuf import text_format

from estimator_det.config.derived_models import with_static_shapes
from estimator_det.protos import model_pb2


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (
            "ssd { num_classes: 3 }",
            "ssd { num_classes: 3 post_processing { batch_non_max_suppression { "
            "use_static_shapes: true static_kernel: true } } }",
        ),
        (
            "ssd { post_processing { batch_non_max_suppression { iou_threshold: 0.5 } } }",
            "ssd { post_processing { batch_non_max_suppression { iou_threshold: 0.5 "
            "use_static_shapes: true static_kernel: true } } }",
        ),
        (
            "faster_rcnn { num_classes: 3 }",
            "faster_rcnn { num_classes: 3 use_static_shapes: true "
            "use_static_shapes_for_eval: true second_stage_post_processing { "
            "batch_non_max_suppression { use_static_shapes: true static_kernel: true } } }",
        ),
        ("", ""),
    ],
)
def test_every_switch_is_on_and_nothing_else_changes(given: str, wanted: str) -> None:
    model = text_format.Parse(given, model_pb2.DetectionModel())
    before = model.SerializeToString()
    assert with_static_shapes(model) == text_format.Parse(wanted, model_pb2.DetectionModel())
    assert model.SerializeToString() == before
