"""Evaluates detections of a file against records: the metrics of an evaluation without a model."""

from __future__ import annotations

import copy
import logging
import os
import re
from typing import Callable, Dict, List, Optional, Protocol, Sequence, Tuple

import numpy as np

from estimator_det.compat import eagerly, tf, tf1
from estimator_det.console.printing import listed, plain, quoted
from estimator_det.detectors.base import BatchDetections
from estimator_det.errors import RunError
from estimator_det.images.resize import Preprocessor, make_resizer
from estimator_det.protos import image_resizer_pb2, model_pb2, pipeline_pb2
from inputs import pipeline as input_pipeline
from inputs import schema
from inputs.bad_records.log import LOG_FILE, FaultLog
from inputs.label_map import read_label_map
from model_fn.evaluation import diagnostics, eval_ops, history
from model_fn.evaluation.accumulator import Accumulator, Results
from model_fn.evaluation.detections import file as detection_file
from model_fn.evaluation.detections.file import DetectionFile, Wanted
from model_fn.evaluation.history import Evaluation
from model_fn.evaluation.readers import evaluation_folder, named_readers
from model_fn.evaluation.report import EvaluationProgress, report
from model_fn.events import event_writer, write_figures
from model_fn.training.step import groundtruth_from_labels

_LOG = logging.getLogger(__name__)

STEP = 0  # that files and events of such an evaluation name
MAX_BOXES = 1_000  # boxes of a record, without a configuration
_SHOWN = 3  # images that a message names
# COCO names an image by it: 139 for COCO_val2014_000000000139.jpg.
_NUMBER_AT_END = re.compile(r"(?:^|_)0*(\d+)$")


def config_of_records(
    records: Sequence[str], label_map: str
) -> pipeline_pb2.TrainEvalPipelineConfig:
    """A pipeline configuration that evaluates TFRecord files by the default metrics."""
    config = pipeline_pb2.TrainEvalPipelineConfig()
    config.model.ssd.num_classes = read_label_map(label_map).max_id
    reader = config.eval_input_reader.add(label_map_path=label_map, max_number_of_boxes=MAX_BOXES)
    reader.shuffle = False
    reader.tf_record_input_reader.input_path.extend(records)
    return config


def evaluate_detections(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
    path: str,
    model_dir: str,
    *,
    on_training_data: bool = False,
) -> List[Evaluation]:
    """Evaluates the detections of a file on every evaluation reader, or on the training data.

    Images keep the size that they have in the records. Events, bad records and thresholds are
    written to `model_dir` as by an evaluation of a checkpoint, and a line to `evaluations.jsonl`.

    Args:
        pipeline_config: `TrainEvalPipelineConfig` proto; of its model only `num_classes` counts.
    """
    readers = named_readers(pipeline_config, on_training_data=on_training_data)
    categories = eval_ops.make_categories(pipeline_config)
    # Masks and keypoints are read only if a metrics set compares them.
    needs = Accumulator(pipeline_config.eval_config, categories).needs
    num_keypoints = max(reader.num_keypoints for reader in readers.values())
    detections = detection_file.read_detections(
        path,
        {c["id"]: c["name"] for c in categories},
        Wanted("masks" in needs, num_keypoints if "detection_keypoints" in needs else 0),
    )
    return evaluate_readers(
        pipeline_config, lambda: Lookup(detections), model_dir, on_training_data=on_training_data
    )


class Finder(Protocol):
    """Finds the detections of the images of one reader."""

    def detections(self, features: Dict[str, np.ndarray]) -> BatchDetections:
        """Detections of an image, under the keys of `inputs.schema`, in a batch of one."""

    def figures(self) -> Dict[str, float]:
        """Further metrics, after the last image."""


