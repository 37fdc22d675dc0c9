from __future__ import annotations

import dataclasses
from typing import Any, Dict

import numpy as np
import pytest

from estimator_det.boxes.coders import CenterSizeCoder
from estimator_det.boxes.nms import kernels, multiclass, static
from estimator_det.boxes.nms.coded_boxes import CodedBoxes
from estimator_det.compat import tf
from estimator_det.protos import post_processing_pb2
from tests.conftest import golden_component
from tests.faults import faults

pytestmark = pytest.mark.optimized
SETTINGS, ARRAYS = golden_component("nms")
# The Object Detection API and the proto's reader refuse the others: several classes of a detection.
CASES = sorted(name for name, setting in SETTINGS.items() if "error" not in setting)


def options_of(
    setting: Dict[str, Any], class_agnostic: bool, static_shapes: bool = False
) -> multiclass.NmsOptions:
    return multiclass.NmsOptions(
        score_threshold=setting["score_thresh"],
        iou_threshold=setting["iou_thresh"],
        max_per_class=setting.get("max_size_per_class", 100),
        max_total=setting["max_total_size"],
        class_agnostic=class_agnostic or setting.get("use_class_agnostic_nms", False),
        soft_sigma=setting.get("soft_nms_sigma", 0.0),
        change_frame=setting.get("change_coordinate_frame", False),
        static_shapes=static_shapes,
    )


def arguments_of(name: str, setting: Dict[str, Any]) -> Dict[str, Any]:
    if name.startswith("batch"):
        given: Dict[str, Any] = {
            "boxes": ARRAYS[setting["boxes"]],
            "scores": ARRAYS["batch_scores"],
            "num_valid": ARRAYS["batch_num_valid"] if setting["num_valid_boxes"] else None,
            "masks": ARRAYS["batch_masks"] if setting["masks"] else None,
        }
        if setting["additional_fields"]:
            given["fields"] = {"extra": ARRAYS["batch_additional_keypoints"]}
        if setting["clip_window"] is not None:
            given["clip_windows"] = np.broadcast_to(ARRAYS[setting["clip_window"]], [3, 4])
        return given
    given = {
        "boxes": ARRAYS[setting.get("boxes", "boxes_q1")][None],
        "scores": ARRAYS["scores"][None],
        "masks": ARRAYS["masks"][None] if setting.get("masks") else None,
    }
    if setting["clip_window"] is not None:
        given["clip_windows"] = np.float32(setting["clip_window"])[None]
    return given


def run(
    given: Dict[str, Any], options: multiclass.NmsOptions, compiled: bool = False
) -> multiclass.NmsResult:
    """With or without XLA; windows are infinite if there are none."""
    everywhere = np.float32([[-np.inf, -np.inf, np.inf, np.inf]] * len(given["scores"]))
    given = {"clip_windows": everywhere, **given}
    boxes = tf.constant(given.pop("boxes"))
    scores = tf.constant(given.pop("scores"))
    tensors = tf.nest.map_structure(
        lambda value: None if value is None else tf.constant(value), given
    )
    suppress = multiclass.multiclass_nms
    if compiled:
        suppress = tf.function(suppress, autograph=False, jit_compile=True)
    result = suppress(boxes, scores, options=options, **tensors)
    return tf.nest.map_structure(lambda value: None if value is None else value.numpy(), result)


# Cases that XLA compiles, one of each kind. Tests below show that static shapes change nothing.
COMPILED = {"batch_base", "mc_soft_perclass"}


