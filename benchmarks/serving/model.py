"""Programs of TensorFlow for the benchmark: the export that is served, and the bare detector."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Tuple


def save_random_weights(config: Any, prefix: str, sides: Tuple[int, int] = (300, 300)) -> None:
    """Writes a checkpoint of the untrained detector of a `TrainEvalPipelineConfig`.

    Args:
        sides: Height and width of an image that fits.
    """
    from estimator_det.compat import tf, tf1
    from estimator_det.detectors.base import make_detector

    with tf.Graph().as_default():
        detector = make_detector(config.model, is_training=False)
        with tf1.variable_scope(tf1.get_variable_scope(), use_resource=True):
            inputs, shapes = detector.preprocess(tf.zeros([1, *sides, 3]))
            detector.postprocess(detector.predict(inputs, shapes), shapes)
        tf1.train.get_or_create_global_step()
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            tf1.train.Saver().save(session, prefix)


def _export(path: str, folder: str) -> None:
    """Exports the detector of a configuration with random weights."""
    from estimator_det.config import pipeline
    from exporters import export_saved_model

    config = pipeline.read_pipeline(path)
    config.train_input_reader.ClearField("label_map_path")
    for reader in config.eval_input_reader:
        reader.ClearField("label_map_path")
    save_random_weights(config, f"{folder}.ckpt")
    export_saved_model(config, f"{folder}.ckpt", folder)


def _detect(export: str, photo: str, batch: int) -> None:
    """Runs the bare detector for the seconds in each line of the input."""
    import numpy as np

    from exporters import Detector
    from exporters.image_files import read_image

    detector = Detector(export)
    images = np.stack([read_image(photo).pixels] * batch)
    for line in sys.stdin:
        began, used, count = time.monotonic(), time.process_time(), 0
        while time.monotonic() < began + float(line):
            count += len(detector.detect_batch(images))
        seconds, used = time.monotonic() - began, time.process_time() - used
        print(json.dumps({"rate": count / seconds, "processor_ms": 1000 * used / count}))
        sys.stdout.flush()


if __name__ == "__main__":
    if len(sys.argv) == 3:
        _export(*sys.argv[1:])
    else:
        _detect(sys.argv[1], sys.argv[2], int(sys.argv[3]))
