"""Golden numbers of two-stage detectors: keys of their predictions, and rows of regions.

Regions come from a suppression, so that one pair of proposals near the threshold changes the order
of all that follow. Rows are therefore compared region by region: a recorded region is matched with
the nearest of ours, and its row with that region's. Detections are made of the recorded rows.

A region that ends at the border of the image is compared only where it is the recorded one to the
last bit: rounding decides whether the last column of its crop is inside the feature map or is 0.
Some recorded weights make boxes so large that their areas overflow. Kernels of suppression differ
in what an IoU of infinity over infinity does; such detections are not compared.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping

import numpy as np

from benchmarks.conformance.compare import Check
from estimator_det.boxes import geometry
from estimator_det.compat import tf
from estimator_det.detectors.two_stage.regions import coded_boxes

PIXELS = 0.05  # how far a region's corners may be from the recorded ones
FEW = 0.1  # share of regions that may have no partner


def is_two_stage(predictions: Any) -> bool:
    """True for predictions of a two-stage detector."""
    return hasattr(predictions, "rpn")


def is_of_regions(key: str) -> bool:
    """True for a recorded prediction of two stages that has rows of regions."""
    return not key.startswith(("rpn_", "anchors", "feature_maps"))


def named_predictions(predictions: Any) -> Dict[str, Any]:
    """Tensors under the Object Detection API's keys, in its shapes."""

    def flat(rows: tf.Tensor) -> tf.Tensor:
        return tf.reshape(rows, [-1, *rows.shape[2:]])

    rpn, regions, second = predictions.rpn, predictions.regions, predictions.second_stage
    named = {
        "rpn_box_encodings": rpn.box_encodings,
        "rpn_objectness_predictions_with_background": rpn.objectness_logits,
        "anchors": rpn.anchors,
    }
    for number, (map_, features) in enumerate(zip(predictions.feature_maps, rpn.features)):
        named[f"feature_maps/{number}"] = named[f"rpn_features_to_crop/{number}"] = map_
        named[f"rpn_box_predictor_features/{number}"] = features
    if regions is not None:
        named.update(
            {
                "proposal_boxes": regions.boxes,
                "num_proposals": regions.num,
                "refined_box_encodings": flat(second.box_encodings),
                "class_predictions_with_background": flat(second.class_logits),
                "box_classifier_features": second.features,
            }
        )
    return named


def partners(
    check: Check, ours: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray]
) -> Dict[int, int]:
    """Rows of recorded regions, of all images in a line, and of ours in the same place."""
    boxes, rows = arrays["proposal_boxes"], arrays["proposal_boxes__idx"]
    count = ours["proposal_boxes"].shape[1]
    border = boxes.max(axis=(0, 1))  # proposals are cut to the image, and some fill it
    pairs, uncertain = {}, set()
    for image in range(boxes.shape[0]):
        distance = np.abs(boxes[image][:, None] - ours["proposal_boxes"][image][None]).max(axis=2)
        for place, row in enumerate(rows):
            nearest = int(distance[place].argmin())
            if distance[place, nearest] <= PIXELS:
                pairs[image * count + int(row)] = image * count + nearest
                if distance[place, nearest] > 0 and np.any(boxes[image, place] == border):
                    uncertain.add(image * count + int(row))
    recorded = boxes.shape[0] * len(set(rows.tolist()))
    check.compared += 1
    if len(pairs) < (1 - FEW) * recorded:
        check.fail(f"{recorded - len(pairs)} of {recorded} recorded regions are not among ours")
    return {row: mine for row, mine in pairs.items() if row not in uncertain}


def compare_rows(
    check: Check,
    ours: Mapping[str, np.ndarray],
    recorded: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    tolerance: float,
) -> None:
    """Compares boxes and classes of each recorded region with our region in the same place."""
    pairs = partners(check, ours, arrays)
    for key in ("refined_box_encodings", "class_predictions_with_background"):
        stats = recorded[key]
        check.equal(list(ours[key].shape), stats["shape"], f"{key} shape")
        kept = [place for place, row in enumerate(arrays[f"{key}__idx"]) if int(row) in pairs]
        mine = ours[key][[pairs[int(arrays[f"{key}__idx"][place])] for place in kept]]
        if stats.get("last_axis_subsampled"):
            mine = mine[..., stats["last_axis_idx"]]
        check.close(mine, arrays[key][kept], tolerance, key, scale=stats["max_abs"])


def with_recorded_regions(
    predictions: Any, recorded: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> Any:
    """Predictions with the recorded output of the second stage, if that is complete."""
    complete = {}
    for key in ("proposal_boxes", "refined_box_encodings", "class_predictions_with_background"):
        stats, rows = recorded[key], arrays[f"{key}__idx"]
        size = stats["shape"][stats["axis"]]
        if stats.get("last_axis_subsampled") or len(set(rows.tolist())) < size:
            return predictions
        first = [rows.tolist().index(row) for row in range(size)]
        complete[key] = np.take(arrays[key], first, axis=stats["axis"])
    boxes, codes, logits = (tf.constant(rows) for rows in complete.values())
    leading = list(boxes.shape[:2])
    second = predictions.second_stage._replace(
        box_encodings=tf.reshape(codes, [*leading, *codes.shape[1:]]),
        class_logits=tf.reshape(logits, [*leading, *logits.shape[1:]]),
    )
    regions = predictions.regions._replace(boxes=boxes)
    return predictions._replace(regions=regions, second_stage=second)


def areas_overflow(predictions: Any) -> tf.Tensor:
    """True if a box of the second stage is too large for its area to be a float32."""
    areas = geometry.area(coded_boxes(*predictions.region_outputs).decode())
    return ~tf.reduce_all(tf.math.is_finite(areas))
