"""A COCO data set of any number of images that all differ."""

from __future__ import annotations

import json
import os
from typing import NamedTuple

import numpy as np

from inputs.datasets import shapes, writer

IMAGES_PER_FOLDER = 1000
NUM_PICTURES = 16  # that are drawn; other images have the same pixels and other bytes


class DataSet(NamedTuple):
    """A data set on disk."""

    images: str
    annotations: str
    names: list[str]  # of the images, below the folder


def make(folder: str, count: int, side: int) -> DataSet:
    """Writes `count` JPEG files of about `side` pixels, and a box of each."""
    images = os.path.join(folder, "images")
    options = shapes.ShapeOptions(min_side=side, max_side=side)
    pictures = []
    for number in range(NUM_PICTURES):
        encoded = writer.encode_image(shapes.make_image((0, number), options).pixels)
        pictures.append(encoded)
    names = []
    for number in range(count):
        name = f"{number // IMAGES_PER_FOLDER:03d}/{number:06d}.jpg"
        path = os.path.join(images, name)
        if number % IMAGES_PER_FOLDER == 0:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            # Bytes after the end of an image belong to it: no two files are the same.
            file.write(pictures[number % NUM_PICTURES] + number.to_bytes(4, "little"))
        names.append(name)
    path = os.path.join(folder, "instances.json")
    random = np.random.default_rng(0)
    with open(path, "w", encoding="utf-8") as file:
        file.write('{"categories": [{"id": 1, "name": "shape"}], "images": [\n')
        rows = (
            {"id": number, "file_name": name, "height": side, "width": side}
            for number, name in enumerate(names)
        )
        file.write(",\n".join(map(json.dumps, rows)) + '],\n"annotations": [\n')
        for number in range(count):
            low = [float(value) for value in random.integers(0, side // 2, 2)]
            box = [*low, side / 4, side / 4]
            row = {"id": number, "image_id": number, "category_id": 1, "bbox": box, "iscrowd": 0}
            file.write(("" if number == 0 else ",\n") + json.dumps({**row, "area": side**2 / 16}))
        file.write("]}\n")
    return DataSet(images, path, names)
