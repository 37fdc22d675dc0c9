"""Networks with simulated quantization, compared with the Object Detection API's rewriter.

Rounding is chaotic: a change of one unit in the last place moves values to another level, which
layers multiply. Predictions are therefore held to three times the mean difference that was
measured when the input changed by one millionth. `quantized_training` has the training graph.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import numpy as np

from benchmarks.conformance import goldens
from benchmarks.conformance.checks import build, model_variables, prediction_values
from benchmarks.conformance.compare import Check
from benchmarks.conformance.goldens import Case, load
from estimator_det.compat import tf, tf1
from estimator_det.nets.quantization import STEP_VARIABLE

WEIGHTS = 1e-5
NOISE = 3  # times the measured noise
LEVELS = 2  # steps of 255; more than the noise of MobileNet v1 and of damped weights
ROUND = "FakeQuantWithMinMaxVars"  # type of operation
LONG_AGO = 100000.0  # updates, after which moving averages are no longer corrected

Ranges = Dict[str, Tuple[float, float]]


class Record(NamedTuple):
    """Records of one configuration."""

    values: Dict[str, Any]
    arrays: Dict[str, np.ndarray]

    def ranges(self, recorded: Sequence[Sequence[float]]) -> Ranges:
        """By scope."""
        return {s: (low, high) for s, (low, high) in zip(self.values["quant_scopes"], recorded)}


def read(case: Case) -> Optional[Record]:
    """The record of a configuration; None if there is none."""
    path = case.folder / "quantization" / f"{case.name}.json"
    if not path.exists():
        return None
    with np.load(path.with_suffix(".npz")) as stored:
        return Record(json.loads(path.read_text()), {key: stored[key] for key in stored.files})


def is_weight(scope: str) -> bool:
    """True if a scope holds the range of a kernel."""
    return scope.endswith("/weights_quant")


def range_values(ranges: Ranges) -> Dict[str, float]:
    """Values of range variables, and of the variables that training keeps beside them."""
    values: Dict[str, float] = {STEP_VARIABLE: 0}
    for scope, limits in ranges.items():
        for end, value in zip(("min", "max"), limits):
            values[f"{scope}/{end}"] = value
            values[f"{scope}/{scope}/{end}/biased"] = value
            values[f"{scope}/{scope}/{end}/local_step"] = LONG_AGO
    return values


def variable_names(record: Record, is_training: bool) -> Set[str]:
    """Names of the variables of a quantized model, without optimizer slots."""
    scopes = record.values["quant_scopes"]
    names = {*record.values["variables"]["float"]}
    names |= {f"{scope}/{end}" for scope in scopes for end in ("min", "max")}
    if is_training:
        beside = {f"{s}/{s}/{end}" for s in scopes if not is_weight(s) for end in ("min", "max")}
        names |= {f"{each}/{kind}" for each in beside for kind in ("biased", "local_step")}
        names.add(STEP_VARIABLE)
    return names


def with_ranges(seeded: goldens.SeededValue, ranges: Dict[str, float]) -> goldens.SeededValue:
    """`seeded`, but for variables that `ranges` gives a value."""

    def value(name: str, shape: Sequence[int]) -> np.ndarray:
        limit = ranges.get(name)
        return seeded(name, shape) if limit is None else np.asarray(limit)

    return value


def check_inference(case: Case, record: Record, check: Check) -> None:
    """Names, weights, activations, predictions and losses of the evaluation graph."""
    recorded = record.values["eval"]
    scopes = record.values["quant_scopes"]
    images = case.images()
    with tf.Graph().as_default() as graph:
        built = build(case, case.config, images, is_training=False, quantized=True)
        detector, predictions, groundtruth = built.detector, built.predictions, built.groundtruth
        losses = detector.loss(predictions, groundtruth).terms
        penalties = tf.add_n([tf.constant(0.0), *detector.regularization_losses()])
        names = {v.op.name for v in model_variables()}
        rounding = [op for op in graph.get_operations() if op.type == ROUND]
        rounded_scopes = sorted(op.name.rpartition("/")[0] for op in rounding)
        check.equal(rounded_scopes, sorted(scopes), "scopes")
        check.equal(sorted(names ^ variable_names(record, is_training=False)), [], "variables")
        check.equal(len(names), record.values["variables"]["total_eval"], "number of variables")
        narrow = {op.name.rpartition("/")[0]: op.get_attr("narrow_range") for op in rounding}
        check.equal([s for s, each in narrow.items() if each != is_weight(s)], [], "narrow ranges")
        tensors = {op.name.rpartition("/")[0]: (op.inputs[0], op.outputs[0]) for op in rounding}
        if not check.ok:
            return
        outputs = prediction_values(predictions, recorded["fixed"]["predictions"])
        last = {key: rounding_before(tensor) for key, tensor in outputs.items()}
        with tf1.Session() as session:
            for tag in ("fixed", "calibrated", "damped"):
                expected_values = recorded.get(tag)
                if expected_values is None:
                    continue
                variant = "det_value_damped" if tag == "damped" else "det_value"
                ranges = record.ranges(expected_values["ranges"])
                seeded = case.seeded_value(variant)
                load(session, model_variables(), with_ranges(seeded, range_values(ranges)))
                fetched = session.run([outputs, losses, penalties, tensors])
                levels = {key: _level(scopes, ranges) for key, scopes in last.items()}
                _compare_predictions(check, fetched[0], record, tag, levels)
                if tag != "damped":
                    penalty = expected_values["regularization_sum"]
                    check.close(fetched[2], penalty, WEIGHTS, f"{tag} penalty")
                if tag == "calibrated":
                    _compare_tensors(check, fetched[3], record)


def rounding_before(tensor: tf.Tensor) -> List[str]:
    """Scopes of the last ranges that a tensor passed, one for each feature map."""
    scopes, seen, queue = [], set(), [tensor.op]
    while queue:
        operation = queue.pop()
        if operation.type == ROUND:
            scopes.append(operation.name.rpartition("/")[0])
        elif operation.name not in seen:
            seen.add(operation.name)
            queue += [each.op for each in operation.inputs]
    return scopes


def _level(scopes: Sequence[str], ranges: Ranges) -> float:
    """The largest step between two levels of a prediction."""
    widths = [ranges[scope][1] - ranges[scope][0] for scope in scopes if not is_weight(scope)]
    return max(widths, default=0.0) / 255


def _compare_predictions(
    check: Check, ours: Dict[str, np.ndarray], record: Record, tag: str, levels: Dict[str, float]
) -> None:
    recorded = record.values["eval"]
    for key, statistics in recorded[tag]["predictions"].items():
        value = ours[key]
        check.equal(list(value.shape), statistics["shape"], f"{tag} {key} shape")
        expected = record.arrays[f"eval_{tag}__{key}"]
        kept = value[:, record.arrays["idx_eval"]]
        difference = float(np.mean(np.abs(kept - expected)))
        noise = statistics.get("noise") or recorded["calibrated"]["noise"][key]
        tolerance = max(NOISE * noise["mean"], LEVELS * levels[key])
        check.error_above_noise(difference, tolerance, expected, f"{tag} {key}")


def _compare_tensors(check: Check, ours: Dict[str, Any], record: Record) -> None:
    """Sums of weights and activations before and after they are rounded.

    One measurement of the noise of a sum may be small by chance: each activation is held to the
    largest noise of the network, and their mean difference to the mean noise.
    """
    recorded = record.values["eval"]["calibrated"]
    noise = [each for each in recorded["noise_activation"] if each is not None]
    errors = []
    for index, scope in enumerate(record.values["quant_scopes"]):
        totals = [float(np.abs(each.astype(np.float64)).sum()) for each in ours[scope]]
        if is_weight(scope):
            for value, (_, absolute) in zip(totals, recorded["weights_stats"][index]):
                check.close(value, absolute, WEIGHTS, scope)
            continue
        before, after, _ = recorded["activation_stats"][index]
        for value, absolute in zip(totals, (before[1], after[1])):
            errors.append(abs(value - absolute) / (absolute or 1.0))
            check.error(errors[-1], NOISE * max(noise), scope)
    check.error(float(np.mean(errors)), NOISE * float(np.mean(noise)), "mean of activations")
