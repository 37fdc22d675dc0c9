"""Drawing of boxes, and pictures of detections beside groundtruth for TensorBoard."""

from __future__ import annotations

import dataclasses
import io
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFont

from estimator_det.compat import tf, tf1

PICTURES = "Detections_Left_Groundtruth_Right"

# Strong, mutually distinct colours; a class takes the one of its number.
_PALETTE = tuple(
    ImageColor.getrgb(f"hsl({round(360 * (i * 0.618034 % 1))}, 90%, {45 + 15 * (i % 2)}%)")
    for i in range(32)
)


@dataclasses.dataclass(frozen=True)
class DrawOptions:
    """What is drawn.

    Attributes:
        min_score: Detections below this score are left out.
        max_boxes: At most this many boxes, the first ones.
        skip_labels: Boxes without the class name.
        skip_scores: Boxes without the score.
        line_width: In pixels; None for a width that suits the picture.
    """

    min_score: float = 0.5
    max_boxes: int = 20
    skip_labels: bool = False
    skip_scores: bool = False
    line_width: Optional[int] = None

    def __post_init__(self) -> None:
        if self.max_boxes < 0:
            raise ValueError(f"max_boxes must be >= 0; given {self.max_boxes}")


class Picture(NamedTuple):
    """One image and what was found and labelled in it."""

    image: np.ndarray  # uint8 [H, W, 3]
    detection_boxes: np.ndarray  # float32 [n, 4], normalized yxyx
    detection_scores: np.ndarray  # float32 [n]
    detection_classes: np.ndarray  # int [n], ids from 1
    boxes: np.ndarray  # float32 [m, 4]
    classes: np.ndarray  # int [m]


def draw_boxes(
    image: np.ndarray,
    boxes: np.ndarray,
    labels: Optional[Sequence[str]] = None,
    scores: Optional[np.ndarray] = None,
    *,
    colors: Optional[Sequence[int]] = None,
    options: DrawOptions = DrawOptions(),
) -> np.ndarray:
    """A copy of an image with boxes on it.

    Args:
        image: uint8 [H, W, 3] or [H, W, 1].
        boxes: [n, 4], yxyx normalized to the image; parts outside are not seen.
        labels: A text per box.
        scores: [n], in 0..1; also decides which boxes are drawn.
        colors: A number per box, for example its class, that chooses its colour.
        options: What is drawn.

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
    for i in reversed(shown):  # The first, usually best, box comes to lie on top.
        color = _PALETTE[(colors[i] if colors is not None else i) % len(_PALETTE)]
        top, left, bottom, right = _pixels(boxes[i], canvas.height, canvas.width)
        if bottom < top or right < left:
            continue
        draw.rectangle((left, top, right, bottom), outline=color, width=width)
        text = [] if labels is None or options.skip_labels else [labels[i]]
        if scores is not None and not options.skip_scores:
            text.append(f"{round(100 * float(scores[i]))}%")
        if text:
            _write(draw, " ".join(text), (left, top), color, font)
    return np.asarray(canvas)


def _pixels(box: np.ndarray, height: int, width: int) -> Tuple[int, int, int, int]:
    """Corner pixels inside the picture; a box that is not finite gives an empty one."""
    if not np.all(np.isfinite(box)):
        return 0, 0, -1, -1
    scaled = np.clip(box, 0.0, 1.0) * [height - 1, width - 1, height - 1, width - 1]
    top, left, bottom, right = (round(float(side)) for side in scaled)
    return top, left, bottom, right


def _write(
    draw: Any, text: str, corner: Tuple[int, int], color: Tuple[int, ...], font: Any
) -> None:
    """Writes on a strip of the box's colour, above the box where there is room, else inside."""
    left, top = corner
    _, _, text_width, text_height = draw.textbbox((0, 0), text, font=font)
    y = top - text_height - 2 if top >= text_height + 2 else top
    draw.rectangle((left, y, left + text_width + 3, y + text_height + 2), fill=color)
    dark = sum(color[:3]) > 380
    draw.text((left + 2, y + 1), text, fill="black" if dark else "white", font=font)


