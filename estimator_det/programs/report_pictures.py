"""Pictures of a report: mistakes and missed objects of an evaluation beside their groundtruth."""

from __future__ import annotations

import base64
import io
import itertools
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence

import numpy as np
from PIL import Image

from estimator_det.compat import eagerly
from estimator_det.errors import UsageError
from inputs import schema
from model_fn.drawing.boxes import DrawOptions, draw_boxes, rgb
from model_fn.evaluation.detections import scoring

if TYPE_CHECKING:
    from estimator_det.protos import pipeline_pb2

PICTURE_SIDE = 300  # pixels
JPEG_QUALITY = 80
THIN, THICK = 1, 4  # lines in pixels
# Errors of inputs that are absent, as on another machine than that of the training.
ABSENT = (UsageError, FileNotFoundError)

Example = Mapping[str, Any]  # see `model_fn.evaluation.details`


def draw(
    config: pipeline_pb2.TrainEvalPipelineConfig,
    reader: str,
    names: Sequence[str],
    details: Mapping[str, Any],
) -> Dict[str, List[Dict[str, Any]]]:
    """`mistakes` and `missed` objects of the details, each with `name` and `urls`.

    The name is that of the image file. `urls` are data URLs of the detections and of the
    groundtruth, none if the image is absent.

    Args:
        names: All classes; each has its colour on every picture.
    """
    colors = {name: number for number, name in enumerate(names)}
    kinds = {kind: details.get(kind, []) for kind in ("mistakes", "missed")}
    every = {example["image"]: example for examples in kinds.values() for example in examples}
    try:
        images = {each.number: each for each in _images(config, reader, every)} if every else {}
    except ABSENT:
        images = {}

    def pictures(kind: str, example: Example) -> Dict[str, Any]:
        image = images.get(example["image"])
        if image is None:
            return {"name": f"image {example['image']}", "urls": []}
        mistake, miss = (None, example) if kind == "missed" else (example, None)
        urls = [
            _picture(image.pixels, colors, example["detections"], example["detected"], mistake),
            _picture(image.pixels, colors, example["boxes"], example["classes"], miss),
        ]
        return {"name": image.name, "urls": urls}

    return {
        kind: [{**example, **pictures(kind, example)} for example in examples]
        for kind, examples in kinds.items()
    }


class _Image(NamedTuple):
    number: int  # in the order of an evaluation
    name: str  # name of its file, or else its source_id
    pixels: np.ndarray  # uint8 [H, W, 3]


def _images(
    config: pipeline_pb2.TrainEvalPipelineConfig, reader: str, examples: Mapping[int, Example]
) -> Iterator[_Image]:
    """The images of the examples.

    An image without the boxes of its example is left out: the records have changed since.
    """
    make_dataset = scoring.original_images(config, reader)
    with eagerly():
        # Images are known by their number in the fixed order of an evaluation, so all before the
        # last one are decoded, too.
        batches = itertools.islice(make_dataset(), max(examples) + 1)
        for number, (features, labels) in enumerate(batches):
            if number not in examples:
                continue
            image = features[schema.IMAGE][0].numpy()[..., :3]
            boxes = labels[schema.BOXES][0].numpy() * np.tile(image.shape[:2], 2)
            # Boxes of the file are rounded, and JPEGs may have been resized a little since.
            tolerance = 1 + 0.01 * max(image.shape)
            distances = [
                np.abs(boxes - box).max(axis=1, initial=0).min(initial=np.inf)
                for box in examples[number]["boxes"]
            ]
            if max(distances, default=0) < tolerance:
                names = (features[key][0].numpy() for key in (schema.FILENAME, schema.SOURCE_ID))
                name = next(filter(None, names), b"").decode("utf-8", "replace")
                pixels = np.clip(image, 0, 255).astype(np.uint8)
                yield _Image(number, name or f"image {number}", pixels)


def _picture(
    image: np.ndarray,
    colors: Mapping[str, int],
    boxes: Sequence[Any],
    names: Sequence[str],
    example: Optional[Example],
) -> str:
    """Data URL of an image with thin boxes, and a thick one with its label for the example."""
    height, width = image.shape[:2]
    scale = PICTURE_SIDE / max(height, width)
    # Small pictures keep the page below a few megabytes.
    size = (max(round(width * scale), 1), max(round(height * scale), 1))
    canvas = np.asarray(Image.fromarray(rgb(image)).resize(size, Image.Resampling.LANCZOS))
    sides = np.array([height, width, height, width], float)
    if len(boxes):
        options = DrawOptions(line_width=THIN, skip_labels=example is not None)
        numbers = [colors[name] for name in names]
        canvas = draw_boxes(canvas, np.array(boxes) / sides, names, colors=numbers, options=options)
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
