"""Sends images of many sizes to a SavedModel, and prints the memory of this process as JSON lines.

It imports TensorFlow only, as a server does; run it with `python -I`.
"""

import argparse
import json
import sys
import time

import numpy as np
import tensorflow as tf

PACKAGE = ("estimator_det", "exporters", "inputs", "model_fn", "tf_slim", "tensorflow_estimator")
REPORTS = 20


def resident_bytes() -> int:
    """Memory of this process."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS:"))


def main() -> None:
    """Sends the requests."""
    parser = argparse.ArgumentParser()
    parser.add_argument("saved_model")
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--largest", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    model = tf.saved_model.load(options.saved_model)
    detect = model.signatures["serving_default"]
    (key,) = detect.structured_input_signature[1]
    random = np.random.default_rng(options.seed)
    every = max(options.requests // REPORTS, 1)
    started, detections = time.perf_counter(), 0.0
    for number in range(1, options.requests + 1):
        batch = int(random.integers(1, 4))
        height, width = random.integers(16, options.largest + 1, 2)
        images = random.integers(0, 256, (batch, height, width, 3), np.uint8)
        found = detect(**{key: tf.constant(images)})
        detections += float(np.sum(found["num_detections"]))
        if number % every == 0 or number == options.requests:
            line = {
                "requests": number,
                "resident_bytes": resident_bytes(),
                "seconds": round(time.perf_counter() - started, 2),
                "detections": detections,
            }
            print(json.dumps(line), flush=True)
    foreign = sorted({name.split(".")[0] for name in sys.modules} & set(PACKAGE))
    print(json.dumps({"foreign_modules": foreign}), flush=True)


if __name__ == "__main__":
    main()
