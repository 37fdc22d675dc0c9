"""`detect --runner`: the shards of a detection as an Apache Beam pipeline.

RunInference loads the model once in each process of a worker. Its element is a shard, so that
pictures go from storage to the model without passing through the pipeline. Beam's own handlers of
TensorFlow and ONNX stack arrays of one shape, and know neither the signatures and label maps of
exports nor the other formats.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence

from apache_beam.ml.inference import base

from estimator_det.errors import RunError
from estimator_det.files import atomic
from exporters import detect_shards
from exporters.detect_files import json_line
from exporters.detect_shards import DetectionJob, Shard, ShardResult
from exporters.detector import Detector
from inputs.conversion import beam_pipeline


class DetectorHandler(base.ModelHandler):
    """Runs an export of any format on shards of images."""

    def __init__(self, job: DetectionJob) -> None:
        super().__init__()
        self._job = job

    def load_model(self) -> Detector:
        return Detector(self._job.model)

    def run_inference(
        self,
        batch: Sequence[Shard],
        model: Detector,
        inference_args: Optional[Dict[str, Any]] = None,
    ) -> Iterable[ShardResult]:
        return [detect_shards.detect_shard(self._job, shard, model) for shard in batch]

    def batch_elements_kwargs(self) -> Mapping[str, Any]:
        return {"max_batch_size": 1}


class Detection(NamedTuple):
    """Counts of a detection."""

    num_images: int
    num_detections: int
    num_failed: int  # images that cannot be used; BAD_IMAGES_FILE lists them
    num_kept: int  # shards of an earlier run


def run(job: DetectionJob, paths: Sequence[str], pipeline: beam_pipeline.Pipeline) -> Detection:
    """Runs the shards that are not complete, and lists all images that cannot be used."""
    shards = detect_shards.divided(paths, job.num_shards)
    waiting = [each for each in shards if detect_shards.read_result(job, each) is None]
    if waiting:
        pipeline(waiting, "Detect" >> base.RunInference(DetectorHandler(job)))
    results: List[ShardResult] = []
    for shard in shards:
        result = detect_shards.read_result(job, shard)
        if result is None:
            raise RunError(beam_pipeline.missing(shard.number, job.output_dir))
        results.append(result)
    failed = [line for each in results for line in each.failed]
    atomic.write(
        os.path.join(job.output_dir, detect_shards.BAD_IMAGES_FILE),
        "".join(map(json_line, failed)),
    )
    return Detection(
        sum(each.num_images for each in results),
        sum(each.num_detections for each in results),
        len(failed),
        len(shards) - len(waiting),
    )
