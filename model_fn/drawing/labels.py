"""Labels of boxes: their size, places without overlap, and drawing."""

from __future__ import annotations

import os
from typing import Any, Iterator, List, Optional, Sequence, Tuple

from PIL import ImageFont

PixelBox = Tuple[int, int, int, int]  # top, left, bottom, right; the corner pixels belong to it

MIN_FONT_PIXELS = 10  # smaller letters are not legible
FONT_SHARE = 1 / 40  # share of the shorter side of the image


def sans(pixels: int) -> Any:
    """DejaVu Sans with letters of this size; it is part of matplotlib and covers most alphabets."""
    import matplotlib

    path = os.path.join(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
    # The other engine of Pillow, which not all machines have, fails for control characters.
    return ImageFont.truetype(path, pixels, layout_engine=ImageFont.Layout.BASIC)


def font_pixels(size: Tuple[int, int]) -> int:
    """Height of the letters of labels on an image of this width and height."""
    return max(MIN_FONT_PIXELS, round(min(size) * FONT_SHARE))


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
