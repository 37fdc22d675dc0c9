"""Runs a step again from the folder that a bad step left: its batch, its variables.

Such a folder holds batch.npz (features/… and labels/… as they entered the network), model.ckpt
(all variables as they were before the step) and pipeline.config.
"""

from __future__ import annotations

import copy
import io
import math
import os
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from estimator_det import files
from estimator_det.compat import estimator, tf, tf1
from estimator_det.console.printing import listed
from estimator_det.errors import RunError
from estimator_det.protos import pipeline_pb2
from model_fn.debugging.nan_tracer import FirstNonFinite, find_first
from model_fn.events import GRADIENT_NORM
from model_fn.model_fn import create_model_fn
from model_fn.training.step import TOTAL_LOSS

BATCH_FILE = "batch.npz"
CHECKPOINT = "model.ckpt"
_MOST_GRADIENTS = 12  # in a text

Norms = List[Tuple[str, float]]


class ReplayedStep(NamedTuple):
    """Results of a step that was run again."""

    step: int  # counted as in training
    values: Dict[str, float]  # loss terms, learning rate, gradient_norm; checks that failed
    gradient_norms: Norms  # by variable: first non-finite norms, then by size
    first_non_finite: Optional[FirstNonFinite]

    @property
    def is_finite(self) -> bool:
        return all(math.isfinite(value) for value in self.values.values())


class Replay(NamedTuple):
    """Result of a replay."""

    steps: List[ReplayedStep]  # up to the first that is not finite
    restored: int  # variables read from the checkpoint
    fresh: List[str]  # variables that it lacks, or has in another shape

    @property
    def is_finite(self) -> bool:
        return all(step.is_finite for step in self.steps)


def load_batch(folder: str) -> Dict[str, np.ndarray]:
    """The batch of a bad step; keys are features/… and labels/…."""
    path = os.path.join(folder, BATCH_FILE)
    if not files.exists(path):
        raise FileNotFoundError(
            f"{folder}: there is no {BATCH_FILE}; give the folder bad_step-<number> that a "
            "training left in its model_dir"
        )
    with np.load(io.BytesIO(files.read_bytes(path)), allow_pickle=False) as arrays:
        batch = {key: arrays[key] for key in arrays.files}
    if not batch:
        raise RunError(
            f"{path} is empty: this step cannot be repeated. Run the training again; a step that "
            "is not finite is saved with its batch"
        )
    return batch


def replay(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig, folder: str, num_steps: int = 1
) -> Replay:
    """Runs the step of a folder again, on one batch, and stops where it is not finite.

    A graph of its own is built from the configuration, whose options may differ from the training;
    its fine-tuning checkpoint is ignored. Random operations, such as dropout, draw other
    numbers.
    """
    batch = load_batch(folder)
    config = copy.deepcopy(pipeline_config)
    config.train_config.ClearField("fine_tune_checkpoint")
    with tf.Graph().as_default():
        step_tensor = tf1.train.get_or_create_global_step()
        placeholders = {key: _placeholder(key, array) for key, array in batch.items()}
        features, labels = _part(placeholders, "features/"), _part(placeholders, "labels/")
        model_fn = create_model_fn(config)
        model_fn(features, labels, estimator.ModeKeys.TRAIN, {})
        assert model_fn.built is not None
        scalars, applied = model_fn.built.step.scalars, model_fn.built.step.applied
        checks, gradients, written = applied.checks, applied.gradients, applied.written
        norms = {name: tf.norm(gradient) for name, gradient in gradients.items()}
        feeds = {placeholders[key]: array for key, array in batch.items()}
        targets = [*scalars.values(), *gradients.values(), *written, *checks.values()]
        prefix = os.path.join(folder, CHECKPOINT)
        saved = dict(tf1.train.list_variables(prefix))
        variables = {variable.op.name: variable for variable in tf1.global_variables()}
        fitting = {
            name: variable
            for name, variable in variables.items()
            if saved.get(name) == variable.shape.as_list()
        }
        saver = tf1.train.Saver(fitting)
        # A few runs do not earn the time that optimizing a graph takes.
        options = tf1.ConfigProto()
        options.graph_options.rewrite_options.disable_meta_optimizer = True
        with tf1.Session(config=options) as session:
            session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
            session.run(tf1.tables_initializer())
            saver.restore(session, prefix)
            steps: List[ReplayedStep] = []
            while len(steps) < num_steps and all(step.is_finite for step in steps):
                if steps:
                    session.run(applied.op, feeds)
                number = int(session.run(step_tensor)) + 1
                fetched = session.run({"values": scalars, "norms": norms, "checks": checks}, feeds)
                values = {name: float(value) for name, value in fetched["values"].items()}
                for name, value in fetched["checks"].items():
                    if not math.isfinite(value):
                        values[name] = float(value)
                step = ReplayedStep(number, values, _by_size(fetched["norms"]), None)
                if not step.is_finite:
                    step = step._replace(first_non_finite=find_first(session, targets, feeds))
                steps.append(step)
    return Replay(steps, len(fitting), sorted(variables.keys() - fitting))


def _placeholder(key: str, array: np.ndarray) -> tf.Tensor:
    dtype = tf.string if array.dtype.kind in "SU" else tf.as_dtype(array.dtype)
    return tf1.placeholder(dtype, array.shape, name=f"batch/{key}")


def _part(tensors: Dict[str, tf.Tensor], prefix: str) -> Dict[str, tf.Tensor]:
    return {key[len(prefix) :]: tensor for key, tensor in tensors.items() if key.startswith(prefix)}


def _by_size(norms: Dict[str, Any]) -> Norms:
    named = [(name, float(norm)) for name, norm in norms.items()]
    return sorted(named, key=lambda pair: -pair[1] if math.isfinite(pair[1]) else -math.inf)


def replay_text(result: Replay) -> str:
    """The result in lines for people."""
    lines = [f"{result.restored} variables as they were before the step"]
    if result.fresh:
        names = listed(result.fresh, 3)
        lines.append(f"{len(result.fresh)} variables start from their initializers: {names}")
    for step in result.steps:
        lines.append(f"step {step.step}")
        lines += [f"  {name:<32} {value:.6g}" for name, value in step.values.items()]
    last = result.steps[-1]
    shown_norms = last.gradient_norms[:_MOST_GRADIENTS]
    lines.append(
        f"gradient norms of step {last.step}, {len(shown_norms)} of {len(last.gradient_norms)}:"
    )
    lines += [f"  {norm:<12.6g} {name}" for name, norm in shown_norms]
    if last.first_non_finite:
        lines.append(f"first tensor that is not finite: {last.first_non_finite.sentence()}")
    elif not last.is_finite:
        lines.append("the tensor that went bad first was finite when run once more")
    lines.append(
        f"all finite in {len(result.steps)} step(s)"
        if result.is_finite
        else f"not finite at step {last.step}: {', '.join(bad_names(last.values))}"
    )
    return "\n".join(lines)


def bad_names(values: Dict[str, float]) -> List[str]:
    """Names of values that are not finite, the parts of a sum before the sum."""
    bad = [name for name, value in values.items() if not math.isfinite(value)]
    return sorted(bad, key=lambda name: name in (TOTAL_LOSS, GRADIENT_NORM))
