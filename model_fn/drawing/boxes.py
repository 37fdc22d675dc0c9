"""Draws boxes with labels, masks and keypoints."""

from __future__ import annotations

import dataclasses
import io
import os
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFont

from estimator_det.compat import tf1
from estimator_det.files.mask_regions import MaskRegion
from estimator_det.protos import eval_pb2

Edges = Tuple[Tuple[int, int], ...]  # pairs of keypoints, by index, that a line connects
PixelBox = Tuple[int, int, int, int]  # top, left, bottom, right; the corner pixels belong to it

MIN_FONT_PIXELS = 10  # smaller letters are not legible
FONT_SHARE = 1 / 40  # share of the shorter side of the image
MASK_OPACITY = 0.45  # the object stays visible
_MAX_JPEG_SIDE = 65_500  # pixels, which the format allows

# Distinct colours; the number of a class is the index of its colour.
_PALETTE = tuple(
    ImageColor.getrgb(f"hsl({round(360 * (i * 0.618034 % 1))}, 90%, {45 + 15 * (i % 2)}%)")
    for i in range(32)
)


@dataclasses.dataclass(frozen=True)
class DrawOptions:
    """Choice and style of the boxes that `draw_boxes` draws."""

    min_score: float = 0.5  # skips detections below this score
    min_keypoint_score: float = 0.2  # skips keypoints below this score
    max_boxes: Optional[int] = None  # draws only the first ones; None draws all
    skip_labels: bool = False  # draws no class names
    skip_scores: bool = False  # draws no scores
    line_width: Optional[int] = None  # in pixels; None for a width in proportion to the image
    # Draws only the first of several boxes that overlap this much, for example of the same object
    # in two classes; None draws all.
    same_object_iou: Optional[float] = None
    keypoint_edges: Edges = ()


def keypoint_edges(eval_config: eval_pb2.EvalConfig) -> Edges:
    """The lines of skeletons of an `EvalConfig`."""
    return tuple((edge.start, edge.end) for edge in eval_config.keypoint_edge)


def draw_boxes(
    image: np.ndarray,
    boxes: np.ndarray,
    labels: Optional[Sequence[str]] = None,
    scores: Optional[np.ndarray] = None,
    *,
    colors: Optional[Sequence[int]] = None,
    keypoints: Optional[np.ndarray] = None,
    keypoint_scores: Optional[np.ndarray] = None,
    mask_of: Optional[Callable[[int], MaskRegion]] = None,
    options: DrawOptions = DrawOptions(),
) -> np.ndarray:
    """A copy of an image with boxes on it.

    Args:
        image: uint8 [H, W, C], drawn as `rgb` returns it.
        boxes: [n, 4], yxyx normalized to the image; parts outside are cut off.
        labels: A text per box. No label covers another; one without room is not drawn.
        scores: [n], in 0..1.
        colors: A number per box, for example its class, that selects its colour.
        keypoints: [n, P, 2], y and x normalized to the image; not drawn if not finite.
        keypoint_scores: [n, P], in 0..1; keypoints below `min_keypoint_score` are left out.
        mask_of: Index of a box -> its mask in the image, drawn translucent in the box's colour.
    """
    image = rgb(image)
    height, width = image.shape[:2]
    if keypoints is not None and keypoint_scores is not None:
        is_shown = keypoint_scores[..., np.newaxis] >= options.min_keypoint_score
        keypoints = np.where(is_shown, keypoints, np.nan)
    shown = [i for i in range(len(boxes)) if scores is None or scores[i] >= options.min_score]
    corners = {i: _pixels(boxes[i], height, width) for i in shown}
    corners = {i: box for i, box in corners.items() if box[0] <= box[2] and box[1] <= box[3]}
    if options.same_object_iou is not None:
        corners = _first_of_each_object(corners, options.same_object_iou)
    corners = dict(list(corners.items())[: options.max_boxes])
    palette = {i: _PALETTE[(i if colors is None else colors[i]) % len(_PALETTE)] for i in corners}
    if mask_of is not None:
        image = image.copy()
        for i in reversed(corners):
            _draw_mask(image, mask_of(i), palette[i])
    canvas = Image.fromarray(image)
    draw = ImageDraw.Draw(canvas)
    font = sans(max(MIN_FONT_PIXELS, round(min(canvas.size) * FONT_SHARE)))
    line = options.line_width or max(1, round(min(canvas.size) / 150))
    for i in reversed(corners):  # The first box, usually the best, is on top.
        top, left, bottom, right = corners[i]
        draw.rectangle((left, top, right, bottom), outline=palette[i], width=line)
        if keypoints is not None:
            points, edges = keypoints[i], options.keypoint_edges
            _draw_keypoints(draw, points, canvas.size, palette[i], line, edges)
    texts = {i: _text(i, labels, scores, options) for i in corners}
    sizes = [label_size(draw, texts[i], font) for i in corners]
    places = place_labels(list(corners.values()), sizes, (height, width))
    for i, place in zip(corners, places):
        if place is not None:
            write_label(draw, texts[i], place, palette[i], font)
    return np.asarray(canvas)


