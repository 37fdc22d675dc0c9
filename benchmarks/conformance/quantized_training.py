"""Training with simulated quantization, compared with what the reference's rewriter makes.

Numbers are those of one thread: batch norm sums 45000 values a channel, and with more threads in
another order, which moves first losses by 1e-5 and some gradients by half. Where batch norm
updates its averages in place, tensors are rounded before their activation here, as the reference
does in training (and this product does not); everything else is the product's.

Once tensors are rounded, training is chaotic: weights moved by one unit in the last place change
predictions by a fifth and norms of gradients by half. The published tolerances of such numbers are
estimates. So every run is repeated with moved weights. A number that the repeats agree on, within
half of its tolerance, is held to it. Of the others, all but `FEW` must not be outside of the
repeats by more than `OUTSIDE` times what these differ by. (The exceptions are gradients of the
smallest map of MobileNet v2: one of its anchors is mined, as in the golden run, or none, as in 9 of
12 of ours.) And half must be as near to the mean of the repeats as half of those of the farthest
repeat are to the mean of the others, up to the factor `NEAR`, or within the tolerance.

The farthest counts, not the average one, because numbers of one run are not independent. Batch norm
of a 1x1 map normalizes two values of a channel: where rounding leaves them nearly equal, it
multiplies gradients by up to 30, and the gradients of all layers below share what that adds.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence
from unittest import mock

import numpy as np

from benchmarks.conformance import goldens
from benchmarks.conformance.case import Case, load, moved
from benchmarks.conformance.checks import build, model_variables, prediction_values
from benchmarks.conformance.compare import Check
from benchmarks.conformance.quantized import (
    NOISE,
    Record,
    check_inference,
    is_weight,
    range_values,
    read,
    with_ranges,
)
from benchmarks.conformance.trace import padded_batch
from estimator_det.compat import estimator, tf, tf1
from estimator_det.detectors import ssd
from estimator_det.nets.quantization import INITIAL_LIMIT, STEP_VARIABLE, Quantizer
from model_fn.model_fn import create_model_fn

# Published tolerances.
WEIGHT_RANGES, RANGES = 1e-5, 2e-5
LOSSES_BEFORE_DELAY, GRADIENTS_BEFORE_DELAY = 1e-4, 2.5e-2
LOSSES, GRADIENTS = 1e-2, 5e-2
NORMS = 1e-3

REPEATS = 4  # of several steps
OUTSIDE, FEW, NEAR = 3, 0.05, 1.5
MANY = 8  # runs that do not agree by chance


class Pass(NamedTuple):
    """How one pass in training is run and compared."""

    step_before: int  # fake_quantization_step
    repeats: int
    losses: float  # tolerances
    gradients: float


PASSES = {
    "before_delay": Pass(0, REPEATS, LOSSES_BEFORE_DELAY, GRADIENTS_BEFORE_DELAY),
    "active": Pass(1000, 24, LOSSES, GRADIENTS),
}

Values = Dict[str, Any]  # numbers or arrays by name


def check_quantized(case: Case, cells: Dict[str, Check]) -> None:
    """Everything that is recorded."""
    record = read(case.golden_dir, case.golden.config_name)
    if record is None or case.golden.name != case.golden.config_name:
        return
    check_inference(case, record, cells["quantized"])
    check_training(case, record, cells["quantized"])
    check_steps(case, record, cells["quantized"])


def compare_runs(
    check: Check, runs: Sequence[Values], expected: Values, tolerance: float, kind: str
) -> None:
    """Compares numbers of the same kind with those of our runs; see the top of this file.

    Args:
        check: Where differences are recorded.
        runs: Ours by name, at least two: of the exact weights, then of moved ones.
        expected: The recorded ones; zeros are left out.
        tolerance: Relative to the largest value of an array.
        kind: What they are, for messages.
    """
    names = [name for name, value in expected.items() if np.any(value)]
    ours, recorded = {}, {}
    for name in names:
        scale = np.max(np.abs(expected[name]))
        ours[name] = np.stack([np.asarray(run[name], np.float64) / scale for run in runs])
        recorded[name] = np.asarray(expected[name], np.float64) / scale
    spread = {name: float(np.max(np.ptp(ours[name], axis=0))) for name in names}
    usual = float(np.median(list(spread.values())))
    outside, worst, such_as = [], 0.0, ""
    for name in names:
        noise = spread[name] if len(runs) >= MANY else max(spread[name], usual)
        if 2 * noise <= tolerance:
            difference = float(np.max(np.abs(recorded[name] - ours[name][0])))
            check.error(difference, tolerance, f"{kind} of {name}")
            continue
        least, most = ours[name].min(axis=0), ours[name].max(axis=0)
        beyond = float(np.max(np.maximum(least - recorded[name], recorded[name] - most)))
        outside.append(beyond > max(tolerance, OUTSIDE * noise))
        if beyond > worst:
            worst, such_as = beyond, name
    if outside:
        share = float(np.mean(outside))
        check.error(share, FEW, f"{kind}, the share that is far from the repeats, as {such_as}")
    theirs = np.median([np.mean(np.abs(recorded[n] - ours[n].mean(axis=0))) for n in names])
    farthest = np.max(np.median([_from_the_others(ours[n]) for n in names], axis=0))
    check.error(float(theirs), max(tolerance, NEAR * float(farthest)), f"median {kind}")


def _from_the_others(runs: np.ndarray) -> np.ndarray:
    """Mean distance of each run to the mean of all others, [number of runs]."""
    rest = (runs.sum(axis=0) - runs) / (len(runs) - 1)
    return np.mean(np.abs(runs - rest).reshape(len(runs), -1), axis=1)


@contextlib.contextmanager
def rounding_as_the_reference(record: Record) -> Iterator[None]:
    """Within, detectors round before the activation where the reference does so in training."""
    scopes = moved_scopes(record)

    class _Quantizer(Quantizer):
        def activation(
            self, scope: str, values: tf.Tensor, least: float = -INITIAL_LIMIT
        ) -> tf.Tensor:
            if scope not in scopes:
                return super().activation(scope, values, least)
            assert values.op.type == "Relu6", values.op.type
            return tf.nn.relu6(super().activation(scope, values.op.inputs[0], least))

    with mock.patch.object(ssd, "Quantizer", _Quantizer):
        yield


def moved_scopes(record: Record) -> List[str]:
    """Where the reference rounds before the activation in training, and after it in inference."""
    return list(record.values["eval"].get("fake_quant_differs", {}))


def fixed_start(record: Record) -> Dict[str, float]:
    """Values of range variables at the start of the recorded runs from fixed ranges."""
    ranges = record.ranges(record.values["eval"]["fixed"]["ranges"])
    ranges.update(dict.fromkeys(moved_scopes(record), (-INITIAL_LIMIT, INITIAL_LIMIT)))
    return range_values(ranges)


def _own_start(record: Record) -> Dict[str, float]:
    values = range_values(record.ranges(record.values["own_initial"]))
    return {n: 0.0 if n.endswith(("biased", "_step")) else v for n, v in values.items()}


def _repeated(
    case: Case,
    session: Any,
    variables: Sequence[Any],
    start: Dict[str, float],
    run: Callable[[], Any],
    repeats: int = REPEATS,
) -> List[Any]:
    """What `run` returns for the exact weights and for moved ones."""
    seeded = goldens.seeded_value(case.golden_dir, "det_value")
    found = []
    for repeat in range(1 + repeats):
        value = moved(seeded, repeat) if repeat else seeded
        load(session, variables, with_ranges(value, start))
        found.append(run())
    return found


def check_training(case: Case, record: Record, check: Check) -> None:
    """Losses, gradients and ranges of one pass in training, before and after the delay."""
    recorded = record.values["train"]
    config = case.overridden(recorded["overrides"])
    images = goldens.images_300(case.golden_dir)
    with tf.Graph().as_default(), rounding_as_the_reference(record):
        built = build(case, config, images, is_training=True, quantized=True)
        detector, predictions = built.detector, built.predictions
        losses = dict(detector.loss(predictions, built.groundtruth).terms)
        total = tf.add_n([*losses.values(), *detector.regularization_losses()])
        variables = {v.op.name: v for v in tf1.trainable_variables()}
        gradients = tf1.gradients(total, list(variables.values()))
        fetched = {
            "losses": {**losses, "total": total},
            "norms": {n: tf.norm(tf.cast(g, tf.float64)) for n, g in zip(variables, gradients)},
            "ranges": {each.scope: (each.least, each.most) for each in predictions.quantized},
            "predictions": prediction_values(predictions, recorded["active"]["predictions"]),
        }
        _check_training_names(check, {v.op.name for v in model_variables()}, record)
        with tf1.Session() as session:
            for tag, settings in PASSES.items():
                start = {**fixed_start(record), STEP_VARIABLE: settings.step_before}
                runs = _repeated(
                    case,
                    session,
                    model_variables(),
                    start,
                    lambda: session.run(fetched),
                    settings.repeats,
                )
                _compare_pass(check, runs, record, tag)


def _compare_pass(check: Check, runs: Sequence[Values], record: Record, tag: str) -> None:
    recorded = record.values["train"]
    expected = recorded[tag]
    settings = PASSES[tag]

    def part(name: str) -> List[Values]:
        return [run[name] for run in runs]

    compare_runs(
        check,
        part("losses"),
        {**expected["losses"], "total": expected["total"]},
        settings.losses,
        f"{tag} loss",
    )
    norms = dict(zip(recorded["grad_names"], expected["grad_norms"]))
    floor = 1e-6 * expected["global_grad_norm"]  # less is rounding, where batch norm cancels all
    norms = {name: norm for name, norm in norms.items() if norm > floor}
    compare_runs(check, part("norms"), norms, settings.gradients, f"{tag} gradient")
    for key in expected["predictions"]:
        rows = [run["predictions"][key][:, record.arrays["idx_train"]] for run in runs]
        golden = record.arrays[f"train_{tag}__{key}"]
        noise = np.mean([np.mean(np.abs(each - rows[0])) for each in rows[1:]])
        difference = np.mean(np.abs(rows[0] - golden))
        check.error(float(difference), NOISE * float(noise), f"{tag} {key}")
    if "ranges_after" in expected:
        _compare_ranges(check, part("ranges"), record, expected["ranges_after"], tag)


def _check_training_names(check: Check, names: set, record: Record) -> None:
    scopes = record.values["quant_scopes"]
    expected = set(record.values["variables"]["float"]) | {STEP_VARIABLE}
    for scope in scopes:
        for end in ("min", "max"):
            expected.add(f"{scope}/{end}")
            if not is_weight(scope):
                beside = f"{scope}/{scope}/{end}"
                expected |= {f"{beside}/biased", f"{beside}/local_step"}
    check.equal(sorted(names ^ expected), [], "training variables")
    check.equal(len(names), record.values["variables"]["total_train"], "training variables")


def _compare_ranges(
    check: Check,
    runs: Sequence[Values],
    record: Record,
    recorded: Sequence[Sequence[float]],
    kind: str,
    left_out: Sequence[str] = (),
) -> None:
    expected = record.ranges(recorded)
    for scope in left_out:
        del expected[scope]
    for weights, tolerance in ((True, WEIGHT_RANGES), (False, RANGES)):
        of_kind = {
            scope: limits for scope, limits in expected.items() if is_weight(scope) == weights
        }
        compare_runs(check, runs, of_kind, tolerance, f"{kind} range")


def kernels_with_updated_averages(record: Record, after: Sequence[Sequence[float]]) -> List[str]:
    """Scopes of kernels whose recorded ranges after one step and after one pass differ.

    Both are of the same weights and averages. The reference does not order the read of a moving
    variance and its update, so now and then it folds the updated one into a kernel: one of 166 in
    the recorded first steps.
    """
    once = record.ranges(record.values["train"]["active"]["ranges_after"])
    return [
        scope
        for scope, limits in record.ranges(after).items()
        if is_weight(scope) and not np.allclose(limits, once[scope], rtol=WEIGHT_RANGES, atol=0)
    ]


def check_steps(case: Case, record: Record, check: Check) -> None:
    """Six optimizer steps of the model_fn, from ranges of its own and from fixed ones."""
    recorded = record.values["train"]
    config = case.overridden(recorded["overrides"])
    config.train_config.fine_tune_checkpoint = ""
    config.train_input_reader.label_map_path = ""
    scopes = record.values["quant_scopes"]
    with tf.Graph().as_default(), rounding_as_the_reference(record):
        tf1.train.get_or_create_global_step()
        features, labels = padded_batch(case, config)
        spec = create_model_fn(config)(features, labels, estimator.ModeKeys.TRAIN, {})
        variables = {v.op.name: v for v in tf1.global_variables()}
        counts = record.values["variables"]
        slots = recorded["num_optimizer_slots_and_global_step"]
        check.equal(len(variables), counts["total_train"] + slots, "variables and slots")
        fetched = {
            "norms": {
                name: tf.norm(variables[name])
                for name in (*recorded["bn_names"], *recorded["weight_names"])
            },
            "step": tf1.train.get_global_step(),
            "count": variables[STEP_VARIABLE],
        }
        ranges = {s: (variables[f"{s}/min"], variables[f"{s}/max"]) for s in scopes}
        of_model = {*counts["float"], *_own_start(record)} & {*variables}
        fresh = tf1.variables_initializer([v for n, v in variables.items() if n not in of_model])
        with tf1.Session() as session:
            for tag, start in (("own", _own_start(record)), ("fixed", fixed_start(record))):
                trace = recorded[f"trace_{tag}"]

                def take_steps(trace: Values = trace) -> Values:
                    session.run(fresh)
                    found: Values = {"losses": {}, "ranges": {}}
                    for number in map(str, range(1, trace["steps"] + 1)):
                        found["losses"][number], _ = session.run([spec.loss, spec.train_op])
                        if number in trace["ranges_after"]:
                            found["ranges"][number] = session.run(ranges)
                    return {**found, **session.run(fetched)}

                model = [variables[name] for name in sorted(of_model)]
                runs = _repeated(case, session, model, start, take_steps)
                _compare_steps(check, runs, record, tag)


def _compare_steps(check: Check, runs: Sequence[Values], record: Record, tag: str) -> None:
    recorded = record.values["train"]
    trace = recorded[f"trace_{tag}"]
    check.equal(int(runs[0]["step"]), trace["global_step_after"], "global step")
    check.equal(int(runs[0]["count"]), trace["fake_quantization_step_after"], STEP_VARIABLE)
    losses = [run["losses"] for run in runs]
    expected = dict(zip(losses[0], trace["total_loss_per_step"]))
    first = {"1": expected.pop("1")}
    compare_runs(check, losses, first, LOSSES_BEFORE_DELAY, f"{tag} loss")
    compare_runs(check, losses, expected, LOSSES, f"{tag} loss")
    for number, after in trace["ranges_after"].items():
        ranges = [run["ranges"][number] for run in runs]
        left_out = kernels_with_updated_averages(record, after) if number == "1" else []
        check.error(len(left_out) / len(after), FEW, f"{tag} kernels with updated averages")
        _compare_ranges(check, ranges, record, after, f"{tag} step {number}", left_out)
    norms = [run["norms"] for run in runs]
    for part in ("weight", "bn"):
        after = dict(zip(recorded[f"{part}_names"], trace[f"{part}_norms_after"]))
        compare_runs(check, norms, after, NORMS, f"{tag} {part} norm")
