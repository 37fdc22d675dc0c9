"""Builds a configuration, loads name-seeded weights, and compares it with its golden numbers."""

from __future__ import annotations

import contextlib
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np

from benchmarks.conformance import goldens, two_stage
from benchmarks.conformance.compare import Check, sums
from benchmarks.conformance.goldens import Case, Names, load, moved, one_hot_classes
from benchmarks.conformance.repeats import OUTSIDE, REPEATS, compare_repeated, compare_runs
from estimator_det.compat import tf, tf1
from estimator_det.detectors import Context, Groundtruth, make_detector
from estimator_det.protos import pipeline_pb2

COLUMNS = (
    "variables",
    "anchors",
    "predictions",
    "regions",
    "losses",
    "gradients",
    "detections",
    "train trace",
    "quantized",
)

# Relative tolerances that the golden numbers were published with.
ANCHORS = 1e-5
PREDICTIONS = 1e-3
TRAIN_PREDICTIONS = 1e-2  # batch statistics of two images amplify rounding on small maps
GRADIENTS = 1e-2
MOVING_NORMS = 1e-3  # tolerance of the norms of moving averages after a pass
NO_GRADIENT = 1e-6  # share of the global norm below which rounding decides
NO_LOSS = 1e-6  # share of the total below which rounding decides


def _groundtruth(model: Any, images: np.ndarray) -> Groundtruth:
    """The fixed labels of images [B, h, w, C]; masks fill their boxes."""
    classes = tf.constant(one_hot_classes(model))
    weights = tf.ones(goldens.BOXES.shape[:2])
    return Groundtruth(
        boxes=tf.constant(goldens.BOXES),
        classes=classes,
        weights=weights,
        valid=weights > 0,
        confidences=classes if getattr(model, "use_confidences_as_targets", False) else None,
        masks=_masks(*images.shape[1:3]) if getattr(model, "number_of_stages", 2) == 3 else None,
        keypoints=tf.constant(goldens.keypoints()) if goldens.has_keypoints(model) else None,
    )


def _masks(height: int, width: int) -> tf.Tensor:
    masks = np.zeros([*goldens.BOXES.shape[:2], height, width], np.float32)
    for index in np.ndindex(*masks.shape[:2]):
        ymin, xmin, ymax, xmax = (float(side) for side in goldens.BOXES[index])
        rows = slice(round(ymin * height), round(ymax * height))
        masks[index][rows, round(xmin * width) : round(xmax * width)] = 1.0
    return tf.constant(masks)


class _Built(NamedTuple):
    """A detector on fixed images."""

    detector: Any
    predictions: Any
    true_shapes: tf.Tensor
    groundtruth: Groundtruth


def _context(case: Case) -> Optional[Context]:
    """The context of the golden run, where it has one."""
    parts = [part for part in (case.graph, case.numeric) if part and part.get("side_inputs")]
    if not parts:
        return None
    recorded = parts[0]["side_inputs"]
    features = np.random.default_rng(goldens.CONTEXT_SEED).standard_normal(
        recorded["context_features_shape"]
    )
    return Context(
        tf.constant(features, tf.float32), tf.constant(recorded["valid_context_size"], tf.int32)
    )


def build(
    case: Case,
    config: pipeline_pb2.TrainEvalPipelineConfig,
    images: np.ndarray,
    is_training: bool,
    quantized: bool = False,
) -> _Built:
    """The detector and its predictions on images [B, h, w, C], of a float model by default."""
    rewriter = config.graph_rewriter if quantized else None
    detector = make_detector(config.model, is_training, rewriter)
    inputs, true_shapes = detector.preprocess(tf.constant(images.astype(np.float32)))
    groundtruth = _groundtruth(case.model, images)
    predictions = detector.predict(
        inputs, true_shapes, groundtruth if is_training else None, _context(case)
    )
    return _Built(detector, predictions, true_shapes, groundtruth)


