"""One annotated image -> one serialized record: all checks of images, boxes, masks and classes."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from estimator_det.console.printing import quoted
from inputs.checks.images import END_TOO_EARLY, lacks_data
from inputs.checks.statistics import ImageRow
from inputs.conversion import images, tiles
from inputs.conversion.images import Checked, ImageFault
from inputs.conversion.objects import (
    RecordOptions,
    SoundObject,
    check_objects,
    has_outline,
    pixel_polygons,
)
from inputs.conversion.tiles import Part
from inputs.datasets import writer
from inputs.datasets.source import DROPPED, KEPT, SKIPPED, AnnotatedImage, SourceFault

# Keys that training does not read: JSON of values of the source that have no other key.
IMAGE_FIELDS = "image/source_fields"
OBJECT_FIELDS = "image/object/source_fields"
MOST_DECIMALS = 9


# Counts of a report.
NO_NOTES = {
    "encoded_again": 0,
    "images_left_empty": 0,
    "masks_left_out": 0,
    "keypoints_without_names": 0,
    "box_parts_cut": 0,
    "boxes_in_no_tile": 0,
}


class Converted(NamedTuple):
    """The records of an image and what is reported about it."""

    records: List[Tuple[bytes, ImageRow]]  # and rows for statistics; none if it cannot be used
    faults: List[SourceFault]  # with their actions if no fault stops the conversion
    sha256: str = ""  # digest of the image's original bytes
    notes: Mapping[str, int] = NO_NOTES


def convert_image(image: AnnotatedImage, options: RecordOptions) -> Converted:
    """The records of an image; faults drop objects, or the whole image."""
    faults = [fault._replace(action=DROPPED if image.image else SKIPPED) for fault in image.faults]
    if not image.image:
        return Converted([], faults)
    try:
        with open(os.path.join(options.images, image.image), "rb") as file:
            content = file.read()
        checked = images.check_image(content, options.image)
        if options.image.verify == images.DECODE and lacks_data(content):
            faults.append(_image_fault(image, "corrupt_image", END_TOO_EARLY, KEPT))
        _check_size(image, checked)
    except ImageFault as fault:
        message = str(fault)
        if fault.kind == "exif_rotation" and None not in (image.width, image.height):
            message += f"; the annotation gives {image.width} x {image.height}"
        return Converted([], [*faults, _image_fault(image, fault.kind, message)])
    except OSError as error:
        message = f"the image {quoted(image.image)} cannot be read: {error.strerror}"
        return Converted([], [*faults, _image_fault(image, "no_image", message)])
    size = checked.size
    objects, object_faults = check_objects(image, size, options)
    labels, unknown = _image_labels(image, options.ids)
    try:
        parts, num_cut, num_lost = tiles.cut(checked, objects, options)
    except ImageFault as fault:  # The whole image is decoded here for the first time.
        return Converted([], [*faults, _image_fault(image, fault.kind, str(fault))])
    faults += object_faults
    is_left_empty = not objects and any(fault.action == DROPPED for fault in faults)
    notes = {
        "encoded_again": int(checked.is_encoded_again or len(parts) > 1),
        "images_left_empty": int(is_left_empty),
        "masks_left_out": 0 if options.masks else sum(has_outline(s.annotated) for s in objects),
        "keypoints_without_names": sum(not _has_names(s, options.keypoints) for s in objects),
        "box_parts_cut": num_cut,
        "boxes_in_no_tile": num_lost,
    }
    return Converted(
        [_record(image, part, labels, options) for part in parts],
        [*faults, *unknown],
        hashlib.sha256(content).hexdigest(),
        notes,
    )


def _record(
    image: AnnotatedImage, part: Part, labels: Mapping[str, List[Any]], options: RecordOptions
) -> Tuple[bytes, ImageRow]:
    """A serialized record of an image or a tile, and its row for statistics."""
    objects, size = part.objects, part.size
    if part.place:  # A class of the whole image may be in another tile.
        image = image._replace(fields=None)
        labels = {key: labels[key] for key in labels if not key.startswith("image/class/")}
    example = writer.make_example(
        part.encoded,
        _annotations(image, objects, size, options.keypoints),
        filename=image.image + part.place,
        source_id=(image.source_id or image.image) + part.place,
        other={**labels, **_other_fields(image, objects, size)},
    )
    # The order of keys would otherwise differ between processes.
    serialized = example.SerializeToString(deterministic=True)
    boxes, class_ids = [each.box for each in objects], [each.class_id for each in objects]
    return serialized, ImageRow(size, "", boxes, class_ids)


def _image_fault(
    image: AnnotatedImage, kind: str, message: str, action: str = SKIPPED
) -> SourceFault:
    name = f"{quoted(image.image)}: " if quoted(image.image) not in message else ""
    return SourceFault(kind, image.file, image.line, name + message, action)


def _check_size(image: AnnotatedImage, checked: Checked) -> None:
    stated, real = (image.height, image.width), checked.size
    if any(side is not None and side != true for side, true in zip(stated, real)):
        turned = " once its EXIF rotation is applied" if checked.turned_from else ""
        if stated == checked.turned_from:
            turned += (
                ": its boxes fit the pixels as stored, so remove the EXIF orientation from the file"
            )
        raise ImageFault(
            "size_mismatch",
            f"the annotation gives {image.width} x {image.height} pixels, the image has "
            f"{real[1]} x {real[0]}{turned}",
        )


def _annotations(
    image: AnnotatedImage,
    objects: Sequence[SoundObject],
    size: Tuple[int, int],
    keypoint_names: Mapping[str, Sequence[str]],
) -> writer.Annotations:
    def column(name: str, default: Any) -> Any:
        """A value for each object; None if no object has one."""
        values = [getattr(sound.annotated, name) for sound in objects]
        if all(value is None for value in values):
            return None
        return [default if value is None else value for value in values]

    area = column("area", None)
    if area is not None:
        extents = [(sound.box[2:] - sound.box[:2]) * size for sound in objects]
        area = [float(np.prod(e)) if known is None else known for e, known in zip(extents, area)]
    sides = (1, 1) if image.normalized else size
    keypoints, visibilities = _keypoints(objects, sides, keypoint_names)
    return writer.Annotations(
        boxes=np.asarray([sound.box for sound in objects]).reshape(-1, 4),
        class_ids=[sound.class_id for sound in objects],
        class_names=[sound.annotated.class_name for sound in objects],
        area=area,
        is_crowd=column("is_crowd", False),
        difficult=column("difficult", False),
        group_of=column("group_of", False),
        confidences=column("score", 1.0),
        masks=[sound.mask for sound in objects if sound.mask is not None] or None,
        keypoints=keypoints,
        keypoint_visibilities=visibilities,
        keypoint_names=None if keypoints is None else _names(objects, keypoints, keypoint_names),
    )


def _names(
    objects: Sequence[SoundObject], keypoints: np.ndarray, names: Mapping[str, Sequence[str]]
) -> Optional[List[str]]:
    """Names of the keypoints [n, P] of all objects, "" for places that a class does not have."""
    if not all(_has_names(each, names) for each in objects):
        return None
    count = keypoints.shape[1]
    rows = [
        names.get(each.annotated.class_name, ()) if each.annotated.keypoints else ()
        for each in objects
    ]
    return [name for row in rows for name in [*row, *[""] * (count - len(row))]]


def _has_names(sound: SoundObject, names: Mapping[str, Sequence[str]]) -> bool:
    """True if each keypoint of the object has a name, or if none is visible or hidden."""
    points = sound.annotated.keypoints or ()
    count = len(names.get(sound.annotated.class_name, ()))
    return not any(points[2::3]) or 3 * count == len(points)


def _keypoints(
    objects: Sequence[SoundObject], sides: Sequence[float], names: Mapping[str, Sequence[str]]
) -> Tuple[Optional[np.ndarray], Optional[np.ndarray]]:
    """[n, P, 2] y and x as fractions, NaN where absent, and visibilities [n, P]; or None twice.

    y and x are divided by `sides`. P is the same for all images: the most of a class with names.
    """
    lists = [sound.annotated.keypoints or () for sound in objects]
    if not any(lists):
        return None, None
    most = max(*map(len, lists), *(3 * len(each) for each in names.values()), 0)
    rows = [[*each, *[0.0] * (most - len(each))] for each in lists]
    points = np.asarray(rows, np.float64).reshape(len(rows), -1, 3)
    visibilities = points[..., 2].astype(np.int64)
    places = points[..., 1::-1] / sides
    return np.where(visibilities[..., np.newaxis] > 0, places, np.nan), visibilities


def _image_labels(
    image: AnnotatedImage, ids: Mapping[str, int]
) -> Tuple[Dict[str, List[Any]], List[SourceFault]]:
    """Labels of the whole image by key, and faults of unknown classes, which are left out."""
    known = [(name, score) for name, score in image.image_classes if name in ids]
    named = [name for name, _ in image.image_classes]
    named += [*image.absent_classes, *image.incomplete_classes]
    faults = [
        _image_fault(image, "unknown_text", f"the class of the image is {quoted(name)}", DROPPED)
        for name in dict.fromkeys(named)
        if name not in ids
    ]
    labels: Dict[str, List[Any]] = {
        "image/class/label": [ids[name] for name, _ in known],
        "image/class/text": [name.encode() for name, _ in known],
        "image/class/confidence": [float(score) for _, score in known],
        "image/neg_category_ids": [ids[name] for name in image.absent_classes if name in ids],
        "image/not_exhaustive_category_ids": [
            ids[name] for name in image.incomplete_classes if name in ids
        ],
    }
    return {key: values for key, values in labels.items() if values}, faults


def _other_fields(
    image: AnnotatedImage, objects: Sequence[SoundObject], size: Tuple[int, int]
) -> Dict[str, List[bytes]]:
    result = {}
    if image.fields:
        result[IMAGE_FIELDS] = [_json(image.fields)]
    object_fields = [_object_fields(image, sound, size) for sound in objects]
    if any(object_fields):
        result[OBJECT_FIELDS] = [_json(fields) for fields in object_fields]
    return result


def _object_fields(
    image: AnnotatedImage, sound: SoundObject, size: Tuple[int, int]
) -> Dict[str, Any]:
    """Values for which a record has no key, or which it has only rounded."""
    annotated = sound.annotated
    fields = dict(annotated.fields or {})
    if fields.get("bbox") == box_from_stored(sound.box, *size):
        del fields["bbox"]
    if annotated.area is not None and shortest_decimal(annotated.area) != annotated.area:
        fields["area"] = annotated.area
    # Polygons are more than their pixels, and run lengths have two forms.
    if sound.mask is not None and annotated.polygons is not None:
        fields["segmentation"] = pixel_polygons(annotated.polygons, image, size)
    elif sound.mask is not None and annotated.run_lengths is not None:
        fields["segmentation"] = annotated.run_lengths
    return fields


def shortest_decimal(stored: float, scale: float = 1.0) -> float:
    """The number of fewest decimals that, divided by `scale`, has the float32 of `stored`."""
    target = np.float32(stored)
    value = float(target) * scale
    for decimals in range(MOST_DECIMALS):
        candidate = round(value, decimals)
        if np.float32(candidate / scale) == target:
            return candidate
    return value


def box_from_stored(sides: Any, height: int, width: int) -> List[float]:
    """COCO's x, y, width, height in pixels of float32 ymin, xmin, ymax, xmax as fractions."""
    ymin, xmin, ymax, xmax = (
        shortest_decimal(side, scale) for side, scale in zip(sides, (height, width, height, width))
    )
    return [xmin, ymin, round(xmax - xmin, MOST_DECIMALS), round(ymax - ymin, MOST_DECIMALS)]


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
