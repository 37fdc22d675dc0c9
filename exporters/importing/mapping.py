"""Gives the variables of a model the weights of a published one.

A layer whose batch norm is folded in the file gets it back in the form that changes nothing:
`y = scale * x + offset` becomes gamma = scale, beta = offset, mean 0 and variance 1 - epsilon, so
that the division by sqrt(variance + epsilon) is one by 1.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Set, Tuple

import numpy as np

from exporters.importing.matching import match_layers, scope_of
from exporters.importing.own_model import OwnModel
from exporters.importing.published import Convolution, Named, Norm, Published

COPIED = "copied"
REBUILT = "rebuilt"  # from folded batch norm
MISSING = "missing"
OTHER_SHAPE = "shape"

_SAME_UP_TO_SCALE = 1e-4  # fraction of the largest weight


class Row(NamedTuple):
    """A line of the report."""

    variable: str
    state: str
    source: str  # names in the file, or what is wrong


class Folded(NamedTuple):
    """Batch norm that was rebuilt: its statistics say nothing about the layer's inputs."""

    norm: str  # operation in our graph
    gamma: Optional[str]
    beta: Optional[str]
    mean: str
    variance: str
    epsilon: float


class Mapped(NamedTuple):
    """Values of variables, and how they were found."""

    values: Dict[str, np.ndarray]
    rows: List[Row]
    folded: List[Folded]
    unused: List[str]  # arrays of the file


class _Mapping:
    """Values found so far."""

    def __init__(self, own_model: OwnModel, published: Published) -> None:
        self.own = own_model
        self.arrays = published.arrays if published.has_names else {}
        self.values: Dict[str, np.ndarray] = {}
        self.rows: Dict[str, Row] = {}
        self.folded: List[Folded] = []
        self.used: Set[str] = set()

    def has(self, names: Iterable[str]) -> bool:
        """Whether the file has arrays of all these names, in the shapes of the variables."""
        return all(
            name in self.arrays and self.arrays[name].shape == self.own.shapes[name]
            for name in names
        )

    def put(self, name: str, values: np.ndarray, state: str, sources: Iterable[str]) -> None:
        text = ", ".join(dict.fromkeys(each for each in sources if each)) or "no constant: neutral"
        self.values[name] = np.asarray(values, np.float32).reshape(self.own.shapes[name])
        self.rows[name] = Row(name, state, text)
        self.used.update(sources)

    def copy(self, names: Iterable[str]) -> None:
        for name in names:
            self.put(name, self.arrays[name], COPIED, [name])


def map_variables(own_model: OwnModel, published: Published) -> Mapped:
    """The value of each variable of our model that the file gives one."""
    # Copies by name first; layers that names do not find come from the structure.
    mapping = _Mapping(own_model, published)
    matches = match_layers(
        own_model.structure,
        published.structure,
        names_match=published.has_names,
        follows_order=not published.from_functions,
    )
    for layer in own_model.structure.convolutions:
        names = _variables_of(layer)
        match = matches[layer.name][0] if layer.name in matches else None
        if mapping.has(names) and not (match and _is_folded(mapping, layer, match)):
            mapping.copy(names)
        elif match is not None:
            _take_layer(mapping, layer, match)
    mapping.copy(
        name for name in own_model.shapes if name not in mapping.values and mapping.has([name])
    )
    for name, shape in own_model.shapes.items():
        if name not in mapping.rows:
            mapping.rows[name] = _absent(name, shape, mapping.arrays)
    rows = [mapping.rows[name] for name in sorted(own_model.shapes)]
    unused = [
        name
        for name, values in published.arrays.items()
        # Scalars and whole numbers are anchors' settings and thresholds, not weights.
        if name not in mapping.used and values.dtype.kind == "f" and values.ndim
    ]
    return Mapped(mapping.values, rows, mapping.folded, sorted(unused))


