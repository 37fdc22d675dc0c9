"""The objects of an image: classes, boxes, masks and keypoints, checked and as fractions."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from estimator_det.console.printing import plain, quoted
from inputs.conversion.images import ImageFault, ImageOptions
from inputs.datasets import masks
from inputs.datasets.source import (
    CLIPPED,
    DROPPED,
    KEPT,
    AnnotatedImage,
    AnnotatedObject,
    SourceFault,
)
from inputs.decoding.box_rules import NUMPY, MaskExtents, RecordBoxes, box_flags, mask_flags

_BOX_CHECKS = ("box_nan", "box_inverted", "box_degenerate", "box_outside")
_LARGEST_FRACTION = 1.001  # label tools round coordinates


@dataclass(frozen=True)
class RecordOptions:
    """Options of records."""

    images: str  # real folder of the images
    ids: Mapping[str, int]  # class name -> id of the label map
    image: ImageOptions = field(default_factory=ImageOptions)
    masks: bool = False  # True to write masks
    mask_images: str = ""  # real folder of masks that are files
    clip_boxes: bool = False  # clips boxes to the image, and drops boxes outside of it
    keypoints: Mapping[str, Sequence[str]] = field(default_factory=dict)  # see `Source`
    tiles: Optional[int] = None  # side of the tiles into which images are cut; None: whole images


class SoundObject(NamedTuple):
    """An object that has passed the checks so far."""

    annotated: AnnotatedObject
    box: np.ndarray  # float64 [4], yxyx, as fractions
    class_id: int
    mask: Optional[bytes] = None  # PNG
    mask_extent: Sequence[float] = ()  # ymin, xmin, ymax, xmax in pixels


def has_mask(annotated: AnnotatedObject) -> bool:
    """True if the source has a mask of the object."""
    return any(
        x is not None for x in (annotated.polygons, annotated.run_lengths, annotated.mask_file)
    )


def has_outline(annotated: AnnotatedObject) -> bool:
    """True if the source has a mask that says more than the box: not a single rectangle."""
    polygons = annotated.polygons
    if polygons is None or len(polygons) != 1:
        return has_mask(annotated)
    columns, rows = polygons[0][::2], polygons[0][1::2]
    return (len({*zip(columns, rows)}), len({*columns}), len({*rows})) != (4, 2, 2)


@np.errstate(invalid="ignore", over="ignore")  # numbers of boxes that are a fault
def check_objects(
    image: AnnotatedImage,
    size: Tuple[int, int],
    options: RecordOptions,
) -> Tuple[List[SoundObject], List[SourceFault]]:
    """The objects for the record, and the faults of the others.

    `size` is the image's own size. Clipping a box is a fault that drops nothing; with masks,
    an object without one is a fault.
    """
    kept: List[SoundObject] = []
    faults: List[SourceFault] = []

    def report(annotated: AnnotatedObject, kind: str, message: str, action: str = DROPPED) -> None:
        where = f"{quoted(image.image)}: {message}"
        faults.append(SourceFault(kind, image.file, annotated.line or image.line, where, action))

    objects: List[SoundObject] = []
    for annotated in image.objects:
        try:
            class_id = _class_id(annotated, options.ids)
            needs_mask = options.masks and has_mask(annotated)
            mask = _mask(annotated, image, size, options.mask_images) if needs_mask else None
            sound = SoundObject(annotated, _box(annotated, mask, image, size), class_id)
            if mask is not None:
                sound = sound._replace(mask=masks.to_png(mask), mask_extent=masks.extent(mask))
            objects.append(sound)
        except ImageFault as fault:
            report(annotated, fault.kind, str(fault))
        except masks.MaskError as error:
            report(annotated, "broken_mask", str(error))
    for sound, kind in zip(objects, _box_faults([sound.box for sound in objects])):
        if kind == "box_outside" and options.clip_boxes:
            clipped = np.clip(sound.box, 0.0, 1.0)
            if (clipped[:2] < clipped[2:]).all():
                report(sound.annotated, kind, _shown(sound, size), CLIPPED)
                sound, kind = _with_box(sound, clipped), ""
        if not kind and options.masks:
            kind = _mask_fault(sound, size)
        if not kind:
            kept.append(sound)
            if not image.normalized and max(sound.box[2:] * size) <= _LARGEST_FRACTION:
                report(sound.annotated, "box_fractions", _shown(sound, size), KEPT)
            continue
        mask_text = f", its mask {_pixels(sound.mask_extent)}" if kind == "mask_mismatch" else ""
        report(sound.annotated, kind, _shown(sound, size) + mask_text)
    return _with_sound_keypoints(kept, options.keypoints, report), faults


def _class_id(annotated: AnnotatedObject, ids: Mapping[str, int]) -> int:
    name, stated = annotated.class_name, annotated.class_id
    if not name:
        raise ImageFault("unknown_id", f"the class id is {stated}")
    class_id = ids.get(name, 0)
    if not class_id:
        raise ImageFault("unknown_text", f"the class is {quoted(name)}")
    if stated not in (0, class_id):
        message = f"the class {quoted(name)} has id {stated}, and {class_id} in the label map"
        raise ImageFault("label_contradiction", message)
    return class_id


def _mask(
    annotated: AnnotatedObject, image: AnnotatedImage, size: Tuple[int, int], mask_images: str
) -> np.ndarray:
    if annotated.mask_file is not None:
        return masks.from_file(os.path.join(mask_images, annotated.mask_file[0]), size)
    if annotated.run_lengths is not None:
        return masks.from_run_lengths(annotated.run_lengths, size)
    assert annotated.polygons is not None
    return masks.from_polygons(pixel_polygons(annotated.polygons, image, size), size)


def pixel_polygons(
    polygons: Sequence[Sequence[float]], image: AnnotatedImage, size: Tuple[int, int]
) -> Sequence[Sequence[float]]:
    """Polygons x, y, x, y, … in pixels of an image of this height and width."""
    if not image.normalized:
        return polygons
    scale = (size[1], size[0])
    return [[value * scale[i % 2] for i, value in enumerate(polygon)] for polygon in polygons]


def _box(
    annotated: AnnotatedObject,
    mask: Optional[np.ndarray],
    image: AnnotatedImage,
    size: Tuple[int, int],
) -> np.ndarray:
    """float64 [4] as fractions: the source's box, or the box around polygons or mask."""
    box, normalized = annotated.box, image.normalized
    if box is None and annotated.polygons is not None:
        box = masks.polygon_extent(annotated.polygons)
    elif box is None and annotated.run_lengths is not None:
        pixels = masks.from_run_lengths(annotated.run_lengths, size) if mask is None else mask
        box, normalized = masks.extent(pixels), False
    if box is None:
        box = [float("nan")] * 4
    scale = np.ones(4) if normalized else np.array([*size, *size], np.float64)
    return np.asarray(box, np.float64) / scale


