"""The whole way in one command: records, training, evaluation, export, detection, a picture."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

import numpy as np
from PIL import Image

from estimator_det import console
from estimator_det.config import pipeline
from exporters import predictor, saved_model
from inputs.datasets import shapes
from model_fn.runs import runner
from model_fn.runs.options import Evaluating

CONFIG_FILE = pathlib.Path(__file__).parent / "configs" / "ssd_mobilenet_v1_shapes.config"
MAP_50 = "DetectionBoxes_Precision/mAP@.50IOU"
SUMMARY_FILE = "summary.json"
PICTURE_FILE = "detections.png"
MARKER_FILE = ".estimator-det-demo"  # says that a folder is a demo's, and may be made anew
FOLDERS = ("data", "model", "exported", "fresh_images", "detections")
NUM_FRESH_IMAGES = 8
PICTURE_COLUMNS = 4
MIN_SCORE = 0.3  # focal loss trains modest scores
FRESH_SEED_OFFSET = 2_000_003  # fresh images are neither training nor evaluation images


class DemoResult(NamedTuple):
    """What a demo measured and where it lies."""

    metrics: Dict[str, float]  # of the evaluation on held-out images
    picture: str
    saved_model: str
    summary: str
    seconds: Dict[str, float]  # per step


def run_demo(
    output_dir: str,
    *,
    seed: int = 0,
    size: str = "small",
    num_train_steps: Optional[int] = None,
    assignments: Sequence[str] = (),
) -> DemoResult:
    """Makes data, trains, evaluates, exports and detects below `output_dir`, telling each step.

    Args:
        output_dir: New or empty folder, or that of an earlier demo, which is made anew.
        seed: Of the data, the first weights and the order of the records.
        size: Of the data set, a name in `inputs.datasets.shapes.SIZES`.
        num_train_steps: In place of the configured number; the learning rate schedule follows.
        assignments: Changes to the configuration, as `--set` takes them.

    Raises:
        FileExistsError: if `output_dir` holds something else than an earlier demo.
        ConfigError: if an assignment makes no sense.
    """
    _prepare_folder(output_dir)
    clock = _Clock(total=4)
    data, model, exported, fresh, found = (os.path.join(output_dir, name) for name in FOLDERS)

    clock.start("data", f"making shapes on textured backgrounds ({size}, seed {seed})")
    files = shapes.make_dataset(data, seed, size)
    console.say(f"  {files.num_train} images to train on: {files.train_pattern}")
    console.say(f"  {files.num_eval} images to evaluate on: {files.eval_pattern}")
    console.say(f"  label map: {files.label_map}")

    config = demo_config(files, num_train_steps, assignments)
    console.check_config(config)
    steps, batch = config.train_config.num_steps, config.train_config.batch_size
    clock.start(
        "training and evaluation",
        f"SSD MobileNet v1 from scratch, {steps} steps of {batch} images; "
        f"then COCO metrics on {files.num_eval} held-out images",
    )
    metrics = runner.train_and_evaluate(
        config,
        model,
        seed=seed,
        evaluating=Evaluating(export_final=False),
        progress_steps=max(steps // 20, 1),
    )
    console.say(f"  checkpoint and event files: {model} (tensorboard --logdir {model})")
    console.say_metrics(f"  metrics of the last step, also in {model}/eval_0:", metrics)

    clock.start("export", "the checkpoint becomes a SavedModel")
    export = saved_model.export_saved_model(config, model, exported, input_types=("all",))
    console.say(f"  SavedModel: {export.saved_model}")
    console.say(f"  frozen graph: {export.frozen_graph}")

    clock.start("detection", f"the SavedModel looks at {NUM_FRESH_IMAGES} fresh images")
    paths = _make_fresh_images(fresh, seed)
    pictures = [
        result.picture
        for result in predictor.detect_files(predictor.Predictor(exported), paths, found, MIN_SCORE)
        if result.picture
    ]
    picture = os.path.join(output_dir, PICTURE_FILE)
    _join_pictures(pictures, picture)
    console.say(f"  boxes as JSON lines: {os.path.join(found, predictor.LINES_FILE)}")
    console.say(f"  picture: {picture}")

    seconds = clock.finish()
    summary = os.path.join(output_dir, SUMMARY_FILE)
    result = DemoResult(metrics, picture, export.saved_model, summary, seconds)
    content = {**result._asdict(), "seed": seed, "num_train_steps": steps}
    pathlib.Path(summary).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    console.say(
        f"\nmAP@.50IOU {metrics.get(MAP_50, float('nan')):.3f} on held-out images, "
        f"{sum(seconds.values()):.0f} s in all; summary: {summary}"
    )
    return result


def demo_config(
    files: shapes.DatasetFiles,
    num_train_steps: Optional[int] = None,
    assignments: Sequence[str] = (),
) -> Any:
    """The shipped configuration with the data set's paths, and changes of the user's."""
    config = pipeline.override(
        pipeline.read_pipeline(str(CONFIG_FILE)),
        train_input_path=files.train_pattern,
        eval_input_path=files.eval_pattern,
        label_map_path=files.label_map,
    )
    config = pipeline.apply_overrides(config, assignments)
    if num_train_steps is not None:
        config = _with_steps(config, num_train_steps)
    return config


def _with_steps(config: Any, num_train_steps: int) -> Any:
    """The configuration with another number of steps, its learning rate schedule in proportion."""
    scale = num_train_steps / config.train_config.num_steps
    config = pipeline.override(config, num_train_steps=num_train_steps)
    optimizer = config.train_config.optimizer
    rate = getattr(optimizer, optimizer.WhichOneof("optimizer")).learning_rate
    if rate.HasField("cosine_decay_learning_rate"):
        cosine = rate.cosine_decay_learning_rate
        cosine.total_steps = num_train_steps
        cosine.warmup_steps = int(cosine.warmup_steps * scale)
        cosine.hold_base_rate_steps = int(cosine.hold_base_rate_steps * scale)
    return config


class _Clock:
    """Announces numbered steps and takes their time."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._seconds: Dict[str, float] = {}
        self._name = ""
        self._started = 0.0

    def start(self, name: str, what: str) -> None:
        self._stop()
        self._name, self._started = name, time.monotonic()
        console.say(f"\n[{len(self._seconds) + 1}/{self._total}] {name}: {what}")

    def finish(self) -> Dict[str, float]:
        self._stop()
        return self._seconds

    def _stop(self) -> None:
        if self._name:
            self._seconds[self._name] = round(time.monotonic() - self._started, 1)


