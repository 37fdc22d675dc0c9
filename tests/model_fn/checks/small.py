"""A configuration whose graphs are built within seconds."""

from typing import Any

from estimator_det.config import pipeline
from estimator_det.programs import demo

SMALL = [
    "train_config.batch_size=2",
    "model.ssd.image_resizer.fixed_shape_resizer.height=64",
    "model.ssd.image_resizer.fixed_shape_resizer.width=64",
    "model.ssd.feature_extractor.num_layers=2",
    "model.ssd.anchor_generator.ssd_anchor_generator.num_layers=2",
    "model.ssd.anchor_generator.ssd_anchor_generator.scales=[0.3, 0.5]",
]


def small_config(*more: str) -> Any:
    return pipeline.apply_overrides(pipeline.read_pipeline(str(demo.CONFIG_FILE)), [*SMALL, *more])
