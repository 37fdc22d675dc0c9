import dataclasses

import numpy as np
import pytest

from estimator_det.boxes import assign
from estimator_det.boxes.assign import TargetAssigner, Targets, count_assignment
from estimator_det.boxes.coders import CenterSizeCoder, CornerCoder, KeypointCoder
from estimator_det.boxes.geometry import IOU_SIMILARITY, NEG_SQ_DIST_SIMILARITY
from estimator_det.boxes.matching import IGNORED, UNMATCHED, ArgMaxMatcher, BipartiteMatcher
from estimator_det.compat import tf
from tests.conftest import golden_component

SETTINGS, ARRAYS = golden_component("target_assigner")
GOLDEN_NAMES = ("cls_targets", "cls_weights", "reg_targets", "reg_weights", "match")
BATCHES = sorted(name for name in SETTINGS if name.startswith("t."))


SCALED = CenterSizeCoder(10.0, 10.0, 5.0, 5.0)
RPN_MATCHER = ArgMaxMatcher(0.7, 0.3, force_match_for_each_row=True)
FAST_RCNN_MATCHER = ArgMaxMatcher(0.5, 0.1, negatives_lower_than_unmatched=False)
PRESETS = {
    "factory_FasterRCNN_proposal": TargetAssigner(IOU_SIMILARITY, RPN_MATCHER, SCALED),
    "factory_FasterRCNN_detection": TargetAssigner(IOU_SIMILARITY, ArgMaxMatcher(0.5), SCALED),
    "factory_FastRCNN_None": TargetAssigner(IOU_SIMILARITY, FAST_RCNN_MATCHER, CenterSizeCoder()),
    "factory_Multibox_proposal": TargetAssigner(
        NEG_SQ_DIST_SIMILARITY, BipartiteMatcher(), CornerCoder()
    ),
}
LABEL = ARRAYS["unmatched_class_label"]


def with_matmul(assigner):
    matcher = dataclasses.replace(assigner.matcher, use_matmul_gather=True)
    return dataclasses.replace(assigner, matcher=matcher)


def padded_batch(images, names=("boxes", "classes", "weights"), num_rows=4, fill=0.0):
    """Golden groundtruth of some images, padded to as many rows, and which rows are no padding."""
    batch = []
    for name in names:
        arrays = [ARRAYS[f"gt_{name}_{image}"] for image in images]
        padded = np.full([len(images), num_rows, *arrays[0].shape[1:]], fill, np.float32)
        for image, array in enumerate(arrays):
            padded[image, : len(array)] = array
        batch.append(padded)
    counts = np.array([len(array) for array in arrays])
    return [*batch, np.arange(num_rows) < counts[:, None]]


def check(targets, case):
    for found, name in zip(targets, GOLDEN_NAMES):
        golden = ARRAYS[f"{case}__{name}"]
        if name == "cls_weights":  # one number for all classes
            found = tf.broadcast_to(found, golden.shape)
        np.testing.assert_allclose(found.numpy(), golden, rtol=1e-5, atol=1e-6, err_msg=name)


def golden_assigner(settings):
    matcher = ArgMaxMatcher(
        settings["matched_threshold"],
        settings.get("unmatched_threshold"),
        force_match_for_each_row=settings.get("force_match_for_each_row", False),
    )
    weight = settings.get("negative_class_weight", 1.0)
    return TargetAssigner(IOU_SIMILARITY, matcher, SCALED, weight)


@pytest.mark.parametrize("matmul", [False, True])
@pytest.mark.parametrize("case", BATCHES)
def test_golden_batches(case, matmul):
    settings = SETTINGS[case]
    assigner = golden_assigner(settings)
    assigner = with_matmul(assigner) if matmul else assigner
    # Padding more like anchors than anything: it must not match for all that.
    boxes, classes, weights, valid = padded_batch([0, 1, 2], fill=0.5)
    boxes[~valid] = ARRAYS["anchors"][0]
    if not settings["weights"]:
        weights = np.ones_like(weights)
    check(assigner.assign(ARRAYS["anchors"], boxes, classes, LABEL, weights, valid), case)


