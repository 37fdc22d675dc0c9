"""`python -m benchmarks.zoo`: size and work of each model that `init` knows, for docs/zoo.md.

With `--formats`, the speed of each model in these formats, with random weights.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import time
from typing import Tuple

from benchmarks.serving.model import save_random_weights
from estimator_det.compat import tf, tf1
from estimator_det.config import pipeline
from estimator_det.detectors import build_detector
from estimator_det.errors import UsageError
from estimator_det.programs import pretrained, starter, starter_models
from estimator_det.protos import pipeline_pb2
from exporters import formats
from exporters.benchmark.measure import time_batches
from exporters.formats.export import ExportOptions, export_formats, resolve_formats
from exporters.loaded_model import resized
from inputs.datasets import shapes

NUM_CLASSES = 90
NUM_KEYPOINTS = 17
_COUNTED = ("Conv2D", "DepthwiseConv2dNative", "Conv2DBackpropInput", "MatMul")


def configure(model: starter_models.Model, label_map: str) -> pipeline_pb2.TrainEvalPipelineConfig:
    """The configuration of a model for COCO.

    Args:
        label_map: Path of a file that this function writes: the keypoints of people.
    """
    config = pipeline.read_pipeline(os.path.join(starter.CONFIGS, model.config))
    config = pipeline.apply_overrides(config, model.changes)
    getattr(config.model, str(config.model.WhichOneof("model"))).num_classes = NUM_CLASSES
    keypoints = "".join(f'keypoints {{ id: {i} label: "k{i}" }} ' for i in range(NUM_KEYPOINTS))
    with open(label_map, "w", encoding="utf-8") as file:
        file.write(f'item {{ id: 1 name: "person" {keypoints} }}')
    for reader in (config.train_input_reader, *config.eval_input_reader):
        reader.ClearField("label_map_path")
    if config.model.HasField("center_net"):
        config.model.center_net.keypoint_label_map_path = label_map
        for task in config.model.center_net.keypoint_estimation_task:
            task.keypoint_class_name = "person"
    return config


def size_and_work(
    config: pipeline_pb2.TrainEvalPipelineConfig, sides: Tuple[int, int]
) -> Tuple[float, float]:
    """Parameters, and multiply-adds for an image, of the network with its heads.

    Resizing of images and suppression of boxes are left out.

    Args:
        sides: Height and width of the image.
    """
    with tf.Graph().as_default() as graph:
        detector = build_detector(config.model, is_training=False)
        images, shapes = detector.preprocess(tf.zeros([1, *sides, 3]))
        detector.predict(images, shapes)
        parameters = sum(v.shape.num_elements() for v in tf1.trainable_variables())
        options = tf1.profiler.ProfileOptionBuilder.float_operation()
        options["account_type_regexes"] = list(_COUNTED)
        options["output"] = "none"
        work = tf1.profiler.profile(graph, cmd="scope", options=options)
    return parameters, work.total_float_ops / 2


def processor_ms(
    config: pipeline_pb2.TrainEvalPipelineConfig, sides: Tuple[int, int], name: str, seconds: float
) -> str:
    """Median processor time of an image in one format; a dash if it does not hold the model.

    Args:
        sides: Height and width of the image.
    """
    with tempfile.TemporaryDirectory() as folder:
        prefix, exported = os.path.join(folder, "random.ckpt"), os.path.join(folder, "exported")
        save_random_weights(config, prefix, sides)
        try:
            chosen = resolve_formats([name])
            export_formats(config, prefix, exported, chosen, ExportOptions(), compare=False)
        except UsageError:
            return "–"
        model = formats.exported_models(exported)[0].load()
        image = resized(shapes.make_image((0, 0)).pixels, model.image_size or sides)
        timing = time_batches(model.run, [image], 1, seconds, time.process_time)
    return f"{timing.median_ms:.0f}"


def main() -> None:
    """Prints the rows of the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--formats", default="", help="with commas between, to measure speed")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    options = parser.parse_args()
    names = [name for name in options.formats.split(",") if name]
    for model in starter_models.MODELS:
        with tempfile.TemporaryDirectory() as folder:
            config = configure(model, os.path.join(folder, "label_map.pbtxt"))
            numbers = [int(side) for side in re.findall(r"\d+", model.input_size)]
            sides = numbers[0], numbers[-1]
            if names:
                speeds = [processor_ms(config, sides, name, options.seconds) for name in names]
                print(f"| `{model.name}` | {' | '.join(speeds)} |", flush=True)
                continue
            parameters, work = size_and_work(config, sides)
        published = pretrained.find_model(model.zoo)
        print(
            f"| `{model.name}` | {model.input_size} | {parameters / 1e6:.1f} | {work / 1e9:.2f} | "
            f"{model.step_time:g} | {published.quality} | {published.speed} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
