"""Compares losses, checkpoints and SavedModels of two environments."""

from __future__ import annotations

import json
import pathlib
import shutil
from typing import Any, Dict, List, NamedTuple, Tuple

import numpy as np

from benchmarks.versions import environment
from benchmarks.versions.environment import Environment, Task

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

# The demo with plain momentum: RMSProp turns the rounding of small gradients into whole steps.
_CHANGES = """
train_config { optimizer { momentum_optimizer {
  learning_rate { constant_learning_rate { learning_rate: 0.001 } }
  momentum_optimizer_value: 0.9
} } }
"""
_FROZEN = "model.ssd.freeze_batchnorm=true"
_LEARNING = "model.ssd.freeze_batchnorm=false"


class Difference(NamedTuple):
    """The largest relative difference of one comparison."""

    what: str
    value: float
    limit: float

    def line(self) -> str:
        verdict = "ok" if self.value <= self.limit else "DIFFERS"
        return f"{self.what}: {self.value:.1e} (limit {self.limit:.0e}) {verdict}"


def report(folder: pathlib.Path, pythons: List[str], steps: int) -> Tuple[List[str], bool]:
    """Lines to print, and True if all differences are within their limits.

    The folder gets data, model folders and exports. The environments exchange checkpoints after
    `steps` training steps.
    """
    both = environment.find_two(pythons)
    pairs = (both, both[::-1])
    folder.mkdir(parents=True, exist_ok=True)
    environment.run_tasks([(both[0], [["make", str(folder), _CHANGES]])])
    environment.log(f"both train {steps} steps, batch norm frozen and learning, and export")
    environment.run_tasks([(env, _first_tasks(env, folder, steps)) for env in both])
    for env, partner in pairs:
        shutil.copytree(_model_dir(folder, env), _resumed(folder, env, env))
        shutil.copytree(_model_dir(folder, partner), _resumed(folder, env, partner))
    environment.log("both resume from and serve their own and the other's")
    environment.run_tasks([(env, _second_tasks(env, both, folder, steps)) for env in both])

    differences = []
    for kind, limit in (("frozen", LOSS_LIMIT), ("learning", LEARNING_LOSS_LIMIT)):
        what = f"loss over {steps} steps, batch norm {kind}"
        first, second = (_model_dir(folder, env, kind) for env in both)
        differences.append(_compare_losses(what, first, second, limit))
    what = "the first two losses of these"
    differences.append(_compare_losses(what, first, second, FIRST_LOSSES_LIMIT, until=2))
    for env, partner in pairs:
        what = f"loss of {STEPS_AFTER} steps, checkpoint of {partner.name} resumed on {env.name}"
        folders = _resumed(folder, partner, partner), _resumed(folder, env, partner)
        differences.append(_compare_losses(what, *folders, LOSS_LIMIT, after=steps))
    differences += [_compare_served(folder, env, partner) for env, partner in pairs]
    return [f"{both[0].name} and {both[1].name}"] + [each.line() for each in differences], all(
        each.value <= each.limit for each in differences
    )


def _model_dir(folder: pathlib.Path, env: Environment, kind: str = "learning") -> pathlib.Path:
    return folder / f"{env.folder}_{kind}"


def _resumed(folder: pathlib.Path, env: Environment, source: Environment) -> pathlib.Path:
    return folder / f"{env.folder}_after_{source.folder}"


def _exported(folder: pathlib.Path, env: Environment) -> pathlib.Path:
    return folder / f"{env.folder}_exported"


def _served(folder: pathlib.Path, env: Environment, source: Environment) -> pathlib.Path:
    return folder / f"{env.folder}_ran_{source.folder}.npz"


def _first_tasks(env: Environment, folder: pathlib.Path, steps: int) -> List[Task]:
    """Trains, evaluates what learned, and exports it."""
    export = ["command", "export", "--output_directory", str(_exported(folder, env))]
    export += ["--pipeline_config_path", str(folder / "pipeline.config")]
    export += ["--trained_checkpoint_prefix", str(_model_dir(folder, env))]
    return [
        _training(folder, _model_dir(folder, env, "frozen"), steps, _FROZEN),
        [
            *("command", "train", "--seed", SEED, "--progress_steps", "1", "--set", _LEARNING),
            *("--pipeline_config_path", str(folder / "pipeline.config")),
            *("--model_dir", str(_model_dir(folder, env)), "--num_train_steps", str(steps)),
        ],
        export,
    ]


def _second_tasks(
    env: Environment, both: Tuple[Environment, Environment], folder: pathlib.Path, steps: int
) -> List[Task]:
    """Resumes from both checkpoints, with their averages of batch norm, and runs both exports."""
    tasks = []
    for source in both:
        resumed, model = _resumed(folder, env, source), _exported(folder, source) / "saved_model"
        tasks.append(_training(folder, resumed, steps + STEPS_AFTER, _FROZEN))
        tasks.append(["predict", str(model), str(_served(folder, env, source))])
    return tasks


def _training(folder: pathlib.Path, model_dir: pathlib.Path, steps: int, setting: str) -> Task:
    return ["train", str(folder / "pipeline.config"), str(model_dir), str(steps), SEED, setting]


def losses(model_dir: pathlib.Path) -> Dict[int, float]:
    """Total loss of each step, from the progress file."""
    lines = (model_dir / "progress.jsonl").read_text(encoding="utf-8").splitlines()
    entries = map(json.loads, lines)
    return {entry["step"]: entry[TOTAL_LOSS] for entry in entries if TOTAL_LOSS in entry}


def _compare_losses(
    what: str,
    model_dir: pathlib.Path,
    other_dir: pathlib.Path,
    limit: float,
    after: int = 0,
    until: int = 10**9,
) -> Difference:
    first, second = losses(model_dir), losses(other_dir)
    steps = [step for step in first if after < step <= until]
    if not steps or set(first) != set(second):
        raise ValueError(
            f"{model_dir} and {other_dir} trained different steps: {list(first)}, {list(second)}"
        )
    worst = max(relative(second[step], first[step]) for step in steps)
    return Difference(what, worst, limit)


def _compare_served(folder: pathlib.Path, env: Environment, source: Environment) -> Difference:
    """Compares what both environments get from a SavedModel."""
    results, expected = (np.load(_served(folder, user, source)) for user in (env, source))
    # Before suppression: after it, equal scores may come in another order.
    worst = max(relative(results[name], expected[name]) for name in COMPARED)
    return Difference(f"SavedModel of {source.name} run on {env.name}", worst, PREDICTION_LIMIT)


def relative(value: Any, expected: Any) -> float:
    """Largest difference over the largest expected magnitude; not finite counts as infinite."""
    values, wanted = np.asarray(value, float), np.asarray(expected, float)
    scale = max(float(np.max(np.abs(wanted))), 1e-12)
    difference = float(np.max(np.abs(values - wanted))) / scale
    return difference if np.isfinite(difference) else float("inf")
