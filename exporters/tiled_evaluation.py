"""Evaluates a checkpoint on overlapping tiles of the images, as `eval_config.tiles` says."""

from __future__ import annotations

import contextlib
import copy
import tempfile
from typing import Dict, List, Optional

import numpy as np

from estimator_det.detectors.base import BatchDetections
from estimator_det.protos import pipeline_pb2
from exporters.loaded_model import LoadedModel
from exporters.network import ExportOptions, RestoredNetwork, restored_network
from exporters.tiles import TiledDetector
from inputs import schema
from model_fn.checkpoints.find import find_checkpoint
from model_fn.checkpoints.repair import step_of
from model_fn.evaluation.detections import scoring
from model_fn.evaluation.history import Evaluation
from model_fn.evaluation.readers import named_readers


class _NetworkModel(LoadedModel):
    """A restored network as a model that detectors run."""

    def __init__(self, network: RestoredNetwork) -> None:
        super().__init__(network.checkpoint, {}, "")
        self._network = network

    def run(self, images: np.ndarray) -> Dict[str, np.ndarray]:
        return self._network.run(images)


class TileFinder:
    """Finds the detections of records by a detector on tiles, for `scoring.evaluate_readers`."""

    def __init__(self, detector: TiledDetector) -> None:
        self._detector = detector

    def detections(self, features: Dict[str, np.ndarray]) -> BatchDetections:
        pixels = features[schema.IMAGE][..., :3].astype(np.uint8)
        (merged,) = self._detector.detect_batch(pixels)

        def batch(rows: Optional[np.ndarray]) -> Optional[np.ndarray]:
            return None if rows is None else rows[np.newaxis]

        return BatchDetections(
            boxes=merged.normalized_boxes[np.newaxis],
            scores=merged.scores[np.newaxis],
            classes=merged.classes[np.newaxis] - 1,
            num=np.array([len(merged)]),
            masks=batch(merged.masks),
            keypoints=batch(merged.keypoints),
            keypoint_scores=batch(merged.keypoint_scores),
        )

    def figures(self) -> Dict[str, float]:
        return {}


def evaluate_tiles(
    config: pipeline_pb2.TrainEvalPipelineConfig,
    checkpoint: str,
    model_dir: str,
    *,
    on_training_data: bool = False,
    sample_1_of_n: Optional[int] = None,
) -> List[Evaluation]:
    """Evaluates a checkpoint on every evaluation reader, or on the training data.

    There is no loss: the training of a tile does not know the boxes of its image.

    Args:
        checkpoint: A prefix, or a folder for its last checkpoint.
        model_dir: Folder that gets events, thresholds and a line of `evaluations.jsonl`.
        sample_1_of_n: Evaluate every n-th record; None for the readers' own number.
    """
    if sample_1_of_n is not None:
        config = copy.deepcopy(config)
        for reader in named_readers(config, on_training_data=on_training_data).values():
            reader.sample_1_of_n_examples = sample_1_of_n
    prefix, tiles = find_checkpoint(checkpoint), config.eval_config.tiles
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        network = stack.enter_context(restored_network(config, prefix, folder, ExportOptions()))
        detector = TiledDetector(_NetworkModel(network), tiles.side, tiles.overlap)
        return scoring.evaluate_readers(
            config,
            lambda: TileFinder(detector),
            model_dir,
            on_training_data=on_training_data,
            step=step_of(prefix),
            model=config.model,
        )
