"""Coloured shapes on calm, textured backgrounds: a labelled data set that needs no download.

Every image contains one to four shapes of any colour and rotation that hardly overlap; the class is
the form alone. The same seed gives the same bytes.
"""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from types import MappingProxyType
from typing import (
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np
from PIL import Image, ImageDraw

from inputs.datasets import writer

CLASS_NAMES = ("circle", "square", "triangle", "star")
LABEL_MAP_FILE = "label_map.pbtxt"

SUPERSAMPLING = 3  # shapes are drawn this much larger, then shrunk: smooth edges
MAX_OVERLAP = 0.05  # share of the smaller box; a shape that would hide more is placed again
PLACEMENT_TRIES = 20
MUTED = 0.3  # share of its colour that a background keeps
EVAL_SEED_OFFSET = 1_000_003  # keeps the streams of training and evaluation images apart


class Size(NamedTuple):
    """Numbers of images and files of a data set."""

    num_train: int
    num_eval: int
    num_shards: int


SIZES: Dict[str, Size] = {
    "tiny": Size(num_train=64, num_eval=16, num_shards=2),
    "small": Size(num_train=1500, num_eval=200, num_shards=4),
    "large": Size(num_train=10000, num_eval=1000, num_shards=10),
}


@dataclass(frozen=True)
class ShapeOptions:
    """Appearance of the images."""

    min_side: int = 160  # heights and widths, pixels
    max_side: int = 224
    min_extent: float = 0.25  # a shape's diameter as a fraction of the image's shorter side
    max_extent: float = 0.6
    max_shapes: int = 4  # in one image


class ShapeImage(NamedTuple):
    """One image and its labels."""

    pixels: np.ndarray  # uint8 [h, w, 3]
    boxes: np.ndarray  # float32 [n, 4], normalized ymin, xmin, ymax, xmax
    class_ids: List[int]  # from 1, index into CLASS_NAMES plus one
    masks: np.ndarray  # bool [n, h, w], the pixels of each shape


class DatasetFiles(NamedTuple):
    """The files and counts of a data set."""

    train_pattern: str
    eval_pattern: str
    label_map: str
    num_train: int
    num_eval: int


def make_image(seed: Tuple[int, int], options: Optional[ShapeOptions] = None) -> ShapeImage:
    """The image of a (data set seed, image index) pair."""
    options = options or ShapeOptions()
    random = np.random.default_rng(seed)
    height, width = random.integers(options.min_side, options.max_side + 1, size=2)
    background = _background(random, int(height), int(width))
    canvas = Image.fromarray(background)
    boxes: List[np.ndarray] = []
    masks: List[np.ndarray] = []
    class_ids: List[int] = []
    for _ in range(random.integers(1, options.max_shapes + 1)):
        for _ in range(PLACEMENT_TRIES):
            class_id = int(random.integers(1, len(CLASS_NAMES) + 1))
            outline = _outline(CLASS_NAMES[class_id - 1], random)  # (points, 2), x and y
            extent = random.uniform(options.min_extent, options.max_extent)
            outline = _place(outline, extent * min(height, width), (width, height), random)
            box = np.concatenate([outline.min(axis=0)[::-1], outline.max(axis=0)[::-1]])
            if all(overlap(box, earlier) <= MAX_OVERLAP for earlier in boxes):
                mask = _paint(canvas, outline, _contrasting_colour(canvas, box, random))
                masks = [earlier & ~mask for earlier in masks]  # the later shape hides the earlier
                masks.append(mask)
                boxes.append(box)
                class_ids.append(class_id)
                break
    pixels = np.asarray(canvas, np.int16)
    pixels = pixels + random.normal(0.0, random.uniform(0.0, 6.0), pixels.shape).astype(np.int16)
    scale = np.array([height, width, height, width], np.float32)
    normalized = np.clip(np.asarray(boxes, np.float32).reshape(-1, 4) / scale, 0.0, 1.0)
    return ShapeImage(
        np.clip(pixels, 0, 255).astype(np.uint8), normalized, class_ids, np.stack(masks)
    )


def make_dataset(output_dir: str, seed: int, size: str = "small") -> DatasetFiles:
    """Writes shards of `SIZES[size]` and the label map to `output_dir`, replacing older ones."""
    return write_dataset(output_dir, seed, size, _examples, dict(enumerate(CLASS_NAMES, start=1)))


def write_dataset(
    output_dir: str,
    seed: int,
    size: str,
    examples: Callable[[str, int, int], Iterator[writer.tf.train.Example]],
    names_by_id: Mapping[int, str],
    keypoints: Mapping[int, Sequence[str]] = MappingProxyType({}),
) -> DatasetFiles:
    """Writes `examples(part, number of images, seed)` of both parts, and their label map."""
    if size not in SIZES:
        raise ValueError(f"data set size {size!r} is not one of {sorted(SIZES)}")
    if seed < 0:
        raise ValueError(f"the seed must be 0 or more; given {seed}")
    plan = SIZES[size]
    label_map = os.path.join(output_dir, LABEL_MAP_FILE)
    writer.write_label_map(names_by_id, label_map, keypoints)
    patterns = []
    for name, count, stream in (
        ("train", plan.num_train, seed),
        ("eval", plan.num_eval, seed + EVAL_SEED_OFFSET),
    ):
        path = os.path.join(output_dir, f"{name}.record")
        writer.write_sharded(examples(name, count, stream), path, plan.num_shards)
        patterns.append(f"{glob.escape(path)}-?????-of-{plan.num_shards:05d}")
    return DatasetFiles(patterns[0], patterns[1], label_map, plan.num_train, plan.num_eval)


def _examples(name: str, count: int, seed: int) -> Iterator[writer.tf.train.Example]:
    for index in range(count):
        image = make_image((seed, index))
        names = [CLASS_NAMES[class_id - 1] for class_id in image.class_ids]
        masks = [writer.encode_image(mask, "png") for mask in image.masks]
        labels = writer.Annotations(image.boxes, image.class_ids, names, masks=masks)
        filename = f"{name}_{index:05d}.jpg"
        yield writer.make_example(writer.encode_image(image.pixels), labels, filename=filename)


def _outline(name: str, random: np.random.Generator) -> np.ndarray:
    """Corner points [points, 2] of a shape around the origin, turned at random."""
    corners = {"circle": 48, "square": 4, "triangle": 3, "star": 10}[name]
    angles = np.arange(corners) * 2 * np.pi / corners + random.uniform(0, 2 * np.pi)
    radii = np.where(np.arange(corners) % 2, 0.42, 1.0) if name == "star" else np.ones(corners)
    return np.stack([radii * np.cos(angles), radii * np.sin(angles)], axis=1)


def _place(
    outline: np.ndarray, extent: float, image_size: Tuple[int, int], random: np.random.Generator
) -> np.ndarray:
    """Scales an outline so that its longer side is `extent` pixels, and moves it inside."""
    span = outline.max(axis=0) - outline.min(axis=0)
    outline = outline * (extent / span.max())
    low = outline.min(axis=0)
    room = np.asarray(image_size) - (outline.max(axis=0) - low)
    return outline - low + random.uniform(0.0, 1.0, 2) * room


def overlap(box: np.ndarray, second: np.ndarray) -> float:
    """Intersection over the smaller of two boxes' areas."""
    sides = np.minimum(box[2:], second[2:]) - np.maximum(box[:2], second[:2])
    intersection = float(np.prod(np.maximum(sides, 0.0)))
    return intersection / float(min(np.prod(box[2:] - box[:2]), np.prod(second[2:] - second[:2])))


def _contrasting_colour(
    canvas: Image.Image, box: np.ndarray, random: np.random.Generator
) -> Tuple[int, ...]:
    """A colour that differs in some channel by 90 of 255 or more from the pixels in the box."""
    ymin, xmin, ymax, xmax = (int(side) for side in box)
    covered = np.asarray(canvas.crop((xmin, ymin, xmax, ymax)), np.float32).mean(axis=(0, 1))
    while True:
        colour = random.integers(0, 256, 3)
        if np.abs(colour - covered).max() >= 90:
            return tuple(int(channel) for channel in colour)


def _paint(canvas: Image.Image, outline: np.ndarray, colour: Tuple[int, ...]) -> np.ndarray:
    """Fills a polygon with smooth edges; only the pixels around it are touched.

    Returns:
        bool [h, w], the pixels of the canvas that the polygon covers at least by half.
    """
    low = np.maximum(np.floor(outline.min(axis=0)) - 1, 0).astype(int)
    high = np.minimum(np.ceil(outline.max(axis=0)) + 1, canvas.size).astype(int)
    size = (int(high[0] - low[0]), int(high[1] - low[1]))
    stencil = Image.new("L", (size[0] * SUPERSAMPLING, size[1] * SUPERSAMPLING))
    points = [(float(x), float(y)) for x, y in (outline - low) * SUPERSAMPLING]
    ImageDraw.Draw(stencil).polygon(points, fill=255)
    cover = stencil.resize(size, Image.Resampling.BOX)
    canvas.paste(colour, (int(low[0]), int(low[1]), int(high[0]), int(high[1])), cover)
    covered = np.zeros(canvas.size[::-1], bool)
    covered[low[1] : high[1], low[0] : high[0]] = np.asarray(cover) >= 128
    return covered


def _background(random: np.random.Generator, height: int, width: int) -> np.ndarray:
    """uint8 [h, w, 3]: muted clouds, with faint stripes, checks or neither over them."""
    cells = int(random.integers(2, 7))
    colours = random.integers(40, 216, (cells, cells, 3)).astype(np.float32)
    grays = colours.mean(axis=2, keepdims=True)
    coarse = Image.fromarray((grays + MUTED * (colours - grays)).astype(np.uint8))
    clouds = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.float32)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    angle, period = random.uniform(0, np.pi), random.uniform(6.0, 24.0)
    phase = (x * np.cos(angle) + y * np.sin(angle)) * (2 * np.pi / period)
    texture = {
        0: lambda: np.zeros_like(x),
        1: lambda: np.sin(phase),
        2: lambda: np.sign(np.sin(x * 2 * np.pi / period) * np.sin(y * 2 * np.pi / period)),
    }[int(random.integers(0, 3))]()
    tint = random.uniform(-10.0, 10.0, 3)
    return np.clip(clouds + texture[..., None] * tint, 0, 255).astype(np.uint8)
