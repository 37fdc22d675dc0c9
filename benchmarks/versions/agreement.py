"""Losses, checkpoints and SavedModels of two environments against each other."""

from __future__ import annotations

import json
import pathlib
import shutil
from typing import Any, Dict, List, NamedTuple, Tuple

import numpy as np

from benchmarks.versions import environment
from benchmarks.versions.environment import Environment

# Relative. With batch norm frozen, losses stay together for hundreds of steps. While it learns from
# small batches, a difference in the last digit grows a hundredfold within five steps.
LOSS_LIMIT = 1e-5
FIRST_LOSSES_LIMIT = 1e-4
LEARNING_LOSS_LIMIT = 0.2
PREDICTION_LIMIT = 1e-5
STEPS_AFTER = 5
TOTAL_LOSS = "Loss/total_loss"
COMPARED = ("raw_detection_boxes", "raw_detection_scores", "detection_scores", "num_detections")
SEED = "1"

# Of the demo: plain momentum, for RMSProp turns the rounding of small gradients into whole steps.
_CHANGES = """
train_config { optimizer { momentum_optimizer {
  learning_rate { constant_learning_rate { learning_rate: 0.001 } }
  momentum_optimizer_value: 0.9
} } }
"""
_FROZEN = "model.ssd.freeze_batchnorm=true"
_LEARNING = "model.ssd.freeze_batchnorm=false"

_MAKE = """
import pathlib, sys
from estimator_det import demo
from estimator_det.config import pipeline
from inputs.datasets import shapes
folder = pathlib.Path(sys.argv[1])
config = demo.demo_config(shapes.make_dataset(str(folder / "data"), 0, "tiny"))
config = pipeline.merge_text(config, sys.argv[2])
pipeline.save_pipeline(config, str(folder))
"""

_PREDICT = """
import sys
import numpy as np
from estimator_det.compat import tf
model, target = sys.argv[1:]
pixels = np.random.RandomState(0).randint(0, 255, [2, 160, 160, 3], np.uint8)
found = tf.saved_model.load(model).signatures["serving_default"](tf.constant(pixels))
np.savez(target, **{name: value.numpy() for name, value in found.items()})
"""


class Difference(NamedTuple):
    """The largest relative difference of one comparison."""

    what: str
    value: float
    limit: float

    def line(self) -> str:
        """For the report."""
        verdict = "ok" if self.value <= self.limit else "DIFFERS"
        return f"{self.what}: {self.value:.1e} (limit {self.limit:.0e}) {verdict}"


def report(folder: pathlib.Path, pythons: List[str], steps: int) -> Tuple[List[str], bool]:
    """Lines to print, and whether all differences are within their limits.

    Args:
        folder: Gets data, model folders and exports.
        pythons: Two interpreters.
        steps: To train before checkpoints change hands.
    """
    both = environment.find_two(pythons)
    folder.mkdir(parents=True, exist_ok=True)
    environment.run(both[0].python, "-c", _MAKE, str(folder), _CHANGES)
    found = []
    for setting, kind, limit in (
        (_FROZEN, "frozen", LOSS_LIMIT),
        (_LEARNING, "learning", LEARNING_LOSS_LIMIT),
    ):
        for env in both:
            environment.say(f"{env.name}: {steps} steps, batch norm {kind}")
            _train(env, folder, _model_dir(folder, env, kind), steps, setting)
        what = f"loss over {steps} steps, batch norm {kind}"
        first, second = (_model_dir(folder, env, kind) for env in both)
        found.append(_compare_losses(what, first, second, limit))
    what = "the first two losses of these"
    found.append(_compare_losses(what, first, second, FIRST_LOSSES_LIMIT, until=2))
    for env, other in (both, both[::-1]):
        environment.say(f"{env.name}: going on with the checkpoint of {other.name}")
        found.append(_resume(folder, env, other, steps))
    for env in both:
        environment.say(f"{env.name}: export")
        _export(env, folder)
    for env, other in (both, both[::-1]):
        environment.say(f"{env.name}: running the SavedModel of {other.name}")
        found.append(_serve(folder, env, other))
    return [f"{both[0].name} and {both[1].name}"] + [one.line() for one in found], all(
        one.value <= one.limit for one in found
    )


