"""Photos for the check of an export and for the ranges of quantization."""

from __future__ import annotations

import logging
from typing import List, Sequence

import numpy as np

from estimator_det.compat import failures, tf
from estimator_det.errors import RunError
from estimator_det.files import matching
from estimator_det.protos import input_reader_pb2, pipeline_pb2
from exporters.image_files import list_images, read_image
from inputs.datasets import shapes
from inputs.decoding.decoder import decode_example_image
from inputs.records.tfrecord import compression_of

COMPARED = 2  # images that a written model is compared on
CALIBRATED = 100  # images that the ranges of int8 are measured on
_LOG = logging.getLogger(__name__)


def _records(reader: input_reader_pb2.InputReader) -> List[str]:
    """Paths of the reader's records; none where their storage cannot be reached."""
    paths: List[str] = []
    for pattern in reader.tf_record_input_reader.input_path:
        try:
            paths += matching(pattern)
        except tf.errors.OpError as error:  # a published configuration names others' storage
            _LOG.warning("%s: not used as sample images: %s", pattern, failures.reason(error))
    return sorted(paths)


def sample_images(
    config: pipeline_pb2.TrainEvalPipelineConfig, paths: Sequence[str], most: int
) -> List[np.ndarray]:
    """Up to `most` images, each uint8 [h, w, 3] RGB.

    Args:
        paths: Image files and folders. If empty, the configuration's first reader with records
            provides the images; readers of evaluation come first.
    """
    if paths:
        return [read_image(path).pixels for path in list_images(paths)[:most]]
    for reader in [*config.eval_input_reader, config.train_input_reader]:
        images: List[np.ndarray] = []
        for path in _records(reader):
            try:
                records = tf.data.TFRecordDataset(path, compression_of(path))
                images += [decode_example_image(each).numpy() for each in records.take(most)]
            except tf.errors.OpError as error:
                reason = failures.reason(error)
                raise RunError(
                    f"{path}: an image cannot be read: {reason}; check the records with "
                    "estimator-det check-data; export takes other images with --sample_images"
                ) from error
            if len(images) >= most:
                break
        if images:
            return images[:most]
    return []


def images_to_compare(
    config: pipeline_pb2.TrainEvalPipelineConfig, paths: Sequence[str]
) -> List[np.ndarray]:
    """COMPARED images of `sample_images`; drawn shapes where the configuration has no records."""
    images = sample_images(config, paths, COMPARED)
    # Detectors answer noise with next to nothing, so that a comparison would show little.
    shape_images = [shapes.make_image((0, i)).pixels for i in range(COMPARED)]
    return [*images, *shape_images][:COMPARED]