@pytest.mark.parametrize("matmul", [False, True])
@pytest.mark.parametrize("case", sorted(PRESETS))
def test_golden_presets(case, matmul):
    boxes, classes, _, valid = padded_batch([0])
    label = LABEL
    if case.endswith("proposal"):
        classes, label = np.ones([1, 4, 1], np.float32), np.zeros([1], np.float32)
    assigner = with_matmul(PRESETS[case]) if matmul else PRESETS[case]
    weights = np.ones(valid.shape, np.float32)
    targets = assigner.assign(ARRAYS["anchors"], boxes, classes, label, weights, valid)
    check(Targets(*(tensor[0] for tensor in targets)), case)


def test_golden_confidences():
    settings = SETTINGS["confidences"]
    boxes, confidences, weights, valid = padded_batch([0, 1], ("boxes", "confidences", "weights"))
    names = ("include_background_class", "implicit_class_weight")
    targets = golden_assigner(settings).assign_confidences(
        ARRAYS["anchors"], boxes, confidences, LABEL, weights, valid,
        **{name: settings[name] for name in names},
    )  # fmt: skip
    check(targets, "confidences")


# Two boxes, the second of weight 0, and padding; anchors: on box 0, half on it, on box 1, nowhere.
BOXES = np.float32([[[0.0, 0.0, 0.4, 0.4], [0.6, 0.6, 1.0, 1.0], [0.0, 0.5, 0.2, 0.7]]])
CLASSES = np.float32([[[0, 1], [0, 1], [0, 1]]])
WEIGHTS = np.float32([[0.5, 0.0, 1.0]])
VALID = np.array([[True, True, False]])
ANCHORS = np.float32(
    [[0.0, 0.0, 0.4, 0.4], [0.0, 0.0, 0.4, 0.16], [0.6, 0.6, 1.0, 1.0], [0.0, 0.5, 0.2, 0.7]]
)


def small_assigner(**matcher):
    return TargetAssigner(IOU_SIMILARITY, ArgMaxMatcher(**matcher), CenterSizeCoder(), 0.25)


def test_rows_without_weight_claim_no_anchor():
    assigner = small_assigner(matched_threshold=1.1, force_match_for_each_row=True)
    targets = assigner.assign(ANCHORS, BOXES, CLASSES, [1.0, 0.0], WEIGHTS, VALID)
    assert targets.matches.numpy().tolist() == [[0, -1, -1, -1]]


def test_confidences_by_hand():
    confidences = np.float32([[[0.0, 0.8, -1.0, 0.0], [0.0, -0.3, 0.0, 0.0], [0, 1, 1, 1]]])
    assigner = small_assigner(matched_threshold=0.7, unmatched_threshold=0.3)
    label = [1.0, 0.0, 0.0, 0.0]

    def run(given, given_label, **options):
        return assigner.assign_confidences(
            ANCHORS, BOXES, given, given_label, WEIGHTS, VALID, implicit_class_weight=0.1, **options
        )

    targets = run(confidences, label)
    nothing = [1.0, 0.0, 0.0, 0.0]
    expected = np.float32([[[0.0, 0.8, 0.0, 0.0], nothing, nothing, nothing]])
    np.testing.assert_allclose(targets.class_targets, expected)
    weights = np.full([1, 4, 4], 0.1, np.float32)
    weights[0, 0, :3] = 1.0  # surely no background, surely class 0, surely not class 1
    weights[0, 2, 1] = 1.0  # surely not class 0
    np.testing.assert_allclose(targets.class_weights, weights)
    assert targets.box_weights.numpy().tolist() == [[1.0, 0.0, 0.0, 0.0]]

    without = run(confidences[..., 1:], label[1:], include_background_class=False)
    np.testing.assert_allclose(without.class_targets, expected[..., 1:])
    np.testing.assert_allclose(without.class_weights, weights[..., 1:])


