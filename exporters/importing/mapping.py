"""Gives the variables of a model the weights of a published one.

A layer whose batch norm is folded in the file gets it back in the form that changes nothing:
`y = scale * x + offset` becomes gamma = scale, beta = offset, mean 0 and variance 1 - epsilon, so
that the division by sqrt(variance + epsilon) is one by 1.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, NamedTuple, Optional, Tuple

import numpy as np

from exporters.importing.matching import match_layers, scope_of
from exporters.importing.own_model import OwnModel
from exporters.reading.published import Convolution, Named, Norm, Published

COPIED = "copied"
REBUILT = "rebuilt"  # from folded batch norm
MISSING = "missing"
OTHER_SHAPE = "shape"

_SAME_UP_TO_SCALE = 1e-4  # fraction of the largest weight


class MappedRow(NamedTuple):
    """A line of the report."""

    variable: str
    state: str
    source: str  # names in the file, or what is wrong


class Mapped:
    """Values of the variables of a model, and where they come from.

    Attributes:
        values: By name of the variable; those that the file lacks are absent.
        folded: Our batch norm that was rebuilt: its statistics say nothing about the inputs of its
            layer.
        unused: Names of arrays of the file.
    """

    def __init__(self, own_model: OwnModel, published: Published) -> None:
        self.shapes = own_model.shapes
        self.arrays = published.arrays if published.has_names else {}
        self.values: Dict[str, np.ndarray] = {}
        self.folded: List[Norm] = []
        # Scalars and whole numbers are anchors' settings and thresholds, not weights.
        self.unused = {
            name
            for name, values in published.arrays.items()
            if values.dtype.kind == "f" and values.ndim
        }
        self._rows: Dict[str, MappedRow] = {}

    @property
    def rows(self) -> List[MappedRow]:
        """A row for each variable by name."""
        return [self._rows.get(name) or self._absent(name) for name in sorted(self.shapes)]

    def _absent(self, name: str) -> MappedRow:
        shape = list(self.shapes[name])
        if name in self.arrays and list(self.arrays[name].shape) != shape:
            source = f"{list(self.arrays[name].shape)}, the model has {shape}"
            return MappedRow(name, OTHER_SHAPE, source)
        return MappedRow(name, MISSING, f"the model has {shape}")

    def has(self, names: Iterable[str]) -> bool:
        """Whether the file has arrays of all these names, in the shapes of the variables."""
        return all(
            name in self.arrays and self.arrays[name].shape == self.shapes[name] for name in names
        )

    def put(self, name: str, values: np.ndarray, state: str, sources: Iterable[str]) -> None:
        text = ", ".join(dict.fromkeys(each for each in sources if each)) or "no constant: neutral"
        self.values[name] = np.asarray(values, np.float32).reshape(self.shapes[name])
        self._rows[name] = MappedRow(name, state, text)
        self.unused.difference_update(sources)

    def copy(self, names: Iterable[str]) -> None:
        for name in names:
            self.put(name, self.arrays[name], COPIED, [name])


def map_variables(own_model: OwnModel, published: Published) -> Mapped:
    """The value of each variable of our model that the file gives one."""
    # Copies by name first; layers that names do not find come from the structure.
    mapped = Mapped(own_model, published)
    matches = match_layers(
        own_model.structure,
        published.structure,
        names_match=published.has_names,
        follows_order=not published.from_functions,
    )
    for layer in own_model.structure.convolutions:
        names = [each.name for each in layer.arrays]
        match = matches.get(layer.name)
        if mapped.has(names) and not (match and _is_folded(mapped, layer, match)):
            mapped.copy(names)
        elif match is not None:
            _take_layer(mapped, layer, match)
    mapped.copy(name for name in mapped.shapes if name not in mapped.values and mapped.has([name]))
    return mapped


def _is_folded(mapped: Mapped, ours: Convolution, theirs: Convolution) -> bool:
    """Whether batch norm is in the weights, although its parameters are in the file, unused.

    Some tools write folded weights under the name of the original ones and prune nothing.
    """
    return (
        ours.norm is not None
        and theirs.norm is None
        and theirs.scale is None
        and theirs.offset is not None
        and theirs.weights.name == ours.weights.name
        and np.array_equal(theirs.weights.values, mapped.arrays[ours.weights.name])
    )


def _take_layer(mapped: Mapped, ours: Convolution, theirs: Convolution) -> None:
    """Gives our layer the weights of theirs, unfolding batch norm where theirs has none."""
    scale, offset = theirs.scale, theirs.offset or _displaced_offset(mapped, ours)
    weights, sources = theirs.weights.values, [theirs.weights.name]
    num_outputs = 2 if ours.kind == "depthwise" else 1  # last dimensions of the weights
    # Heads that share weights: an earlier feature map has set them.
    is_shared = ours.weights.name in mapped.values
    if is_shared:
        ratio = _ratio(weights, mapped.values[ours.weights.name], num_outputs)
        if ratio is None:
            return  # another layer with these weights has other ones: reported as missing
        scale = Named("", ratio) if scale is None else Named(scale.name, ratio * scale.values)
    is_copied = theirs.norm is not None and scale is None and offset is None
    if ours.norm is not None and theirs.norm is not None and not is_copied:
        scale, offset = _compose(theirs.norm, scale, offset)
    # Without gamma the weights themselves must carry the scale.
    if scale is not None and (ours.norm is None or ours.norm.gamma is None):
        if is_shared and ours.norm is not None:
            return  # nothing can hold the scale: the batch norm is reported as missing
        weights = weights * scale.values.reshape(ours.weights.values.shape[-num_outputs:])
        sources.append(scale.name)
        scale = None
    if ours.norm is not None and theirs.norm is not None and is_copied:
        _take_norm(mapped, ours.norm, theirs.norm, COPIED)
    elif ours.norm is not None:
        _rebuild_norm(mapped, ours.norm, scale, offset)
        if ours.offset is not None:  # A bias before batch norm is folded as well.
            zeros = np.zeros(mapped.shapes[ours.offset.name])
            mapped.put(ours.offset.name, zeros, REBUILT, ())
    # Zeros would hide that the file's bias belongs to another model.
    elif ours.offset is not None and (offset or ours.offset.name not in mapped.arrays):
        bias = offset or Named("", np.zeros(mapped.shapes[ours.offset.name]))
        mapped.put(ours.offset.name, bias.values, COPIED, [bias.name])
    if not is_shared:
        state = COPIED if ours.norm is None or theirs.norm is not None else REBUILT
        mapped.put(ours.weights.name, weights, state, sources)


def _compose(norm: Norm, scale: Optional[Named], offset: Optional[Named]) -> Tuple[Named, Named]:
    """Scale and offset of an affine step and the batch norm after it."""
    # Batch norm in inference is affine: (x - mean) * factor + beta.
    factor = 1 / np.sqrt(norm.variance.values + norm.epsilon)
    if norm.gamma is not None:
        factor = factor * norm.gamma.values
    shift = (0.0 if offset is None else offset.values) - norm.mean.values
    beta = 0.0 if norm.beta is None else norm.beta.values
    product = factor * (1.0 if scale is None else scale.values)
    return Named(norm.variance.name, product), Named(norm.mean.name, shift * factor + beta)


def _take_norm(mapped: Mapped, ours: Norm, theirs: Norm, state: str) -> None:
    size = mapped.shapes[ours.mean.name]
    # Our epsilon may be another one; the sum of both is what counts.
    variance = theirs.variance.values + (theirs.epsilon - ours.epsilon)
    for part, source in (
        (ours.gamma, theirs.gamma or Named("", np.ones(size))),
        (ours.beta, theirs.beta or Named("", np.zeros(size))),
        (ours.mean, theirs.mean),
        (ours.variance, theirs.variance._replace(values=variance)),
    ):
        if part is not None:
            mapped.put(part.name, source.values, state, [source.name])


def _rebuild_norm(
    mapped: Mapped, ours: Norm, scale: Optional[Named], offset: Optional[Named]
) -> None:
    mean = np.zeros(mapped.shapes[ours.mean.name])
    if ours.beta is None and offset is not None:
        # Without beta the mean carries the offset; a factor of 0 leaves nothing to shift.
        factor = 1 if scale is None else np.where(scale.values == 0, 1, scale.values)
        mean = -offset.values / factor
    # Variance + epsilon = 1, so that gamma alone is the factor.
    variance = Named("", np.ones_like(mean))
    _take_norm(mapped, ours, Norm("", scale, offset, Named("", mean), variance, 0.0), REBUILT)
    mapped.folded.append(ours)


def _displaced_offset(mapped: Mapped, ours: Convolution) -> Optional[Named]:
    """The offset of a folded batch norm that an optimizer adds later, e.g. to a sum of layers."""
    if ours.norm is None:
        return None
    scope = f"{scope_of(ours.weights.name)}/BatchNorm/"
    for end in ("batchnorm/sub", *(f"FusedBatchNorm{each}/Offset" for each in ("", "V2", "V3"))):
        values = mapped.arrays.get(scope + end)
        if values is not None and values.shape == mapped.shapes[ours.norm.mean.name]:
            return Named(scope + end, values)
    return None


def _ratio(weights: np.ndarray, base: np.ndarray, num_outputs: int) -> Optional[np.ndarray]:
    """Factor per output channel that makes `weights` of `base`; None if none does.

    Heads that share weights over feature maps have their own batch norm for each, which folding
    multiplies into a copy of the weights.
    """
    if weights.shape != base.shape:
        return None
    axes = tuple(range(weights.ndim - num_outputs))
    # Least squares: exact if the weights are multiples, and robust to rounding.
    power = (base * base).sum(axes)
    ratio = (weights * base).sum(axes) / np.where(power == 0, 1, power)
    error = np.abs(weights - base * ratio).max()
    is_multiple = error <= _SAME_UP_TO_SCALE * max(np.abs(weights).max(), 1e-30)
    return ratio.reshape(-1) if is_multiple else None
