"""Input size, feature maps and anchors of a starter configuration: such that no class vanishes.

A mean over all boxes would follow the most frequent class, so each class counts for itself: most of
its boxes must match an anchor of the written configuration, or a line says that they do not.
"""

from __future__ import annotations

import math
from typing import Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple, Union

import numpy as np

from estimator_det.config import pipeline
from estimator_det.console.printing import counted, quoted
from estimator_det.extractors.maps import FINEST_FPN_LEVEL
from estimator_det.extractors.ssd.registry import EXTRACTORS
from estimator_det.programs.starter import Draft, extractor_type, model_part
from estimator_det.programs.starter_small import least_side, median_sides, small_classes
from estimator_det.protos import faster_rcnn_pb2, pipeline_pb2, ssd_pb2
from inputs.checks.statistics import Columns
from model_fn.checks import data_check
from model_fn.checks.anchor_coverage import Coverage, MapSizes
from model_fn.checks.data_problems import FEW_BOXES

BETTER_IOU = 0.02  # by which anchors of the data must be better than published ones
MANY_UNMATCHED = 0.05  # share of boxes for which new anchors are worth new heads
UNMATCHED = 0.1  # share of the boxes of each class that may match no anchor
LOST = 0.9  # share above which a class is not found, so that more pixels of its boxes are no gain
CENTER_NET_STRIDE = 4  # pixels between cells of its only feature map
LITTLE = 0.02  # difference of such shares that no larger input is worth
SAMPLED = 400  # boxes of each class that the search for a size looks at
SMALLEST_SIZE = 160  # pixels; the last feature maps of an SSD are then 1x1
SIZE_STEP = 32  # the stride of the coarsest map of a backbone
GOOD_EPOCHS = 200  # passes over the data after which a small network from scratch is good
# Passes that the time must allow at an input size above the published one. Few of them are better
# than a size at which a class cannot be found.
FEW_EPOCHS = 10
# Images of all passes, however few the data have: 300 steps of 8. On 19 images, 216 steps at 320
# pixels had a mAP@.50 of .13, and 60 steps at 608, as many pixels, found nothing.
FEW_IMAGES = 2400
NUM_SHOWN = 5
# Text of a `feature_extractor` -> sizes of its maps: building a network takes seconds.
KnownSizes = Dict[str, MapSizes]


class SizeLimits(NamedTuple):
    """The largest inputs that time and memory allow."""

    epochs: Optional[float] = None  # passes at the present size, from random weights; None: any
    size: float = math.inf  # largest height and width of inputs that fit the memory
    few_epochs: float = FEW_EPOCHS  # that an input above the published size must allow


class Fit(NamedTuple):
    """Anchors for the boxes, at one input size."""

    config: pipeline_pb2.TrainEvalPipelineConfig
    coverage: Coverage
    reason: str = ""  # why these anchors; "" if they are the present ones

    @property
    def matched(self) -> float:
        """Share of boxes with an anchor, in the class that has least."""
        return 1 - max(_unmatched(self.coverage).values())

    @property
    def excess(self) -> float:
        """Means over the classes of what the anchors and the feature maps lack for the boxes.

        A class lacks anchors for the share of its boxes above `UNMATCHED`, and resolution for the
        share of `least_side` that its median box does not have.
        """
        unmatched = _unmatched(self.coverage)
        shares = np.fromiter(unmatched.values(), float)
        sides = median_sides(self.coverage.pixels, self.coverage.class_ids)
        covered = np.array([sides[i] for i in unmatched]) / least_side(self.coverage.stride)
        covered[shares > LOST] = 0.0
        lacking = np.maximum(shares - UNMATCHED, 0.0) + np.maximum(1 - covered, 0.0)
        return float(lacking.mean())


