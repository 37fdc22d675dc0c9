"""Draws a batch as a grid of images: the network's input with boxes, masks, keypoints and names.

To show preprocessed images, `fit_pixels` inverts a detector's preprocessing: it preprocesses images
of a single colour and fits an affine map back. So it works for every network.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from PIL import Image, ImageDraw

from estimator_det.compat import tf
from estimator_det.console.printing import counted, plain
from estimator_det.files.mask_regions import resize_mask
from inputs import schema
from inputs.batch import FIRST_CLASS_ID
from model_fn.drawing.boxes import DrawOptions, draw_boxes, rgb, sans

ToPixels = Callable[[np.ndarray], np.ndarray]  # float32 [H, W, C] -> uint8 [H, W, 3]

FIT_SIDE = 16  # pixels, of the images of a single colour
# Error of a colour, in 0..255, from which preprocessing is not an affine map.
FIT_TOLERANCE = 0.25

MARGIN = 10  # pixels, around and between images
CAPTION_HEIGHT = 40
TITLE_HEIGHT = 34
TEXT_SIZE = 13
PAGE_COLOR, TEXT_COLOR, NOTE_COLOR = (250, 250, 250), (40, 40, 40), (120, 120, 120)
WARNING_COLOR = (190, 90, 0)
BORDER_COLOR = (0, 220, 255)  # border of the real image inside its padding

NAMES = (schema.FILENAME, schema.SOURCE_ID)  # a caption shows the first that a record has


class GridCell(NamedTuple):
    """One image of a batch."""

    pixels: np.ndarray  # uint8 [H, W, 3]
    true_size: Sequence[int]  # height and width of the real image, in the top left corner
    boxes: np.ndarray  # float32 [n, 4], yxyx normalized to the padded image
    labels: List[str]  # n
    classes: List[int]  # n, the first class of each box
    name: str  # name of the image file, or source id
    masks: Optional[np.ndarray] = None  # float32 [n, H, W]
    keypoints: Optional[np.ndarray] = None  # float32 [n, P, 2], y and x as boxes, NaN absent
    note: str = ""  # below the name; "" for size and number of boxes


def fit_pixels(
    preprocess: Callable[[tf.Tensor], Any], num_channels: int = 3
) -> Tuple[ToPixels, bool]:
    """The inverse of what preprocessing does to colours, and whether it is exact.

    If preprocessing is not an affine map of colours, the function scales each image from its
    minimum to its maximum. Only the first three channels are shown.

    Args:
        preprocess: A detector's: float32 [B, h, w, C] in 0..255 -> inputs, true_shapes.
    """
    greys = [np.full(num_channels, level) for level in (0.0, 100.0, 255.0)]
    colors = np.stack([*greys, *255.0 * np.eye(num_channels)]).astype(np.float32)
    shape = [len(colors), FIT_SIDE, FIT_SIDE, num_channels]
    inputs, true_shapes = preprocess(tf.constant(np.broadcast_to(colors[:, None, None], shape)))
    row, column = np.asarray(true_shapes)[0, :2] // 2
    mapped = np.asarray(inputs)[:, row, column]  # [colours, output channels]
    if mapped.shape[1] == 1:  # Each channel shows the brightness.
        mapped, colors = mapped[: len(greys)], colors[: len(greys)]
    mapped = np.concatenate([mapped, np.ones([len(mapped), 1])], axis=1).astype(np.float64)
    inverse = np.linalg.lstsq(mapped, colors, rcond=None)[0]  # [output channels + 1, channels]
    if np.abs(mapped @ inverse - colors).max() > FIT_TOLERANCE:
        return scaled_to_range, False
    matrix, offset = inverse[:-1].astype(np.float32), inverse[-1].astype(np.float32)

    def to_pixels(image: np.ndarray) -> np.ndarray:
        restored = image @ matrix + offset
        return np.clip(np.rint(restored[..., :3]), 0, 255).astype(np.uint8)

    return to_pixels, True


def scaled_to_range(image: np.ndarray) -> np.ndarray:
    """An image of any values as uint8 [H, W, 3], from its minimum to its maximum."""
    image = rgb(image)
    low, high = float(image.min()), float(image.max())
    return np.rint((image - low) * (255.0 / max(high - low, 1e-12))).astype(np.uint8)


def class_texts(classes: np.ndarray, names: Mapping[int, str]) -> Tuple[List[int], List[str]]:
    """k-hot [n, K] -> the first id and a text for each box; several classes stand side by side.

    A box without any class has the id 0, which no label map contains.
    """
    all_ids = [(np.flatnonzero(row > 0) + FIRST_CLASS_ID).tolist() or [0] for row in classes]
    texts = ["+".join(names.get(number, str(number)) for number in ids) for ids in all_ids]
    return [ids[0] for ids in all_ids], texts


def with_weights(texts: Sequence[str], weights: Iterable[Any]) -> List[str]:
    """Labels that say the weights other than 1."""
    pairs = zip(texts, weights)
    return [text if weight == 1 else f"{text} (weight {weight:.2g})" for text, weight in pairs]


def caption_of(names: Iterable[bytes]) -> str:
    """The first name that is not empty."""
    return plain(bytes(next(filter(None, names), b"")).decode("utf-8", "replace"))


def cells_of_batch(
    features: Mapping[str, np.ndarray],
    labels: Mapping[str, np.ndarray],
    to_pixels: ToPixels,
    names: Mapping[int, str],
) -> List[GridCell]:
    """The images of a batch with their labels; names, WEIGHTS, MASKS, KEYPOINTS may be absent."""
    cells = []
    for row, image in enumerate(features[schema.IMAGE]):
        count = int(labels[schema.NUM_BOXES][row])
        weights = labels[schema.WEIGHTS][row] if schema.WEIGHTS in labels else np.ones([count])
        class_ids, texts = class_texts(labels[schema.CLASSES][row][:count], names)
        masks, keypoints = (
            labels[key][row][:count] if key in labels else None
            for key in (schema.MASKS, schema.KEYPOINTS)
        )
        image_names = (features[key][row] for key in NAMES if key in features)
        cells.append(
            GridCell(
                pixels=to_pixels(image),
                true_size=features[schema.TRUE_IMAGE_SHAPE][row][:2].tolist(),
                boxes=labels[schema.BOXES][row][:count],
                labels=with_weights(texts, weights),
                classes=class_ids,
                name=caption_of(image_names),
                masks=masks,
                keypoints=keypoints,
            )
        )
    return cells


def draw_grid(
    cells: Sequence[GridCell], *, title: str = "", columns: int = 4, side: int = 360
) -> Image.Image:
    """Draws all images in one, row by row; `side` is the longer side of each in pixels."""
    if not cells:
        raise ValueError("a batch grid needs at least one image; given none")
    columns = min(columns, len(cells))
    pairs = [(cell, _draw_cell(cell, side)) for cell in cells]
    rows = [pairs[start : start + columns] for start in range(0, len(pairs), columns)]
    heights = [max(image.height for _, image in row) for row in rows]
    top = MARGIN + (TITLE_HEIGHT if title else 0)
    width = columns * (side + MARGIN) + MARGIN
    bottom = top + sum(height + CAPTION_HEIGHT + MARGIN for height in heights)
    page = Image.new("RGB", (width, bottom), PAGE_COLOR)
    draw = ImageDraw.Draw(page)
    if title:
        font = sans(TEXT_SIZE + 4)
        draw.text((MARGIN, MARGIN), _fitted(title, width - 2 * MARGIN, font), TEXT_COLOR, font)
    for row, height in zip(rows, heights):
        for number, (cell, image) in enumerate(row):
            left = MARGIN + number * (side + MARGIN)
            page.paste(image, (left + (side - image.width) // 2, top))
            _caption(draw, cell, (left, top + height + 3), side)
        top += height + CAPTION_HEIGHT + MARGIN
    return page


def _draw_cell(cell: GridCell, side: int) -> Image.Image:
    height, width = cell.pixels.shape[:2]
    scale = side / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    enlarged = np.asarray(Image.fromarray(cell.pixels).resize(size, Image.Resampling.BICUBIC))
    masks = cell.masks
    picture = draw_boxes(
        enlarged,
        cell.boxes,
        cell.labels,
        colors=cell.classes,
        keypoints=cell.keypoints,
        mask_of=None if masks is None else lambda i: resize_mask(masks[i], (size[1], size[0])),
        options=DrawOptions(line_width=2),
    )
    image = Image.fromarray(picture)
    bottom = round(cell.true_size[0] * scale) - 1
    right = round(cell.true_size[1] * scale) - 1
    ImageDraw.Draw(image).rectangle((0, 0, right, bottom), outline=BORDER_COLOR)
    return image


def _caption(draw: Any, cell: GridCell, corner: Sequence[int], width: int) -> None:
    font, small = sans(TEXT_SIZE), sans(TEXT_SIZE - 2)
    left, top = corner
    draw.text((left, top), _fitted(cell.name or "(no source_id)", width, font), TEXT_COLOR, font)
    padded_height, padded_width = cell.pixels.shape[:2]
    size = f"{cell.true_size[1]}×{cell.true_size[0]}"
    if [padded_height, padded_width] != list(cell.true_size):
        size += f", padded to {padded_width}×{padded_height}"
    boxes = counted(len(cell.boxes), "box") if len(cell.boxes) else "no boxes"
    color = NOTE_COLOR if len(cell.boxes) else WARNING_COLOR
    note = cell.note or f"{size} · {boxes}"
    draw.text((left, top + TEXT_SIZE + 5), _fitted(note, width, small), color, small)


def _fitted(text: str, width: int, font: Any) -> str:
    """The text, cut in the middle if it is too wide: both ends of a source id matter."""
    shown, keep = text, len(text)
    while keep > 2 and font.getlength(shown) > width:
        keep -= 1
        shown = f"{text[: keep - keep // 2]}…{text[len(text) - keep // 2 :]}"
    return shown
