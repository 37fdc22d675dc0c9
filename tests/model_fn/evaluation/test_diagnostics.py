import io
import math
import re

import numpy as np
import pytest
from PIL import Image

from estimator_det.compat import tf1
from estimator_det.protos import eval_pb2
from model_fn.evaluation import diagnostics
from model_fn.evaluation.accumulator import Accumulator
from model_fn.evaluation.metrics import METRICS
from tests.model_fn.evaluation.test_matching import BOX, CATEGORIES, FAR, NEAR
from tests.model_fn.evaluation.test_matching import batch as _batch

MAP = "DetectionBoxes_Precision/mAP"
LIMIT = [0, 0, 32, 32]
FIELD = "model.ssd.post_processing.batch_non_max_suppression.score_threshold"


def _diagnostics(*batches):
    made = diagnostics.EvalDiagnostics(CATEGORIES, min_score=0.3)
    for batch in batches:
        made.add(batch)
    return made


def test_counts():
    counts = _diagnostics(
        _batch([BOX, FAR, LIMIT], [1, 2, 2], [NEAR, BOX, BOX], [0.9, 0.5, 0.2], [1, 1, 1]),
        _batch([BOX], [7], [BOX, BOX], [math.nan, 0.5], [1, 9]),
    ).counts()
    assert counts["images"] == 2
    assert counts["boxes"] == {"cat": 1, "dog": 2, "owl": 0}
    # A box of 32 x 32 is medium.
    assert counts["boxes_by_area"] == {"small": 1, "medium": 1, "large": 1}
    assert counts["boxes_of_unknown_class"] == {"7": 1}
    assert counts["detections"] == {"cat": 3, "dog": 0, "owl": 0}
    assert counts["detections_of_unknown_class"] == {"9": 1}
    assert counts["detections_not_finite"] == 1
    assert counts["best_iou_within_class"] == pytest.approx(1.0)


def test_confusion():
    made = _diagnostics(
        _batch([BOX, FAR], [1, 2], [BOX, BOX, NEAR], [0.9, 0.8, 0.1], [2, 1, 1]),
        _batch([BOX, FAR], [1, 2], [FAR], [0.9], [2], is_crowd=[False, True]),
    )
    # The better detection takes the cat for a dog, the next finds it taken, the third is too
    # weak; the dog is missed. In the second image the cat is missed; the crowd counts nowhere.
    expected = np.zeros((4, 4), int)
    for found, true in ((0, 1), (3, 0), (1, 3), (0, 3)):
        expected[found, true] = 1
    np.testing.assert_array_equal(made._confusion, expected)


def test_results_have_matches_and_chart():
    matches, chart, _ = _diagnostics(_batch([BOX], [1], [BOX], [0.9], [1])).results()
    assert matches.all_classes_merged().correct.tolist() == [True]
    (summary,) = tf1.Summary.FromString(diagnostics.chart_summary(chart)).value
    assert summary.tag == diagnostics.EVAL_DIAGNOSTICS
    assert summary.image.encoded_image_string == chart
    image = Image.open(io.BytesIO(chart))
    assert image.size == (summary.image.width, summary.image.height)
    matches, chart, _ = _diagnostics().results()
    assert matches.all_classes_merged().num_boxes == 0 and chart == b""
    assert not tf1.Summary.FromString(diagnostics.chart_summary(chart)).value


def _why(batches, metrics):
    counts = _diagnostics(*batches).counts()
    return diagnostics.explain_metrics(metrics, _scopes(CATEGORIES), counts, FIELD)


def _scopes(categories):
    """Scopes of all metrics of all sets."""
    points = {"keypoints": [{"id": 0, "name": "nose"}], "frequency": "c"}
    config = eval_pb2.EvalConfig(metrics_set=sorted(METRICS), include_metrics_per_category=True)
    accumulator = Accumulator(config, [{**category, **points} for category in categories])
    return accumulator.results.scopes