def prediction_values(predictions: Any, keys: Iterable[str]) -> Dict[str, Any]:
    """Tensors by the names of the golden numbers."""
    if two_stage.is_two_stage(predictions):
        return two_stage.named_predictions(predictions)
    if hasattr(predictions, "maps"):  # heads of CenterNet, whose pixels are rows
        return {
            f"{name}/{number}": tf.reshape(each, [each.shape[0], -1, each.shape[3]])
            for name, maps in predictions.maps.items()
            for number, each in enumerate(maps)
        }
    fields = {"class_predictions_with_background": "class_logits"}
    return {key: getattr(predictions, fields.get(key, key)) for key in keys}


def check_graph(case: Case, cells: Dict[str, Check]) -> None:
    """Variables, counts, static shapes and anchors of the training graph."""
    recorded = case.graph
    if not recorded or not recorded.get("builds_train"):
        return
    check = cells["variables"]
    with tf.Graph().as_default():
        images, config = case.images_of_graph(), case.overridden(recorded.get("overrides", ()))
        detector, predictions, _, groundtruth = build(case, config, images, is_training=True)
        losses = detector.loss(predictions, groundtruth).terms
        name_of = Names(detector)
        trainable = {v.op.name for v in tf1.trainable_variables()}
        ours = {name_of(v): [v.shape.as_list(), v.op.name in trainable] for v in model_variables()}
        theirs = recorded["variables"]
        for name in sorted(set(ours) ^ set(theirs)):
            check.fail(f"{'extra' if name in ours else 'missing'} variable {name}")
        for name in sorted(set(ours) & set(theirs)):
            check.equal(ours[name], theirs[name], name)
        if "loss_keys" in recorded:
            check.equal(sorted(losses), sorted(recorded["loss_keys"]), "loss keys")
        updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
        check.equal(len(updates), case.num_update_ops, "update ops")
        penalties = len(detector.regularization_losses())
        check.equal(
            penalties, recorded.get("num_regularization_losses", penalties), "regularization losses"
        )
        maps = recorded["prediction_dict_train"]["feature_maps"]
        shapes = [list(map_.shape.as_list()[1:3]) for map_ in predictions.feature_maps]
        check.equal(shapes, [shape[1:3] for shape in maps] or shapes, "feature map shapes")
        sample = recorded.get("anchors_sample")
        if sample:
            if two_stage.is_two_stage(predictions):  # training leaves some anchors out
                predictions = build(case, config, images, is_training=False).predictions
            with tf1.Session() as session:
                anchors = session.run(predictions.anchors)
            _compare_anchors(cells["anchors"], anchors, sample, recorded["num_anchors"])


def model_variables() -> Sequence[Any]:
    """Variables of the graph without the global step."""
    step = tf1.train.get_global_step()
    return [v for v in tf1.global_variables() if v is not step]


def _compare_anchors(check: Check, anchors: np.ndarray, sample: Any, count: int) -> None:
    check.equal(len(anchors), count, "number of anchors")
    if len(anchors) != count:
        return
    scale = max(1.0, np.max(sample["rows20"]))  # anchors are in pixels if not normalized
    check.close(anchors[:5], sample["first5"], ANCHORS, "first anchors", scale)
    check.close(anchors[-5:], sample["last5"], ANCHORS, "last anchors", scale)
    check.close(anchors[sample["idx20"]], sample["rows20"], ANCHORS, "anchors", scale)
    difference = abs(np.sum(anchors, dtype=np.float64) - sample["sum"])
    check.error(difference / sample["abs_sum"], ANCHORS, "anchor sum")


