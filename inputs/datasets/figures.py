"""Figures with joints on calm backgrounds: a labelled data set of keypoints without a download.

Every image contains one to three figures in any pose, seen from the front, which may hide a part of
each other. The same seed gives the same bytes.
"""

from __future__ import annotations

import colorsys
from typing import Iterator, List, NamedTuple, Tuple

import numpy as np
from PIL import Image, ImageDraw

from inputs.datasets import shapes, writer
from inputs.datasets.shapes import SUPERSAMPLING, DatasetFiles

CLASS_NAME = "figure"
# A figure faces the viewer: its left is on the right of the image.
JOINTS = (
    "head", "neck", "left_elbow", "right_elbow", "left_hand", "right_hand", "pelvis", "left_knee",
    "right_knee", "left_foot", "right_foot",
)  # fmt: skip
MIN_SIDE, MAX_SIDE = 160, 224  # heights and widths of images, pixels
MAX_FIGURES = 3
MIN_EXTENT, MAX_EXTENT = 0.4, 0.75  # longer side of a box, relative to the image's shorter side
MAX_OVERLAP = 0.3  # share of the smaller box; a figure that would hide more is placed again

# Lengths relative to the torso.
HEAD_RADIUS, NECK_TO_HEAD = 0.34, 0.5
SHOULDER, HIP = 0.26, 0.17  # half of the widths
UPPER_ARM, LOWER_ARM = 0.6, 0.55
UPPER_LEG, LOWER_LEG = 0.7, 0.7
LIMB_WIDTH = 0.2


class FigureImage(NamedTuple):
    """One image and its labels."""

    pixels: np.ndarray  # uint8 [h, w, 3]
    boxes: np.ndarray  # float32 [n, 4], normalized ymin, xmin, ymax, xmax
    joints: np.ndarray  # float32 [n, P, 2], normalized y and x in the order of JOINTS
    is_hidden: np.ndarray  # bool [n, P], True for joints behind a later figure


class _Pose(NamedTuple):
    """Points of a figure, x and y [..., 2]."""

    joints: np.ndarray  # [P, 2]
    limbs: np.ndarray  # [4, 3, 2]: shoulder, elbow, hand; hip, knee, foot
    torso: float  # length

    @property
    def low(self) -> np.ndarray:
        """The least x and y that the figure covers."""
        return self._ends(-1.0).min(axis=0)

    @property
    def high(self) -> np.ndarray:
        """The largest x and y that the figure covers."""
        return self._ends(1.0).max(axis=0)

    def _ends(self, sign: float) -> np.ndarray:
        head = self.joints[:1] + sign * HEAD_RADIUS * self.torso
        return np.concatenate(
            [head, self.limbs.reshape(-1, 2) + sign * LIMB_WIDTH / 2 * self.torso]
        )

    def moved(self, scale: float, shift: np.ndarray) -> _Pose:
        """The pose in other units, and then at another place."""
        return _Pose(self.joints * scale + shift, self.limbs * scale + shift, self.torso * scale)


def make_image(seed: Tuple[int, int]) -> FigureImage:
    """The image of a (data set seed, image index) pair."""
    random = np.random.default_rng(seed)
    height, width = (int(side) for side in random.integers(MIN_SIDE, MAX_SIDE + 1, size=2))
    canvas = Image.fromarray(_background(random, height, width))
    boxes: List[np.ndarray] = []
    joints: List[np.ndarray] = []
    hidden: List[np.ndarray] = []
    for _ in range(random.integers(1, MAX_FIGURES + 1)):
        for _ in range(shapes.PLACEMENT_TRIES):
            pose = _placed(_pose(random), (width, height), random)
            box = np.concatenate([pose.low[::-1], pose.high[::-1]])
            if all(shapes.overlap(box, earlier) <= MAX_OVERLAP for earlier in boxes):
                covered = _paint(canvas, pose, random)
                hidden = [each | _at(covered, points) for each, points in zip(hidden, joints)]
                boxes.append(box)
                joints.append(pose.joints)
                hidden.append(np.zeros(len(JOINTS), bool))
                break
    pixels = np.asarray(canvas, np.int16) + random.normal(0.0, 3.0, (height, width, 3))
    size = np.array([height, width], np.float32)
    return FigureImage(
        np.clip(pixels, 0, 255).astype(np.uint8),
        np.clip(np.array(boxes, np.float32) / np.tile(size, 2), 0.0, 1.0),
        np.array(joints, np.float32)[..., ::-1] / size,
        np.stack(hidden),
    )