def side_by_side(
    picture: Picture,
    names: Dict[int, str],
    options: DrawOptions = DrawOptions(),
) -> np.ndarray:
    """Detections on the left, groundtruth on the right: uint8 [H, 2W, 3]."""

    def labels(classes: np.ndarray) -> List[str]:
        return [names.get(int(k), str(int(k))) for k in classes]

    left = draw_boxes(
        picture.image,
        picture.detection_boxes,
        labels(picture.detection_classes),
        picture.detection_scores,
        colors=[int(k) for k in picture.detection_classes],
        options=options,
    )
    right = draw_boxes(
        picture.image,
        picture.boxes,
        labels(picture.classes),
        colors=[int(k) for k in picture.classes],
        options=dataclasses.replace(options, max_boxes=len(picture.boxes)),
    )
    return np.concatenate([left, right], axis=1)


class PictureBook:
    """Collects the first pictures of an evaluation as PNG and gives them as one Summary.

    Args:
        max_pictures: How many images are drawn.
        names: Class id -> name.
        options: What is drawn.
    """

    def __init__(
        self,
        max_pictures: int,
        names: Dict[int, str],
        options: DrawOptions = DrawOptions(),
    ) -> None:
        self._max_pictures = max_pictures
        self._names = names
        self._options = options
        self._pages: List[Tuple[bytes, int, int]] = []

    def add(self, picture: Picture) -> None:
        """Draws a picture, unless there are enough."""
        if len(self._pages) >= self._max_pictures:
            return
        page = side_by_side(picture, self._names, self._options)
        buffer = io.BytesIO()
        # Quick rather than small: the evaluation waits for it.
        Image.fromarray(page).save(buffer, format="PNG", compress_level=1)
        self._pages.append((buffer.getvalue(), page.shape[0], page.shape[1]))

    def summary(self) -> bytes:
        """A serialized Summary with an image value per picture; forgets the pictures."""
        summary = tf1.Summary()
        for i, (png, height, width) in enumerate(self._pages):
            image = tf1.Summary.Image(
                height=height, width=width, colorspace=3, encoded_image_string=png
            )
            summary.value.add(tag=f"{PICTURES}/{i}", image=image)
        self._pages = []
        return summary.SerializeToString()


def picture_ops(
    book: PictureBook, batch: Picture, image_shapes: tf.Tensor, counts: Tuple[tf.Tensor, tf.Tensor]
) -> Dict[str, Tuple[tf.Tensor, tf.Operation]]:
    """`eval_metric_ops` entry whose value, a serialized Summary, Estimator writes as images.

    Args:
        book: Collects the pictures.
        batch: The fields of `Picture`, each with a batch dimension and padding.
        image_shapes: int32 [B, 2] or [B, 3], height and width of the real part of each image.
        counts: int32 [B] each: number of detections, number of groundtruth boxes.
    """

    def add(
        shapes: np.ndarray, num_detections: np.ndarray, num_boxes: np.ndarray, *fields: np.ndarray
    ) -> None:
        for row, (height, width) in enumerate(shapes[:, :2]):
            picture = Picture(*(field[row] for field in fields))
            found, labelled = num_detections[row], num_boxes[row]
            book.add(
                Picture(
                    image=picture.image[:height, :width],
                    detection_boxes=picture.detection_boxes[:found],
                    detection_scores=picture.detection_scores[:found],
                    detection_classes=picture.detection_classes[:found],
                    boxes=picture.boxes[:labelled],
                    classes=picture.classes[:labelled],
                )
            )

    update = tf.numpy_function(add, [image_shapes, *counts, *batch], [])
    return {PICTURES: (tf.numpy_function(book.summary, [], tf.string), update)}
