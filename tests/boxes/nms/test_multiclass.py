from __future__ import annotations

import dataclasses
from typing import Any, Dict

import numpy as np
import pytest

from estimator_det.boxes.nms import kernels, multiclass
from estimator_det.compat import tf
from estimator_det.config.text import ConfigError
from estimator_det.protos import post_processing_pb2
from tests.conftest import golden_component

SETTINGS, ARRAYS = golden_component("nms")
# The reference refuses the others, for several classes of a detection; so does the proto's reader.
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
    """With or without XLA."""
    given = dict(given)
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


# Of those compiled by XLA one of each kind; that static shapes change nothing, others show below.
COMPILED = {"batch_base", "batch_static", "ca_base", "mc_soft_perclass"}


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
def test_golden(name: str, static_shapes: bool) -> None:
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
    return [
        [
            (float(score), int(label), int(anchor))
            for score, label, anchor in list(zip(scores, classes, anchors))[:count]
        ]
        for scores, classes, anchors, count in zip(
            result.scores, result.classes, result.anchor_indices, result.num
        )
    ]


@pytest.mark.parametrize("first_candidates", [4, 64, 2048])
@pytest.mark.parametrize("soft_sigma", [0.0, 0.3])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_stages_ties_and_odd_boxes_give_what_brute_force_gives(
    monkeypatch: pytest.MonkeyPatch, seed: int, soft_sigma: float, first_candidates: int
) -> None:
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