def make_dataset(output_dir: str, seed: int, size: str = "small") -> DatasetFiles:
    """Writes shards of `SIZES[size]` and the label map to `output_dir`, replacing older ones."""
    return shapes.write_dataset(
        output_dir, seed, size, _examples, {1: CLASS_NAME}, keypoints={1: JOINTS}
    )


def _examples(name: str, count: int, seed: int) -> Iterator[writer.tf.train.Example]:
    for index in range(count):
        image = make_image((seed, index))
        num_boxes = len(image.boxes)
        labels = writer.Annotations(
            image.boxes,
            [1] * num_boxes,
            [CLASS_NAME] * num_boxes,
            keypoints=image.joints,
            keypoint_visibilities=np.where(image.is_hidden, 1, 2),
            keypoint_names=JOINTS * num_boxes,
        )
        filename = f"{name}_{index:05d}.jpg"
        yield writer.make_example(writer.encode_image(image.pixels), labels, filename=filename)


def _pose(random: np.random.Generator) -> _Pose:
    """A figure with a torso of length 1 from its pelvis at the origin; y points down."""
    lean, nod = random.uniform(-0.35, 0.35), random.uniform(-0.4, 0.4)
    pelvis, neck = np.zeros(2), -_direction(lean)
    across = np.array([np.cos(lean), -np.sin(lean)])  # to the figure's left, right in the image
    head = neck - NECK_TO_HEAD * _direction(lean + nod)
    limbs = []
    for side in (1.0, -1.0):  # left, right
        swing, bend = random.uniform(-0.2, 2.7), random.uniform(-0.3, 1.8)
        shoulder = neck + side * SHOULDER * across
        limbs.append(_limb(shoulder, side, (swing, swing + bend), (UPPER_ARM, LOWER_ARM), lean))
    for side in (1.0, -1.0):
        swing, bend = random.uniform(-0.1, 0.9), random.uniform(-0.8, 0.3)
        hip = pelvis + side * HIP * across
        limbs.append(_limb(hip, side, (swing, swing + bend), (UPPER_LEG, LOWER_LEG), 0.0))
    left_arm, right_arm, left_leg, right_leg = limbs
    joints = [head, neck, left_arm[1], right_arm[1], left_arm[2], right_arm[2], pelvis,
              left_leg[1], right_leg[1], left_leg[2], right_leg[2]]  # fmt: skip
    return _Pose(np.stack(joints), np.stack(limbs), 1.0)


def _limb(
    start: np.ndarray,
    side: float,
    angles: Tuple[float, float],  # outwards from hanging down: upper part, lower part
    lengths: Tuple[float, float],
    lean: float,
) -> np.ndarray:
    """Start, middle and end of an arm or a leg."""
    middle = start + lengths[0] * _direction(lean + side * angles[0])
    return np.stack([start, middle, middle + lengths[1] * _direction(lean + side * angles[1])])


def _direction(angle: float) -> np.ndarray:
    """Unit vector x, y; 0 is down, and positive angles turn to the right of the image."""
    return np.array([np.sin(angle), np.cos(angle)])


