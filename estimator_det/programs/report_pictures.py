"""Pictures of a report: mistakes, missed objects and faults of labels beside their groundtruth."""

from __future__ import annotations

import base64
import io
import itertools
from typing import (
    TYPE_CHECKING,
    Any,
    Collection,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
)

import numpy as np
from PIL import Image

from estimator_det.compat import eagerly
from estimator_det.errors import UsageError
from inputs import schema
from inputs.records import stream
from model_fn.drawing.boxes import DrawOptions, Edges, draw_boxes, keypoint_edges, rgb
from model_fn.evaluation.detections import scoring
from model_fn.evaluation.readers import TRAINING_DATA, named_readers

if TYPE_CHECKING:
    from estimator_det.protos import pipeline_pb2

KINDS = ("mistakes", "missed", "label_faults")
PICTURES = 16  # examples of each kind that are drawn
PICTURE_SIDE = 300  # pixels
JPEG_QUALITY = 80
THIN, THICK = 1, 4  # lines in pixels
# Errors if inputs are absent, for example on another machine than the training ran on.
ABSENT = (UsageError, FileNotFoundError)

Example = Mapping[str, Any]  # see `model_fn.evaluation.details`


def draw(
    config: pipeline_pb2.TrainEvalPipelineConfig,
    reader: str,
    names: Sequence[str],
    details: Mapping[str, Any],
    kinds: Sequence[str] = KINDS,
) -> Dict[str, List[Dict[str, Any]]]:
    """Examples of each kind in an evaluation's details, with `name`, `record` and `urls`.

    `name` is the name of the image file, `record` the file and number of its record. `urls` are
    data URLs of two pictures, with the detections and with the groundtruth. The list is empty if
    the image is absent, and for examples after the first `PICTURES` of their kind.

    Args:
        names: All classes; each has its colour on every picture.
    """
    colors = {name: number for number, name in enumerate(names)}
    edges = keypoint_edges(config.eval_config)
    examples_of = {kind: details.get(kind, []) for kind in kinds}
    shown = {kind: examples[:PICTURES] for kind, examples in examples_of.items()}
    boxes: Dict[int, List[Any]] = {}
    for example in itertools.chain(*examples_of.values()):
        boxes.setdefault(example["image"], []).extend(_true_boxes(example))
    with_pixels = {example["image"] for example in itertools.chain(*shown.values())}
    try:
        images = {each.number: each for each in _images(config, reader, boxes, with_pixels)}
    except ABSENT:
        images = {}

    def pictures(kind: str, example: Example) -> Dict[str, Any]:
        image = images.get(example["image"])
        if image is None:
            return {"name": f"image {example['image']}", "record": None, "urls": []}
        urls = []
        if image.pixels is not None and example in shown[kind]:
            urls = [_picture(image.pixels, colors, edges, side) for side in _sides(kind, example)]
        return {"name": image.name, "record": image.record, "urls": urls}

    return {
        kind: [{**example, **pictures(kind, example)} for example in examples]
        for kind, examples in examples_of.items()
    }


def _true_boxes(example: Example) -> List[Any]:
    """The boxes of the groundtruth that an example names."""
    if "label" in example:
        return [example["label"]["box"]] if example["label"] else []
    return list(example["boxes"])


class _Side(NamedTuple):
    """The detections on an image, or its groundtruth."""

    example: Optional[Example]  # its box is thick
    boxes: Sequence[Any] = ()  # n thin boxes
    names: Sequence[str] = ()  # [n]
    keypoints: Any = None  # [n, P, 2] or None; None for the numbers of absent keypoints
    keypoint_scores: Any = None  # [n, P] or None


def _sides(kind: str, example: Example) -> List[_Side]:
    """The detections and the groundtruth."""
    if kind == "label_faults":
        return [_Side(example["detection"]), _Side(example["label"])]
    mistake, miss = (None, example) if kind == "missed" else (example, None)
    # Details of earlier versions have no keypoints.
    points = [example.get(key) for key in ("detected_keypoints", "keypoint_scores", "keypoints")]
    return [
        _Side(mistake, example["detections"], example["detected"], *points[:2]),
        _Side(miss, example["boxes"], example["classes"], points[2]),
    ]