def _box_faults(boxes: Sequence[np.ndarray]) -> List[str]:
    """The first fault of each box; "" without one."""
    ones = np.ones([len(boxes)], np.int64)
    absent = np.zeros([2], np.int64)
    stored = np.asarray(boxes, np.float32).reshape(-1, 4)  # rounded as training reads them
    flags = box_flags(RecordBoxes(stored, ones, ones, np.bool_(True), absent, absent), None, NUMPY)
    rows = zip(*(flags[kind].tolist() for kind in _BOX_CHECKS))
    return [next((k for k, flag in zip(_BOX_CHECKS, row) if flag), "") for row in rows]


def _with_box(sound: SoundObject, box: np.ndarray) -> SoundObject:
    """The object with another box, without the box of the source."""
    fields = {key: value for key, value in (sound.annotated.fields or {}).items() if key != "bbox"}
    return sound._replace(box=box, annotated=sound.annotated._replace(fields=fields))


def _mask_fault(sound: SoundObject, size: Tuple[int, int]) -> str:
    if sound.mask is None:
        return "mask_empty"
    sides = np.array([*size, *size], np.float32)
    extents = MaskExtents(
        np.asarray([sound.mask_extent], np.float32) / sides, 1 / np.array(size, np.float32)
    )
    empty, elsewhere = mask_flags(np.asarray([sound.box], np.float32), extents, NUMPY)
    return "mask_empty" if empty[0] else "mask_mismatch" if elsewhere[0] else ""


def _shown(sound: SoundObject, size: Tuple[int, int]) -> str:
    pixels = sound.box * np.array([*size, *size])
    return (
        f"the box of class {quoted(sound.annotated.class_name)} is {_pixels(pixels)} pixels "
        f"(ymin, xmin, ymax, xmax) in an image of {size[1]} x {size[0]}"
    )


def _pixels(box: Any) -> str:
    return "[" + ", ".join(f"{side:.6g}" for side in box) + "]"


def _with_sound_keypoints(
    objects: List[SoundObject], names: Mapping[str, Sequence[str]], report: Any
) -> List[SoundObject]:
    """Drops and reports objects whose keypoints are not valid, or not as many as their class has.

    A class without names has as many as the object of the image that has most.
    """
    most = max((len(sound.annotated.keypoints or ()) for sound in objects), default=0)
    kept = []
    for sound in objects:
        points = sound.annotated.keypoints or ()
        expected = 3 * len(names.get(sound.annotated.class_name, ())) or most
        if len(points) % 3 or len(points) not in (0, expected):
            message = f"{len(points)} numbers of keypoints; {expected - expected % 3} are expected"
            report(sound.annotated, "length_mismatch", message)
        elif not all(map(math.isfinite, points)) or not set(points[2::3]) <= {0, 1, 2}:
            message = f"keypoints (x, y, visibility) {plain(points)}; visibilities are 0, 1 or 2"
            report(sound.annotated, "broken_keypoints", message)
        else:
            kept.append(sound)
    return kept
