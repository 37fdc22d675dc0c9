"""The comparison of quantized networks takes any: one head for all maps, ReLU or no activation.

The expected numbers are those of a first run: what is tested is the comparison.
"""

from __future__ import annotations

import contextlib
import copy
from typing import Any, Callable, ContextManager, Dict, Sequence

import numpy as np
import pytest

from benchmarks.conformance import goldens, quantized, quantized_training
from benchmarks.conformance.case import Case, load
from benchmarks.conformance.checks import build, model_variables, prediction_values
from benchmarks.conformance.compare import Check, sums
from benchmarks.conformance.quantized import Record, is_weight, range_values, with_ranges
from estimator_det.compat import tf, tf1
from tests.benchmarks.small_case import make_case

QUANTIZATION = "graph_rewriter { quantization { delay: 2 } }"
HEAD = "WeightSharedConvolutionalBoxPredictor"
# With ReLU, ReLU6 and nothing after batch norm: rounded before that in training.
MOVED = ("FeatureExtractor/First", "FeatureExtractor/Second", "FeatureExtractor/Third")
KEYS = ("box_encodings", "class_predictions_with_background")
ROWS = np.arange(0, 300, 7)


def _inference(case: Case, record: Record, value: goldens.SeededValue) -> None:
    """Numbers of the evaluation graph, and names."""
    values = record.values
    images = goldens.images_300(case.golden_dir)
    with tf.Graph().as_default(), tf1.Session() as session:
        built = build(case, case.config, images, is_training=False, quantized=True)
        tensors = built.predictions.quantized
        scopes = [each.scope for each in tensors]
        names = {v.op.name for v in model_variables()}
        ends = {f"{scope}/{end}" for scope in scopes for end in ("min", "max")}
        values["quant_scopes"] = scopes
        values["variables"] = {"float": sorted(names - ends), "total_eval": len(names)}
        fixed = [[-1.0, 1.0] if is_weight(scope) else [-0.5, 2.0] for scope in scopes]
        values["own_initial"] = [[-6.0, 6.0] for _ in scopes]
        start = range_values(record.ranges(fixed))
        load(session, model_variables(), with_ranges(value, start))
        rounding = [
            tf1.get_default_graph().get_operation_by_name(f"{s}/{quantized.ROUND}") for s in scopes
        ]
        pairs = [(each.inputs[0], each.outputs[0]) for each in rounding]
        penalty = tf.add_n(built.detector.regularization_losses())
        outputs = prediction_values(built.predictions, KEYS)
        fetched = session.run([outputs, penalty, pairs])
    predictions = {key: {"shape": list(array.shape)} for key, array in fetched[0].items()}
    part = {"ranges": fixed, "predictions": predictions, "regularization_sum": fetched[1]}
    weights, activations = [], []
    for scope, pair in zip(scopes, fetched[2]):
        before, after = (list(sums(array)) for array in pair)
        weights.append([before, after] if is_weight(scope) else None)
        activations.append(None if is_weight(scope) else [before, after, []])
    calibrated = {
        **part,
        "noise": {key: {"mean": 1e-3} for key in KEYS},
        "weights_stats": weights,
        "activation_stats": activations,
        "noise_activation": [1e-6] * len(scopes),
    }
    differs = {f"{scope}/act_quant": [] for scope in MOVED}
    values["eval"] = {"fixed": part, "calibrated": calibrated, "fake_quant_differs": differs}
    record.arrays["idx_eval"] = record.arrays["idx_train"] = ROWS
    for tag in ("fixed", "calibrated"):
        record.arrays.update({f"eval_{tag}__{k}": fetched[0][k][:, ROWS] for k in KEYS})