@pytest.mark.parametrize("matmul", [False, True])
@pytest.mark.parametrize("num_rows", [0, 1])
def test_no_groundtruth(num_rows, matmul):
    assigner = small_assigner(
        matched_threshold=0.5, force_match_for_each_row=True, use_matmul_gather=matmul
    )
    boxes, classes = (np.zeros([2, num_rows, size], np.float32) for size in (4, 2))
    weights, valid = np.zeros([2, num_rows], np.float32), np.zeros([2, num_rows], bool)
    targets = assigner.assign(ANCHORS, boxes, classes, [1.0, 0.0], weights, valid)
    assert (targets.matches.numpy() == -1).all()
    assert (targets.class_targets.numpy() == [1.0, 0.0]).all()
    assert (targets.class_weights.numpy() == 0.25).all()
    assert (targets.box_targets.numpy() == 0).all()
    assert (targets.box_weights.numpy() == 0).all()


@pytest.mark.parametrize("matmul", [False, True])
def test_keypoints(matmul):
    assigner = TargetAssigner(IOU_SIMILARITY, ArgMaxMatcher(0.5), KeypointCoder(2))
    assigner = with_matmul(assigner) if matmul else assigner
    nan = np.nan
    keypoints = np.float32([[[[0.2, 0.2], [nan, nan]], [[0.8, 1.0], [0.6, 0.8]], [[nan] * 2] * 2]])
    targets = assigner.assign(ANCHORS, BOXES, CLASSES, [1.0, 0.0], WEIGHTS, VALID, keypoints)
    expected = [[0, 0, nan, nan], [0, 0, 0, 0], [0, 0.5, -0.5, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(targets.box_targets[0, :, 4:], expected, atol=1e-6)


@pytest.mark.parametrize(("shards", "expected"), [(None, 2), (1, 5)])
def test_padding_is_compared_on_tpu_only(shards, expected, monkeypatch):
    monkeypatch.setattr(assign, "num_tpu_shards", lambda: shards)
    compared = []

    def similarity(boxes, anchors, classes):
        compared.append((len(boxes[0]), len(classes[0])))
        return IOU_SIMILARITY(boxes, anchors)

    random = np.random.default_rng(0)
    boxes, classes = random.random([2, 5, 4], np.float32), random.random([2, 5, 2], np.float32)
    valid = np.array([[False] * 5, [False, True, False, False, False]])
    assigner = TargetAssigner(similarity, ArgMaxMatcher(None), CornerCoder())
    targets = assigner.assign(
        ANCHORS, boxes, classes, [1.0, 0.0], np.ones([2, 5], np.float32), valid
    )
    assert compared == [(expected, expected)]
    assert targets.matches.numpy().tolist() == [[-1] * len(ANCHORS), [1] * len(ANCHORS)]


def test_anchors_of_each_image():
    assigner = small_assigner(matched_threshold=0.5, force_match_for_each_row=True)
    random = np.random.default_rng(0)
    anchors = random.random([2, 7, 4], np.float32)
    anchors[..., 2:] += anchors[..., :2]
    groundtruth = [np.tile(array, [2, 1, 1]) for array in (BOXES, CLASSES)]
    masks = [np.tile(array, [2, 1]) for array in (WEIGHTS, VALID)]
    together = assigner.assign(anchors, *groundtruth, [1.0, 0.0], *masks)
    for image in range(2):
        alone = assigner.assign(anchors[image], BOXES, CLASSES, [1.0, 0.0], WEIGHTS, VALID)
        for both, one in zip(together, alone):
            np.testing.assert_array_equal(both[image], one[0])


def test_label_of_wrong_length():
    assigner = small_assigner()
    with pytest.raises(ValueError, match="each of the 2 class columns; given: shape"):
        assigner.assign(ANCHORS, BOXES, CLASSES, [1.0, 0.0, 0.0], WEIGHTS, VALID)


def test_counts_by_hand():
    matches = tf.constant(
        [[0, 0, 2, UNMATCHED, IGNORED, UNMATCHED], [1, UNMATCHED, UNMATCHED, IGNORED, 1, 1]]
    )
    valid = tf.constant([[True, True, True], [True, True, False]])
    counts = count_assignment(matches, valid)
    # Boxes 3 and 2; rows 0 and 2, row 1; anchors 3 and 3, 2 and 2, 1 and 1.
    assert [float(count) for count in counts.values()] == [2.5, 1.5, 3.0, 2.0, 1.0]
