"""Optimizer steps of the real model_fn, compared with those recorded.

Weights move by less than 1e-3 of their norm in twelve steps, so norms alone would hide a wrong
optimizer. What is compared is the change of each norm since the start, where float32 resolves it.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence, Set, Tuple

import numpy as np

from benchmarks.conformance import goldens, repeats
from benchmarks.conformance.compare import Check
from benchmarks.conformance.goldens import Case, Names, load, one_hot_classes
from estimator_det.compat import estimator, tf, tf1
from estimator_det.detectors import make_detector
from estimator_det.protos import pipeline_pb2
from inputs import schema
from model_fn.model_fn import create_model_fn

NORMS = 1e-3
CHANGES = 2e-2  # tolerance of changes of norms
LEAST_CHANGE = 2e-5  # share of a norm; float32 resolves 1/300 of it


class Steps(NamedTuple):
    """Result of a run of optimizer steps."""

    losses: List[float]
    # By variable of the model, before the first step and after each: a scalar, or the norm.
    values: List[Dict[str, float]]
    step: int  # global step

    @property
    def changes(self) -> Dict[str, float]:
        return {name: value - self.values[0][name] for name, value in self.values[-1].items()}


def check_trace(case: Case, cells: Dict[str, Check]) -> None:
    """Losses, slots, weights and moving statistics over the recorded number of steps."""
    if not case.trace:
        return
    assert case.graph is not None, "a train trace needs the record of its variables"
    recorded, model_names = case.trace, set(case.graph["variables"])
    config = case.overridden(recorded["overrides"])
    config.ClearField("graph_rewriter")
    with optimizer_steps(case, config, model_names) as (names, take_steps):
        slots = names - model_names
        cells.update(
            repeats.compare_repeated(
                ("train trace",),
                functools.partial(take_steps, recorded["steps"]),
                case.seeded_value(),
                lambda checks, runs: _compare(checks["train trace"], runs, slots, case),
            )
        )


@contextlib.contextmanager
def optimizer_steps(
    case: Case, config: pipeline_pb2.TrainEvalPipelineConfig, model_names: Set[str]
) -> Iterator[Tuple[Set[str], Callable[[int, goldens.SeededValue], Steps]]]:
    """Context manager: names of all variables, and a function that trains from given weights.

    The function loads variables of the model only; optimizer slots keep their initial values.
    """
    with tf.Graph().as_default():
        # Golden configurations name files that do not exist.
        config.train_config.fine_tune_checkpoint = ""
        config.train_input_reader.label_map_path = ""
        tf1.train.get_or_create_global_step()
        features, labels = _padded_batch(case, config)
        spec = create_model_fn(config)(features, labels, estimator.ModeKeys.TRAIN, {})
        name_of = Names(make_detector(config.model, is_training=True))
        variables = {name_of(v): v for v in tf1.global_variables()}
        model = [v for name, v in variables.items() if name in model_names]
        values = {name_of(v): tf.norm(v) if v.shape.rank else v for v in model}
        initializer = tf1.global_variables_initializer()
        with tf1.Session() as session:

            def take_steps(num_steps: int, value: goldens.SeededValue) -> Steps:
                session.run(initializer)
                load(session, model, value, name_of)
                values_of_steps, losses = [session.run(values)], []
                for _ in range(num_steps):
                    losses.append(session.run([spec.loss, spec.train_op])[0])
                    values_of_steps.append(session.run(values))
                step = session.run(tf1.train.get_global_step())
                return Steps(losses, values_of_steps, int(step))

            yield {*variables}, take_steps


def _compare(check: Check, runs: Sequence[Steps], slots: Set[str], case: Case) -> None:
    recorded, ours = case.trace, runs[0]
    assert recorded is not None
    check.equal(ours.step, recorded["global_step_after"], "global step")
    check.equal(len(slots - {"global_step"}), recorded["num_slots"], "optimizer slots")
    missing = sorted(set(recorded["slot_names_sample"]) - slots)
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
        start = ours.values[0].get(name, norm)
        if abs(norm - start) > LEAST_CHANGE * start:
            changes[name] = norm - start
        else:
            check.close(ours.values[-1].get(name, np.nan), norm, NORMS, name)
    repeats.compare_runs(check, [run.changes for run in runs], changes, CHANGES, "change")


def _padded_batch(case: Case, config: pipeline_pb2.TrainEvalPipelineConfig) -> Any:
    """The fixed batch as an input_fn returns it, padded to five boxes."""
    padding = 2
    detector = make_detector(config.model, is_training=True)
    images = tf.constant(case.images().astype(np.float32))
    inputs, true_shapes = detector.preprocess(images)
    classes = np.pad(one_hot_classes(case.model), ((0, 0), (0, padding), (0, 0)))
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
    if goldens.has_keypoints(case.model):
        shape = ((0, 0), (0, padding), (0, 0), (0, 0))
        points = np.pad(goldens.keypoints(), shape, constant_values=np.nan)
        labels[schema.KEYPOINTS] = tf.constant(points)
        labels[schema.KEYPOINT_VISIBILITIES] = tf.constant(~np.isnan(points).any(axis=3))
    return features, labels