def rgb(image: np.ndarray) -> np.ndarray:
    """The first three channels [H, W, 3] of an image; of fewer, the first one as grey."""
    return image[..., :3] if image.shape[2] >= 3 else np.repeat(image[..., :1], 3, axis=2)


def _draw_mask(image: np.ndarray, mask: MaskRegion, color: Tuple[int, ...]) -> None:
    """Mixes the colour into the pixels of the mask, in place; the outline has the colour itself.

    Without an outline, a mask would hardly be seen on an object of a similar colour.
    """
    rows, columns = mask.inside.shape
    part = image[mask.top : mask.top + rows, mask.left : mask.left + columns]
    for channel, value in enumerate(color[:3]):
        mixed = (1 - MASK_OPACITY) * np.arange(256) + MASK_OPACITY * value
        pixels = part[..., channel]
        pixels[mask.inside] = np.round(mixed).astype(np.uint8)[pixels[mask.inside]]
    padded = np.pad(mask.inside, 1)
    surrounded = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    part[mask.inside & ~surrounded] = color[:3]


def _first_of_each_object(boxes: Dict[int, PixelBox], iou: float) -> Dict[int, PixelBox]:
    """Leaves out boxes that overlap an earlier one by `iou` or more."""
    kept: Dict[int, PixelBox] = {}
    for i, box in boxes.items():
        if all(_iou(box, kept_box) < iou for kept_box in kept.values()):
            kept[i] = box
    return kept


def _iou(first: PixelBox, second: PixelBox) -> float:
    sides = [min(first[i + 2], second[i + 2]) - max(first[i], second[i]) + 1 for i in range(2)]
    shared = max(sides[0], 0) * max(sides[1], 0)
    areas = [(box[2] - box[0] + 1) * (box[3] - box[1] + 1) for box in (first, second)]
    return shared / (sum(areas) - shared)


def _text(
    i: int, labels: Optional[Sequence[str]], scores: Optional[np.ndarray], options: DrawOptions
) -> str:
    parts = [] if labels is None or options.skip_labels else [labels[i]]
    if scores is not None and not options.skip_scores:
        parts.append(f"{round(100 * float(scores[i]))}%")
    return " ".join(parts)


