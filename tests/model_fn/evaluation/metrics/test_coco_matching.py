from __future__ import annotations

import contextlib
import io
from typing import Any, Dict, List

import numpy as np
import pytest

from model_fn.evaluation.metrics.coco_matching import AREAS, CocoMatches, ImageObjects, mean_known
from model_fn.evaluation.metrics.overlaps import box_area, box_ioa, box_iou


def _boxes(random: np.random.Generator, count: int) -> np.ndarray:
    """yxyx of many sizes, [count, 4]; sides of whole pixels give equal overlaps."""
    corners = random.integers(0, 60, (count, 2))
    return np.concatenate([corners, corners + random.integers(1, 120, (count, 2))], 1).astype(float)


def _image(random: np.random.Generator) -> ImageObjects:
    true = _boxes(random, int(random.integers(0, 9)))
    noise = random.integers(-6, 7, (40, 4))
    found = np.concatenate([true, _boxes(random, 40 - len(true))]) + noise
    found = np.concatenate([found[:, :2], np.maximum(found[:, 2:], found[:, :2] + 1)], 1)
    crowd = random.random(len(true)) < 0.2
    return ImageObjects(
        # Of few values, so that scores are equal, too.
        scores=random.integers(1, 12, 40) / 12,
        categories=random.integers(1, 5, 40),
        areas=box_area(found),
        true_categories=random.integers(1, 5, len(true)),
        true_areas=box_area(true),
        is_crowd=crowd,
        is_ignored=crowd,
        overlaps=np.where(crowd, box_ioa(found, true), box_iou(found, true)),
    )


def _cocoeval(images: List[ImageObjects], ids: List[int], limits: List[int]) -> Any:
    """COCOeval's tables for the same overlaps."""
    from pycocotools.cocoeval import COCOeval

    evaluation = COCOeval(iouType="bbox")
    evaluation.params.maxDets = limits
    evaluation.params.imgIds, evaluation.params.catIds = list(range(len(images))), ids
    overlaps: Dict[Any, np.ndarray] = {}
    for i, image in enumerate(images):
        for k in ids:
            mine = np.flatnonzero(image.categories == k)
            mine = mine[np.argsort(-image.scores[mine], kind="mergesort")][: limits[-1]]
            true = np.flatnonzero(image.true_categories == k)
            evaluation._dts[i, k] = [
                {"id": int(d) + 1, "score": image.scores[d], "area": image.areas[d]} for d in mine
            ]
            flags = {"iscrowd": image.is_crowd, "ignore": image.is_ignored}
            evaluation._gts[i, k] = [
                {"id": int(g) + 1, "area": image.true_areas[g],
                 **{name: int(values[g]) for name, values in flags.items()}}
                for g in true
            ]  # fmt: skip
            overlaps[i, k] = image.overlaps[np.ix_(mine, true)] if mine.size and true.size else []
    evaluation.ious = overlaps
    evaluation.evalImgs = [
        evaluation.evaluateImg(i, k, area, limits[-1])
        for k in ids
        for area in evaluation.params.areaRng
        for i in range(len(images))
    ]
    evaluation._paramsEval = evaluation.params
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation.accumulate()
    return evaluation.eval


@pytest.mark.parametrize("limits", [[1, 10, 100], [2, 4]])
def test_tables_are_those_of_cocoeval(limits):
    random = np.random.default_rng(7)
    images = [_image(random) for _ in range(25)]
    ids = [1, 2, 4, 9]  # 3 is no category; 9 does not occur.
    matches = CocoMatches(ids, limits=limits)
    for image in images:
        matches.add(image)
    tables = matches.finish()
    expected = _cocoeval(images, ids, limits)
    np.testing.assert_allclose(tables.precision, expected["precision"][..., -1], rtol=1e-12)
    np.testing.assert_allclose(tables.recall, expected["recall"], rtol=1e-12)
    assert (tables.precision[:, :, :3, 0] > 0).any(axis=(0, 1)).all()
    assert (tables.precision[:, :, 3] == -1).all() and (tables.recall[:, 3] == -1).all()


def test_areas_include_both_ends():
    """An object of 32 x 32 pixels is small and medium."""
    matches = CocoMatches([1])
    one = np.ones(1)
    nothing = np.zeros(1, bool)
    matches.add(ImageObjects(one, one, one * 1024, one, one * 1024, nothing, nothing, np.eye(1)))
    precision = matches.finish().precision
    found = [mean_known(precision[..., number]) for number in range(len(AREAS))]
    assert found == pytest.approx([1.0, 1.0, 1.0, -1.0])