@pytest.mark.parametrize("class_agnostic", [False, True])
@pytest.mark.parametrize("soft_sigma", [0.0, 0.3])
@pytest.mark.parametrize("seed", [0, 1])
def test_static_suppression_gives_what_the_other_gives(
    seed: int, soft_sigma: float, class_agnostic: bool
) -> None:
    window = np.float32([0.1, 0.0, 0.9, 1.0])
    given = random_scene(seed, q=1 if seed else 5)
    given["clip_windows"] = np.stack([window, window])
    given["num_valid"] = np.int32([60, 31])
    given["fields"] = {"row": np.tile(np.arange(60, dtype=np.int32), [2, 1])}
    options = multiclass.NmsOptions(0.2, 0.4, 7, 25, class_agnostic, soft_sigma, change_frame=True)
    wanted = run(given, options)
    got = run(given, dataclasses.replace(options, static_shapes=True))
    assert not wanted.num.min() < 5
    for name, mine, other in zip(got._fields, got, wanted):
        if name == "fields":
            np.testing.assert_array_equal(mine["row"], other["row"])
        elif name != "masks":
            np.testing.assert_allclose(mine, other, rtol=1e-6, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("max_total", [0, 3, 40])
def test_static_suppression_stops_with_either_limit(max_total: int) -> None:
    given = random_scene(7)
    # A class may give 2 and there are 5 of them, so 40 are never reached.
    options = multiclass.NmsOptions(0.0, 0.9, 2, max_total)
    wanted = run(given, options)
    got = run(given, dataclasses.replace(options, static_shapes=True))
    assert wanted.num.max() == min(max_total or 10, 10)
    assert found_by(got) == found_by(wanted)


@pytest.mark.parametrize("soft_sigma", [0.0, 0.3])
def test_static_suppression_leaves_no_dimension_open(soft_sigma: float) -> None:
    given = random_scene(3)
    with tf.Graph().as_default() as graph:
        options = multiclass.NmsOptions(0.2, 0.4, 7, 25, soft_sigma=soft_sigma, static_shapes=True)
        result = multiclass.multiclass_nms(
            tf.compat.v1.placeholder(tf.float32, [2, 60, 1, 4]),
            tf.compat.v1.placeholder(tf.float32, [2, 60, 5]),
            options,
            tf.compat.v1.placeholder(tf.float32, [2, 4]),
        )
        definitions = [graph, *(graph._get_function(name).graph for name in graph._functions)]
        open_ones = [
            tensor
            for definition in definitions
            for operation in definition.get_operations()
            for tensor in operation.outputs
            if operation.type != "Placeholder"  # that of a function is what the caller gives
            and tensor.dtype not in (tf.resource, tf.variant)
            and not tensor.shape.is_fully_defined()
        ]
        assert len(definitions) == 3
        assert open_ones == []
        with tf.compat.v1.Session() as session:
            window = np.float32([[0, 0, 1, 1]] * 2)
            inputs = [op.outputs[0] for op in graph.get_operations() if op.type == "Placeholder"]
            values = [given["boxes"], given["scores"], window]
            got = session.run(result._replace(masks=()), dict(zip(inputs, values)))
    options = dataclasses.replace(options, static_shapes=False)
    wanted = run({**given, "clip_windows": window}, options)
    assert [[one[1:] for one in image] for image in found_by(got)] == [
        [one[1:] for one in image] for image in found_by(wanted)
    ]


def test_hand_worked() -> None:
    boxes = np.float32(
        [[[[0, 0, 1, 1]], [[0, 0, 1, 0.8]], [[0, 0.9, 1, 1.1]], [[2, 2, 3, 3]], [[0, 0, 1, 1]]]]
    )
    scores = np.float32([[[0.9, 0.1], [0.8, 0.3], [0.7, 0.05], [0.6, 0.2], [0.5, 0.99]]])
    window = np.float32([[0.0, 0.0, 1.0, 1.0]])
    result = run(
        {
            "boxes": boxes,
            "scores": scores,
            "clip_windows": window,
            "num_valid": np.int32([4]),
            "fields": {"row": np.arange(5, dtype=np.int32)[None]},
        },
        multiclass.NmsOptions(0.1, 0.5, 10, 6),
    )
    # 1 is suppressed by 0 in class 0, 3 lies outside, 4 is padding, 0 in class 1 is at threshold.
    np.testing.assert_array_equal(result.anchor_indices, [[0, 2, 1, 0, 0, 0]])
    np.testing.assert_array_equal(result.fields["row"], [[0, 2, 1, 0, 0, 0]])
    np.testing.assert_array_equal(result.classes, [[0, 0, 1, 0, 0, 0]])
    np.testing.assert_array_equal(result.scores, np.float32([[0.9, 0.7, 0.3, 0, 0, 0]]))
    np.testing.assert_array_equal(result.num, [3])
    np.testing.assert_array_equal(result.boxes[0, 1], np.float32([0, 0.9, 1, 1]))
    assert not result.boxes[0, 3:].any()


@pytest.mark.parametrize("static_shapes", [False, True])
@pytest.mark.parametrize("soft_sigma", [0.0, 0.5])
def test_a_score_at_the_threshold_is_out(soft_sigma: float, static_shapes: bool) -> None:
    threshold = np.float32(0.3)
    above = np.nextafter(threshold, np.float32(1))
    boxes = np.float32([[[[i, 0, i + 0.5, 1]] for i in range(4)]])
    given = {"boxes": boxes, "scores": np.float32([[[threshold], [above], [0.9], [0.2]]])}
    options = multiclass.NmsOptions(
        float(threshold), 0.5, 4, 4, soft_sigma=soft_sigma, static_shapes=static_shapes
    )
    result = run(given, options)
    np.testing.assert_array_equal(result.anchor_indices, [[2, 1, 0, 0]])
    np.testing.assert_array_equal(result.num, [2])


@pytest.mark.parametrize("static_shapes", [False, True])
def test_overlap_at_the_threshold_stays(static_shapes: bool) -> None:
    # IoU with the first: 1/2 exactly, a little more, and none.
    boxes = np.float32([[[[0, 0, 1, 1]], [[0, 0, 0.5, 1]], [[0, 0, 0.51, 1]], [[2, 2, 3, 3]]]])
    given = {"boxes": boxes, "scores": np.float32([[[0.9], [0.8], [0.7], [0.6]]])}
    options = multiclass.NmsOptions(0.0, 0.5, 4, 4, static_shapes=static_shapes)
    result = run(given, options)
    np.testing.assert_array_equal(result.anchor_indices, [[0, 1, 3, 0]])


def test_class_agnostic_takes_the_box_of_the_best_class() -> None:
    given = random_scene(5, q=5)
    options = multiclass.NmsOptions(0.2, 0.4, 3, 9, class_agnostic=True)
    result = run(given, options)
    best = given["scores"].argmax(axis=2)
    for image in range(2):
        for place in range(result.num[image]):
            anchor = result.anchor_indices[image, place]
            assert result.classes[image, place] == best[image, anchor]
            np.testing.assert_array_equal(
                result.boxes[image, place], given["boxes"][image, anchor, best[image, anchor]]
            )


@pytest.mark.parametrize("static_shapes", [False, True])
@pytest.mark.parametrize("soft_sigma", [0.0, 0.5])
def test_nothing_above_the_threshold_and_nan(soft_sigma: float, static_shapes: bool) -> None:
    given = random_scene(6)
    options = multiclass.NmsOptions(
        0.5, 0.4, 7, 25, soft_sigma=soft_sigma, static_shapes=static_shapes
    )
    low = run({**given, "scores": np.zeros_like(given["scores"])}, options)
    assert not any(np.any(part) for part in tf.nest.flatten(low))
    broken = given["scores"].copy()
    broken[0] = np.nan
    got = run({**given, "scores": broken}, options)
    assert got.num[0] == 0
    assert found_by(got)[1] == found_by(run(given, options))[1]


def test_options_from_proto() -> None:
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
    with pytest.raises(ConfigError, match="max_classes_per_detection is 2, which is not supported"):
        multiclass.make_nms_options(config)
    config.max_classes_per_detection = 1
    config.max_total_detections = 4
    with pytest.raises(ValueError, match=r"max_total_detections \(4\)"):
        multiclass.make_nms_options(config)


def test_shapes_that_do_not_fit() -> None:
    scores = tf.zeros([1, 6, 3])
    with pytest.raises(ValueError, match="q = 1 or C = 3"):
        multiclass.multiclass_nms(tf.zeros([1, 6, 2, 4]), scores, multiclass.NmsOptions())
    with pytest.raises(ValueError, match="clip_windows must be"):
        multiclass.multiclass_nms(
            tf.zeros([1, 6, 1, 4]), scores, multiclass.NmsOptions(), tf.zeros([4])
        )
    with pytest.raises(ValueError, match="given: None"):
        multiclass.multiclass_nms(
            tf.zeros([1, 6, 1, 4]), scores, multiclass.NmsOptions(change_frame=True)
        )


@pytest.mark.parametrize("static_shapes", [False, True])
@pytest.mark.parametrize("soft_sigma", [0.0, 0.3])
def test_padding_is_never_detected_whatever_the_threshold(
    soft_sigma: float, static_shapes: bool
) -> None:
    boxes = np.float32([[[[0, 0, 1, 1]], [[5, 5, 6, 6]], [[8, 8, 9, 9]], [[3, 3, 4, 4]]]])
    scores = np.float32([[[-0.5], [0.25], [0.9], [0.0]]])
    options = multiclass.NmsOptions(
        -1.0, 0.5, 4, 4, soft_sigma=soft_sigma, static_shapes=static_shapes
    )
    result = run({"boxes": boxes, "scores": scores, "num_valid": np.int32([2])}, options)
    assert result.num.tolist() == [2]
    np.testing.assert_allclose(result.scores, [[0.25, -0.5, 0, 0]])
    assert result.anchor_indices.tolist() == [[1, 0, 0, 0]]


@pytest.mark.parametrize("static_shapes", [False, True])
def test_agnostic_limit_is_that_of_the_image(static_shapes: bool) -> None:
    boxes = np.float32([[[[n, n, n + 1, n + 1]] for n in range(5)]])
    scores = np.float32([[[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4], [0.5, 0.45]]])
    options = multiclass.NmsOptions(0.0, 0.5, 1, 3, static_shapes=static_shapes)
    assert run({"boxes": boxes, "scores": scores}, options).num.tolist() == [2]
    agnostic = dataclasses.replace(options, class_agnostic=True)
    assert run({"boxes": boxes, "scores": scores}, agnostic).num.tolist() == [3]
