"""Calibrations of synthetic detections whose true precision is known, and their files."""

from __future__ import annotations

from typing import Callable

import numpy as np
import pytest
from google.protobuf import text_format

from estimator_det.boxes.score_conversion import CALIBRATIONS, make_score_converter
from estimator_det.compat import tf
from estimator_det.config import pipeline
from estimator_det.config.derived_models import FinalScores
from estimator_det.errors import RunError, UsageError
from estimator_det.protos import pipeline_pb2, post_processing_pb2
from model_fn.evaluation import calibration
from model_fn.evaluation.matching import ClassMatches, Matches
from model_fn.evaluation.reliability import precision_by_score

KINDS = sorted(calibration.FITS)
PER_CLASS = [kind for kind in KINDS if kind.startswith("class_id")]
SIGMOID, TEMPERATURE = "sigmoid_calibration", "temperature_scaling_calibration"


def final(text: str = "score_converter: SIGMOID") -> FinalScores:
    config = text_format.Parse(text, post_processing_pb2.PostProcessing())
    return FinalScores("model.ssd.post_processing", config, 1)


def synthetic(
    true_precision: Callable[[np.ndarray], np.ndarray],
    *,
    images: int = 40,
    per_image: int = 100,
    classes: int = 2,
    seed: int = 0,
) -> Matches:
    """Detections of uniform scores that are correct as often as `true_precision` says."""
    random = np.random.default_rng(seed)
    found = Matches([3 + k for k in range(classes)], [f"class {k}" for k in range(classes)])
    for _ in range(images):
        scores = random.uniform(0.02, 0.98, per_image)
        correct = random.uniform(size=per_image) < true_precision(scores)
        kinds = random.integers(0, classes, per_image)
        found.add_image(kinds[correct], kinds, scores, correct)
    return found


def sigmoid(values: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-values))


def logit(values: np.ndarray) -> np.ndarray:
    return np.log(values / (1 - values))


def overconfident(scores: np.ndarray) -> np.ndarray:
    return sigmoid(logit(scores) / 2 - 1)


def test_every_kind_of_the_schema_is_fitted():
    assert set(calibration.FITS) == set(CALIBRATIONS)


def test_reliability_by_hand():
    # Bins of 1/15. Two detections of 0.5, one correct; one of 1.0, wrong; one of 0.01, wrong.
    found = precision_by_score(np.float32([0.5, 0.5, 1.0, 0.01]), np.array([1, 0, 0, 0]))
    assert found.counts.tolist() == [1, *[0] * 6, 2, *[0] * 6, 1]
    assert found.precisions[7] == 0.5 and found.scores[14] == 1.0
    assert found.expected_error == pytest.approx((0 + 0 + 1.0 + 0.01) / 4)
    assert precision_by_score(np.zeros(0), np.zeros(0, bool)).expected_error == 0.0


def test_function_points_by_hand():
    # 100 detections of each score: two bins each. 20, 60 and 60 % are correct.
    scores = np.repeat(np.float32([0.8, 0.6, 0.3]), 100)
    correct = np.concatenate([np.arange(100) < count for count in (60, 60, 20)])
    points = calibration.function_points(ClassMatches(scores, correct, 300))
    # The bins of 0.6 and 0.8 do not rise, and are one pool.
    expected = [(0, 0), (0.3, 0.2 * 0.999), (0.7, 0.6 * 0.999), (1, 0.6 * 0.999 + 0.001)]
    np.testing.assert_allclose(points, expected, atol=1e-6)
    # They also rise if no detection or every one is correct, at the ends, too.
    scores, correct = np.repeat(np.float32([1, 0]), 100), np.repeat([True, False], 100)
    points = calibration.function_points(ClassMatches(scores, correct, 100))
    assert points == [(0.0, 0.0025), (1.0, 1.0)]


# The second needs steps of half the length.
@pytest.mark.parametrize(("correct", "wrong", "low_score"), [(50, 50, 0.1), (1, 999, 0.5)])
def test_sigmoid_of_separable_detections_is_finite(correct, wrong, low_score):
    scores = np.float32([0.9] * correct + [low_score] * wrong)
    found = ClassMatches(scores, np.arange(len(scores)) < correct, correct)
    a, b = calibration.sigmoid_parameters(found) or (0, 0)
    # Platt's targets are 51/52 and 1/52: logits of +-log(51) at 0.9 and 0.1.
    high, low = np.log(correct + 1), -np.log(wrong + 1)
    slope = (high - low) / (0.9 - low_score)
    assert (a, b) == (pytest.approx(-slope), pytest.approx(0.9 * slope - high))