def _placed(pose: _Pose, image_size: Tuple[int, int], random: np.random.Generator) -> _Pose:
    """The pose in a random size, at a random place inside of an image of this width and height."""
    extent = random.uniform(MIN_EXTENT, MAX_EXTENT) * min(image_size)
    pose = pose.moved(extent / (pose.high - pose.low).max(), np.zeros(2))
    room = np.asarray(image_size) - (pose.high - pose.low)
    return pose.moved(1.0, random.uniform(0.0, 1.0, 2) * room - pose.low)


def _paint(canvas: Image.Image, pose: _Pose, random: np.random.Generator) -> np.ndarray:
    """Draws a figure with smooth edges.

    Returns:
        bool [h, w], the pixels of the canvas that the figure covers at least by half.
    """
    corner = np.floor(pose.low).astype(int) - 1
    width, height = (int(side) for side in np.ceil(pose.high).astype(int) + 1 - corner)
    stencil = Image.new("RGBA", (width * SUPERSAMPLING, height * SUPERSAMPLING))
    _draw(
        ImageDraw.Draw(stencil), pose.moved(1.0, -corner).moved(SUPERSAMPLING, np.zeros(2)), random
    )
    figure = stencil.resize((width, height), Image.Resampling.BOX)
    canvas.paste(figure, (int(corner[0]), int(corner[1])), figure)
    cover = Image.new("L", canvas.size)
    cover.paste(figure.getchannel("A"), (int(corner[0]), int(corner[1])))
    return np.asarray(cover) >= 128


def _draw(draw: ImageDraw.ImageDraw, pose: _Pose, random: np.random.Generator) -> None:
    hue = random.uniform()
    limb_colour, body_colour = _colour(hue, random), _colour(hue + 0.4, random)
    thickness = LIMB_WIDTH * pose.torso
    arms, legs = pose.limbs[:2], pose.limbs[2:]
    for limb in legs:
        _line(draw, limb, thickness, limb_colour)
    corners = np.concatenate([arms[:, 0], legs[::-1, 0]])  # shoulders, then hips, around the torso
    draw.polygon([tuple(point) for point in corners], fill=body_colour)
    _line(draw, np.concatenate([corners, corners[:1]]), thickness, body_colour)
    head, neck = pose.joints[:2]
    _line(draw, np.stack([neck, head]), thickness, body_colour)
    for limb in arms:
        _line(draw, limb, thickness, limb_colour)
    _disc(draw, head, HEAD_RADIUS * pose.torso, limb_colour)
    for side in (-1, 1):
        eye = head + np.array([side * 0.12, -0.05]) * pose.torso
        _disc(draw, eye, 0.05 * pose.torso, (255, 255, 255))


def _line(
    draw: ImageDraw.ImageDraw, points: np.ndarray, thickness: float, colour: Tuple[int, ...]
) -> None:
    """Straight parts with round ends."""
    draw.line([tuple(point) for point in points], fill=colour, width=round(thickness))
    for point in points:
        _disc(draw, point, thickness / 2, colour)


def _disc(
    draw: ImageDraw.ImageDraw, center: np.ndarray, radius: float, colour: Tuple[int, ...]
) -> None:
    draw.ellipse([*(center - radius), *(center + radius)], fill=colour)


def _colour(hue: float, random: np.random.Generator) -> Tuple[int, ...]:
    """A strong colour of this hue, in units of a turn."""
    channels = colorsys.hsv_to_rgb(hue % 1.0, random.uniform(0.6, 1.0), random.uniform(0.3, 0.75))
    return tuple(round(255 * channel) for channel in channels)


def _background(random: np.random.Generator, height: int, width: int) -> np.ndarray:
    """uint8 [h, w, 3]: pale clouds."""
    cells = Image.fromarray(random.integers(190, 250, (3, 3, 3)).astype(np.uint8))
    return np.asarray(cells.resize((width, height), Image.Resampling.BICUBIC))


def _at(pixels: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Values of an image [h, w] at points [..., 2], x and y inside of it."""
    x, y = points.astype(int).T
    return pixels[y, x]