def _prepare_folder(output_dir: str) -> None:
    """Makes the folder; removes what an earlier demo made, and nothing else."""
    marker = os.path.join(output_dir, MARKER_FILE)
    if os.path.isdir(output_dir) and os.listdir(output_dir):
        if not os.path.exists(marker):
            raise FileExistsError(
                f"{output_dir} is not empty and not of an earlier demo; give a new --output_dir"
            )
        console.say(f"{output_dir} holds an earlier demo, which is made anew")
        for name in FOLDERS:
            shutil.rmtree(os.path.join(output_dir, name), ignore_errors=True)
    os.makedirs(output_dir, exist_ok=True)
    pathlib.Path(marker).touch()


def _make_fresh_images(folder: str, seed: int) -> List[str]:
    os.makedirs(folder)
    paths = []
    for index in range(NUM_FRESH_IMAGES):
        path = os.path.join(folder, f"fresh_{index}.png")
        pixels = shapes.make_image((seed + FRESH_SEED_OFFSET, index)).pixels
        Image.fromarray(pixels).save(path)
        paths.append(path)
    return paths


def _join_pictures(paths: Sequence[str], target: str) -> None:
    """Writes one picture of all, `PICTURE_COLUMNS` in a row, on white."""
    images = []
    for path in paths:
        with Image.open(path) as image:
            images.append(image.convert("RGB"))
    cell = np.max([image.size for image in images], axis=0) + 4
    rows = -(-len(images) // PICTURE_COLUMNS)
    sheet = Image.new("RGB", (int(cell[0]) * PICTURE_COLUMNS, int(cell[1]) * rows), "white")
    for index, image in enumerate(images):
        row, column = divmod(index, PICTURE_COLUMNS)
        sheet.paste(image, (int(cell[0]) * column + 2, int(cell[1]) * row + 2))
    sheet.save(target)
