"""Draws boxes, and images of detections beside groundtruth for TensorBoard."""

from __future__ import annotations

import dataclasses
import io
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFont

from estimator_det.compat import tf, tf1

IMAGES_TAG = "Detections_Left_Groundtruth_Right"

_PIXELS = ("image", "additional_channels")  # fields of `EvaluatedImage`

# Distinct colours; the colour of a class is that of its number.
_PALETTE = tuple(
    ImageColor.getrgb(f"hsl({round(360 * (i * 0.618034 % 1))}, 90%, {45 + 15 * (i % 2)}%)")
    for i in range(32)
)


@dataclasses.dataclass(frozen=True)
class DrawOptions:
    """Which boxes `draw_boxes` draws, and how.

    Attributes:
        min_score: Skips detections below this score.
        max_boxes: Draws only the first ones.
        skip_labels: Draws no class names.
        skip_scores: Draws no scores.
        line_width: In pixels; None for a width in proportion to the image.
        keypoint_edges: Pairs of keypoints, by index, that a line connects.
    """

    min_score: float = 0.5
    max_boxes: int = 20
    skip_labels: bool = False
    skip_scores: bool = False
    line_width: Optional[int] = None
    keypoint_edges: Tuple[Tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if self.max_boxes < 0:
            raise ValueError(f"max_boxes is {self.max_boxes}; it must be 0 or more")


class EvaluatedImage(NamedTuple):
    """One image with its detections and groundtruth."""

    image: np.ndarray  # uint8 [H, W, 3]
    detection_boxes: np.ndarray  # float32 [n, 4], normalized yxyx
    detection_scores: np.ndarray  # float32 [n]
    detection_classes: np.ndarray  # int [n], ids from 1
    boxes: np.ndarray  # float32 [m, 4]
    classes: np.ndarray  # int [m]
    detection_keypoints: Optional[np.ndarray] = None  # float32 [n, P, 2], normalized y and x
    keypoints: Optional[np.ndarray] = None  # float32 [m, P, 2], NaN where absent
    additional_channels: Optional[np.ndarray] = None  # uint8 [H, W, A]


def draw_boxes(
    image: np.ndarray,
    boxes: np.ndarray,
    labels: Optional[Sequence[str]] = None,
    scores: Optional[np.ndarray] = None,
    *,
    colors: Optional[Sequence[int]] = None,
    keypoints: Optional[np.ndarray] = None,
    options: DrawOptions = DrawOptions(),
) -> np.ndarray:
    """A copy of an image with boxes on it.

    Args:
        image: uint8 [H, W, 3] or [H, W, 1].
        boxes: [n, 4], yxyx normalized to the image; parts outside are cut off.
        labels: A text per box.
        scores: [n], in 0..1, compared with `options.min_score`.
        colors: A number per box, for example its class, that selects its colour.
        keypoints: [n, P, 2], y and x normalized to the image, drawn with the edges of `options`;
            those that are not finite are left out.
        options: Which boxes are drawn, and how.

    Returns:
        uint8 [H, W, 3].
    """
    canvas = Image.fromarray(np.squeeze(image, 2) if image.shape[2] == 1 else image).convert("RGB")
    draw = ImageDraw.Draw(canvas)
    font = ImageFont.load_default()
    width = options.line_width or max(1, round(min(canvas.size) / 150))
    shown = [i for i in range(len(boxes)) if scores is None or scores[i] >= options.min_score][
        : options.max_boxes
    ]
    for i in reversed(shown):  # The first box, usually the best, is on top.
        color = _PALETTE[(colors[i] if colors is not None else i) % len(_PALETTE)]
        top, left, bottom, right = _pixels(boxes[i], canvas.height, canvas.width)
        if bottom < top or right < left:
            continue
        draw.rectangle((left, top, right, bottom), outline=color, width=width)
        if keypoints is not None:
            _draw_keypoints(draw, keypoints[i], canvas.size, color, width, options.keypoint_edges)
        text = [] if labels is None or options.skip_labels else [labels[i]]
        if scores is not None and not options.skip_scores:
            text.append(f"{round(100 * float(scores[i]))}%")
        if text:
            _write(draw, " ".join(text), (left, top), color, font)
    return np.asarray(canvas)


def _draw_keypoints(
    draw: Any,
    keypoints: np.ndarray,
    size: Tuple[int, int],
    color: Tuple[int, ...],
    width: int,
    edges: Sequence[Tuple[int, int]],
) -> None:
    """Draws the edges between keypoints [P, 2] that are both finite, and a dot on each."""
    finite = np.all(np.isfinite(keypoints), axis=1)
    scaled = np.where(finite[:, np.newaxis], keypoints, 0.0) * [size[1] - 1, size[0] - 1]
    points = [(round(float(x)), round(float(y))) for y, x in scaled]
    for start, end in edges:
        if finite[start] and finite[end]:
            draw.line((*points[start], *points[end]), fill=color, width=width)
    for (x, y), is_known in zip(points, finite):
        if is_known:
            draw.ellipse((x - width, y - width, x + width, y + width), fill=color)


def _pixels(box: np.ndarray, height: int, width: int) -> Tuple[int, int, int, int]:
    """Corner pixels inside the image; a box that is not finite gives an empty one."""
    if not np.all(np.isfinite(box)):
        return 0, 0, -1, -1
    scaled = np.clip(box, 0.0, 1.0) * [height - 1, width - 1, height - 1, width - 1]
    top, left, bottom, right = (round(float(side)) for side in scaled)
    return top, left, bottom, right


def _write(
    draw: Any, text: str, corner: Tuple[int, int], color: Tuple[int, ...], font: Any
) -> None:
    """Writes on the box's colour, above the box if there is room, else inside."""
    left, top = corner
    _, _, text_width, text_height = draw.textbbox((0, 0), text, font=font)
    y = top - text_height - 2 if top >= text_height + 2 else top
    draw.rectangle((left, y, left + text_width + 3, y + text_height + 2), fill=color)
    dark = sum(color[:3]) > 380
    draw.text((left + 2, y + 1), text, fill="black" if dark else "white", font=font)


def side_by_side(
    evaluated: EvaluatedImage, names: Dict[int, str], options: DrawOptions = DrawOptions()
) -> np.ndarray:
    """Detections on the left, groundtruth on the right: uint8 [H, 2W, 3].

    Further to the right groundtruth on the additional channels, if there are any: the first three
    as colours, fewer than three as grey.
    """

    def labels(classes: np.ndarray) -> List[str]:
        return [names.get(int(k), str(int(k))) for k in classes]

    left = draw_boxes(
        evaluated.image,
        evaluated.detection_boxes,
        labels(evaluated.detection_classes),
        evaluated.detection_scores,
        colors=[int(k) for k in evaluated.detection_classes],
        keypoints=evaluated.detection_keypoints,
        options=options,
    )
    backgrounds = [evaluated.image]
    channels = evaluated.additional_channels
    if channels is not None:
        backgrounds.append(channels[..., :3] if channels.shape[2] >= 3 else channels[..., :1])
    groundtruth = [
        draw_boxes(
            background,
            evaluated.boxes,
            labels(evaluated.classes),
            colors=[int(k) for k in evaluated.classes],
            keypoints=evaluated.keypoints,
            options=dataclasses.replace(options, max_boxes=len(evaluated.boxes)),
        )
        for background in backgrounds
    ]
    return np.concatenate([left, *groundtruth], axis=1)


class EvaluationImages:
    """Draws the first images of an evaluation and returns them as one Summary.

    Args:
        max_images: How many images are drawn.
        names: Class id -> name.
        options: Which boxes are drawn, and how.
    """

    def __init__(
        self, max_images: int, names: Dict[int, str], options: DrawOptions = DrawOptions()
    ) -> None:
        self._max_images = max_images
        self._names = names
        self._options = options
        self._drawn: List[Tuple[bytes, int, int]] = []  # PNG, height, width

    def add(self, evaluated: EvaluatedImage) -> None:
        """Draws an image, unless there are `max_images` already."""
        if len(self._drawn) >= self._max_images:
            return
        pixels = side_by_side(evaluated, self._names, self._options)
        buffer = io.BytesIO()
        # Fast rather than small, because the evaluation waits.
        Image.fromarray(pixels).save(buffer, format="PNG", compress_level=1)
        self._drawn.append((buffer.getvalue(), pixels.shape[0], pixels.shape[1]))

    def summary(self) -> bytes:
        """A serialized Summary with one value per image; removes the images."""
        summary = tf1.Summary()
        for i, (png, height, width) in enumerate(self._drawn):
            image = tf1.Summary.Image(
                height=height, width=width, colorspace=3, encoded_image_string=png
            )
            summary.value.add(tag=f"{IMAGES_TAG}/{i}", image=image)
        self._drawn = []
        return summary.SerializeToString()


def image_ops(
    images: EvaluationImages,
    batch: EvaluatedImage,
    image_shapes: tf.Tensor,
    counts: Tuple[tf.Tensor, tf.Tensor],
) -> Dict[str, Tuple[tf.Tensor, tf.Operation]]:
    """`eval_metric_ops` entry; its value is a serialized Summary that Estimator writes.

    Args:
        images: Draws the images.
        batch: The fields of `EvaluatedImage`, each with a batch dimension and padding.
        image_shapes: int32 [B, 2] or [B, 3], height and width of the real part of each image.
        counts: int32 [B] each: number of detections, number of groundtruth boxes.
    """
    present = {name: value for name, value in batch._asdict().items() if value is not None}

    def add(
        shapes: np.ndarray, num_detections: np.ndarray, num_boxes: np.ndarray, *fields: np.ndarray
    ) -> None:
        for row, (height, width) in enumerate(shapes[:, :2]):
            real: Dict[str, Any] = {}
            for name, field in zip(present, fields):
                if name in _PIXELS:
                    real[name] = field[row, :height, :width]
                else:
                    is_detection = name.startswith("detection_")
                    real[name] = field[row, : (num_detections if is_detection else num_boxes)[row]]
            images.add(EvaluatedImage(**real))

    update = tf.numpy_function(add, [image_shapes, *counts, *present.values()], [])
    return {IMAGES_TAG: (tf.numpy_function(images.summary, [], tf.string), update)}