def fit_boxes(
    draft: Draft, columns: Columns, limits: SizeLimits, names: Mapping[int, str], *, has_heads: bool
) -> List[str]:
    """Decides size, feature maps and anchors; returns lines about the boxes without an anchor.

    Args:
        names: Class id -> name.
        has_heads: Heads are restored, which have learned the present anchors; they are kept unless
            many boxes match none of them.
    """
    sample = _sample(columns)
    known: KnownSizes = {}
    fits: Dict[int, Optional[Fit]] = {}

    def at(size: int) -> Optional[Fit]:
        if size not in fits:
            fits[size] = fit(_resized(draft.config, size), sample, known, has_heads=has_heads)
        return fits[size]

    resizer = model_part(draft.config).image_resizer
    larger, default = None, math.inf
    if resizer.WhichOneof("image_resizer_oneof") == "fixed_shape_resizer":
        default = resizer.fixed_shape_resizer.height
        step = _size_step(draft.config)
        size, larger, reason = _choose_size(default, limits, at, names, step)
        draft.config = _resized(draft.config, size)
        if reason:
            draft.reasons[f"{draft.model_path}.image_resizer"] = reason
    chosen = fit(draft.config, columns, known, has_heads=has_heads)
    if chosen is None:  # CenterNet
        size = model_part(draft.config).image_resizer.fixed_shape_resizer
        sides = (size.height, size.width)
        small = small_classes(columns, sides, CENTER_NET_STRIDE, names, default)
        return [f"class {names.get(i, i)}: {text}" for i, text in small.items()][:NUM_SHOWN]
    draft.config = chosen.config
    if chosen.reason:
        draft.reasons[_anchor_field(draft.config)] = chosen.reason
    return _lines(chosen, columns, larger, names, default)


def _size_step(config: pipeline_pb2.TrainEvalPipelineConfig) -> int:
    """Steps of input sizes: `SIZE_STEP`, or the stride of the coarsest map of a BiFPN."""
    extractor = config.model.ssd.feature_extractor
    return 2**extractor.bifpn.max_level if extractor.HasField("bifpn") else SIZE_STEP


def _choose_size(
    default: int,
    limits: SizeLimits,
    at: Callable[[int], Optional[Fit]],
    names: Mapping[int, str],
    step: int,
) -> Tuple[int, Optional[Fit], str]:
    """The input size, the fit at a larger size that time or memory forbid, and the reason."""
    epochs = math.inf if limits.epochs is None else limits.epochs
    preferred = default
    if epochs < GOOD_EPOCHS:
        # The time of a step is about proportional to the number of pixels.
        side = max(default * math.sqrt(epochs / GOOD_EPOCHS), SMALLEST_SIZE)
        preferred = min(math.ceil(side / step) * step, default)
    if at(preferred) is None:
        return preferred, None, _few(default, epochs) if preferred < default else ""

    def excess(size: int) -> float:
        return _fit_at(at, size).excess

    # Beyond twice the size a step takes more than four times as long; a pyramid is better then.
    sizes = [*range(preferred, 2 * default, step), 2 * default]
    longest = max(default, default * math.sqrt(epochs / limits.few_epochs))
    affordable = [size for size in sizes if size <= max(min(longest, limits.size), preferred)]
    size = preferred
    if excess(size) > 0:
        target = excess(affordable[-1])
        size = _first(affordable, lambda size: excess(size) <= target + bool(target) * LITTLE)
    larger = None
    if excess(size) > 0 and size < sizes[-1]:
        beyond = [each for each in sizes if each > size]
        larger = _fit_at(at, _first(beyond, lambda size: excess(size) <= 0))
    result = _fit_at(at, size)
    reason = f"At this size {result.matched:.0%} of the boxes of each class match an anchor."
    if result.matched < 1 - LOST:
        worst = quoted(names[next(iter(_unmatched(result.coverage)))])
        reason = f"At this size nearly no box of {worst} matches an anchor."
    if size < default:
        reason = f"{_few(default, epochs)} {reason}"
    elif size > default:
        class_id, share = next(iter(_unmatched(_fit_at(at, default).coverage).items()))
        text = f"{share:.0%} of the boxes of {quoted(names[class_id])} match no anchor"
        if share <= UNMATCHED:
            text = "a class is too small for the finest feature map"
        reason = f"At {default} pixels {text}. {reason}"
    return size, larger, reason.replace("of each class", "of each class, or more,")