def check_evaluation(case: Case, cells: Dict[str, Check]) -> None:
    """Preprocessed pixels, feature maps, raw predictions, anchors and final detections."""
    recorded = case.numeric
    if not recorded or not recorded.get("eval_ok"):
        return
    check, arrays = cells["predictions"], case.arrays
    fetched = _evaluate(case, recorded)
    corner = fetched["inputs"][:, :4, :4, :3]
    check.close(corner, arrays["preprocessed_corner"], PREDICTIONS, "preprocessed pixels")
    check.statistics(fetched["inputs"], recorded["preprocessed"], PREDICTIONS, "preprocessed")
    for name, stats in recorded["feature_maps"].items():
        if name in fetched["predictions"] and not two_stage.is_of_regions(name):
            map_, tolerance = fetched["predictions"][name], fetched["tolerances"][name]
            check.statistics(map_, stats, tolerance, name)
            first = arrays[f"fm__{name.replace('/', '_')}__first8"]
            check.close(map_.ravel()[:8], first, tolerance, name, scale=stats["max_abs"])
    if fetched["has_regions"]:
        two_stage.compare_rows(
            cells["regions"], fetched["predictions"], recorded["predictions"], arrays, PREDICTIONS
        )
    for key in _whole_tensors(recorded, fetched["has_regions"]):
        cell, tolerance = check, fetched["tolerances"][key]
        if key == "anchors":
            cell, tolerance = cells["anchors"], ANCHORS
        stats, value = recorded["predictions"][key], fetched["predictions"][key]
        cell.statistics(value, stats, tolerance, key)
        if list(value.shape) == stats["shape"]:
            cell.close(*_kept_rows(value, key, recorded, arrays), tolerance, key, stats["max_abs"])
    # Rounding that moves predictions decides about detections, too.
    tolerance = PREDICTIONS if fetched["has_regions"] else max(fetched["tolerances"].values())
    if fetched["overflow"] or tolerance > PREDICTIONS:
        detections = {k: v for k, v in fetched["detections"].items() if k.startswith("raw_")}
        postprocess = {k: v for k, v in recorded["postprocess"].items() if k in detections}
        _compare_statistics(cells["detections"], detections, postprocess, tolerance=tolerance)
    else:
        _compare_detections(cells["detections"], fetched["detections"], case)


def _evaluate(case: Case, recorded: Dict[str, Any]) -> Dict[str, Any]:
    """Values of the graph in inference, and the tolerance of each prediction.

    Activations of a deep network without damping grow from block to block. A prediction that
    rounding alone moves further than its tolerance is held to `OUTSIDE` times the largest such
    movement.
    """
    images, arrays = case.images(), case.arrays
    with tf.Graph().as_default():
        config = case.overridden(recorded["overrides"])
        detector, predictions, true_shapes, _ = build(case, config, images, is_training=False)
        has_regions = two_stage.is_two_stage(predictions)
        values = prediction_values(predictions, recorded["predictions"])
        for index, map_ in enumerate(predictions.feature_maps):
            values[f"feature_maps/{index}"] = map_
        detections = detector.postprocess(predictions, true_shapes).to_dict()
        overflow = tf.constant(False)
        if has_regions:
            exact = two_stage.with_recorded_regions(predictions, recorded["predictions"], arrays)
            detections.update(detector.postprocess(exact, true_shapes).to_dict())
            overflow = two_stage.areas_overflow(exact)
        seeded, name_of = case.seeded_value(recorded.get("init")), Names(detector)
        with tf1.Session() as session:
            load(session, model_variables(), seeded, name_of)
            fetched = session.run(
                {
                    "inputs": predictions.inputs,
                    "predictions": values,
                    "detections": detections,
                    "overflow": overflow,
                }
            )
            ours, tolerances = fetched["predictions"], dict.fromkeys(values, PREDICTIONS)
            if _any_short(ours, recorded, arrays, has_regions):
                names = [*_whole_tensors(recorded, has_regions), *recorded["feature_maps"]]
                for repeat in range(1, 1 + REPEATS):
                    load(session, model_variables(), moved(seeded, repeat), name_of)
                    repeated = session.run({n: values[n] for n in names if n in values})
                    for name, value in repeated.items():
                        spread = np.max(np.abs(value - ours[name])) / np.max(np.abs(value))
                        tolerances[name] = max(tolerances[name], OUTSIDE * float(spread))
    return {**fetched, "tolerances": tolerances, "has_regions": has_regions}


