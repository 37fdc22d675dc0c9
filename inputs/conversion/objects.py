"""The objects of an image: classes, boxes, masks and keypoints, checked and as fractions."""

from __future__ import annotations

import math
import os
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from estimator_det.config.printing import plain, quoted
from inputs.datasets import masks
from inputs.datasets.source import CLIPPED, DROPPED, AnnotatedImage, AnnotatedObject, SourceFault
from inputs.decoding.box_rules import NUMPY, Boxes, MaskExtents, box_flags, mask_flags

CERTAIN_SIDE = 1e-6  # of a box within 0 to 1: larger than what float32 rounds
_BOX_CHECKS = ("box_nan", "box_inverted", "box_degenerate", "box_outside")


class SoundObject(NamedTuple):
    """An object that has passed the checks so far."""

    given: AnnotatedObject
    box: np.ndarray  # float64 [4], yxyx, as fractions
    class_id: int
    mask: Optional[bytes] = None  # PNG
    mask_extent: Sequence[float] = ()  # ymin, xmin, ymax, xmax in pixels


def has_mask(given: AnnotatedObject) -> bool:
    """Whether the source gives a mask."""
    return any(x is not None for x in (given.polygons, given.run_lengths, given.mask_file))


@np.errstate(invalid="ignore", over="ignore")  # of boxes that are a fault
def check_objects(
    image: AnnotatedImage,
    size: Tuple[int, int],
    ids: Mapping[str, int],
    *,
    with_masks: bool = False,
    mask_images: str = "",
    clip_boxes: bool = False,
) -> Tuple[List[SoundObject], List[SourceFault]]:
    """The objects for the record, and the faults of the others.

    Args:
        image: As the source describes it.
        size: Height and width of the image itself.
        ids: Class name -> id of the label map.
        with_masks: Whether masks are made; an object without one is a fault then.
        mask_images: Folder of masks that are files.
        clip_boxes: Whether boxes are clipped to the image, which is a fault that drops nothing.
    """
    kept: List[SoundObject] = []
    faults: List[SourceFault] = []

    def report(given: AnnotatedObject, kind: str, message: str, action: str = DROPPED) -> None:
        where = f"{quoted(image.image)}: {message}"
        faults.append(SourceFault(kind, image.file, given.line or image.line, where, action))

    found: List[SoundObject] = []
    for given in image.objects:
        class_id, fault = _class_id(given, ids)
        if fault:
            report(given, *fault)
            continue
        try:
            needs_mask = with_masks and has_mask(given)
            mask = _mask(given, image, size, mask_images) if needs_mask else None
            one = SoundObject(given, _box(given, mask, image, size), class_id)
            if mask is not None:
                one = one._replace(mask=masks.to_png(mask), mask_extent=masks.extent(mask))
            found.append(one)
        except masks.MaskError as error:
            report(given, "broken_mask", str(error))
    for one, kind in zip(found, _box_faults([one.box for one in found])):
        if kind == "box_outside" and clip_boxes:
            clipped = np.clip(one.box, 0.0, 1.0)
            if (clipped[:2] < clipped[2:]).all():
                report(one.given, kind, _shown(one, size), CLIPPED)
                one, kind = _with_box(one, clipped), ""
        if not kind and with_masks:
            kind = _mask_fault(one, size)
        if not kind:
            kept.append(one)
        elif kind == "mask_mismatch":
            report(one.given, kind, f"{_shown(one, size)}, its mask {_pixels(one.mask_extent)}")
        else:
            report(one.given, kind, _shown(one, size))
    return _with_sound_keypoints(kept, report), faults


def _class_id(
    given: AnnotatedObject, ids: Mapping[str, int]
) -> Tuple[int, Optional[Tuple[str, str]]]:
    """The id of an object's class, or 0 and a fault."""
    if not given.class_name:
        return 0, ("unknown_id", f"the class id is {given.class_id}")
    found = ids.get(given.class_name, 0)
    if not found:
        return 0, ("unknown_text", f"the class is {quoted(given.class_name)}")
    if given.class_id not in (0, found):
        return 0, (
            "label_contradiction",
            f"the class {quoted(given.class_name)} has id {given.class_id}, and {found} in the "
            "label map",
        )
    return found, None


def _mask(
    given: AnnotatedObject, image: AnnotatedImage, size: Tuple[int, int], mask_images: str
) -> np.ndarray:
    if given.mask_file is not None:
        return masks.from_file(os.path.join(mask_images, given.mask_file[0]), size)
    if given.run_lengths is not None:
        return masks.from_run_lengths(given.run_lengths, size)
    assert given.polygons is not None
    return masks.from_polygons(in_pixels(given.polygons, image, size), size)