@pytest.mark.parametrize(
    ("name", "static_shapes"),
    [
        *((name, False) for name in CASES),
        *(
            pytest.param(name, True, marks=() if name in COMPILED else pytest.mark.exhaustive)
            for name in CASES
        ),
    ],
)
def test_golden(name, static_shapes):
    setting = SETTINGS[name]
    options = options_of(setting, name.startswith("ca_"), static_shapes)
    result = run(arguments_of(name, setting), options, compiled=static_shapes)
    wanted_boxes = ARRAYS[f"{name}__boxes"]
    batched = name.startswith("batch")
    counts = ARRAYS[f"{name}__num_detections" if batched else f"{name}__num_valid"].reshape(-1)
    np.testing.assert_array_equal(result.num, counts)
    for image, count in enumerate(counts):
        for field, got in (
            ("boxes", result.boxes),
            ("scores", result.scores),
            ("classes", result.classes),
            ("masks", result.masks),
            ("extra_extra", result.fields.get("extra")),
        ):
            if f"{name}__{field}" not in ARRAYS:
                assert got is None
                continue
            wanted = ARRAYS[f"{name}__{field}"]
            wanted = wanted[image] if batched else wanted
            assert got is not None
            exact = field != "boxes" and not setting.get("soft_nms_sigma")
            tolerance = {} if exact else {"rtol": 1e-6, "atol": 1e-7}
            compare = np.testing.assert_array_equal if exact else np.testing.assert_allclose
            compare(got[image, :count], wanted[:count], **tolerance)
            if batched:
                assert got.shape[1:] == wanted_boxes.shape[1:2] + got.shape[2:]
            assert not got[image, count:].any()


def random_scene(
    seed: int, num_boxes: int = 60, num_classes: int = 5, levels: int = 12, q: int = 1
) -> Dict[str, Any]:
    """Boxes partly outside the unit window, inside out or empty; few score levels, so many ties."""
    rng = np.random.default_rng(seed)
    corners = rng.uniform(-0.3, 1.3, [2, num_boxes, q, 4])
    boxes = np.concatenate(
        [np.minimum(*np.split(corners, 2, -1)), np.maximum(*np.split(corners, 2, -1))], -1
    )
    boxes[:, 5:8] = boxes[:, 5:8, :, ::-1]
    boxes[:, 8:10, :, 2] = boxes[:, 8:10, :, 0]
    scores = np.floor(rng.random([2, num_boxes, num_classes]) * levels) / levels
    return {"boxes": np.float32(boxes), "scores": np.float32(scores)}


def brute_force(
    given: Dict[str, Any], options: multiclass.NmsOptions, window: np.ndarray
) -> list[list[tuple[float, int, int]]]:
    """Per image, (score, class, anchor) of the detections, one image and class after the other."""
    images = []
    for boxes, scores in zip(given["boxes"], given["scores"]):
        found = []
        for label in range(scores.shape[1]):
            own = boxes[:, label % boxes.shape[1]]
            picks, lowered, count = tf.raw_ops.NonMaxSuppressionV5(
                boxes=own,
                scores=scores[:, label],
                max_output_size=options.max_per_class,
                iou_threshold=options.iou_threshold,
                score_threshold=options.score_threshold,
                soft_nms_sigma=options.soft_sigma,
                pad_to_max_output_size=True,
            )
            for pick, score in list(zip(picks.numpy(), lowered.numpy()))[: int(count)]:
                low = np.clip(own[pick, :2], window[:2], window[2:])
                high = np.clip(own[pick, 2:], window[:2], window[2:])
                if np.prod(high - low) > 0.0:
                    found.append((float(score), label, int(pick)))
        images.append(sorted(found, key=lambda one: -one[0])[: options.max_total])
    return images


def found_by(result: multiclass.NmsResult) -> list[list[tuple[float, int, int]]]:
    columns = (result.scores, result.classes, result.anchor_indices)
    return [
        [(float(score), int(label), int(anchor)) for score, label, anchor in zip(*rows)][:count]
        for *rows, count in zip(*columns, result.num)
    ]


@pytest.mark.parametrize("first_candidates", [4, 64, 2048])
@pytest.mark.parametrize("soft_sigma", [0.0, 0.3])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_stages_ties_and_odd_boxes_give_what_brute_force_gives(
    monkeypatch, seed, soft_sigma, first_candidates
):
    monkeypatch.setattr(kernels, "FIRST_CANDIDATES", first_candidates)
    monkeypatch.setattr(kernels, "CANDIDATES_PER_DETECTION", 0)
    monkeypatch.setattr(kernels, "GROWTH", 3)
    window = np.float32([0.1, 0.0, 0.9, 1.0])
    given = random_scene(seed, q=1 if seed else 5)
    options = multiclass.NmsOptions(0.2, 0.4, 7, 25, soft_sigma=soft_sigma)
    result = run({**given, "clip_windows": np.stack([window, window])}, options)
    wanted = brute_force(given, options, window)
    if not soft_sigma:
        assert found_by(result) == wanted
        return
    for got_image, wanted_image in zip(found_by(result), wanted):
        assert [one[1:] for one in got_image] == [one[1:] for one in wanted_image]