def test_why_minus_one():
    one = "DetectionBoxes_PerformanceByCategory/mAP/owl"
    no_metrics = dict.fromkeys(("learning_rate", "global_step", "loss", "bad_records/nan_box"), 0.0)
    reasons = _why(
        [_batch([BOX], [1], [BOX], [0.9], [1])],
        {MAP: 0.5, f"{MAP} (large)": -1.0, one: -1.0, "Loss/total_loss": -1.0, **no_metrics},
    )
    assert set(reasons) == {f"{MAP} (large)", one}
    assert "no groundtruth box has an area over 9216 pixels" in reasons[f"{MAP} (large)"]
    assert reasons[one] == "no groundtruth box of this class"
    assert "have no groundtruth box" in _why([_batch([], [], [], [], [])], {MAP: -1.0})[MAP]
    assert (
        "the 1 boxes have the ids [7]" in _why([_batch([BOX], [7], [], [], [])], {MAP: -1.0})[MAP]
    )
    for name, value in ((MAP, -1.0), ("PascalBoxes_Precision/mAP@0.5IOU", math.nan)):
        assert "no image was evaluated" in _why([], {name: value})[name]
    not_finite = _batch([BOX], [1], [BOX], [math.nan], [1])
    assert "1 detections are not finite" in _why([not_finite], {MAP: math.nan})[MAP]


def test_why_more_boxes_than_coco_counts_lower_the_mean():
    few, many = (_batch([BOX] * n, [1] * n, [BOX], [0.9], [1]) for n in (100, 101))
    assert not _why([few, few], {MAP: 0.5})
    assert (
        "101 boxes of a class, of which COCO's metrics can find 100"
        in _why([many], {MAP: 0.5})[MAP]
    )


@pytest.mark.parametrize(
    ("found", "scores", "classes", "reason"),
    [
        ([], [], [], f"there are no detections: every score is below {FIELD},"),
        ([BOX], [0.9], [2], r"classes \(cat\): the model needs more training, or"),
        ([FAR], [0.9], [1], "no detection overlaps a box of its class"),
        ([BOX], [0.9], [9], "no detection has a class of the label map"),
    ],
)
def test_why_zero(found, scores, classes, reason):
    reasons = _why([_batch([BOX], [1], found, scores, classes)], {MAP: 0.0})
    assert re.search(reason, reasons[MAP])


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        # Of NaN: no boxes of the class, or none that counts.
        ("PascalBoxes_PerformanceByCategory/AP@0.5IOU/dog", math.nan, "no groundtruth box of this"),
        ("PascalBoxes_PerformanceByCategory/AP@0.5IOU/cat", math.nan,
         "all are difficult, in groups"),
        ("PanopticQuality@0.50IOU_ByCategory/dog", math.nan, "no groundtruth box of this class"),
        ("OpenImagesV2_Precision/mAP@0.5IOU", math.nan, "all are difficult, in groups"),
        ("Loss/total_loss", math.nan, "the loss is not finite"),
        ("loss", math.nan, "the loss is not finite"),
        ("PascalBoxes_PerformanceByCategory/AP@0.5IOU/albatross", math.nan, "all are difficult"),
        # Of LVIS, whose names have no slash.
        ("DetectionMasks_APl", -1.0, "no groundtruth box has an area over 9216 pixels"),
        ("DetectionBoxes_ARm@300", -1.0, "no groundtruth box has an area from 1024 to 9216"),
        ("DetectionBoxes_APr", -1.0, "no groundtruth box has a rare class"),
        ("DetectionBoxes_AP", 0.0, "no detection overlaps a box of its class"),
        # Of keypoints.
        ("Keypoints_Precision/mAP ByCategory/cat", -1.0, "no object of this class has a labeled"),
        ("Keypoints_Precision/mAP ByCategory/cat", 0.0, "no detection of this class resembles its"),
        ("Keypoints_Precision/mAP ByCategory/dog", -1.0, "no groundtruth box of this class"),
        # Names with slashes, of a class with boxes and of one without.
        ("DetectionBoxes_PerformanceByCategory/mAP//m/cat", -1.0, "no groundtruth box of this"),
        ("DetectionBoxes_PerformanceByCategory/mAP//m/cat", 0.0, "no detection has the class /m/"),
        ("PanopticQuality@0.50IOU", 0.0, "no detection overlaps a box of its class"),
    ],
)  # fmt: skip
def test_every_set_has_reasons(name, value, reason):
    categories = [*CATEGORIES, {"id": 6, "name": "/m/cat"}, {"id": 7, "name": "albatross"}]
    made = diagnostics.EvalDiagnostics(categories, min_score=0.3)
    made.add(_batch([BOX, BOX], [1, 7], [FAR], [0.9], [1]))
    reasons = diagnostics.explain_metrics({name: value}, _scopes(categories), made.counts())
    assert reason in reasons[name]