def _whole_tensors(recorded: Dict[str, Any], has_regions: bool) -> Sequence[str]:
    """Predictions that are compared place by place; rows of regions are not."""
    return [
        key for key in recorded["predictions"] if not (has_regions and two_stage.is_of_regions(key))
    ]


def _kept_rows(
    value: np.ndarray, key: str, recorded: Dict[str, Any], arrays: Dict[str, np.ndarray]
) -> Tuple[np.ndarray, np.ndarray]:
    """The rows of a prediction that are on record, and those recorded."""
    stats = recorded["predictions"][key]
    kept = np.take(value, arrays[f"{key}__idx"], axis=stats["axis"])
    return (
        kept[..., stats["last_axis_idx"]] if stats.get("last_axis_subsampled") else kept
    ), arrays[key]


def _any_short(
    ours: Dict[str, np.ndarray],
    recorded: Dict[str, Any],
    arrays: Dict[str, np.ndarray],
    has_regions: bool,
) -> bool:
    """Whether a prediction differs by more than its tolerance."""
    check = Check()
    for key in _whole_tensors(recorded, has_regions):
        scale = recorded["predictions"][key]["max_abs"]
        check.close(*_kept_rows(ours[key], key, recorded, arrays), PREDICTIONS, key, scale)
    return not check.ok


def _compare_detections(check: Check, ours: Dict[str, Any], case: Case) -> None:
    assert case.numeric is not None
    tied = case.numeric.get("score_ties_in_top20", 0) > 0
    _compare_statistics(check, ours, case.numeric["postprocess"], tied)
    keys = ("boxes", "scores", "classes", "keypoints", "keypoint_scores")
    for key in (f"detection_{name}" for name in keys):
        expected = case.arrays.get(f"post__{key}")
        if expected is not None and not (tied and key != "detection_scores"):
            check.close(ours[key][:, : expected.shape[1]], expected, PREDICTIONS, key)
    if "post__num_detections" in case.arrays:
        check.close(ours["num_detections"], case.arrays["post__num_detections"], 0, "count")
    indices = case.arrays.get("post__detection_anchor_indices")
    if indices is not None and not tied:
        our_indices = ours["detection_anchor_indices"][:, : indices.shape[1]]
        check.close(our_indices, indices, 0, "detection_anchor_indices")


def _compare_statistics(
    check: Check,
    ours: Dict[str, Any],
    recorded: Dict[str, Any],
    tied: bool = False,
    tolerance: float = PREDICTIONS,
) -> None:
    for key, stats in recorded.items():
        if key not in ours:
            check.fail(f"{key}: missing")
        elif tied and not (key.startswith("raw_") or key in ("detection_scores", "num_detections")):
            # Boxes of equal score may come in any order.
            check.equal(list(ours[key].shape), stats["shape"], f"{key} shape")
        else:
            check.statistics(ours[key], stats, tolerance, key)


def check_training(case: Case, cells: Dict[str, Check]) -> None:
    """Training-mode predictions, every loss term, and the gradient norm of every variable."""
    recorded = case.numeric
    if not recorded or not recorded.get("train_ok"):
        return
    overrides = recorded["train"].get("overrides", recorded["overrides"])
    config = case.overridden(overrides)
    with training_pass(case, config, recorded["train"]["predictions"]) as run_pass:

        def run(value: goldens.SeededValue) -> Dict[str, Any]:
            values = run_pass(value)
            # Predictions of all runs would need too much memory.
            tensors = values.pop("predictions")
            values["shapes"] = {key: list(tensor.shape) for key, tensor in tensors.items()}
            values["sums"] = {key: sums(tensor) for key, tensor in tensors.items()}
            return values

        cells.update(
            compare_repeated(
                ("losses", "gradients"),
                run,
                case.seeded_value(recorded.get("init")),
                lambda checks, runs: _compare_training(checks, runs, case),
            )
        )


