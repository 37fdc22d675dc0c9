"""Writes detections as annotations: drafts of labels for a person to correct.

`convert` reads each of the formats, and annotation tools open them: docs/labelling.md.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any, Dict, Iterable, List, Mapping, Type
from xml.etree import ElementTree

import numpy as np
import yaml

from estimator_det.compat import tf
from estimator_det.config.registry import Registry
from estimator_det.errors import UsageError
from estimator_det.files import atomic, image_header
from exporters.detector import Detections
from exporters.image_files import ImageFile, read_image
from exporters.loaded_model import LABEL_MAP_FILE, NO_SKELETON
from inputs.datasets import masks, writer

FOLDER = "annotations"  # in the output of detect
PRECISION = 2  # digits of a pixel


class AnnotationWriter:
    """Base class of the formats; each writes below a folder.

    Attributes:
        has_keypoints: True if the format has keypoints.
        has_file_each: True if each image has a file, which is named after it without its suffix.

    Args:
        folder: The folder of the annotations.
        images: The folder that contains all images; their names are relative to it.
        class_names: Id -> name of the label map.
    """

    has_keypoints = True
    has_file_each = False

    def __init__(self, folder: str, images: str, class_names: Mapping[int, str]) -> None:
        self.folder, self.images, self.class_names = folder, images, dict(class_names)
        self.keypoints: Dict[int, List[str]] = {}  # names by id of the class
        os.makedirs(folder)

    def add(self, path: str, detections: Detections) -> None:
        """Adds an image file and its detections, which may be none."""
        self.class_names.update(zip(detections.classes.tolist(), detections.names))
        if detections.keypoints is not None:
            has_some = detections.is_keypoint().any(axis=1)
            for class_id in detections.classes[has_some].tolist():
                self.keypoints[class_id] = _keypoint_names(detections, class_id)

    def close(self) -> None:
        """Writes what is written once for all images."""

    def name(self, path: str) -> str:
        """The name of an image relative to the folder of all images."""
        return os.path.relpath(path, self.images)

    def write(self, path: str, suffix: str, text: str) -> None:
        """Writes the annotations of an image to a file of its name."""
        file = os.path.join(self.folder, os.path.splitext(self.name(path))[0] + suffix)
        os.makedirs(os.path.dirname(file), exist_ok=True)
        atomic.write(file, text)


def new_folder(output_dir: str) -> str:
    """The folder of annotations in an output folder, which must not exist; FileExistsError."""
    folder = os.path.join(output_dir, FOLDER)
    if os.path.exists(folder):
        raise FileExistsError(
            f"{folder} exists, and its labels may have been corrected; give another --output_dir"
        )
    return folder


def common_folder(paths: Iterable[str]) -> str:
    """The folder that contains all images."""
    return os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in paths])


FORMATS: Registry[Type[AnnotationWriter]] = Registry("annotation format")


def check_names(format_name: str, paths: Iterable[str]) -> None:
    """UsageError if two images would have their labels in one file."""
    images: Dict[str, str] = {}
    for path in paths if FORMATS.get(format_name).has_file_each else ():
        first_path = images.setdefault(os.path.splitext(path)[0], path)
        if first_path != path:
            raise UsageError(
                f"{first_path} and {path} would have their labels in one file of {format_name}; "
                "rename one of them, or write --save_annotations coco"
            )


@FORMATS.register("coco")
class Coco(AnnotationWriter):
    """One `instances.json` with boxes, masks, keypoints and scores."""

    def __init__(self, folder: str, images: str, class_names: Mapping[int, str]) -> None:
        super().__init__(folder, images, class_names)
        self._images: List[Dict[str, Any]] = []
        self._annotations: List[Dict[str, Any]] = []
        self._skeleton = NO_SKELETON

    def add(self, path: str, detections: Detections) -> None:
        super().add(path, detections)
        number, (height, width) = len(self._images) + 1, detections.image_size
        image = {"id": number, "file_name": self.name(path), "height": height, "width": width}
        self._images.append(image)
        for entry in detections.to_coco(number):
            identity = {"id": len(self._annotations) + 1, "iscrowd": 0}
            area = {"area": entry["bbox"][2] * entry["bbox"][3]}
            if "keypoints" in entry:  # Another class may have more places.
                names = _keypoint_names(detections, entry["category_id"])
                entry["keypoints"] = entry["keypoints"][: 3 * len(names)]
            if count := sum(seen > 0 for seen in entry.get("keypoints", ())[2::3]):
                entry["num_keypoints"] = count
            self._annotations.append({**identity, **area, **entry})
        self._skeleton = detections.skeleton

    def close(self) -> None:
        lines = [[start + 1, end + 1] for start, end in self._skeleton.edges]  # from 1
        categories: List[Dict[str, Any]] = []
        for class_id, name in sorted(self.class_names.items()):
            categories.append({"id": class_id, "name": name})
            if class_id in self.keypoints:
                names = self.keypoints[class_id]
                skeleton = [line for line in lines if max(line) <= len(names)]
                categories[-1].update(keypoints=names, skeleton=skeleton)
        document: Dict[str, Any] = {
            "images": self._images, "annotations": self._annotations, "categories": categories,
        }  # fmt: skip
        atomic.write(os.path.join(self.folder, "instances.json"), json.dumps(document))


def _keypoint_names(detections: Detections, class_id: int) -> List[str]:
    assert detections.keypoints is not None
    return detections.skeleton.names_of(class_id, detections.keypoints.shape[1])


@FORMATS.register("pascal_voc")
class PascalVoc(AnnotationWriter):
    """An XML file for each image, with boxes."""

    has_keypoints = False
    has_file_each = True

    def add(self, path: str, detections: Detections) -> None:
        root = ElementTree.Element("annotation")
        _element(root, "filename", self.name(path))
        size = ElementTree.SubElement(root, "size")
        for side, value in zip(("height", "width", "depth"), (*detections.image_size, 3)):
            _element(size, side, value)
        for name, box in zip(detections.names, detections.boxes.tolist()):
            entry = ElementTree.SubElement(root, "object")
            _element(entry, "name", name)
            corners = ElementTree.SubElement(entry, "bndbox")
            for side, value in zip(("ymin", "xmin", "ymax", "xmax"), box):
                _element(corners, side, round(value, PRECISION))
        ElementTree.indent(root)
        self.write(path, ".xml", ElementTree.tostring(root, encoding="unicode") + "\n")


def _element(parent: ElementTree.Element, name: str, value: Any) -> None:
    ElementTree.SubElement(parent, name).text = str(value)


@FORMATS.register("yolo")
class Yolo(AnnotationWriter):
    """A text file for each image with a line for each box, and the names in `data.yaml`.

    If the model has keypoints, the line of a box continues with x, y and visibility of each.
    """

    has_file_each = True

    def __init__(self, folder: str, images: str, class_names: Mapping[int, str]) -> None:
        super().__init__(folder, images, class_names)
        self._positions = {class_id: i for i, class_id in enumerate(sorted(self.class_names))}
        self._num_keypoints = 0

    def add(self, path: str, detections: Detections) -> None:
        super().add(path, detections)
        lines = []
        points = np.zeros([len(detections), 0])
        if detections.keypoints is not None:
            self._num_keypoints = detections.keypoints.shape[1]
            pixels, has_point = detections.keypoints_in_pixels()
            fractions = pixels / detections.image_size[::-1]
            points = np.concatenate([fractions, 2 * has_point[..., np.newaxis]], axis=2)
        for class_id, box, row in zip(
            detections.classes.tolist(),
            detections.normalized_boxes.tolist(),
            points.reshape(len(detections), -1).tolist(),
        ):
            position = self._positions.setdefault(class_id, len(self._positions))
            top, left, bottom, right = box
            sides = ((left + right) / 2, (top + bottom) / 2, right - left, bottom - top)
            numbers = (f"{number:.6f}" for number in (*sides, *row))
            lines.append(" ".join([str(position), *numbers]) + "\n")
        self.write(path, ".txt", "".join(lines))

    def close(self) -> None:
        names = {i: self.class_names[class_id] for class_id, i in self._positions.items()}
        document: Dict[str, Any] = {"names": dict(sorted(names.items()))}
        if self._num_keypoints:
            document["kpt_shape"] = [self._num_keypoints, 3]
        text = yaml.safe_dump(document, allow_unicode=True)
        atomic.write(os.path.join(self.folder, "data.yaml"), text)


@FORMATS.register("labelme")
class Labelme(AnnotationWriter):
    """A JSON file for each image, with rectangles."""

    has_keypoints = False
    has_file_each = True

    def add(self, path: str, detections: Detections) -> None:
        here = os.path.dirname(os.path.join(self.folder, self.name(path)))
        height, width = detections.image_size
        corners = detections.boxes[:, [1, 0, 3, 2]].astype(float).round(PRECISION)
        same: Dict[str, Any] = {"group_id": None, "shape_type": "rectangle", "flags": {}}
        shapes = [
            {"label": name, "points": points, **same}
            for name, points in zip(detections.names, corners.reshape(-1, 2, 2).tolist())
        ]
        document: Dict[str, Any] = {
            "version": "5.0.0",
            "flags": {},
            "shapes": shapes,
            "imagePath": os.path.relpath(os.path.abspath(path), os.path.abspath(here)),
            "imageData": None,
            "imageHeight": height,
            "imageWidth": width,
        }
        self.write(path, ".json", json.dumps(document, indent=1) + "\n")


@FORMATS.register("tfrecord")
class RecordDrafts(AnnotationWriter):
    """Records with boxes, masks, keypoints and the scores as confidences, and their label map."""

    def __init__(self, folder: str, images: str, class_names: Mapping[int, str]) -> None:
        super().__init__(folder, images, class_names)
        self._writer = tf.io.TFRecordWriter(os.path.join(folder, "detections.record"))

    def add(self, path: str, detections: Detections) -> None:
        super().add(path, detections)
        with open(path, "rb") as file:
            encoded = file.read()
        record = make_record(self.name(path), encoded, read_image(path), detections)
        self._writer.write(record.SerializeToString())

    def close(self) -> None:
        self._writer.close()
        path = os.path.join(self.folder, LABEL_MAP_FILE)
        writer.write_label_map(self.class_names, path, self.keypoints)


def make_record(
    name: str, encoded: bytes, image: ImageFile, detections: Detections
) -> tf.train.Example:
    """A record of an image file, decoded already, with detections as its objects."""
    is_stored = image_header.claimed_size(encoded) == detections.image_size
    if not image_header.format_of(encoded) or not is_stored or image.orientation > 1:
        # A record keeps pixels as the file stores them, and cannot say how to turn them.
        encoded = writer.encode_image(image.pixels)
    annotations = writer.Annotations(
        boxes=detections.normalized_boxes,
        class_ids=detections.classes.tolist(),
        class_names=detections.names,
        masks=None
        if detections.masks is None
        else [masks.to_png(mask) for mask in detections.whole_masks()],
        confidences=detections.scores.tolist(),
    )
    if detections.keypoints is not None:
        is_point = detections.is_keypoint()[..., np.newaxis]
        rows = [_keypoint_names(detections, each) for each in detections.classes.tolist()]
        count = detections.keypoints.shape[1]
        annotations = dataclasses.replace(
            annotations,
            keypoints=np.where(is_point, detections.keypoints, np.nan),
            keypoint_names=[name for row in rows for name in [*row, *[""] * (count - len(row))]],
        )
    return writer.make_example(encoded, annotations, filename=name)