def _is_folded(mapping: _Mapping, ours: Convolution, theirs: Convolution) -> bool:
    """Whether batch norm is in the weights, although its parameters are in the file, unused.

    Some tools write folded weights under the name of the original ones and prune nothing.
    """
    return (
        ours.norm is not None
        and theirs.norm is None
        and theirs.scale is None
        and theirs.offset is not None
        and theirs.weights.name == ours.weights.name
        and np.array_equal(theirs.weights.values, mapping.arrays[ours.weights.name])
    )


def _absent(name: str, shape: Iterable[int], arrays: Mapping[str, np.ndarray]) -> Row:
    if name in arrays and arrays[name].shape != shape:
        return Row(name, OTHER_SHAPE, f"{list(arrays[name].shape)}, the model has {list(shape)}")
    return Row(name, MISSING, f"the model has {list(shape)}")


def _name(named: Optional[Named]) -> Optional[str]:
    return None if named is None else named.name


def _variables_of(layer: Convolution) -> List[str]:
    """Variables that a layer of our model reads."""
    parts = [layer.weights, layer.offset, layer.scale]
    if layer.norm is not None:
        norm = layer.norm
        parts += [norm.gamma, norm.beta, norm.mean, norm.variance]
    return [part.name for part in parts if part is not None]


def _take_layer(mapping: _Mapping, ours: Convolution, theirs: Convolution) -> None:
    """Gives our layer the weights of theirs, unfolding batch norm where theirs has none."""
    # Heads that share weights: an earlier feature map has set them.
    if ours.weights.name in mapping.values:
        weights, scale = None, _ratio(theirs.weights.values, mapping.values[ours.weights.name])
        if scale is None:
            return  # another layer with these weights has other ones: reported as missing
        if theirs.scale is not None:
            scale = scale * theirs.scale.values
    else:
        weights = theirs.weights.values
        scale = None if theirs.scale is None else theirs.scale.values
    offset = theirs.offset or _displaced_offset(mapping, ours)
    sources = [theirs.weights.name]
    scale_sources = [] if theirs.scale is None else [theirs.scale.name]
    offset_sources = [] if offset is None else [offset.name]
    shift = None if offset is None else offset.values
    if ours.norm is None:
        if scale is not None and weights is not None:
            weights, sources = weights * _over_outputs(scale, ours), sources + scale_sources
        # Zeros would hide that the file's bias belongs to another model.
        has_other_shape = shift is None and _name(ours.offset) in mapping.arrays
        if ours.offset is not None and not has_other_shape:
            bias = np.zeros(mapping.own.shapes[ours.offset.name]) if shift is None else shift
            mapping.put(ours.offset.name, bias, COPIED, offset_sources)
    elif theirs.norm is not None and scale is None and shift is None:
        _copy_norm(mapping, ours.norm, theirs.norm)
    else:
        if theirs.norm is not None:
            scale, shift = _compose(theirs.norm, scale, shift)
            scale_sources = [theirs.norm.variance.name]
            offset_sources = [theirs.norm.mean.name]
        # Without gamma the weights themselves must carry the scale.
        if ours.norm.gamma is None and scale is not None and weights is not None:
            weights, sources = weights * _over_outputs(scale, ours), sources + scale_sources
            scale = None
        if ours.norm.gamma is None and scale is not None:
            return  # nothing can hold the scale: the batch norm is reported as missing
        _rebuild_norm(mapping, ours.norm, scale, shift, scale_sources, offset_sources)
    if weights is not None:
        state = COPIED if ours.norm is None or theirs.norm is not None else REBUILT
        mapping.put(ours.weights.name, weights, state, sources)


def _over_outputs(scale: np.ndarray, layer: Convolution) -> np.ndarray:
    """A factor per output channel in a shape that multiplies the weights of a layer."""
    return scale.reshape(layer.weights.values.shape[-2:]) if layer.kind == "depthwise" else scale