def evaluate_readers(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
    make_finder: Callable[[], Finder],
    model_dir: str,
    *,
    on_training_data: bool = False,
    step: int = STEP,
    model: Optional[model_pb2.DetectionModel] = None,
) -> List[Evaluation]:
    """Evaluates the detections of a finder for each reader, in images of the records' sizes.

    Args:
        step: That files and events name.
        model: The model of the detections; None if nothing says which model it was.
    """
    evaluations = []
    for name in named_readers(pipeline_config, on_training_data=on_training_data):
        folder = evaluation_folder(model_dir, name)
        faults = FaultLog(os.path.join(folder, LOG_FILE))
        make_dataset = original_images(
            pipeline_config, name, faults, on_training_data=on_training_data
        )
        finder = make_finder()
        results = score(make_dataset, finder.detections, pipeline_config)
        values = {**results.metrics, **finder.figures()}
        event_writer(folder).add_summary(diagnostics.chart_summary(results.chart), step)
        write_figures(folder, values, step, flush=True)
        values[tf1.GraphKeys.GLOBAL_STEP] = step
        evaluation = report(model, name, folder, values, results, faults)
        history.record(model_dir, evaluation)
        evaluations.append(evaluation)
    return evaluations


def original_images(
    pipeline_config: pipeline_pb2.TrainEvalPipelineConfig,
    reader_name: str,
    fault_log: Optional[FaultLog] = None,
    *,
    on_training_data: bool = False,
) -> Callable[[], tf.data.Dataset]:
    """Input function of one of `named_readers`: images in the size of the records, one by one.

    Features of the images have their names.
    """
    config = copy.deepcopy(pipeline_config)
    config.eval_config.force_no_resize = True
    # Images of their own size do not stack.
    config.eval_config.batch_size = 1
    # Evaluated images are the originals, without resizing.
    config.eval_config.retain_original_images = False
    reader = named_readers(config, on_training_data=on_training_data)[reader_name]
    reader.include_source_id = True
    resizer = image_resizer_pb2.ImageResizer()
    resizer.identity_resizer.SetInParent()
    if kind := config.model.WhichOneof("model"):
        # A benchmark knows no more of the model than its classes.
        getattr(config.model, kind).image_resizer.CopyFrom(resizer)
    preprocess = Preprocessor(make_resizer(resizer), lambda pixels: pixels)
    return input_pipeline.create_eval_input_fn(config, preprocess, reader, fault_log=fault_log)


def score(
    make_dataset: Callable[[], tf.data.Dataset],
    detect: Callable[[Dict[str, np.ndarray]], BatchDetections],
    config: pipeline_pb2.TrainEvalPipelineConfig,
) -> Results:
    """The configured metrics of detections, image by image.

    Args:
        make_dataset: Batches of one image: (features, labels) under the keys of `inputs.schema`.
        detect: Features of one image, as arrays -> `BatchDetections` of a batch of one.
    """
    progress = EvaluationProgress(batch_size=1)
    progress.begin()
    with eagerly():
        accumulator = Accumulator(config.eval_config, eval_ops.make_categories(config))
        for features, labels in make_dataset():
            detections = detect({key: tensor.numpy() for key, tensor in features.items()})
            groundtruth = groundtruth_from_labels(labels)
            eval_ops.check_needs(accumulator, detections, groundtruth)
            arrays = tf.nest.map_structure(
                lambda x: None if x is None else np.asarray(x),
                (detections, groundtruth, eval_ops.sizes_of(features)),
            )
            has_masks = "masks" in accumulator.needs
            accumulator.add(eval_ops.evaluated_batch(*arrays, has_masks=has_masks))
            progress.after_run(None, None)
    return accumulator.results


