"""The metrics of LVIS against its own package, where that is installed.

Its last release imports OpenCV, which evaluation does not use, and names of NumPy that are gone.
`pip install --no-deps lvis==0.5.3`
"""

from __future__ import annotations

import logging
import sys
import types
from typing import Any, Dict, List, Tuple

import numpy as np
import pytest

from estimator_det.protos import eval_pb2
from model_fn.evaluation.metrics import EvaluatedBatch, make_metrics

NUM_IMAGES, NUM_CLASSES = 40, 12
FREQUENCIES = "rcf"
NAMES = (
    "AP", "AP50", "AP75", "APs", "APm", "APl", "APr", "APc", "APf",
    "AR@300", "ARs@300", "ARm@300", "ARl@300",
)  # fmt: skip


@pytest.fixture
def lvis(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(sys.modules, "cv2", types.ModuleType("cv2"))
    monkeypatch.setattr(np, "float", float, raising=False)
    package = pytest.importorskip("lvis")
    logging.getLogger("lvis").setLevel(logging.ERROR)
    return package


def _boxes(random: np.random.Generator, count: int) -> np.ndarray:
    """[count, 4] corners in pixels, of sides from 4 to 400."""
    sides = np.exp(random.uniform(np.log(4), np.log(400), (count, 2)))
    corners = random.uniform(0, 300, (count, 2))
    return np.concatenate([corners, corners + sides], axis=1).round(1).astype(np.float32)


def _image(random: np.random.Generator) -> EvaluatedBatch:
    """Objects, detections near most of them, and some of any class; lists of classes."""
    boxes = _boxes(random, random.integers(0, 8))
    classes = random.integers(1, NUM_CLASSES + 1, len(boxes))
    near = boxes + random.normal(0, 0.04, boxes.shape) * np.tile(boxes[:, 2:] - boxes[:, :2], 2)
    found = np.concatenate([near[random.random(len(near)) < 0.8], _boxes(random, 340)])
    labels = np.concatenate([classes[: len(found) - 340], random.integers(1, NUM_CLASSES + 1, 340)])
    certainty = random.random(len(found)) + 0.6 * (np.arange(len(found)) < len(found) - 340)
    present = np.isin(np.arange(1, NUM_CLASSES + 1), classes)
    return EvaluatedBatch(
        detection_boxes=found[None].astype(np.float32),
        # No two are equal: their order would be up to the sort.
        detection_scores=certainty.argsort().argsort()[None].astype(np.float32) / len(found),
        detection_classes=labels[None].astype(np.int32),
        num_detections=np.int32([len(found)]),
        boxes=boxes[None],
        classes=classes[None].astype(np.int32),
        num_boxes=np.int32([len(boxes)]),
        verified_negatives=((random.random(NUM_CLASSES) < 0.4) & ~present)[None].astype(np.int64),
        not_exhaustive=((random.random(NUM_CLASSES) < 0.3) & present)[None].astype(np.int64),
    )


def _rectangle(corners: np.ndarray) -> List[float]:
    top, left, bottom, right = (float(each) for each in corners)
    return [left, top, right - left, bottom - top]


def _annotations(batches: List[EvaluatedBatch]) -> Tuple[Dict[str, Any], List[Dict[str, Any]]]:
    """Groundtruth and detections as the package reads them."""
    images, objects, found = [], [], []
    for number, batch in enumerate(batches, 1):
        lists = {
            "neg_category_ids": batch.verified_negatives,
            "not_exhaustive_category_ids": batch.not_exhaustive,
        }
        ids = {name: (np.flatnonzero(row[0]) + 1).tolist() for name, row in lists.items()}
        images.append({"id": number, "width": 700, "height": 700, **ids})
        for corners, label in zip(batch.boxes[0], batch.classes[0]):
            box = _rectangle(corners)
            entry = {"id": len(objects) + 1, "image_id": number, "category_id": int(label)}
            objects.append({**entry, "bbox": box, "area": box[2] * box[3], "segmentation": []})
        rows = zip(batch.detection_boxes[0], batch.detection_scores[0], batch.detection_classes[0])
        found += [
            {
                "image_id": number,
                "category_id": int(label),
                "bbox": _rectangle(corners),
                "score": float(score),
            }
            for corners, score, label in rows
        ]
    return {"images": images, "annotations": objects, "categories": _categories()}, found


def _categories() -> List[Dict[str, Any]]:
    return [
        {"id": i, "name": f"class {i}", "frequency": FREQUENCIES[i % 3]}
        for i in range(1, NUM_CLASSES + 1)
    ]


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(5))
def test_numbers_of_the_package(lvis: Any, seed: int) -> None:
    random = np.random.default_rng(seed)
    batches = [_image(random) for _ in range(NUM_IMAGES)]
    config = eval_pb2.EvalConfig(metrics_set=["lvis_box_metrics"])
    (metrics,) = make_metrics(config, _categories())
    for batch in batches:
        metrics.add(batch)
    ours = metrics.results()

    truth, found = _annotations(batches)
    groundtruth = lvis.LVIS.__new__(lvis.LVIS)  # its constructor reads a file
    groundtruth.logger, groundtruth.dataset = logging.getLogger("lvis"), truth
    groundtruth._create_index()
    evaluation = lvis.LVISEval(groundtruth, lvis.LVISResults(groundtruth, found), "bbox")
    evaluation.run()
    theirs = evaluation.get_results()
    assert theirs["AP"] > 0.1
    for name in NAMES:
        assert ours[f"DetectionBoxes_{name}"] == pytest.approx(theirs[name], abs=1e-9), name