@contextlib.contextmanager
def training_pass(
    case: Case,
    config: pipeline_pb2.TrainEvalPipelineConfig,
    keys: Iterable[str],
    quantized: bool = False,
) -> Iterator[Callable[[goldens.SeededValue], Dict[str, Any]]]:
    """Context manager: a function that runs a pass in training of given weights."""
    with tf.Graph().as_default():
        built = build(case, config, case.images(), is_training=True, quantized=quantized)
        losses = dict(built.detector.loss(built.predictions, built.groundtruth).terms)
        penalties = built.detector.regularization_losses()
        regularization = tf.add_n(penalties) if penalties else tf.constant(0.0)
        total = tf.add_n(list(losses.values())) + regularization
        name_of = Names(built.detector)
        recorded = (case.numeric or {}).get("train", {}).get("moving_norms", {})
        moving_norms = {
            name_of(v): tf.norm(tf.cast(v, tf.float64))
            for v in model_variables()
            if name_of(v) in recorded
        }
        fetched = {
            "losses": {**losses, "regularization": regularization, "total": total},
            "norms": gradient_norms(total, name_of),
            "predictions": prediction_values(built.predictions, keys),
        }
        if quantized:
            ranges = {each.scope: (each.least, each.most) for each in built.predictions.quantized}
            fetched["ranges"] = ranges
        variables = model_variables()
        trainable = {name_of(v) for v in tf1.trainable_variables()}
        with tf1.Session() as session:

            def run(value: goldens.SeededValue) -> Dict[str, Any]:
                load(session, variables, value, name_of)
                values = {**session.run(fetched), "trainable": trainable}
                if moving_norms:
                    session.run(built.detector.updates())
                return {**values, "moving": session.run(moving_norms)}

            yield run


def gradient_norms(total: tf.Tensor, name_of: Callable[[Any], str]) -> Dict[str, tf.Tensor]:
    """Norm of the gradient of each trainable variable that has one."""
    variables = tf1.trainable_variables()
    gradients = zip(variables, tf1.gradients(total, variables))
    return {name_of(v): tf.norm(tf.cast(g, tf.float64)) for v, g in gradients if g is not None}


def _compare_training(checks: Dict[str, Check], runs: Sequence[Dict[str, Any]], case: Case) -> None:
    """Losses and sums of predictions, and norms of gradients.

    A norm that on both sides is less than `NO_GRADIENT` of the global norm is only rounding; a
    batch norm, for example, cancels the offsets before it.
    """
    assert case.numeric is not None
    train = case.numeric["train"]
    expected = {
        **train["losses"],
        "regularization": train["regularization_sum"],
        "total": train["total"],
    }
    check, losses = checks["losses"], [run["losses"] for run in runs]
    compare_runs(check, losses, expected, case.loss_tolerance, "loss", NO_LOSS * train["total"])
    moving = [run["moving"] for run in runs]
    compare_runs(check, moving, train.get("moving_norms", {}), MOVING_NORMS, "average")
    for key, stats in train["predictions"].items():
        check.equal(runs[0]["shapes"][key], stats["shape"], f"training {key} shape")
    recorded_sums = {
        key: [stats["sum"], stats["abs_sum"]]
        for key, stats in train["predictions"].items()
        if stats.get("finite", True)
    }
    our_sums = [run["sums"] for run in runs]
    compare_runs(check, our_sums, recorded_sums, TRAIN_PREDICTIONS, "training sums")
    norms = [run["norms"] for run in runs]
    without = runs[0]["trainable"] - {*norms[0]}
    recorded_without = sorted(case.numeric.get("trainable_without_gradient", []))
    checks["gradients"].equal(sorted(without), recorded_without, "variables without gradient")
    floor = NO_GRADIENT * float(train["global_grad_norm_total_loss"])
    real = {n: v for n, v in train["grad_norms"].items() if max(v, norms[0].get(n, v)) > floor}
    compare_runs(checks["gradients"], norms, real, GRADIENTS, "gradient", floor)