# Candidates that are enough for the picks of both images, of one, and of none; all scores.
@pytest.mark.parametrize(("num_candidates", "max_total"), [(36, 6), (36, 14), (7, 25), (1024, 25)])
@pytest.mark.parametrize(
    ("soft_sigma", "class_agnostic", "seed"), [(0.0, False, 0), (0.0, True, 1), (0.3, True, 0)]
)
def test_static_suppression_gives_what_the_other_gives(
    monkeypatch, seed, soft_sigma, class_agnostic, num_candidates, max_total
):
    monkeypatch.setattr(static, "_num_candidates", lambda _: num_candidates)
    monkeypatch.setattr(static, "_block_size", lambda _: 4)
    monkeypatch.setattr(static, "_ROUNDS", 1)
    window = np.float32([0.1, 0.0, 0.9, 1.0])
    given = random_scene(seed, q=1 if seed else 5)
    given["clip_windows"] = np.stack([window, window])
    given["num_valid"] = np.int32([60, 31])
    given["fields"] = {"row": np.tile(np.arange(60, dtype=np.int32), [2, 1])}
    options = multiclass.NmsOptions(
        0.2, 0.4, 7, max_total, class_agnostic, soft_sigma, change_frame=True
    )
    wanted = run(given, options)
    got = run(given, dataclasses.replace(options, static_shapes=True))
    assert not wanted.num.min() < 3
    for name, mine, other in zip(got._fields, got, wanted):
        if name == "fields":
            np.testing.assert_array_equal(mine["row"], other["row"])
        elif name != "masks":
            np.testing.assert_allclose(mine, other, rtol=1e-6, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("num_anchors", [60, None])
@pytest.mark.parametrize("num_candidates", [40, 1024])
def test_candidates_are_enough(monkeypatch, num_anchors, num_candidates):
    """For images of any size, too, and if picks outside their windows fill the only class."""
    monkeypatch.setattr(static, "_num_candidates", lambda _: num_candidates)
    monkeypatch.setattr(static, "_picks_of_all", lambda *_: static._no_picks(2, 9))
    windows = np.float32([[0.1, 0.0, 0.4, 0.9]] * 2)
    given, options = random_scene(0, num_classes=1), multiclass.NmsOptions(0.0, 0.4, 9, 9)
    wanted = run({**given, "clip_windows": windows}, options)
    assert (wanted.num < 9).all()
    got = tf.function(
        lambda *args: multiclass.multiclass_nms(
            *args, dataclasses.replace(options, static_shapes=True), windows
        ),
        input_signature=[tf.TensorSpec([None, num_anchors, 1, *end]) for end in ([4], [])],
    )(given["boxes"], given["scores"])
    np.testing.assert_array_equal(got.anchor_indices, wanted.anchor_indices)


def _boxes(*rows: list) -> np.ndarray:
    """Boxes of one image, shared by all classes: float32 [1, A, 1, 4]."""
    return np.float32([[[row] for row in rows]])


THRESHOLD = np.float32(0.3)
ABOVE = np.nextafter(THRESHOLD, np.float32(1))
FALLING = [[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]]  # of two classes
APART = [[n, n, n + 0.5, n + 1] for n in range(4)]
WINDOW = {"clip_windows": np.float32([[0.0, 0.0, 1.0, 1.0]])}
# Boxes, scores, further arguments, options, anchors and classes of the detections.
BY_HAND = {
    # 1 is suppressed by 0 in class 0, 3 lies outside, 4 is padding, and 0 in class 1 is at the
    # threshold.
    "window": (
        _boxes([0, 0, 1, 1], [0, 0, 1, 0.8], [0, 0.9, 1, 1.1], [2, 2, 3, 3], [0, 0, 1, 1]),
        [[0.9, 0.1], [0.8, 0.3], [0.7, 0.05], [0.6, 0.2], [0.5, 0.99]],
        {**WINDOW, "num_valid": np.int32([4])},
        multiclass.NmsOptions(0.1, 0.5, 10, 6), [(0, 0), (2, 0), (1, 1)],
    ),
    "a score at the threshold is out": (
        _boxes(*APART), [[THRESHOLD], [ABOVE], [0.9], [0.2]], {},
        multiclass.NmsOptions(float(THRESHOLD), 0.5, 4, 4), [(2, 0), (1, 0)],
    ),
    # IoU with the first: 1/2 exactly, a little more, and none.
    "an overlap at the threshold stays": (
        _boxes([0, 0, 1, 1], [0, 0, 0.5, 1], [0, 0, 0.51, 1], [2, 2, 3, 3]),
        [[0.9], [0.8], [0.7], [0.6]], {},
        multiclass.NmsOptions(0.0, 0.5, 4, 4), [(0, 0), (1, 0), (3, 0)],
    ),
    "padding is never detected": (
        _boxes(*APART), [[-0.5], [0.25], [0.9], [0.0]], {"num_valid": np.int32([2])},
        multiclass.NmsOptions(-1.0, 0.5, 4, 4), [(1, 0), (0, 0)],
    ),
    "class-agnostic: only the limit per image": (
        _boxes(*APART), FALLING, {},
        multiclass.NmsOptions(0.0, 0.5, 1, 3, class_agnostic=True), [(0, 0), (1, 0), (2, 0)],
    ),
    # Its score is no candidate of the first attempt, but above the lowered ones.
    "the box behind a crowd": (
        _boxes(*[[0, 0, 1, 1]] * 1999, [2, 2, 3, 3]), [*[[0.9]] * 1999, [0.5]], {},
        multiclass.NmsOptions(0.1, 0.5, 2, 2), [(0, 0), (1999, 0)],
    ),
}  # fmt: skip
# Soft suppression keeps overlapping boxes.
OVERLAPPING = ("window", "an overlap at the threshold stays")


@pytest.mark.parametrize("static_shapes", [False, True])
@pytest.mark.parametrize(
    ("name", "soft_sigma"),
    [
        *((name, 0.0) for name in BY_HAND),
        *((name, 0.5) for name in BY_HAND if name not in OVERLAPPING),
    ],
)
def test_by_hand(name, soft_sigma, static_shapes):
    boxes, scores, more, options, expected = BY_HAND[name]
    fields = {"row": np.arange(boxes.shape[1], dtype=np.int32)[None]}
    options = dataclasses.replace(options, soft_sigma=soft_sigma, static_shapes=static_shapes)
    given = {"boxes": boxes, "scores": np.float32([scores]), "fields": fields, **more}
    result = run(given, options)
    padding = options.max_total - len(expected)
    anchors, classes = np.transpose(expected)
    np.testing.assert_array_equal(result.anchor_indices, [[*anchors, *[0] * padding]])
    np.testing.assert_array_equal(result.fields["row"], [[*anchors, *[0] * padding]])
    np.testing.assert_array_equal(result.classes, [[*classes, *[0] * padding]])
    found = np.float32(scores)[anchors, classes]
    np.testing.assert_allclose(result.scores, [[*found, *[0] * padding]])
    assert result.num.tolist() == [len(expected)]
    if name == "window":
        np.testing.assert_array_equal(result.boxes[0, 1], np.float32([0, 0.9, 1, 1]))
        assert not result.boxes[0, 3:].any()


@pytest.mark.parametrize("static_shapes", [False, True])
@pytest.mark.parametrize("soft_sigma", [0.0, 0.5])
def test_nothing_above_the_threshold_and_nan(soft_sigma, static_shapes):
    given = random_scene(6)
    options = multiclass.NmsOptions(
        0.5, 0.4, 7, 25, soft_sigma=soft_sigma, static_shapes=static_shapes
    )
    low = run({**given, "scores": np.zeros_like(given["scores"])}, options)
    assert not any(np.any(part) for part in tf.nest.flatten(low))
    for field in ("scores", "boxes"):
        broken = given[field].copy()
        broken[0] = np.nan
        got = run({**given, field: broken}, options)
        assert got.num[0] == 0, field
        assert found_by(got)[1] == found_by(run(given, options))[1]


@pytest.mark.parametrize("static_shapes", [False, True])
def test_an_overlap_that_is_nan_drops_no_other_box(static_shapes):
    """Two boxes of a network that diverges, and one more. TensorFlow optimizes functions only."""
    everywhere = [-np.inf, -np.inf, np.inf, np.inf]
    boxes = tf.constant(_boxes(everywhere, everywhere, [0, 0, 0.5, 0.5]))
    scores, windows = tf.constant([[[0.9], [0.8], [0.7]]]), tf.constant(WINDOW["clip_windows"])
    options = multiclass.NmsOptions(0.1, 0.5, 3, 3, soft_sigma=0.5, static_shapes=static_shapes)
    result = tf.function(multiclass.multiclass_nms)(boxes, scores, options, windows)
    assert result.anchor_indices.numpy().tolist() == [[0, 2, 0]]
    assert result.num.numpy().tolist() == [2]


def test_options_from_proto():
    config = post_processing_pb2.BatchNonMaxSuppression(
        score_threshold=0.3, soft_nms_sigma=0.5, max_detections_per_class=5
    )
    assert multiclass.make_nms_options(config) == multiclass.NmsOptions(
        float(np.float32(0.3)), float(np.float32(0.6)), 5, 100, False, 0.5, True
    )
    config.use_hard_nms = config.static_kernel = True
    assert multiclass.make_nms_options(config).soft_sigma == 0.0
    assert multiclass.make_nms_options(config).static_shapes
    config.max_classes_per_detection = 2
    config.max_total_detections = 4
    assert "max_classes_per_detection: is 2, which is not supported" in faults(config)
    assert "above max_total_detections, which is 4" in faults(config)


@pytest.mark.parametrize("separate_boxes", [True, False])
@pytest.mark.parametrize(
    "changes",
    [{}, {"class_agnostic": True}, {"soft_sigma": 0.4}, {"static_shapes": True}],
    ids=["hard", "class_agnostic", "soft", "static"],
)
def test_coded_boxes_give_what_decoded_ones_do(separate_boxes, changes):
    random = np.random.default_rng(5)
    low = random.uniform(0, 0.7, [2, 30, 2])
    anchors = np.concatenate([low, low + random.uniform(0.05, 0.5, [2, 30, 2])], axis=2)
    codes = tf.constant(random.normal(0, 2, [2, 30, 4 if separate_boxes else 1, 4]), tf.float32)
    coder = CenterSizeCoder(10.0, 10.0, 5.0, 5.0)
    coded = CodedBoxes(codes, tf.constant(anchors, tf.float32), coder)
    scores = tf.constant(random.uniform(0, 1, [2, 30, 4]), tf.float32)
    options = dataclasses.replace(multiclass.NmsOptions(0.2, 0.3, 9, 40), **changes)
    # Some boxes are outside of it; the second image has fewer anchors.
    more = {
        "clip_windows": tf.constant([[0.2, 0.2, 0.8, 0.9], [0.5, 0.0, 1.0, 0.6]]),
        "num_valid": tf.constant([30, 17]),
    }
    result = multiclass.multiclass_nms(coded, scores, options, **more)
    wanted = multiclass.multiclass_nms(coded.decode(), scores, options, **more)
    assert 2 < result.num[1] < result.num[0] <= 40
    np.testing.assert_array_equal(result.anchor_indices, wanted.anchor_indices)
    np.testing.assert_array_equal(result.classes, wanted.classes)
    np.testing.assert_allclose(result.boxes, wanted.boxes, rtol=1e-6)