@pytest.mark.parametrize("kind", KINDS)
def test_the_expected_error_falls_and_the_order_stays(kind):
    known = overconfident if "temp" not in kind else lambda scores: sigmoid(logit(scores) / 2)
    matches = synthetic(known)
    scores = final()
    fitted = calibration.fit(kind, matches, scores)
    assert fitted.WhichOneof("calibrator") == kind
    # Other detections than in the fit, in the columns of the classes 3 and 4.
    others = synthetic(known, seed=1)
    found = others.all_classes_merged()
    columns = np.array([3, 4])[others.classes()]
    calibrated = calibration.calibrate(fitted, found.scores, columns)
    before = precision_by_score(found.scores, found.correct).expected_error
    after = precision_by_score(calibrated, found.correct).expected_error
    assert before > 0.1 and after < 0.04
    for column in (3, 4):
        of_class = calibrated[columns == column]
        assert (np.diff(of_class) <= 1e-7).all()  # of rounding
        given = found.scores[columns == column]
        assert len(np.unique(of_class)) > 0.99 * len(np.unique(given))
    # What the class really has, at some scores.
    grid = np.float32([0.1, 0.3, 0.5, 0.7, 0.9])
    made = calibration.calibrate(fitted, grid, np.full(5, 3))
    np.testing.assert_allclose(made, known(grid), atol=0.1)


def test_inference_gives_what_the_fit_reports():
    """`calibrate` equals the score converter that a detector has."""
    matches = synthetic(overconfident)
    logits = np.random.default_rng(3).normal(size=[1, 20, 5]).astype(np.float32)
    for kind in KINDS:
        post_processing = post_processing_pb2.PostProcessing()
        post_processing.CopyFrom(final("score_converter: SIGMOID logit_scale: 2").post_processing)
        fitted = calibration.fit(kind, matches, final())
        post_processing.calibration_config.CopyFrom(fitted)
        served = make_score_converter(post_processing)(tf.constant(logits)).numpy()
        scores = sigmoid(logits[0, :, 3:5] / 2).ravel()
        made = calibration.calibrate(fitted, scores, np.tile([3, 4], 20))
        np.testing.assert_allclose(made, served[0, :, 3:5].ravel(), rtol=1e-4)


def test_classes_whose_high_scores_are_wrong_get_the_sigmoid_of_all():
    matches = synthetic(overconfident, classes=1, images=80)
    upside_down = synthetic(lambda scores: 0.5 - 0.4 * scores, classes=1, images=5)
    both = Matches([1, 2], ["right", "wrong"])
    for k, one in enumerate((matches.all_classes_merged(), upside_down.all_classes_merged())):
        both.add_image(np.zeros(0, int), np.full(len(one.scores), k), one.scores, one.correct)
    fitted = calibration.fit("class_id_sigmoid_calibrations", both, final())
    table = fitted.class_id_sigmoid_calibrations.class_id_sigmoid_parameters_map
    common = calibration.fit("sigmoid_calibration", both, final()).sigmoid_calibration
    assert table[2] == common.sigmoid_parameters != table[1]


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("sigmoid", "", "'sigmoid' is not known.* did you mean 'sigmoid_calibration'"),
        (SIGMOID, "calibration_config { sigmoid_calibration {} }", r"calibration_config: is set"),
        (SIGMOID, "batch_non_max_suppression { soft_nms_sigma: 0.5 }", "soft_nms_sigma: is 0.5"),
        (TEMPERATURE, "score_converter: SOFTMAX", "score_converter: is SOFTMAX; .* for SIGMOID"),
    ],
)
def test_models_that_are_refused(kind, text, message):
    with pytest.raises(UsageError, match=message):
        calibration.scores_of(pipeline_of(text), kind)


def test_scores_that_keypoints_change_are_refused():
    config = pipeline_pb2.TrainEvalPipelineConfig()
    config.model.center_net.keypoint_estimation_task.add(rescore_instances=True)
    message = r"model\.center_net: has no class scores .*`detect --threshold auto`"
    with pytest.raises(UsageError, match=message):
        calibration.scores_of(config, "sigmoid_calibration")


