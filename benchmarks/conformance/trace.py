"""Optimizer steps of the real model_fn, compared with those recorded.

Weights move by less than 1e-3 of their norm in twelve steps, so norms alone would hide a wrong
optimizer. What is compared is the change of each norm since the start, where float32 resolves it.
"""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, Iterator, NamedTuple, Sequence, Set

import numpy as np

from benchmarks.conformance import goldens, repeats
from benchmarks.conformance.case import Case, load, one_hot_classes
from benchmarks.conformance.compare import Check
from estimator_det.compat import estimator, tf, tf1
from estimator_det.detectors import make_detector
from inputs import schema
from model_fn.model_fn import create_model_fn

NORMS = 1e-3
CHANGES = 2e-2  # tolerance of changes of norms
LEAST_CHANGE = 2e-5  # share of a norm; float32 resolves 1/300 of it

Norms = Dict[str, float]  # by variable of the model


class Steps(NamedTuple):
    """Result of a run of optimizer steps."""

    losses: np.ndarray  # [steps]
    start: Norms
    end: Norms
    step: int
    slots: Set[str]  # and the global step

    @property
    def changes(self) -> Norms:
        return {name: norm - self.start[name] for name, norm in self.end.items()}


def check_trace(case: Case, cells: Dict[str, Check]) -> None:
    """Losses, slots, weights and moving statistics over the recorded number of steps."""
    if not case.golden.trace:
        return
    value = goldens.seeded_value(case.golden_dir, "det_value")
    with optimizer_steps(case) as run:
        cells.update(
            repeats.compare_repeated(
                ("train trace",),
                run,
                value,
                lambda checks, runs: _compare(checks["train trace"], runs, case),
            )
        )


@contextlib.contextmanager
def optimizer_steps(case: Case) -> Iterator[Callable[[goldens.SeededValue], Steps]]:
    """Context manager: a function that takes the recorded number of steps from given weights."""
    recorded = case.golden.trace
    assert recorded is not None
    assert case.golden.graph is not None, "a train trace needs the record of its variables"
    config = case.overridden(recorded["overrides"])
    config.ClearField("graph_rewriter")
    with tf.Graph().as_default():
        spec = training_spec(case, config)
        variables = {v.op.name: v for v in tf1.global_variables()}
        model = [v for name, v in variables.items() if name in case.golden.graph["variables"]]
        norms = {v.op.name: tf.norm(v) for v in model}
        slots = {*variables} - {*norms}
        initializer = tf1.global_variables_initializer()
        with tf1.Session() as session:

            def run(value: goldens.SeededValue) -> Steps:
                session.run(initializer)
                load(session, model, value)
                start = session.run(norms)
                losses = [
                    session.run([spec.loss, spec.train_op])[0] for _ in range(recorded["steps"])
                ]
                end, step = session.run([norms, tf1.train.get_global_step()])
                return Steps(np.array(losses), start, end, int(step), slots)

            yield run


def _compare(check: Check, runs: Sequence[Steps], case: Case) -> None:
    recorded, ours = case.golden.trace, runs[0]
    assert recorded is not None
    check.equal(ours.step, recorded["global_step_after"], "global step")
    check.equal(len(ours.slots - {"global_step"}), recorded["num_slots"], "optimizer slots")
    missing = sorted(set(recorded["slot_names_sample"]) - ours.slots)
    check.equal(missing, [], "missing slots")
    published = case.loss_tolerance
    first, *rest = recorded["total_loss_per_step"]
    check.close(ours.losses[0], first, published, "loss 0")
    # One number, because the losses of a run depend on each other.
    repeats.compare_runs(
        check, [{"steps": run.losses[1:]} for run in runs], {"steps": rest}, published, "losses"
    )
    changes = {}
    for name, norm in {**recorded["weight_norms_after"], **recorded["bn_norms_after"]}.items():
        start = ours.start.get(name, norm)
        if abs(norm - start) > LEAST_CHANGE * start:
            changes[name] = norm - start
        else:
            check.scalars(ours.end, {name: norm}, NORMS)
    repeats.compare_runs(check, [run.changes for run in runs], changes, CHANGES, "change")


def training_spec(case: Case, config: Any) -> Any:
    """EstimatorSpec of the real model_fn on the fixed batch, without files that `config` names."""
    config.train_config.fine_tune_checkpoint = ""
    config.train_input_reader.label_map_path = ""
    tf1.train.get_or_create_global_step()
    features, labels = _padded_batch(case, config)
    return create_model_fn(config)(features, labels, estimator.ModeKeys.TRAIN, {})


def _padded_batch(case: Case, config: Any) -> Any:
    """The fixed batch as an input_fn returns it, padded to five boxes."""
    padding = 2
    detector = make_detector(config.model, is_training=True)
    images = tf.constant(goldens.images_300(case.golden_dir).astype(np.float32))
    inputs, true_shapes = detector.preprocess(images)
    classes = np.pad(one_hot_classes(case.model.num_classes), ((0, 0), (0, padding), (0, 0)))
    batch, count = goldens.BOXES.shape[:2]
    features = {
        schema.IMAGE: inputs,
        schema.TRUE_IMAGE_SHAPE: true_shapes,
        schema.HASH: tf.zeros([batch], tf.int32),
    }
    labels = {
        schema.NUM_BOXES: tf.fill([batch], count),
        schema.BOXES: tf.constant(np.pad(goldens.BOXES, ((0, 0), (0, padding), (0, 0)))),
        schema.CLASSES: tf.constant(classes),
        schema.CONFIDENCES: tf.constant(classes),
        schema.WEIGHTS: tf.constant(np.pad(np.ones((batch, count), np.float32), ((0, 0), (0, 2)))),
    }
    return features, labels