def _model_dir(folder: pathlib.Path, env: Environment, kind: str = "learning") -> pathlib.Path:
    return folder / f"{env.folder}_{kind}"


def _train(
    env: Environment, folder: pathlib.Path, model_dir: pathlib.Path, steps: int, setting: str
) -> None:
    environment.run(
        env.python,
        *("-m", "estimator_det.cli", "train", "--seed", SEED, "--progress_steps", "1"),
        *("--pipeline_config_path", str(folder / "pipeline.config")),
        *("--model_dir", str(model_dir), "--num_train_steps", str(steps), "--set", setting),
    )


def losses(model_dir: pathlib.Path) -> Dict[int, float]:
    """Total loss of each step, from the progress file."""
    lines = (model_dir / "progress.jsonl").read_text(encoding="utf-8").splitlines()
    return {entry["step"]: entry[TOTAL_LOSS] for entry in map(json.loads, lines)}


def _compare_losses(
    what: str,
    one: pathlib.Path,
    other: pathlib.Path,
    limit: float,
    after: int = 0,
    until: int = 10**9,
) -> Difference:
    first, second = losses(one), losses(other)
    steps = [step for step in first if after < step <= until]
    if not steps or set(first) != set(second):
        raise ValueError(f"{one} and {other} trained other steps: {list(first)}, {list(second)}")
    worst = max(relative(second[step], first[step]) for step in steps)
    return Difference(what, worst, limit)


def _resume(folder: pathlib.Path, env: Environment, other: Environment, steps: int) -> Difference:
    """Both go on from the other's checkpoint, with the averages of its batch norm."""
    taken = folder / f"{env.folder}_after_{other.folder}"
    kept = folder / f"{other.folder}_after_itself"
    for target, by in ((taken, env), (kept, other)):
        shutil.copytree(_model_dir(folder, other), target)
        _train(by, folder, target, steps + STEPS_AFTER, _FROZEN)
    what = f"loss of {STEPS_AFTER} steps, checkpoint of {other.name} resumed on {env.name}"
    return _compare_losses(what, kept, taken, LOSS_LIMIT, after=steps)


def _exported(env: Environment, folder: pathlib.Path) -> pathlib.Path:
    return folder / f"{env.folder}_exported"


def _export(env: Environment, folder: pathlib.Path) -> None:
    environment.run(
        env.python,
        *("-m", "estimator_det.cli", "export", "--output_directory", str(_exported(env, folder))),
        *("--pipeline_config_path", str(folder / "pipeline.config")),
        *("--trained_checkpoint_prefix", str(_model_dir(folder, env))),
    )


def _serve(folder: pathlib.Path, env: Environment, other: Environment) -> Difference:
    """The other's SavedModel, run by both."""
    model = str(_exported(other, folder) / "saved_model")
    outputs = []
    for by in (env, other):
        target = folder / f"{by.folder}_ran_{other.folder}.npz"
        environment.run(by.python, "-c", _PREDICT, model, str(target))
        outputs.append(np.load(target))
    # Before suppression: after it, equal scores may come in another order.
    worst = max(relative(outputs[0][name], outputs[1][name]) for name in COMPARED)
    return Difference(f"SavedModel of {other.name} run on {env.name}", worst, PREDICTION_LIMIT)


def relative(value: Any, expected: Any) -> float:
    """Largest difference over the largest expected magnitude; not finite counts as infinite."""
    values, wanted = np.asarray(value, float), np.asarray(expected, float)
    scale = max(float(np.max(np.abs(wanted))), 1e-12)
    difference = float(np.max(np.abs(values - wanted))) / scale
    return difference if np.isfinite(difference) else float("inf")
