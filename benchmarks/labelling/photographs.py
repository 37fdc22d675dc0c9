"""Labels suggested photographs or random ones, and compares the detectors that learn from them.

Each training starts from the weights of --pretrained, with the configuration that `init` writes.
"""

from __future__ import annotations

import os
import pathlib
import shutil
from typing import NamedTuple, Sequence

import numpy as np

from benchmarks.labelling import drawn, suggestions
from estimator_det.config import pipeline
from estimator_det.programs import cli
from estimator_det.protos import pipeline_pb2

LABELLED, EVALUATED, STEPS = 40, 40, 150


class Data(NamedTuple):
    """Labelled photographs, and the weights to start from."""

    images: str
    annotations: str
    pretrained: str


def main(folder: str, seeds: int, data: Data) -> None:
    """Prints the mAP with the first photographs, and with suggested and random ones added."""
    contents = {path.read_bytes(): path for path in sorted(pathlib.Path(data.images).iterdir())}
    photographs = list(contents.values())  # without copies, which no two parts may share
    order = np.random.default_rng(0).permutation(len(photographs))
    evaluated = [photographs[row] for row in order[:EVALUATED]]
    for seed in range(1, seeds + 1):
        rows = np.random.default_rng(seed).permutation(order[EVALUATED:])
        first = [photographs[row] for row in rows[:LABELLED]]
        pool = [photographs[row] for row in rows[LABELLED:]]
        place = os.path.join(folder, f"photographs_{seed}")
        pictures = os.path.join(place, "pool")
        os.makedirs(pictures)
        for path in pool:
            shutil.copy(path, pictures)
        _convert(f"{place}/first", first, evaluated, data)
        weights = ["--pretrained", data.pretrained, "--num_train_steps", str(STEPS)]
        _run("init", "--records", f"{place}/first/records", *weights, "--output_dir", place)
        config = pipeline.read_pipeline(f"{place}/pipeline.config")
        config.eval_config.eval_interval_steps = STEPS
        chosen = suggestions.suggest(place, _fit(config, f"{place}/first", seed), pictures)
        suggested = [path for path in pool if path.name in chosen]
        others = {"suggested": suggested, "random": pool[: suggestions.ADDED]}
        for name, added in others.items():
            _convert(f"{place}/{name}", [*first, *added], evaluated, data)
            _fit(config, f"{place}/{name}", seed)


def _run(*command: str) -> None:
    if cli.main(list(command)):
        raise SystemExit(f"{command} failed")


def _convert(
    folder: str, labelled: Sequence[pathlib.Path], evaluated: Sequence[pathlib.Path], data: Data
) -> None:
    """Writes FOLDER/records."""
    os.makedirs(folder)
    lists = {"train": labelled, "val": evaluated}
    for name, paths in lists.items():
        names = "\n".join(path.name for path in paths)
        pathlib.Path(folder, f"{name}.txt").write_text(names, encoding="utf-8")
    split = ",".join(f"{name}={folder}/{name}.txt" for name in lists)
    source = ["--images", data.images, "--annotations", data.annotations, "--split", split]
    target = ["--to", "tfrecord", "--output_dir", f"{folder}/records"]
    _run("convert", "--from", "pascal_voc", *source, *target)


def _fit(config: pipeline_pb2.TrainEvalPipelineConfig, folder: str, seed: int) -> str:
    """Trains on FOLDER/records, prints the metrics, and returns the folder of the run."""
    path, run = f"{folder}/records/train.record*", f"{folder}/run"
    metrics = drawn.fit(pipeline.override(config, train_input_path=path), run, seed)
    values = ", ".join(f"{metrics[key]:.3f}" for key in (drawn.METRIC, f"{drawn.METRIC}@.50IOU"))
    print(f"{folder}: mAP and mAP@.50 {values}", flush=True)
    return run
