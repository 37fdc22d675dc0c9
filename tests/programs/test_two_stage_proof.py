"""A two-stage model with masks learns ten real images, and is served without this package."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from typing import List

import numpy as np
import pytest
from PIL import Image

from estimator_det.compat import tf
from estimator_det.config import pipeline
from estimator_det.programs import cli, demo
from inputs.datasets import writer
from model_fn.runs import evaluator
from tests.inputs import examples

STEPS = 700
SETTINGS = (
    "model.faster_rcnn.num_classes=37",
    "model.faster_rcnn.image_resizer.fixed_shape_resizer.height=160",
    "model.faster_rcnn.image_resizer.fixed_shape_resizer.width=160",
    "model.faster_rcnn.first_stage_anchor_generator.grid_anchor_generator.height=80",
    "model.faster_rcnn.first_stage_anchor_generator.grid_anchor_generator.width=80",
    "model.faster_rcnn.first_stage_anchor_generator.grid_anchor_generator.scales=[0.4,0.7,1.1,1.6]",
    "train_config.data_augmentation_options=[]",
    "train_config.batch_size=2",
    f"train_config.num_steps={STEPS}",
)
RATE = "train_config.optimizer.adam_optimizer.learning_rate.cosine_decay_learning_rate"
SCHEDULE = (
    f"{RATE}.learning_rate_base=0.001",
    f"{RATE}.total_steps={STEPS}",
    f"{RATE}.warmup_learning_rate=0.0001",
    f"{RATE}.warmup_steps=50",
)
SERVE = """
import json, sys
import tensorflow as tf
serve = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
image = tf.io.decode_jpeg(tf.io.read_file(sys.argv[2]))[tf.newaxis]
found = {key: value.numpy() for key, value in serve(image).items()}
print(json.dumps({
    "ours": sorted({"estimator_det", "model_fn", "inputs", "exporters"} & set(sys.modules)),
    "shapes": {key: value.shape for key, value in found.items()},
    "class": int(found["detection_classes"][0, 0]),
    "score": float(found["detection_scores"][0, 0]),
}))
"""


def with_masks(serialized: bytes, number: int) -> tf.train.Example:
    """The record with a tilted ellipse drawn into each box, whose mask it adds."""
    features = tf.train.Example.FromString(serialized).features.feature
    encoded = features["image/encoded"].bytes_list.value[0]
    pixels = np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"), np.float32).copy()
    height, width = pixels.shape[:2]
    sides = ("ymin", "xmin", "ymax", "xmax")
    boxes = np.stack([features[f"image/object/bbox/{s}"].float_list.value for s in sides], 1)
    tilt = (-0.7, -0.35, 0.0, 0.35, 0.7)[number % 5]
    y, x = np.mgrid[:height, :width] + 0.5
    masks: List[bytes] = []
    for box in boxes * [height, width, height, width]:
        (middle_y, middle_x), (half_y, half_x) = (box[:2] + box[2:]) / 2, (box[2:] - box[:2]) / 2
        v, u = (y - middle_y) / half_y, (x - middle_x) / half_x
        inside = u * u - 2 * tilt * u * v + v * v <= 1 - tilt * tilt
        pixels[inside] = 0.6 * pixels[inside] + 0.4 * np.array([255, 40, 200])
        masks.append(writer.encode_image(inside, "png"))
    labels = writer.Annotations(
        boxes,
        list(features["image/object/class/label"].int64_list.value),
        [text.decode() for text in features["image/object/class/text"].bytes_list.value],
        masks=masks,
    )
    name = features["image/filename"].bytes_list.value[0].decode()
    drawn = writer.encode_image(np.clip(pixels, 0, 255).astype(np.uint8))
    return writer.make_example(drawn, labels, filename=name)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_ten_images_of_real_data_with_masks(real_data, tmp_path):
    records = tf.data.TFRecordDataset(str(real_data / "data" / "pets_examples.record"))
    made = [with_masks(record.numpy(), number) for number, record in enumerate(records)]
    path, labels = str(tmp_path / "masks.record"), str(real_data / "data" / "pet_label_map.pbtxt")
    examples.write(path, [example.SerializeToString() for example in made])
    config = pipeline.read_pipeline(demo.MODELS["mask_rcnn"][0])
    config = pipeline.override(
        config, train_input_path=path, eval_input_path=path, label_map_path=labels
    )
    config = pipeline.apply_overrides(config, [*SETTINGS, *SCHEDULE])
    file_name = tmp_path / "masks.config"
    file_name.write_text(pipeline.format_pipeline(config))
    run, exported = str(tmp_path / "run"), tmp_path / "exported"
    steps = ["--seed=1", f"--eval_every_steps={STEPS}"]
    assert cli.main(["train", str(file_name), f"--model_dir={run}", *steps]) == 0
    (evaluation,) = evaluator.evaluate(config, run)
    metrics = evaluation.metrics
    assert metrics["DetectionBoxes_Precision/mAP@.50IOU"] >= 0.9
    assert metrics["DetectionMasks_Precision/mAP@.50IOU"] >= 0.9

    arguments = [f"--trained_checkpoint_prefix={run}", f"--output_directory={exported}"]
    assert cli.main(["export", str(file_name), *arguments]) == 0
    features = made[0].features.feature
    (tmp_path / "one.jpg").write_bytes(features["image/encoded"].bytes_list.value[0])
    command = [sys.executable, "-c", SERVE, str(exported / "saved_model"), "one.jpg"]
    served = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    found = json.loads(served.stdout.splitlines()[-1])
    assert found["ours"] == []
    assert found["shapes"]["detection_boxes"] == [1, 10, 4]
    assert found["shapes"]["detection_masks"] == [1, 10, 12, 12]
    assert found["class"] == features["image/object/class/label"].int64_list.value[0]
    assert found["score"] > 0.5
