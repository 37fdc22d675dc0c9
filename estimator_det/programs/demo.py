"""All steps in one command: records, training, evaluation, export and detection."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import time
from types import ModuleType
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np
from PIL import Image

from estimator_det.config import pipeline
from estimator_det.files import ownership
from estimator_det.programs import console
from exporters import Detector, export_saved_model
from exporters.detect_files import DETECTIONS_FILE, Filter, detect_files
from inputs.datasets import figures, shapes
from inputs.label_map import LabelMap
from model_fn.runs import runner
from model_fn.runs.options import EvaluationOptions, TrainOptions

if TYPE_CHECKING:
    from estimator_det.protos import pipeline_pb2

_CONFIGS = pathlib.Path(__file__).parent.parent / "configs"


class DemoModel(NamedTuple):
    """A model of the demo, and the data set that it learns."""

    config: pathlib.Path
    description: str
    drawings: ModuleType  # has `make_image` and `make_dataset`
    subject: str


_SHAPES = "shapes on textured backgrounds"
MODELS = {
    "ssd": DemoModel(
        _CONFIGS / "ssd_mobilenet_v1_shapes.config", "SSD MobileNet v1", shapes, _SHAPES
    ),
    "mask_rcnn": DemoModel(
        _CONFIGS / "mask_rcnn_mobilenet_v1_shapes.config",
        "Mask R-CNN MobileNet v1",
        shapes,
        _SHAPES,
    ),
    "centernet_keypoints": DemoModel(
        _CONFIGS / "centernet_resnet50_v1_fpn_figures.config",
        "CenterNet ResNet-50 v1 FPN",
        figures,
        "figures with joints",
    ),
}
CONFIG_FILE = MODELS["ssd"].config
SUMMARY_FILE = "summary.json"
PICTURE_FILE = "detections.png"
NUM_STEPS = 4
FOLDERS = ("data", "model", "exported", "fresh_images", "detections")
NUM_TEST_IMAGES = 8
DRAWING_COLUMNS = 4
MIN_SCORE = 0.3  # focal loss gives low scores
TEST_SEED_OFFSET = 2_000_003  # test images are neither training nor evaluation images


def run_demo(
    output_dir: str,
    *,
    model: str,
    size: str,
    seed: int,
    num_train_steps: Optional[int],
    assignments: Sequence[str],
) -> None:
    """Makes data, trains, evaluates, exports and detects below `output_dir`; reports each step.

    The folder must be new or empty, or contain an earlier demo, which is replaced.
    `num_train_steps` replaces the configured number, and scales the learning-rate schedule.
    """
    _prepare_folder(output_dir)
    data, model_dir, exported, test_images, detections = (
        os.path.join(output_dir, name) for name in FOLDERS
    )
    summary, picture = (os.path.join(output_dir, name) for name in (SUMMARY_FILE, PICTURE_FILE))
    seconds: Dict[str, float] = {}
    drawings = MODELS[model].drawings
    with _step(seconds, "data", f"{MODELS[model].subject} ({size}, seed {seed})"):
        files = drawings.make_dataset(data, seed, size)
        console.print_line(f"  {files.num_train} training images: {files.train_pattern}")
        console.print_line(f"  {files.num_eval} evaluation images: {files.eval_pattern}")
        console.print_line(f"  label map: {files.label_map}")
    config = demo_config(files, num_train_steps, assignments, model)
    label_maps = console.check_config(config)
    steps, batch = config.train_config.num_steps, config.train_config.batch_size
    with _step(
        seconds,
        "training and evaluation",
        f"{MODELS[model].description} from scratch, {steps} steps of {batch} images, then COCO "
        f"metrics on {files.num_eval} held-out images",
    ):
        metrics = _train(config, model_dir, seed, label_maps)
    with _step(seconds, "export", "SavedModel and frozen graph of the last checkpoint"):
        export = export_saved_model(config, model_dir, exported, input_types=("all",))
        console.print_line(f"  SavedModel: {export.saved_model}")
        console.print_line(f"  frozen graph: {export.frozen_graph}")
    with _step(seconds, "detection", f"the SavedModel runs on {NUM_TEST_IMAGES} new images"):
        _detect(exported, _make_test_images(drawings, test_images, seed), detections, picture)
    content = {
        "metrics": metrics,
        "picture": picture,
        "saved_model": export.saved_model or "",
        "summary": summary,
        "seconds": seconds,
        "seed": seed,
        "num_train_steps": steps,
    }
    pathlib.Path(summary).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    title = f"\nmetrics on {files.num_eval} held-out images, also in {model_dir}/eval_0:"
    console.say_metrics(title, metrics)
    console.print_line(f"{sum(seconds.values()):.0f} s in total; summary: {summary}")
    console.report_result(content)


@contextlib.contextmanager
def _step(seconds: Dict[str, float], name: str, description: str) -> Iterator[None]:
    """Context manager: prints a numbered step, and adds its time to `seconds`."""
    console.print_line(f"\n[{len(seconds) + 1}/{NUM_STEPS}] {name}: {description}")
    started = time.monotonic()
    yield
    seconds[name] = round(time.monotonic() - started, 1)


def demo_config(
    files: shapes.DatasetFiles,
    num_train_steps: Optional[int] = None,
    assignments: Sequence[str] = (),
    model: str = "ssd",
) -> Any:
    """The shipped configuration of `MODELS[model]`, with a data set's paths and user's changes."""
    config = pipeline.override(
        pipeline.read_pipeline(str(MODELS[model].config)),
        train_input_path=files.train_pattern,
        eval_input_path=files.eval_pattern,
        label_map_path=files.label_map,
    )
    if config.model.HasField("center_net"):
        config.model.center_net.keypoint_label_map_path = files.label_map
    config = pipeline.apply_overrides(config, assignments)
    if num_train_steps is not None:
        config = pipeline.rescale_schedule(config, num_train_steps)
    return config


def _train(
    config: pipeline_pb2.TrainEvalPipelineConfig,
    model_dir: str,
    seed: int,
    label_maps: Mapping[str, LabelMap],
) -> Dict[str, float]:
    options = TrainOptions(
        seed=seed,
        evaluation=EvaluationOptions(export_final=False),
        progress_steps=max(config.train_config.num_steps // 20, 1),
    )
    metrics = runner.run(config, model_dir, options, label_maps=label_maps)
    console.print_line(
        f"  checkpoint and event files: {model_dir} (tensorboard --logdir {model_dir})"
    )
    return metrics


def _detect(exported: str, paths: Sequence[str], output_dir: str, picture: str) -> None:
    """Detects on image files; the file `picture` shows the detections of all."""
    detector = Detector(exported)
    results = detect_files(detector, paths, output_dir, Filter(MIN_SCORE))
    _join_images([result.drawing for result in results if result.drawing], picture)
    console.print_line(f"  boxes as JSON lines: {os.path.join(output_dir, DETECTIONS_FILE)}")
    console.print_line(f"  picture: {picture}")


def _prepare_folder(output_dir: str) -> None:
    """Makes the folder; removes only the folders of an earlier demo."""
    if not ownership.check_folder(output_dir, "demo", overwrite=True):
        console.print_line(f"{output_dir} contains an earlier demo and is replaced")
        for name in FOLDERS:
            shutil.rmtree(os.path.join(output_dir, name), ignore_errors=True)
    ownership.mark(output_dir, "demo")


def _make_test_images(drawings: ModuleType, folder: str, seed: int) -> List[str]:
    os.makedirs(folder)
    paths = []
    for index in range(NUM_TEST_IMAGES):
        path = os.path.join(folder, f"fresh_{index}.png")
        pixels = drawings.make_image((seed + TEST_SEED_OFFSET, index)).pixels
        Image.fromarray(pixels).save(path)
        paths.append(path)
    return paths


def _join_images(paths: Sequence[str], target: str) -> None:
    """Writes all images into one, `DRAWING_COLUMNS` per row, on white."""
    images = [Image.open(path).convert("RGB") for path in paths]
    cell = np.max([image.size for image in images], axis=0) + 4
    rows = -(-len(images) // DRAWING_COLUMNS)
    grid = Image.new("RGB", (int(cell[0]) * DRAWING_COLUMNS, int(cell[1]) * rows), "white")
    for index, image in enumerate(images):
        row, column = divmod(index, DRAWING_COLUMNS)
        grid.paste(image, (int(cell[0]) * column + 2, int(cell[1]) * row + 2))
    grid.save(target)