class _Image(NamedTuple):
    number: int  # in the order of an evaluation
    name: str  # name of its file, or else its source_id
    record: str  # path of its file and its number there
    pixels: Optional[np.ndarray]  # uint8 [H, W, 3]


def _images(
    config: pipeline_pb2.TrainEvalPipelineConfig,
    reader: str,
    boxes_by_number: Mapping[int, Sequence[Any]],
    with_pixels: Collection[int],
) -> Iterator[_Image]:
    """Some images of an evaluation, with the pixels of those in `with_pixels`.

    An image without the boxes of its examples is left out: the records have changed since.
    """
    if not boxes_by_number:
        return
    on_training_data = reader == TRAINING_DATA
    make_dataset = scoring.original_images(config, reader, on_training_data=on_training_data)
    readers = named_readers(config, on_training_data=on_training_data)
    paths = stream.list_files(readers[reader]).paths
    with eagerly():
        # Images are known by their number in the fixed order of an evaluation, so all before the
        # last one are decoded, too.
        batches = itertools.islice(make_dataset(), max(boxes_by_number) + 1)
        for number, (features, labels) in enumerate(batches):
            if number not in boxes_by_number:
                continue
            image = features[schema.IMAGE][0].numpy()[..., :3]
            boxes = labels[schema.BOXES][0].numpy() * np.tile(image.shape[:2], 2)
            # Boxes of the file are rounded, and JPEGs may have been resized a little since.
            tolerance = 1 + 0.01 * max(image.shape)
            distances = [
                np.abs(boxes - box).max(axis=1, initial=0).min(initial=np.inf)
                for box in boxes_by_number[number]
            ]
            if max(distances, default=0) < tolerance:
                names = (features[key][0].numpy() for key in (schema.FILENAME, schema.SOURCE_ID))
                name = next(filter(None, names), b"").decode("utf-8", "replace")
                file, position = features[schema.RECORD][0].numpy().tolist()
                record = f"{paths[file]}, record {position}"
                pixels = np.clip(image, 0, 255).astype(np.uint8) if number in with_pixels else None
                yield _Image(number, name or f"image {number}", record, pixels)


def _picture(image: np.ndarray, colors: Mapping[str, int], edges: Edges, side: _Side) -> str:
    """Data URL of an image with thin boxes, and a thick one with its label for the example."""
    example = side.example
    height, width = image.shape[:2]
    scale = PICTURE_SIDE / max(height, width)
    # Small pictures keep the page below a few megabytes.
    size = (max(round(width * scale), 1), max(round(height * scale), 1))
    canvas = np.asarray(Image.fromarray(rgb(image)).resize(size, Image.Resampling.LANCZOS))
    sides = np.array([height, width, height, width], float)
    if len(side.boxes):
        points, scores = (
            None if values is None else np.array(values, float)
            for values in (side.keypoints, side.keypoint_scores)
        )
        canvas = draw_boxes(
            canvas,
            np.array(side.boxes) / sides,
            side.names,
            colors=[colors[name] for name in side.names],
            keypoints=None if points is None else points / sides[:2],
            keypoint_scores=scores,
            options=DrawOptions(
                line_width=THIN, skip_labels=example is not None, keypoint_edges=edges
            ),
        )
    if example is not None:
        score = f" {example['score']:.2f}" if "score" in example else ""
        canvas = draw_boxes(
            canvas,
            np.array([example["box"]]) / sides,
            [example["class"] + score],
            colors=[colors[example["class"]]],
            options=DrawOptions(line_width=THICK),
        )
    buffer = io.BytesIO()
    Image.fromarray(canvas).save(buffer, "JPEG", quality=JPEG_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