class Lookup:
    """Finds the detections of each record of one reader, and counts those without a record."""

    def __init__(self, detection_file: DetectionFile) -> None:
        self._file = detection_file
        self._aliases = detection_file.aliases()
        # Source id and file name of the records that got detections, by image.
        self._used: Dict[int, Tuple[str, str]] = {}
        self._records_without: List[str] = []

    def detections(self, features: Dict[str, np.ndarray]) -> BatchDetections:
        """Detections of an image, under the keys of `inputs.schema`, in a batch of one."""
        names = features[schema.SOURCE_ID][0], features[schema.FILENAME][0]
        record = names[0].decode("utf-8", "replace"), names[1].decode("utf-8", "replace")
        image = self._image(record)
        if image is None:
            self._records_without.append(record[0])
            parts = self._file.nothing()
        else:
            size = features[schema.ORIGINAL_SPATIAL_SHAPE][0].tolist()
            parts = self._file.image_detections(image, *size)
        boxes, scores, class_ids, masks, keypoints = (x[np.newaxis] for x in parts)
        return BatchDetections(
            boxes=boxes,
            scores=scores,
            classes=class_ids - 1,
            num=np.array([scores.shape[1]]),
            raw_boxes=None,
            raw_scores=None,
            masks=masks if self._file.wanted.masks else None,
            keypoints=keypoints if self._file.wanted.num_keypoints else None,
        )

    def _image(self, record: Tuple[str, str]) -> Optional[int]:
        """Number of the image in the file of a record's source id and file name."""
        names = list(record)
        for name in record:
            names += detection_file.names_of_image(name)
        if self._file.is_coco:
            for name in reversed(record):
                names += _NUMBER_AT_END.findall(os.path.splitext(os.path.basename(name))[0])
        images = next((self._aliases[name] for name in names if name in self._aliases), [])
        if len(images) > 1:
            both = " and ".join(quoted(self._file.names[image]) for image in images[:2])
            raise RunError(
                f"{plain(self._file.path)}: {both} may both be the image {quoted(record[0])} "
                "of the records; name images as source_id or filename of the records do"
            )
        if not images:
            return None
        before = self._used.setdefault(images[0], record)
        if before != record:
            raise RunError(
                f"{plain(self._file.path)}: {quoted(self._file.names[images[0]])} may be each of "
                f"two images of the records, {quoted(before[0])} and "
                f"{quoted(record[0])}; name images as source_id or filename of the records do"
            )
        return images[0]

    def figures(self) -> Dict[str, float]:
        """Numbers of images that the file or the records lack."""
        self.check_any()
        for line in self.warnings():
            _LOG.warning("%s", line)
        return self.counts()

    def check_any(self) -> None:
        """Refuses a file if no image of it occurs in the records."""
        if self._used or not self._file.names:
            return
        names = ", ".join(map(quoted, self._file.names[:_SHOWN]))
        records = ", ".join(map(quoted, self._records_without[:_SHOWN]))
        raise RunError(
            f"{plain(self._file.path)}: its {len(self._file.names):,} images do not occur in the "
            f"records. The file has the images {names}, the records have the source ids "
            f"{records or '(none: there is no record)'}. Evaluate on the records of these images"
        )

    def counts(self) -> Dict[str, float]:
        """Counts of matched images and detections, as metrics."""
        unknown = self._unknown_images()
        return {
            "detections_of_images_without_record": float(sum(map(self._file.count_of, unknown))),
            "detections_of_unknown_classes": float(sum(self._file.unknown_classes.values())),
            "detections_in_file": float(self._file.num_read),
            "records_without_detections": float(len(self._records_without)),
        }

    def _unknown_images(self) -> List[int]:
        return [i for i in range(len(self._file.names)) if i not in self._used]

    def warnings(self) -> List[str]:
        """A line for each thing that was not scored."""
        lines, file = [], self._file
        unknown = self._unknown_images()
        if unknown:
            count = sum(map(file.count_of, unknown))
            names = listed((quoted(file.names[i]) for i in unknown), _SHOWN)
            lines.append(
                f"{count:,} detections of {len(unknown):,} images are not scored: no record has "
                f"the source_id or filename {names}"
            )
        if self._records_without:
            lines.append(
                f"{len(self._records_without):,} images of the records have no detection in the "
                f"file: {listed(map(quoted, self._records_without), _SHOWN)}"
            )
        if file.num_failed:
            lines.append(f"{file.num_failed:,} images could not be used by detect")
        if file.unknown_classes:
            common = file.unknown_classes.most_common()
            ids = listed((f"{k} ({n:,})" for k, n in common), _SHOWN)
            lines.append(
                f"{sum(file.unknown_classes.values()):,} detections are not scored: "
                f"the label map has no class of these ids: {ids}"
            )
        return lines
