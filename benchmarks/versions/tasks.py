"""Tasks of an interpreter in a comparison: `python -m benchmarks.versions.tasks JSON`.

JSON is a list of tasks, each a list of a function's name and its arguments. One process runs
several, because importing TensorFlow takes longer than most of them.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Callable, Dict

import numpy as np

from estimator_det.compat import tf
from estimator_det.config import pipeline
from estimator_det.programs import cli, demo
from inputs.datasets import shapes
from model_fn.runs import runner


def make(folder: str, changes: str) -> None:
    """Writes a small dataset, and the demo's `pipeline.config` with `changes` merged in."""
    files = shapes.make_dataset(str(pathlib.Path(folder) / "data"), seed=0, size="tiny")
    pipeline.save_pipeline(pipeline.merge_text(demo.demo_config(files), changes), folder)


def command(*arguments: str) -> None:
    """Runs `estimator-det` with these arguments; exits with its code if that is not 0."""
    code = cli.main(list(arguments))
    if code:
        sys.exit(code)


def train(config_file: str, model_dir: str, num_steps: str, seed: str, assignment: str) -> None:
    """Trains, without any evaluation."""
    config = pipeline.apply_overrides(pipeline.read_pipeline(config_file), [assignment])
    runner.train(
        config, model_dir, num_train_steps=int(num_steps), seed=int(seed), progress_steps=1
    )


def predict(model: str, target: str) -> None:
    """Writes what a SavedModel returns for two images of noise to an .npz file."""
    pixels = np.random.RandomState(0).randint(0, 255, [2, 160, 160, 3], np.uint8)
    outputs = tf.saved_model.load(model).signatures["serving_default"](tf.constant(pixels))
    np.savez(target, **{name: value.numpy() for name, value in outputs.items()})


TASKS: Dict[str, Callable[..., None]] = {
    "make": make,
    "command": command,
    "train": train,
    "predict": predict,
}

if __name__ == "__main__":
    for name, *arguments in json.loads(sys.argv[1]):
        TASKS[name](*arguments)