def _fit_at(at: Callable[[int], Optional[Fit]], size: int) -> Fit:
    result = at(size)
    assert result is not None  # A model has anchors at each size or at none.
    return result


def _first(sizes: List[int], fits: Callable[[int], bool]) -> int:
    """The smallest size that fits, if all above it do; else the last one."""
    low, high = 0, len(sizes) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(sizes[middle]) else (middle + 1, high)
    return sizes[high]


def _few(size: int, epochs: float) -> str:
    passes = f"{counted(round(epochs), 'pass', 'passes')} over the data in the given time"
    return f"{size} pixels would allow {passes}, which is few."


def _resized(
    config: pipeline_pb2.TrainEvalPipelineConfig, size: int
) -> pipeline_pb2.TrainEvalPipelineConfig:
    kind = config.model.WhichOneof("model")
    value = f"{{ fixed_shape_resizer {{ height: {size} width: {size} }} }}"
    return pipeline.apply_overrides(config, [f"model.{kind}.image_resizer={value}"])


def _sample(columns: Columns) -> Columns:
    """Some boxes of each class that has enough of them, evenly spread over the images."""
    ids, counts = np.unique(columns.class_ids, return_counts=True)
    if (counts >= FEW_BOXES).any():
        ids = ids[counts >= FEW_BOXES]  # A few boxes may be slips of the annotator.
    rows = [np.flatnonzero(columns.class_ids == i) for i in ids]
    keep = np.sort(np.concatenate([each[:: -(-len(each) // SAMPLED)] for each in rows]))
    return columns._replace(
        images=columns.images[keep], boxes=columns.boxes[keep], class_ids=columns.class_ids[keep]
    )


def _unmatched(coverage: Coverage) -> Dict[int, float]:
    """Class id -> share of its boxes that are background even to their best anchor, worst first."""
    shares = coverage.shares(coverage.poor)
    counts = {i: int((coverage.class_ids == i).sum()) for i in shares}
    return {i: share for i, share in shares.items() if counts[i] >= FEW_BOXES} or shares


def fit(
    config: pipeline_pb2.TrainEvalPipelineConfig,
    columns: Columns,
    known: KnownSizes,
    *,
    has_heads: bool,
) -> Optional[Fit]:
    """Anchors that follow from the data, if they fit its boxes better; None without anchors.

    Adds to `known` the sizes of feature maps that it has to find out.
    """
    present = _coverage(config, columns, known)
    if present is None:
        return None
    best = Fit(config, present)
    # In one fine-tuning on 160 photographs restored heads were worth .09 of mAP@.50.
    if has_heads and present.poor.mean() < MANY_UNMATCHED and not best.excess:
        reason = "Those of the weights, whose heads have learned them; the boxes match them."
        return best._replace(reason=reason)
    for sides in _ranges_of_sides(columns):
        changed = _with_anchors(config, columns, sides)
        candidate = Fit(changed, _coverage(changed, columns, known) or present)
        best = candidate if _is_better(candidate, best) else best
        finer = _finer(candidate) if candidate.excess else None
        if finer is not None:
            changed = _with_anchors(finer, columns, sides)
            candidate = Fit(changed, _coverage(changed, columns, known) or present)
            best = candidate if _is_better(candidate, best) else best
    if best.config is config:
        return best
    return best._replace(
        reason="From the sizes and shapes of each class's boxes, which overlap their best anchor "
        f"by {best.coverage.best_iou.mean():.2f} on average; the anchors "
        f"of the model's own configuration by {present.best_iou.mean():.2f}."
    )


def _coverage(
    config: pipeline_pb2.TrainEvalPipelineConfig, columns: Columns, known: KnownSizes
) -> Optional[Coverage]:
    map_sizes = known.setdefault(str(model_part(config).feature_extractor), {})
    return data_check.coverage_of(config, columns, progress=False, map_sizes=map_sizes)


def _is_better(fit: Fit, best: Fit) -> bool:
    if fit.excess != best.excess:
        return fit.excess < best.excess
    return bool(fit.coverage.best_iou.mean() >= best.coverage.best_iou.mean() + BETTER_IOU)


def _finer(fit: Fit) -> Optional[pipeline_pb2.TrainEvalPipelineConfig]:
    """A configuration whose pyramid is one level finer; None if a box uses the coarsest map.

    Also None if there is no finer map: the finest map of other networks is a fixed layer.
    """
    if fit.coverage.maps[-1].num_best or not fit.config.model.HasField("ssd"):
        return None
    recipe = EXTRACTORS.get(extractor_type(fit.config))
    levels = fit.config.model.ssd.feature_extractor.fpn
    is_fixed = "fpn" not in recipe.takes or recipe.layout.fixed_levels is not None
    if is_fixed or levels.min_level == FINEST_FPN_LEVEL:
        return None
    parents = (
        "model.ssd.feature_extractor.fpn",
        f"{_anchor_field(fit.config)}.multiscale_anchor_generator",
    )
    names = ("min_level", "max_level")
    assignments = [
        f"{parent}.{name}={getattr(levels, name) - 1}" for parent in parents for name in names
    ]
    return pipeline.apply_overrides(fit.config, assignments)


def _anchor_field(config: pipeline_pb2.TrainEvalPipelineConfig) -> str:
    kind = config.model.WhichOneof("model")
    return f"model.{kind}.{'' if kind == 'ssd' else 'first_stage_'}anchor_generator"


def _with_anchors(
    config: pipeline_pb2.TrainEvalPipelineConfig, columns: Columns, sides: Tuple[float, float]
) -> pipeline_pb2.TrainEvalPipelineConfig:
    anchors = anchors_of(columns, model_part(config), sides)
    if anchors is None:
        return config
    return pipeline.apply_overrides(config, [f"{_anchor_field(config)}={anchors}"])


def _lines(
    fit: Fit,
    columns: Columns,
    larger: Optional[Fit],
    names: Mapping[int, str],
    default: float = math.inf,
) -> List[str]:
    """How well anchors cover the boxes, and a line for each class that is hardly found."""
    coverage = fit.coverage
    if coverage.background is None:
        return []
    count = int(coverage.poor.sum())
    lines = [
        f"anchors: boxes overlap their best anchor by {coverage.best_iou.mean():.2f} on average; "
        f"{counted(count, 'box matches', 'boxes match')} none, at less than "
        f"{coverage.background:.2g}"
    ]
    unused = [level for level in coverage.maps if not level.num_best]
    if unused:
        sizes = ", ".join(f"{level.size[0]}x{level.size[1]}" for level in unused)
        lines.append(f"no box matches the anchors of the feature maps of {sizes} cells")
    texts = []
    small = small_classes(columns, coverage.input_sizes[0], coverage.stride, names, default)
    for class_id, share in coverage.shares(coverage.poor).items():
        parts = []
        if share > UNMATCHED:
            parts.append(f"{share:.0%} of its boxes match no anchor")
            if larger is not None:
                there = larger.coverage.shares(larger.coverage.poor).get(class_id, share)
                height = larger.coverage.input_sizes[0][0]
                ratio = (height / coverage.input_sizes[0][0]) ** 2
                if there < share:
                    parts.append(f"at {height} pixels {there:.0%} would match none")
                    parts.append(f"a step then takes {ratio:.2g} × the time")
        if class_id in small:
            parts.append(small[class_id])
        if parts:
            texts.append(f"class {names.get(class_id, class_id)}: {'; '.join(parts)}")
    rest = [f"and {len(texts) - NUM_SHOWN} more classes"] if len(texts) > NUM_SHOWN else []
    return [*lines, *texts[:NUM_SHOWN], *rest]


def object_sides(columns: Columns) -> np.ndarray:
    """Square roots of the areas of boxes, as fractions of their images: float [M]."""
    extents = columns.boxes[:, 2:] - columns.boxes[:, :2]
    return np.sqrt(np.maximum(extents[:, 0] * extents[:, 1], 1e-8))


def _ranges_of_sides(columns: Columns) -> List[Tuple[float, float]]:
    """Sides between which nearly all boxes of each class are, and nearly all boxes.

    Anchors of the first range cost the other classes theirs if the finest feature map is too coarse
    for the smallest class.
    """
    sides, ids = object_sides(columns), columns.class_ids
    # The rarest sizes are left to the matcher, which gives each box its best anchor.
    ends = [np.percentile(sides[ids == i], (4, 96)) for i in np.unique(_sample(columns).class_ids)]
    ranges = [(np.min(ends), np.max(ends)), tuple(np.percentile(sides, (4, 96)))]
    return list(
        dict.fromkeys((float(low), max(float(high), 2 * float(low))) for low, high in ranges)
    )


def anchors_of(
    columns: Columns,
    model: Union[faster_rcnn_pb2.FasterRcnn, ssd_pb2.Ssd],
    sides: Tuple[float, float],
) -> Optional[str]:
    """Text form of a generator with anchors like the boxes; None for generators of other kinds.

    `sides` are the smallest and the largest, as fractions of the image.
    """
    generator = (
        model.anchor_generator
        if isinstance(model, ssd_pb2.Ssd)
        else model.first_stage_anchor_generator
    )
    kind = generator.WhichOneof("anchor_generator_oneof")
    message = getattr(generator, kind)
    low, high = sides
    if kind == "ssd_anchor_generator":
        # Random crops and flips make objects a little smaller and larger than the records say.
        text = (
            f"num_layers: {message.num_layers} min_scale: {max(0.85 * low, 0.02):.3g} "
            f"max_scale: {min(max(high, 0.3), 0.95):.3g} reduce_boxes_in_lowest_layer: false"
        )
    elif kind == "multiscale_anchor_generator":
        # The finest map has anchors of this many strides.
        scale = low * model.image_resizer.fixed_shape_resizer.height / 2**message.min_level
        text = (
            f"min_level: {message.min_level} max_level: {message.max_level} "
            f"anchor_scale: {min(max(scale, 1.5), 4.0):.2g} "
            f"scales_per_octave: {message.scales_per_octave}"
        )
    elif kind == "grid_anchor_generator":
        side = model.image_resizer.keep_aspect_ratio_resizer.min_dimension or 600
        # Scale 1 is 256 pixels of the resized image.
        scales = np.geomspace(low, high, len(message.scales)) * side / 256
        text = (
            f"scales: {_listed(np.maximum(scales, 0.05))} "
            f"height_stride: {message.height_stride} width_stride: {message.width_stride}"
        )
    else:
        return None
    ratios = _listed(_aspect_ratios(columns, len(message.aspect_ratios)))
    return f"{{ {kind} {{ {text} aspect_ratios: {ratios} }} }}"


def _aspect_ratios(columns: Columns, number: int) -> List[float]:
    """1 and quantiles of the boxes' widths over heights, in images resized to a square.

    As many ratios as now, so that heads of a checkpoint fit.
    """
    # Records may have boxes without area, which `check-data` reports.
    extents = np.maximum(columns.boxes[:, 2:] - columns.boxes[:, :2], 1e-4)
    # Quantiles put ratios where boxes are; 1 stays, since generators treat it in a special way.
    places = (np.arange(number - 1) + 0.5) / max(number - 1, 1)
    return [1.0, *np.quantile(extents[:, 1] / extents[:, 0], places).clip(0.1, 10.0)]


def _listed(values: Iterable[float]) -> str:
    return "[" + ", ".join(f"{value:.3g}" for value in values) + "]"