def in_pixels(
    polygons: Sequence[Sequence[float]], image: AnnotatedImage, size: Tuple[int, int]
) -> Sequence[Sequence[float]]:
    """Polygons x, y, x, y, … in pixels of an image of this height and width."""
    if not image.normalized:
        return polygons
    scale = (size[1], size[0])
    return [[value * scale[i % 2] for i, value in enumerate(one)] for one in polygons]


def _box(
    given: AnnotatedObject,
    mask: Optional[np.ndarray],
    image: AnnotatedImage,
    size: Tuple[int, int],
) -> np.ndarray:
    """float64 [4] as fractions: the given box, or the one around polygons or mask."""
    box, normalized = given.box, image.normalized
    if box is None and given.polygons is not None:
        box = masks.polygon_extent(given.polygons)
    elif box is None and given.run_lengths is not None:
        found = masks.from_run_lengths(given.run_lengths, size) if mask is None else mask
        box, normalized = masks.extent(found), False
    if box is None:
        box = [float("nan")] * 4
    scale = np.ones(4) if normalized else np.array([*size, *size], np.float64)
    return np.asarray(box, np.float64) / scale


def _box_faults(boxes: Sequence[np.ndarray]) -> List[str]:
    """The first fault of each box; "" without one."""
    if all(map(_is_sound, boxes)):
        return [""] * len(boxes)
    ones = np.ones([len(boxes)], np.int64)
    absent = np.zeros([2], np.int64)
    stored = np.asarray(boxes, np.float32)  # as training sees them
    flags = box_flags(Boxes(stored, ones, ones, np.bool_(True), absent, absent), None, NUMPY)
    rows = zip(*(flags[kind].tolist() for kind in _BOX_CHECKS))
    return [next((k for k, flag in zip(_BOX_CHECKS, row) if flag), "") for row in rows]


def _is_sound(box: np.ndarray) -> bool:
    """Whether a box has no fault for certain, which takes a tenth of the time of `box_flags`."""
    ymin, xmin, ymax, xmax = box.tolist()
    least = CERTAIN_SIDE
    return ymin >= 0 and xmin >= 0 and ymin + least < ymax <= 1 and xmin + least < xmax <= 1


def _with_box(one: SoundObject, box: np.ndarray) -> SoundObject:
    """Without the box that the source has, which it no longer is."""
    fields = {key: value for key, value in (one.given.fields or {}).items() if key != "bbox"}
    return one._replace(box=box, given=one.given._replace(fields=fields))


def _mask_fault(one: SoundObject, size: Tuple[int, int]) -> str:
    if one.mask is None:
        return "mask_empty"
    sides = np.array([*size, *size], np.float32)
    found = MaskExtents(
        np.asarray([one.mask_extent], np.float32) / sides, 1 / np.array(size, np.float32)
    )
    empty, elsewhere = mask_flags(np.asarray([one.box], np.float32), found, NUMPY)
    return "mask_empty" if empty[0] else "mask_mismatch" if elsewhere[0] else ""


def _shown(one: SoundObject, size: Tuple[int, int]) -> str:
    pixels = one.box * np.array([*size, *size])
    return (
        f"the box of class {quoted(one.given.class_name)} is {_pixels(pixels)} pixels (ymin, xmin, "
        f"ymax, xmax) in an image of {size[1]} x {size[0]}"
    )


def _pixels(box: Any) -> str:
    return "[" + ", ".join(f"{side:.6g}" for side in box) + "]"


def _with_sound_keypoints(objects: List[SoundObject], report: Any) -> List[SoundObject]:
    """Without objects whose lists of keypoints are not whole, of several lengths, or not valid."""
    most = max((len(one.given.keypoints or ()) for one in objects), default=0)
    kept = []
    for one in objects:
        points = one.given.keypoints or ()
        if len(points) % 3 or len(points) not in (0, most):
            message = f"{len(points)} numbers of keypoints; {most - most % 3} are expected"
            report(one.given, "length_mismatch", message)
        elif not all(map(math.isfinite, points)) or not set(points[2::3]) <= {0, 1, 2}:
            message = f"keypoints (x, y, visibility) {plain(points)}; visibilities are 0, 1 or 2"
            report(one.given, "broken_keypoints", message)
        else:
            kept.append(one)
    return kept
