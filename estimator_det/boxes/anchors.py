"""Anchor generators: the boxes that a network's outputs are relative to.

Anchors are ordered by feature map, then row, column and box of the location. If all sizes are
known when the graph is built, anchors are computed in NumPy and enter it as one constant;
otherwise the same code runs on tensors.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Callable, Iterator, List, Optional, Protocol, Sequence, Tuple

import numpy as np
from google.protobuf.message import Message

from estimator_det.compat import tf
from estimator_det.config.registry import Registry
from estimator_det.config.rules import check, missing_choice, rules
from estimator_det.console.printing import counted
from estimator_det.errors import Problem, error, warning
from estimator_det.protos import (
    anchor_generator_pb2,
    flexible_grid_anchor_generator_pb2,
    grid_anchor_generator_pb2,
    multiscale_anchor_generator_pb2,
    ssd_anchor_generator_pb2,
)

REDUCED_SCALE = 0.1  # scale of the square box in SSD's lowest layer if that layer is reduced

Shape = Tuple[Any, Any]  # height and width: ints or scalar int tensors
Pair = Tuple[float, float]  # y and x


class AnchorGenerator(Protocol):
    """Generates the anchors of all feature maps."""

    @property
    def num_per_location(self) -> List[int]:
        """Number of anchors at each location of each feature map."""

    def generate(self, feature_map_shapes: Sequence[Shape], image_shape: Shape) -> tf.Tensor:
        """Generates anchors float32 [A, 4] of maps in the padded image that enters the network."""


ANCHOR_GENERATORS: Registry[Callable[[Any], AnchorGenerator]] = Registry(
    "anchor generator", chosen_by="AnchorGenerator.anchor_generator_oneof"
)


def _static_size(size: Any) -> Any:
    """Returns an int if the value of a size is known, else the tensor itself."""
    value = tf.get_static_value(size) if tf.is_tensor(size) else size
    return size if value is None else int(value)


def _number(size: Any) -> Any:
    return tf.cast(size, tf.float32) if tf.is_tensor(size) else np.float32(size)


def _indices(size: Any) -> Any:
    if tf.is_tensor(size):
        return tf.cast(tf.range(size), tf.float32)
    return np.arange(size, dtype=np.float32)


def _tile(
    shape: Shape, heights: Any, widths: Any, stride: Tuple[Any, Any], offset: Tuple[Any, Any]
) -> Any:
    """Repeats the boxes of a location, sizes [k], at every location: [h * w * k, 4]."""
    # Both axes stay separate until they are broadcast, so no grid of coordinates is stored.
    y = (_indices(shape[0]) * stride[0] + offset[0])[:, None, None]
    x = (_indices(shape[1]) * stride[1] + offset[1])[None, :, None]
    corners = [y - heights / 2, x - widths / 2, y + heights / 2, x + widths / 2]
    boxes_shape = [shape[0], shape[1], heights.shape[0]]
    library: Any = tf if any(map(tf.is_tensor, (*corners, *shape))) else np
    planes = [library.broadcast_to(corner, boxes_shape) for corner in corners]
    return library.reshape(library.stack(planes, axis=-1), [-1, 4])


def _concat(tiles: Sequence[Any]) -> tf.Tensor:
    """Concatenates the boxes of all maps, as a constant if all are known."""
    if any(map(tf.is_tensor, tiles)):
        return tf.concat(tiles, axis=0)
    return tf.constant(np.concatenate(tiles), tf.float32)


def _static_sizes(*shapes: Shape) -> List[Shape]:
    """Replaces tensors of known value by ints."""
    return [(_static_size(height), _static_size(width)) for height, width in shapes]


@dataclasses.dataclass(frozen=True)
class SsdAnchors:
    """Anchors as fractions of the image, with a scale and an aspect ratio for each box of a map.

    A box of scale s and ratio r is s / sqrt(r) high and s * sqrt(r) wide, times `base_size`, in
    units of the shorter side of the image: on a wide image boxes keep their shape in pixels.
    Source: https://arxiv.org/abs/1512.02325 and the Object Detection API's behaviour.
    """

    boxes: Tuple[Tuple[Pair, ...], ...]  # (scale, aspect ratio) pairs of each feature map
    base_size: Pair = (1.0, 1.0)  # height and width of a box whose scale is 1
    # (y, x) pixels between locations of each map; None divides the image evenly.
    strides: Optional[Tuple[Pair, ...]] = None
    # (y, x) pixels of the first location of each map; None is half a stride.
    offsets: Optional[Tuple[Pair, ...]] = None

    @property
    def num_per_location(self) -> List[int]:
        return [len(boxes) for boxes in self.boxes]

    def generate(self, feature_map_shapes: Sequence[Shape], image_shape: Shape) -> tf.Tensor:
        image, *shapes = _static_sizes(image_shape, *feature_map_shapes)
        height, width = _number(image[0]), _number(image[1])
        is_static = not any(tf.is_tensor(side) for side in image)
        shorter = min(height, width) if is_static else tf.minimum(height, width)
        tiles = []
        for layer, shape in enumerate(shapes):
            stride = (1.0 / _number(shape[0]), 1.0 / _number(shape[1]))
            if self.strides is not None:
                stride = (self.strides[layer][0] / height, self.strides[layer][1] / width)
            offset = (stride[0] / 2, stride[1] / 2)
            if self.offsets is not None:
                offset = (self.offsets[layer][0] / height, self.offsets[layer][1] / width)
            # Everything in float32, so that anchors equal the API's to the last bit.
            scales, ratios = np.asarray(self.boxes[layer], np.float32).T
            roots = np.sqrt(ratios)
            heights = scales / roots * (shorter / height * np.float32(self.base_size[0]))
            widths = scales * roots * (shorter / width * np.float32(self.base_size[1]))
            tiles.append(_tile(shape, heights, widths, stride, offset))
        return _concat(tiles)


@dataclasses.dataclass(frozen=True)
class PixelGrid:
    """Boxes at each location of one feature map, all in pixels."""

    sizes: Tuple[Pair, ...]  # (height, width) of each box
    stride: Pair  # (y, x) between locations
    # (y, x) of the first location. None: half a stride along the sides of the image that are whole
    # multiples of the stride (or 1), 0 along the others. If sizes are known only at run time: half
    # a stride if both are unknown, 0 if one is.
    offset: Optional[Pair] = None


@dataclasses.dataclass(frozen=True)
class PixelAnchors:
    """Anchors with sizes and positions in pixels, one grid per feature map."""

    grids: Tuple[PixelGrid, ...]  # one per feature map, in their order
    normalized: bool  # True if `generate` divides the result by the size of the image

    @property
    def num_per_location(self) -> List[int]:
        return [len(grid.sizes) for grid in self.grids]

    def generate(self, feature_map_shapes: Sequence[Shape], image_shape: Shape) -> tf.Tensor:
        image, *shapes = _static_sizes(image_shape, *feature_map_shapes)
        tiles = []
        for grid, shape in zip(self.grids, shapes):
            offset = _offset_by_side(image, grid.stride) if grid.offset is None else grid.offset
            heights, widths = np.transpose(np.asarray(grid.sizes, np.float32))
            tiles.append(_tile(shape, heights, widths, grid.stride, offset))
        if self.normalized:
            # Scaled last: the API rounds in this order, and anchors are equal to the last
            # bit.
            y, x = (np.float32(1) / _number(side) for side in image)
            is_static = not (tf.is_tensor(y) or tf.is_tensor(x))
            scale = (np if is_static else tf).stack([y, x, y, x])
            tiles = [tile * scale for tile in tiles]
        return _concat(tiles)


def _offset_by_side(image: Shape, stride: Pair) -> Pair:
    """Default position of the first location; see `PixelGrid.offset`."""
    unknown = [tf.is_tensor(side) for side in image]
    if any(unknown):
        return (stride[0] / 2, stride[1] / 2) if all(unknown) else (0.0, 0.0)
    # Like in the API, a side that is not a multiple of the stride has offset 0.
    is_multiple = [side == 1 or side % step == 0 for side, step in zip(image, stride)]
    return (stride[0] / 2 * is_multiple[0], stride[1] / 2 * is_multiple[1])


def _size(scale: float, ratio: float, base: Pair = (1.0, 1.0)) -> Pair:
    """Height and width, computed in float32 like in the API."""
    root = np.sqrt(np.float32(ratio))
    height, width = np.float32(scale) / root, np.float32(scale) * root
    return float(height * np.float32(base[0])), float(width * np.float32(base[1]))


def ssd_boxes(
    scales: Sequence[float],
    aspect_ratios: Sequence[float],
    interpolated_scale_aspect_ratio: float = 1.0,
    reduce_lowest_layer: bool = True,
) -> Tuple[Tuple[Pair, ...], ...]:
    """Builds the (scale, aspect ratio) pairs of each SSD layer.

    Every layer has its scale in all aspect ratios, plus a box whose scale is the geometric mean of
    the layer's and the next layer's; an `interpolated_scale_aspect_ratio` of 0 omits that box. A
    reduced lowest layer has 3 boxes only. `scales` has one more scale than there are layers.
    """
    layers: List[Tuple[Pair, ...]] = []
    for scale, next_scale in zip(scales[:-1], scales[1:]):
        if reduce_lowest_layer and not layers:
            layers.append(((REDUCED_SCALE, 1.0), (scale, 2.0), (scale, 0.5)))
            continue
        boxes = [(scale, ratio) for ratio in aspect_ratios]
        if interpolated_scale_aspect_ratio > 0:
            boxes.append((math.sqrt(scale * next_scale), interpolated_scale_aspect_ratio))
        layers.append(tuple(boxes))
    return tuple(layers)


def _ssd_scales(config: ssd_anchor_generator_pb2.SsdAnchorGenerator) -> List[float]:
    """Scale of each layer, then the scale that follows the last layer."""
    count = config.num_layers
    if config.scales:
        return [*config.scales, 1.0][: count + 1]
    spread = config.max_scale - config.min_scale
    # max(): a single layer has no spread to divide.
    return [*(config.min_scale + spread * n / max(count - 1, 1) for n in range(count)), 1.0]


def _ssd_pairs(
    config: ssd_anchor_generator_pb2.SsdAnchorGenerator, field: str
) -> Optional[Tuple[Pair, ...]]:
    """`height_<field>` and `width_<field>` layer by layer; None if neither is set."""
    heights, widths = getattr(config, f"height_{field}"), getattr(config, f"width_{field}")
    return tuple(zip(heights, widths)) or None


@rules(ssd_anchor_generator_pb2.SsdAnchorGenerator)
def _check_ssd(config: ssd_anchor_generator_pb2.SsdAnchorGenerator, at: str) -> Iterator[Problem]:
    count = config.num_layers
    if config.scales and len(config.scales) < count:
        yield error(
            f"{at}.scales",
            f"has {counted(len(config.scales), 'value')} for {count} layers (num_layers)",
            "give one for each layer",
        )
    used = count + int(config.interpolated_scale_aspect_ratio > 0)
    if len(config.scales) > used:
        unused = ", ".join(f"{scale:g}" for scale in config.scales[used:])
        yield warning(
            f"{at}.scales",
            f"has {len(config.scales)} values for {count} layers: {unused} at its end have no "
            "effect",
            "remove them, or raise num_layers with the feature extractor's",
        )
    # The lowest layer may have boxes of its own, and an interpolated scale is a box.
    reduces, interpolates = config.reduce_boxes_in_lowest_layer, used > count
    if not (config.aspect_ratios or interpolates) and count > int(reduces):
        yield error(f"{at}.aspect_ratios", "is empty: a layer has no boxes", "give at least one")
    for field in ("stride", "offset"):
        heights, widths = (len(getattr(config, f"{s}_{field}")) for s in ("height", "width"))
        if heights != widths or heights not in (0, count):
            yield error(
                f"{at}.height_{field}",
                f"has {counted(heights, 'value')} and width_{field} has {widths}, for {count} "
                "layers",
                "give both one value for each layer, or none",
            )


@ANCHOR_GENERATORS.register("ssd_anchor_generator")
def _make_ssd(config: ssd_anchor_generator_pb2.SsdAnchorGenerator) -> AnchorGenerator:
    boxes = ssd_boxes(
        _ssd_scales(config),
        config.aspect_ratios,
        config.interpolated_scale_aspect_ratio,
        config.reduce_boxes_in_lowest_layer,
    )
    return SsdAnchors(
        boxes,
        (config.base_anchor_height, config.base_anchor_width),
        _ssd_pairs(config, "stride"),
        _ssd_pairs(config, "offset"),
    )


@rules(
    grid_anchor_generator_pb2.GridAnchorGenerator,
    multiscale_anchor_generator_pb2.MultiscaleAnchorGenerator,
    flexible_grid_anchor_generator_pb2.AnchorGrid,
)
def _check_grid(config: Message, at: str) -> Iterator[Problem]:
    for field in ("scales", "aspect_ratios", "base_sizes"):
        if not getattr(config, field, True):
            yield error(f"{at}.{field}", "is empty: there are no anchors", "give at least one")


@ANCHOR_GENERATORS.register("grid_anchor_generator")
def _make_grid(config: grid_anchor_generator_pb2.GridAnchorGenerator) -> AnchorGenerator:
    """Builds one grid with every scale in every aspect ratio, in pixels."""
    base = (config.height, config.width)
    sizes = tuple(
        _size(scale, ratio, base) for ratio in config.aspect_ratios for scale in config.scales
    )
    stride = (float(config.height_stride), float(config.width_stride))
    offset = (float(config.height_offset), float(config.width_offset))
    return PixelAnchors((PixelGrid(sizes, stride, offset),), normalized=False)


@rules(multiscale_anchor_generator_pb2.MultiscaleAnchorGenerator)
def _check_levels(
    config: multiscale_anchor_generator_pb2.MultiscaleAnchorGenerator, at: str
) -> Iterator[Problem]:
    if config.min_level > config.max_level:
        yield error(
            f"{at}.min_level",
            f"must not be above max_level; given: {config.min_level} and {config.max_level}",
            "lower it",
        )


@ANCHOR_GENERATORS.register("multiscale_anchor_generator")
def _make_multiscale(
    config: multiscale_anchor_generator_pb2.MultiscaleAnchorGenerator,
) -> AnchorGenerator:
    """Builds one grid per pyramid level l, stride 2^l, scales spread evenly over an octave."""
    octave = [2.0 ** (step / config.scales_per_octave) for step in range(config.scales_per_octave)]
    grids = []
    for level in range(config.min_level, config.max_level + 1):
        stride = 2.0**level
        base = stride * config.anchor_scale
        sizes = tuple(
            _size(scale, ratio, (base, base)) for ratio in config.aspect_ratios for scale in octave
        )
        grids.append(PixelGrid(sizes, (stride, stride)))
    return PixelAnchors(tuple(grids), config.normalize_coordinates)


@rules(flexible_grid_anchor_generator_pb2.FlexibleGridAnchorGenerator)
def _check_grids(
    config: flexible_grid_anchor_generator_pb2.FlexibleGridAnchorGenerator, at: str
) -> Iterator[Problem]:
    if not config.anchor_grid:
        yield error(f"{at}.anchor_grid", "is empty", "give one grid per feature map")
    for index, grid in enumerate(config.anchor_grid):
        if len(grid.base_sizes) != len(grid.aspect_ratios):
            yield error(
                f"{at}.anchor_grid[{index}].base_sizes",
                f"has {counted(len(grid.base_sizes), 'value')}, and aspect_ratios has "
                f"{len(grid.aspect_ratios)}",
                "give both equally many",
            )


@ANCHOR_GENERATORS.register("flexible_grid_anchor_generator")
def _make_flexible(
    config: flexible_grid_anchor_generator_pb2.FlexibleGridAnchorGenerator,
) -> AnchorGenerator:
    """Builds a grid per `anchor_grid`; the n-th base size goes with the n-th aspect ratio."""
    grids = tuple(
        PixelGrid(
            tuple(_size(*pair) for pair in zip(grid.base_sizes, grid.aspect_ratios)),
            (float(grid.height_stride), float(grid.width_stride)),
            (float(grid.height_offset), float(grid.width_offset)),
        )
        for grid in config.anchor_grid
    )
    return PixelAnchors(grids, config.normalize_coordinates)


def anchors_per_map(config: anchor_generator_pb2.AnchorGenerator) -> Optional[List[int]]:
    """Number of anchors at a place of each map; None if the message has errors."""
    problems = [*missing_choice(config, ""), *check(config)]
    if any(problem.severity == "error" for problem in problems):
        return None
    return make_anchor_generator(config).num_per_location


def check_maps(
    config: anchor_generator_pb2.AnchorGenerator,
    at: str,
    count: Optional[int],
    levels: Optional[Tuple[int, int]],
) -> Iterator[Problem]:
    """An error for anchors that do not fit the feature maps of a network.

    `count` is the number of maps, None if it is unknown. `levels` are the finest and the coarsest
    level of a feature pyramid, None for other networks.
    """
    multiscale = config.multiscale_anchor_generator
    if levels is not None and config.HasField("multiscale_anchor_generator"):
        if (multiscale.min_level, multiscale.max_level) != levels:
            yield error(
                f"{at}.multiscale_anchor_generator",
                f"levels {multiscale.min_level} to {multiscale.max_level}, but the feature pyramid "
                f"has {levels[0]} to {levels[1]}",
                "set min_level and max_level alike in both",
            )
        return
    counts = anchors_per_map(config)
    if counts is not None and count is not None and count != len(counts):
        yield error(
            at,
            f"has {counted(len(counts), 'layer')}, but the feature extractor makes "
            f"{counted(count, 'feature map')}",
            "set equal numbers",
        )


def make_anchor_generator(config: anchor_generator_pb2.AnchorGenerator) -> AnchorGenerator:
    """Builds the generator of an `AnchorGenerator` message."""
    return ANCHOR_GENERATORS.make_chosen(config)