def beyond_one() -> Matches:
    matches = Matches([1], ["cat"])
    matches.add_image(np.zeros(0, int), np.zeros(200, int), np.full(200, 1.5), np.arange(200) < 90)
    return matches


@pytest.mark.parametrize(
    ("kind", "matches", "message"),
    [
        (KINDS[0], beyond_one(), r"needs scores from 0 to 1; the evaluation has 1\.5 to 1\.5"),
        (KINDS[0], synthetic(overconfident, images=1, per_image=99), "the evaluation has 99 and"),
        (KINDS[0], synthetic(lambda scores: 0 * scores), "the evaluation has 4000 and 0"),
        (SIGMOID, synthetic(lambda scores: 1 - scores), "no sigmoid calibrates these detections"),
        (TEMPERATURE, synthetic(lambda scores: 1 - scores), "no temperature calibrates these"),
    ],
)
def test_detections_that_are_refused(kind, matches, message):
    with pytest.raises(RunError, match=message):
        calibration.fit(kind, matches, final())


def test_functions_of_many_classes_have_few_points():
    matches = synthetic(overconfident, classes=400, images=100)
    config = calibration.fit("class_id_function_approximations", matches, final())
    table = config.class_id_function_approximations.class_id_xy_pairs_map
    assert len(table) == 400
    assert max(len(pairs.x_y_pair) for pairs in table.values()) <= 3 + 2
    function = calibration.fit("function_approximation", matches, final()).function_approximation
    assert len(function.x_y_pairs.x_y_pair) <= calibration.MAX_POINTS + 2


@pytest.mark.parametrize("kind", PER_CLASS)
def test_each_class_with_enough_detections_has_a_fit(kind):
    precisions = (lambda scores: 0.5 * scores, lambda scores: 0.5 + 0.5 * scores)
    matches = Matches([1, 2, 3], ["too high", "too low", "rare"])
    nothing = np.zeros(0, int)
    for k, precision in enumerate(precisions):
        every = synthetic(precision, classes=1).all_classes_merged()
        matches.add_image(nothing, np.full(4000, k), every.scores, every.correct)
    matches.add_image(nothing, np.full(5, 2), np.full(5, 0.5), np.ones(5, bool))
    fitted = calibration.fit(kind, matches, final())
    common = calibration.fit(kind.replace("class_id_", "").rstrip("s"), matches, final())
    grid = np.float32([0.2, 0.5, 0.8])
    calibrated = [calibration.calibrate(fitted, grid, np.full(3, k)) for k in (1, 2, 3)]
    np.testing.assert_allclose(calibrated[0], precisions[0](grid), atol=0.1)
    np.testing.assert_allclose(calibrated[1], precisions[1](grid), atol=0.1)
    of_all = calibration.calibrate(common, grid, np.full(3, 3))
    np.testing.assert_allclose(calibrated[2], of_all, atol=0.03)


def pipeline_of(text: str = "score_converter: SIGMOID") -> pipeline_pb2.TrainEvalPipelineConfig:
    ssd = f"model {{ ssd {{ num_classes: 5 post_processing {{ {text} }} }} }}"
    return pipeline.merge_text(pipeline_pb2.TrainEvalPipelineConfig(), ssd)


def test_the_error_of_images_that_are_not_fitted():
    scores = final()
    calibrated = calibration.make("function_approximation", synthetic(overconfident), scores)
    # Slightly worse than on the detections of the fit, and still far better than before.
    assert calibrated.after.expected_error <= calibrated.held_out_error < 0.04
    assert calibrated.before.expected_error > 0.15
    few = calibration.make("sigmoid_calibration", synthetic(overconfident, images=1), scores)
    assert few.held_out_error is None


def test_long_texts_are_one_line_or_refused(tmp_path, monkeypatch):
    config, kind, scores = pipeline_of(), "class_id_sigmoid_calibrations", final()
    matches = synthetic(overconfident, classes=300, images=100)
    calibrated = calibration.make(kind, matches, scores)
    text = calibration.override_text(calibrated.config, scores)
    assert text.count("\n") == 1
    processing = pipeline.merge_text(config, text).model.ssd.post_processing
    assert processing.calibration_config == calibrated.config
    monkeypatch.setattr(calibration, "LONGEST_TEXT", 100)
    with pytest.raises(RunError, match="a command line takes 100; use a calibration of all"):
        calibration.write(calibrated, scores, str(tmp_path), 0)
    assert not list(tmp_path.iterdir())
