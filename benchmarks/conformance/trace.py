"""Optimizer steps of the real model_fn, compared with those recorded.

Batch norm over two images divides by very small numbers where a map has one or four cells, so that
a step can multiply rounding a hundredfold. To measure how much, the same steps are taken again from
weights moved by one unit in the last place. From the step on whose loss this moves by more than
half the published tolerance, the tolerance of losses and moving statistics is `LOOSE` times as
large, or twice that movement; the tolerance of weights never changes.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Set

import numpy as np

from benchmarks.conformance import goldens
from benchmarks.conformance.case import Case, load, moved, one_hot_classes
from benchmarks.conformance.compare import Check
from estimator_det.compat import estimator, tf, tf1
from estimator_det.detectors import make_detector
from inputs import schema
from model_fn.model_fn import create_model_fn

LOSSES = 1e-3
MINED_LOSSES = 1e-2
NORMS = 1e-3
SMALL_MAP_NORMS = 1e-2  # moving statistics of 1x1 and 2x2 maps
REPEATS = 3
LOOSE = 10


class Steps(NamedTuple):
    """Result of a run of optimizer steps."""

    losses: np.ndarray  # [steps]
    norms: Dict[str, float]  # of every variable of the model
    step: int


def check_trace(case: Case, cells: Dict[str, Check]) -> None:
    """Losses, slots, weights and moving statistics over the recorded number of steps."""
    recorded = case.golden.trace
    if not recorded:
        return
    assert case.golden.graph is not None, "a train trace needs the record of its variables"
    check = cells["train trace"]
    config = case.overridden(recorded["overrides"])
    config.train_config.fine_tune_checkpoint = ""
    config.train_input_reader.label_map_path = ""
    config.ClearField("graph_rewriter")
    value = goldens.seeded_value(case.golden_dir, "det_value")
    with tf.Graph().as_default() as graph:
        tf1.train.get_or_create_global_step()
        features, labels = padded_batch(case, config)
        spec = create_model_fn(config)(features, labels, estimator.ModeKeys.TRAIN, {})
        model = [v for v in tf1.global_variables() if v.op.name in case.golden.graph["variables"]]
        slots = {v.op.name for v in tf1.global_variables()} - {v.op.name for v in model}
        small_maps = _norms_of_small_maps(graph)
        norms = {v.op.name: tf.norm(v) for v in model}
        with tf1.Session() as session:
            runs = []
            for repeat in range(1 + REPEATS):
                session.run(tf1.global_variables_initializer())
                load(session, model, moved(value, repeat) if repeat else value)
                runs.append(_take_steps(session, spec, norms, recorded["steps"]))
    ours, others = runs[0], runs[1:]
    check.equal(ours.step, recorded["global_step_after"], "global step")
    check.equal(len(slots - {"global_step"}), recorded["num_slots"], "optimizer slots")
    missing = sorted(set(recorded["slot_names_sample"]) - slots)
    check.equal(missing, [], "missing slots")
    published = MINED_LOSSES if case.is_mined else LOSSES
    factor = 1.0
    for index, loss in enumerate(recorded["total_loss_per_step"]):
        other_losses = np.array([run.losses[index] for run in others])
        spread = np.max(np.abs(other_losses / ours.losses[index] - 1))
        if spread > published / 2:
            factor = max(factor, LOOSE, 2 * spread / published)
        check.close(ours.losses[index], loss, factor * published, f"loss {index}")
    check.scalars(ours.norms, recorded["weight_norms_after"], NORMS)
    for name, norm in recorded["bn_norms_after"].items():
        published = SMALL_MAP_NORMS if name.rsplit("/", 1)[0] in small_maps else NORMS
        check.scalars(ours.norms, {name: norm}, factor * published)


def _take_steps(session: Any, spec: Any, norms: Dict[str, Any], steps: int) -> Steps:
    losses = [session.run([spec.loss, spec.train_op])[0] for _ in range(steps)]
    found, step = session.run([norms, tf1.train.get_global_step()])
    return Steps(np.array(losses), {name: float(norm) for name, norm in found.items()}, int(step))


def _norms_of_small_maps(graph: tf.Graph) -> Set[str]:
    """Scopes of the batch norms whose input is at most two pixels a side."""
    norms = [op for op in graph.get_operations() if op.type == "FusedBatchNormV3"]
    return {op.name.rsplit("/", 1)[0] for op in norms if max(op.outputs[0].shape[1:3]) <= 2}


def padded_batch(case: Case, config: Any) -> Any:
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