def _draw_keypoints(
    draw: Any,
    keypoints: np.ndarray,
    size: Tuple[int, int],
    color: Tuple[int, ...],
    width: int,
    edges: Edges,
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


def _pixels(box: np.ndarray, height: int, width: int) -> PixelBox:
    """Corner pixels inside the image; a box that is not finite gives an empty one."""
    if not np.all(np.isfinite(box)):
        return 0, 0, -1, -1
    scaled = np.clip(box, 0.0, 1.0) * [height - 1, width - 1, height - 1, width - 1]
    top, left, bottom, right = (round(float(side)) for side in scaled)
    return top, left, bottom, right


def sans(pixels: int) -> Any:
    """DejaVu Sans with letters of this size; it is part of matplotlib and covers most alphabets."""
    import matplotlib

    path = os.path.join(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
    # The other engine of Pillow, which not all machines have, fails for control characters.
    return ImageFont.truetype(path, pixels, layout_engine=ImageFont.Layout.BASIC)


def place_labels(
    boxes: Sequence[PixelBox], sizes: Sequence[Tuple[int, int]], canvas: Tuple[int, int]
) -> List[Optional[PixelBox]]:
    """A place for the label of each box; no two places overlap, and the first boxes choose first.

    A label is above its box, inside it or below it, at the left or right side; else in the nearest
    free row; else it has no place.

    Args:
        sizes: Height and width of each label; labels of size 0 take no place.
        canvas: Height and width of the image, which contains all places.
    """
    placed: List[Optional[PixelBox]] = []
    for box, (height, width) in zip(boxes, sizes):
        occupied = [place for place in placed if place is not None]
        fits = 0 < height <= canvas[0] and 0 < width <= canvas[1]
        free = (
            place
            for place in _candidates(box, height, width, canvas)
            if not any(_overlap(place, neighbour) for neighbour in occupied)
        )
        placed.append(next(free, None) if fits else None)
    return placed


def _candidates(
    box: PixelBox, height: int, width: int, canvas: Tuple[int, int]
) -> Iterator[PixelBox]:
    """Places for a label, the best first."""
    top, left, bottom, right = box
    rows = [top - height, top, bottom + 1, bottom + 1 - height]
    others = range(0, canvas[0] - height + 1, max(height // 2, 1))
    rows += sorted(others, key=lambda row: abs(row - top))
    for y in rows:
        if not 0 <= y <= canvas[0] - height:
            continue
        for x in dict.fromkeys((left, right + 1 - width)):
            x = min(max(x, 0), canvas[1] - width)
            yield y, x, y + height - 1, x + width - 1


def _overlap(first: PixelBox, second: PixelBox) -> bool:
    return all(first[i] <= second[i + 2] and second[i] <= first[i + 2] for i in range(2))


def label_size(draw: Any, text: str, font: Any) -> Tuple[int, int]:
    """Height and width of a label; zeros without text."""
    if not text:
        return 0, 0
    _, _, width, height = draw.textbbox((0, 0), text, font=font)
    margin = _margin(font)
    return int(height) + 3 * margin, int(width) + 4 * margin


def _margin(font: Any) -> int:
    """Pixels between the text of a label and its border."""
    return max(1, round(font.size / MIN_FONT_PIXELS))


def write_label(draw: Any, text: str, place: PixelBox, color: Tuple[int, ...], font: Any) -> None:
    """Writes a label, on the colour of its box."""
    top, left, bottom, right = place
    draw.rectangle((left, top, right, bottom), fill=color)
    dark = sum(color[:3]) > 380
    margin = _margin(font)
    draw.text((left + 2 * margin, top + margin), text, fill="black" if dark else "white", font=font)


def jpeg(pixels: np.ndarray) -> bytes:
    """A JPEG file with full resolution of colours, for thin lines and text.

    A step or an evaluation waits for it, and a run keeps many: a PNG file takes ten times the time
    and several times the space.
    """
    picture, buffer = Image.fromarray(pixels), io.BytesIO()
    picture.thumbnail((_MAX_JPEG_SIDE, _MAX_JPEG_SIDE))
    picture.save(buffer, format="JPEG", quality=90, subsampling=0)
    return buffer.getvalue()


def picture_summary(files: Mapping[str, bytes]) -> bytes:
    """A serialized Summary of PNG or JPEG files by their tags, for TensorBoard."""
    summary = tf1.Summary()
    for tag, content in files.items():
        picture = Image.open(io.BytesIO(content))
        image = tf1.Summary.Image(
            height=picture.height,
            width=picture.width,
            colorspace=len(picture.getbands()),
            encoded_image_string=content,
        )
        summary.value.add(tag=tag, image=image)
    return bytes(summary.SerializeToString())
