"""Labels suggested pictures or random ones, and compares the detectors that learn from them.

All trainings start from the network, without the predictors, of the detector that `faults` trains.
"""

from __future__ import annotations

import csv
import os
from typing import List

import numpy as np
from PIL import Image

from benchmarks.labelling import drawn
from estimator_det.programs import cli
from inputs.datasets.shapes import EVAL_SEED_OFFSET
from model_fn.checkpoints.find import find_checkpoint

LABELLED, ADDED, POOL, EVALUATED = 40, 40, 400, 100  # numbers of pictures
STEPS = 120
FIRST_SEED_OFFSET, POOL_SEED_OFFSET = 700_001, 500_009


def suggest(folder: str, run: str, pictures: str) -> List[str]:
    """The file names that `estimator-det suggest` chooses of a folder of pictures."""
    exported, output = (os.path.join(folder, name) for name in ("exported", "suggestions"))
    look = [exported, "--images", pictures, "--number", str(ADDED), "--output_dir", output]
    for command in (["export", run, "--output_dir", exported], ["suggest", *look]):
        if cli.main(command):
            raise SystemExit(f"{command} failed")
    with open(os.path.join(output, "suggestions.csv"), encoding="utf-8") as table:
        return [os.path.basename(row["file"]) for row in csv.DictReader(table)]


def main(folder: str, seeds: int) -> None:
    """Prints the mAP with the first pictures, and with suggested and random ones added."""
    start = find_checkpoint(os.path.join(folder, "faults_1", "run"))
    for seed in range(1, seeds + 1):
        compare(os.path.join(folder, f"suggestions_{seed}"), seed, start)


def compare(folder: str, seed: int, start: str) -> None:
    """Trains on the first pictures, and on 40 more of both kinds."""
    evaluated = drawn.draw("eval", EVALUATED, seed + EVAL_SEED_OFFSET)
    drawn.write(os.path.join(folder, "eval.record"), evaluated)
    first = list(drawn.draw("train", LABELLED, seed + FIRST_SEED_OFFSET))
    pool = list(drawn.draw("pool", POOL, seed + POOL_SEED_OFFSET))

    def train(name: str, images: List[drawn.Labelled]) -> str:
        drawn.write(os.path.join(folder, f"{name}.record"), images)
        config, run = drawn.config(folder, f"{name}.record", STEPS), os.path.join(folder, name)
        config.train_config.fine_tune_checkpoint = start
        config.train_config.fine_tune_checkpoint_type = "detection"
        boxes = sum(len(image.boxes) for image in images)
        metric = drawn.fit(config, run, seed)[drawn.METRIC]
        print(f"seed {seed} {name}: mAP {metric:.3f}, {boxes} boxes", flush=True)
        return run

    run, pictures = train("first", first), os.path.join(folder, "pool")
    os.makedirs(pictures)
    for image in pool:
        Image.fromarray(image.pixels).save(os.path.join(pictures, image.file), quality=92)
    chosen = suggest(folder, run, pictures)
    train("suggested", first + [image for image in pool if image.file in chosen])
    rows = np.random.default_rng(seed).permutation(POOL)[:ADDED]
    train("random", first + [pool[row] for row in rows])
