"""Where a model makes the scores of its detections."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple, Optional


class FinalScores(NamedTuple):
    """The part of a configuration that turns logits into the scores of detections."""

    path: str  # of the `PostProcessing` message in the configuration
    post_processing: Any
    num_background_columns: int  # before the classes: 1, or 0 without a background class

    def column_of(self, class_id: int) -> int:
        """The column of the class scores of a class, as calibrations number them."""
        return class_id - 1 + self.num_background_columns

    def fingerprint(self) -> str:
        """Changes with every field that the scores depend on."""
        content = self.post_processing.SerializeToString(deterministic=True)
        return hashlib.sha256(content).hexdigest()[:16]


def final_scores(model: Any) -> Optional[FinalScores]:
    """The final scores of a `DetectionModel`; None if it has no classes, or no post-processing."""
    kind = model.WhichOneof("model")
    if kind == "ssd":
        ssd = model.ssd
        has_background = ssd.add_background_class or ssd.explicit_background_class
        return FinalScores("model.ssd.post_processing", ssd.post_processing, int(has_background))
    if kind == "faster_rcnn" and model.faster_rcnn.number_of_stages != 1:
        path = "model.faster_rcnn.second_stage_post_processing"
        return FinalScores(path, model.faster_rcnn.second_stage_post_processing, 1)
    return None
