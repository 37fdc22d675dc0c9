"""Plants faults in labels of drawn shapes, and counts how many an evaluation finds."""

from __future__ import annotations

import os
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import numpy as np

from benchmarks.labelling import drawn
from estimator_det.programs import report_pictures
from inputs.datasets.shapes import CLASS_NAMES
from inputs.datasets.shapes import EVAL_SEED_OFFSET as EVAL_SEED
from model_fn.evaluation import details
from model_fn.evaluation.matching import MATCH_IOU
from model_fn.evaluation.metrics.overlaps import box_iou
from model_fn.evaluation.readers import TRAINING_DATA, evaluation_folder
from model_fn.runs import evaluator

SHARE = 0.05  # faults per object
KINDS = ("missing", "extra", "class", "shifted")


class Fault(NamedTuple):
    """A planted fault."""

    file: str
    kind: str
    boxes: np.ndarray  # float [n, 4] in pixels: where a person sees it


def plant(image: drawn.Labelled, random: np.random.Generator) -> Tuple[drawn.Labelled, List[Fault]]:
    """The image with wrong labels for a share of its objects."""
    boxes, class_ids = list(image.boxes), list(image.class_ids)
    sides = np.tile(image.pixels.shape[:2], 2)
    faults, missing = [], []
    for row in range(len(image.boxes)):
        if random.random() >= SHARE:
            continue
        kind = KINDS[random.integers(len(KINDS))]
        seen = [boxes[row]]
        if kind == "missing":
            missing.append(row)
        elif kind == "class":
            others = set(range(1, len(CLASS_NAMES) + 1)) - {class_ids[row]}
            class_ids[row] = int(random.choice(sorted(others)))
        elif kind == "shifted":
            boxes[row] = _shifted(boxes[row], random)
            seen.append(boxes[row])
        else:
            boxes.append(_elsewhere(image.boxes, random))
            class_ids.append(int(random.integers(1, len(CLASS_NAMES) + 1)))
            seen = [boxes[-1]]
        faults.append(Fault(image.file, kind, np.array(seen) * sides))
    kept = [row for row in range(len(boxes)) if row not in missing]
    labels = np.array([boxes[row] for row in kept], np.float32).reshape(-1, 4)
    return image._replace(boxes=labels, class_ids=[class_ids[row] for row in kept]), faults


def _shifted(box: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A box moved by 0.3 to 0.6 of its height or width, inside the image."""
    while True:
        axis = int(random.integers(2))
        move = np.zeros(4)
        move[[axis, axis + 2]] = random.choice([-1, 1]) * random.uniform(0.3, 0.6)
        moved = box + move * np.tile(box[2:] - box[:2], 2)
        if moved.min() >= 0 and moved.max() <= 1:
            return moved
        box = box.copy()
        # A box that fills the image has no room: it becomes smaller.
        box[2:] = box[:2] + 0.9 * (box[2:] - box[:2])


def _elsewhere(boxes: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A box that overlaps the objects least, of twenty."""
    size = random.uniform(0.2, 0.4, [20, 2])
    corners = random.uniform(0, 1, [20, 2]) * (1 - size)
    tries = np.concatenate([corners, corners + size], axis=1)
    return tries[np.argmin(box_iou(tries, boxes).max(axis=1, initial=0.0))]


def find(folder: str, seed: int, num_images: int, steps: int) -> Tuple[List[Fault], List[Any]]:
    """Plants faults, trains on them, and evaluates on the same records: planted and suspected."""
    random, planted = np.random.default_rng(seed), []

    def images() -> Iterator[drawn.Labelled]:
        for image in drawn.draw("train", num_images, seed):
            image, faults = plant(image, random)
            planted.extend(faults)
            yield image

    drawn.write(os.path.join(folder, "train.record"), images())
    drawn.write(os.path.join(folder, "eval.record"), drawn.draw("eval", 100, seed + EVAL_SEED))
    config, run = drawn.config(folder, "train.record", steps), os.path.join(folder, "run")
    print(f"seed {seed}: mAP {drawn.fit(config, run, seed)[drawn.METRIC]:.3f}", flush=True)
    evaluator.evaluate(config, run, on_training_data=True)
    evaluation = details.latest(evaluation_folder(run, TRAINING_DATA))
    kinds = ["label_faults"]
    pictures = report_pictures.draw(config, TRAINING_DATA, CLASS_NAMES, evaluation, kinds)
    return planted, pictures["label_faults"]


def count(planted: Sequence[Fault], suspected: Sequence[Any]) -> Dict[str, Tuple[int, int]]:
    """Planted faults by kind, and those among the first suspects, twice as many."""
    seen = set()
    for suspect in suspected[: 2 * len(planted)]:
        parts = [suspect[part] for part in ("label", "detection") if suspect[part]]
        boxes = np.array([part["box"] for part in parts])
        for row, fault in enumerate(planted):
            if fault.file == suspect["name"] and box_iou(boxes, fault.boxes).max() >= MATCH_IOU:
                seen.add(row)
    return {
        kind: (len(rows), len(seen.intersection(rows)))
        for kind in KINDS
        for rows in [[row for row, fault in enumerate(planted) if fault.kind == kind]]
    }


def main(folder: str, seeds: int, num_images: int = 1500, steps: int = 1200) -> None:
    """Prints the share of planted faults that are found, by kind."""
    for seed in range(1, seeds + 1):
        planted, suspected = find(os.path.join(folder, f"faults_{seed}"), seed, num_images, steps)
        counts = count(planted, suspected)
        num_faults, num_seen = (sum(column) for column in zip(*counts.values()))
        kinds = ", ".join(f"{kind} {hits}/{total}" for kind, (total, hits) in counts.items())
        print(
            f"seed {seed}: {num_seen / num_faults:.0%} of {num_faults} faults ({kinds})", flush=True
        )