def _training(case: Case, record: Record, value: goldens.SeededValue) -> None:
    """Numbers of a pass and of steps in training."""
    train: Dict[str, Any] = {"overrides": [], "active": {"predictions": KEYS}}
    record.values["train"] = train
    with quantized_training.training_pass(case, record) as (names, run):
        record.values["variables"]["total_train"] = len(names)
        for tag, settings in quantized_training.PASSES.items():
            start = {**quantized_training.fixed_start(record)}
            start[quantized_training.STEP_VARIABLE] = settings.step_before
            found = run(with_ranges(value, start))
            train["grad_names"] = list(found["norms"])
            train[tag] = {
                "total": found["losses"].pop("total"),
                "losses": found["losses"],
                "grad_norms": list(found["norms"].values()),
                "global_grad_norm": float(np.linalg.norm(list(found["norms"].values()))),
                "predictions": dict.fromkeys(KEYS),
                "ranges_after": _ranges(record, found["ranges"]),
            }
            record.arrays.update(
                {f"train_{tag}__{key}": found["predictions"][key][:, ROWS] for key in KEYS}
            )
    float_names = record.values["variables"]["float"]
    train["bn_names"] = [name for name in float_names if "moving" in name]
    train["weight_names"] = [name for name in float_names if name.endswith("/weights")]
    starts = {
        "own": quantized_training.model_start(record),
        "fixed": quantized_training.fixed_start(record),
    }
    with quantized_training.training_steps(case, record) as (names, steps):
        total = record.values["variables"]["total_train"]
        train["num_optimizer_slots_and_global_step"] = len(names) - total
        for tag, start in starts.items():
            found = steps(range(1, 4), with_ranges(value, start))
            train[f"trace_{tag}"] = {
                "steps": 3,
                "global_step_after": 3,
                "fake_quantization_step_after": 3,
                "total_loss_per_step": list(found["losses"].values()),
                "ranges_after": {n: _ranges(record, found["ranges"][n]) for n in ("1", "3")},
                "bn_norms_after": [found["norms"][name] for name in train["bn_names"]],
                "weight_norms_after": [found["norms"][name] for name in train["weight_names"]],
            }


def _ranges(record: Record, limits: Dict[str, Sequence[float]]) -> Any:
    return [limits[scope] for scope in record.values["quant_scopes"]]


def _keep_open(name: str, stack: contextlib.ExitStack, patch: pytest.MonkeyPatch) -> None:
    """Has all tests share one graph."""
    make, results = getattr(quantized_training, name), []

    def kept(case: Case, record: Record) -> ContextManager[Any]:
        if not results:
            results.append(stack.enter_context(make(case, record)))
        return contextlib.nullcontext(results[0])

    patch.setattr(quantized_training, name, kept)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The small network and its numbers."""
    folder = tmp_path_factory.mktemp("golden")
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        for name in ("training_pass", "training_steps"):
            _keep_open(name, stack, patch)
        case = make_case(folder, patch, more=QUANTIZATION)
        value = goldens.seeded_value(folder, "det_value")
        record = Record({"config": "small"}, {})
        _inference(case, record, value)
        _training(case, record, value)
        patch.setattr(
            quantized_training,
            "PASSES",
            {tag: part._replace(repeats=2) for tag, part in quantized_training.PASSES.items()},
        )
        patch.setattr(quantized_training, "REPEATS", 2)
        yield case, record


def _checked(recorded: Any, part: Callable[[Case, Record, Check], None]) -> str:
    case, record = recorded
    check = Check()
    part(case, record, check)
    return str(check)


PARTS = {
    "inference": quantized.check_inference,
    "training": quantized_training.check_training,
    "steps": quantized_training.check_steps,
}


@pytest.mark.parametrize("part", PARTS)
def test_equal_numbers_are_accepted(recorded: Any, part: str) -> None:
    scopes = recorded[1].values["quant_scopes"]
    assert f"{HEAD}_1/BoxPredictor/act_quant" in scopes
    assert f"{HEAD}_1/BoxPredictor/weights_quant" not in scopes
    assert _checked(recorded, PARTS[part]).startswith("ok")


WRONG: Dict[str, Any] = {
    "prediction": ("inference", lambda record: record.arrays["eval_fixed__box_encodings"]),
    "gradient": ("training", lambda record: record.values["train"]["before_delay"]["grad_norms"]),
    "norm": ("steps", lambda record: record.values["train"]["trace_own"]["weight_norms_after"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_numbers_are_refused(recorded: Any, name: str) -> None:
    case, record = recorded
    part, place = WRONG[name]
    altered = copy.deepcopy(record)
    numbers = place(altered)
    numbers[0] = 3 * numbers[0]
    assert not _checked((case, altered), PARTS[part]).startswith("ok")


def test_other_scopes_are_named(recorded: Any) -> None:
    case, record = recorded
    altered = copy.deepcopy(record)
    altered.values["quant_scopes"][0] = "Another/weights_quant"
    for part in PARTS.values():
        assert "Another/weights_quant" in _checked((case, altered), part)