def _compose(
    norm: Norm, scale: Optional[np.ndarray], shift: Optional[np.ndarray]
) -> Tuple[np.ndarray, np.ndarray]:
    """Scale and offset of an affine step and the batch norm after it."""
    # Batch norm in inference is affine: (x - mean) * factor + beta.
    factor = 1 / np.sqrt(norm.variance.values + norm.epsilon)
    if norm.gamma is not None:
        factor = factor * norm.gamma.values
    offset = (0.0 if shift is None else shift) - norm.mean.values
    beta = 0.0 if norm.beta is None else norm.beta.values
    return factor * (1.0 if scale is None else scale), offset * factor + beta


def _copy_norm(mapping: _Mapping, ours: Norm, theirs: Norm) -> None:
    size = mapping.own.shapes[ours.mean.name]
    if ours.gamma is not None:
        gamma = np.ones(size) if theirs.gamma is None else theirs.gamma.values
        mapping.put(ours.gamma.name, gamma, COPIED, [_name(theirs.gamma) or ""])
    if ours.beta is not None:
        beta = np.zeros(size) if theirs.beta is None else theirs.beta.values
        mapping.put(ours.beta.name, beta, COPIED, [_name(theirs.beta) or ""])
    mapping.put(ours.mean.name, theirs.mean.values, COPIED, [theirs.mean.name])
    # Our epsilon may be another one; the sum of both is what counts.
    variance = theirs.variance.values + (theirs.epsilon - ours.epsilon)
    mapping.put(ours.variance.name, variance, COPIED, [theirs.variance.name])


def _rebuild_norm(
    mapping: _Mapping,
    ours: Norm,
    scale: Optional[np.ndarray],
    shift: Optional[np.ndarray],
    scale_sources: List[str],
    offset_sources: List[str],
) -> None:
    size = mapping.own.shapes[ours.mean.name]
    factor = np.ones(size) if scale is None else scale
    offset = np.zeros(size) if shift is None else shift
    if ours.gamma is not None:
        mapping.put(ours.gamma.name, factor, REBUILT, scale_sources)
    mean = np.zeros(size)
    if ours.beta is not None:
        mapping.put(ours.beta.name, offset, REBUILT, offset_sources)
    else:
        # Without beta the mean carries the offset; a factor of 0 leaves nothing to shift.
        mean = -offset / np.where(factor == 0, 1, factor)
    mapping.put(ours.mean.name, mean, REBUILT, [])
    # Variance + epsilon = 1, so that gamma alone is the factor.
    mapping.put(ours.variance.name, np.full(size, 1 - ours.epsilon), REBUILT, [])
    mapping.folded.append(
        Folded(
            ours.name,
            _name(ours.gamma),
            _name(ours.beta),
            ours.mean.name,
            ours.variance.name,
            ours.epsilon,
        )
    )


def _displaced_offset(mapping: _Mapping, ours: Convolution) -> Optional[Named]:
    """The offset of a folded batch norm that an optimizer adds later, e.g. to a sum of layers."""
    if ours.norm is None:
        return None
    scope = f"{scope_of(ours.weights.name)}/BatchNorm/"
    for end in ("batchnorm/sub", *(f"FusedBatchNorm{version}/Offset" for version in _VERSIONS)):
        values = mapping.arrays.get(scope + end)
        if values is not None and values.shape == mapping.own.shapes[ours.norm.mean.name]:
            return Named(scope + end, values)
    return None


_VERSIONS = ("", "V2", "V3")


def _ratio(weights: np.ndarray, base: np.ndarray) -> Optional[np.ndarray]:
    """Factor per output channel that makes `weights` of `base`; None if none does.

    Heads that share weights over feature maps have their own batch norm for each, which folding
    multiplies into a copy of the weights.
    """
    if weights.shape != base.shape:
        return None
    axes = tuple(range(weights.ndim - 1))
    # Least squares: exact if the weights are multiples, and robust to rounding.
    power = (base * base).sum(axes)
    ratio = (weights * base).sum(axes) / np.where(power == 0, 1, power)
    error = np.abs(weights - base * ratio).max()
    return ratio if error <= _SAME_UP_TO_SCALE * max(np.abs(weights).max(), 1e-30) else None
