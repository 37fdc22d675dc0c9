"""Checked fields of the entries of a file of detections."""

from __future__ import annotations

from typing import Any, Mapping, Sequence, Tuple

import numpy as np

from estimator_det.config.printing import plain, quoted
from estimator_det.files import run_lengths
from model_fn.evaluation.metrics.run_lengths import RunLength

MAX_MASK_PIXELS = 178_956_970  # the limit of images
_GREATEST = float(np.finfo(np.float32).max)


class Fault(Exception):
    """Fault of an entry."""


def object_of(value: Any) -> Mapping[str, Any]:
    """The value, which must be an object."""
    if not isinstance(value, dict):
        raise Fault(f"is {quoted(value)}, not an object between {{ and }}")
    return value


def field_of(fields: Mapping[str, Any], name: str) -> Any:
    """A field that must be there."""
    if name not in fields:
        raise Fault(f"has no {name}; it has {plain(sorted(fields))}")
    return fields[name]


def number_of(name: str, value: Any) -> float:
    """The value, which must be a number that float32 holds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Fault(f"{name} is {quoted(value)}, not a number")
    if not abs(value) <= _GREATEST:  # NaN, too
        raise Fault(f"{name} is {value:g}; it must be finite")
    return float(value)


def box_of(fields: Mapping[str, Any]) -> Sequence[float]:
    """The box, yxyx in pixels, of COCO's `bbox`."""
    values = field_of(fields, "bbox")
    if not isinstance(values, list) or len(values) != 4:
        raise Fault(f"bbox is {quoted(values)}; it must be [x, y, width, height]")
    parts = zip(("x", "y", "width", "height"), values)
    x, y, width, height = (number_of(f"bbox ({name})", value) for name, value in parts)
    if width < 0 or height < 0:
        raise Fault(f"bbox has the width {width:g} and the height {height:g}; 0 or more")
    return (y, x, y + height, x + width)


def class_id_of(fields: Mapping[str, Any], name: str) -> int:
    """An id that a label map may have."""
    value = field_of(fields, name)
    if not _is_count(value):
        raise Fault(f"{name} is {quoted(value)}; it must be an id of the label map")
    return int(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def mask_of(value: Any) -> RunLength:
    """The mask of COCO's run lengths `{"size": [height, width], "counts": text or numbers}`."""
    if isinstance(value, list):
        raise Fault("segmentation is a polygon; give run lengths, as pycocotools.mask.encode does")
    fields = object_of(value)
    size = field_of(fields, "size")
    is_size = isinstance(size, list) and len(size) == 2 and all(map(_is_count, size))
    if not is_size or not 0 < size[0] * size[1] <= MAX_MASK_PIXELS:
        raise Fault(f"segmentation.size is {quoted(size)}; it must be [height, width]")
    height, width = size
    try:
        counts = run_lengths.parse(field_of(fields, "counts"), (height, width))
    except run_lengths.RunLengthError as error:
        raise Fault(f"segmentation.counts {error}") from None
    # Imported here, because training does not need it.
    from pycocotools import mask as coco_mask

    return coco_mask.frPyObjects({"size": size, "counts": counts}, *size)


def box_of_mask(mask: RunLength) -> Tuple[float, ...]:
    """The box around a mask, yxyx in pixels."""
    from pycocotools import mask as coco_mask

    x, y, width, height = coco_mask.toBbox(mask)
    return (float(y), float(x), float(y + height), float(x + width))


def keypoints_of(fields: Mapping[str, Any], count: int) -> np.ndarray:
    """Float [count, 2], y and x in pixels, of COCO's list of x, y and visibility."""
    values = field_of(fields, "keypoints")
    if not isinstance(values, list) or len(values) != 3 * count:
        has = f"{len(values)} numbers" if isinstance(values, list) else quoted(values)
        raise Fault(
            f"keypoints has {has}; {3 * count} are needed, x, y and visibility of each of the "
            f"{count} keypoints of num_keypoints"
        )
    numbers = [number_of("keypoints", value) for value in values]
    return np.reshape(numbers, [count, 3])[:, 1::-1]
