"""Search for the place in a graph where numbers stop being finite."""

from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Set

import numpy as np

from estimator_det.compat import tf, tf1

# Outputs of a branch not taken never arrive, and tensors inside loops cannot be fetched.
_UNASKABLE = ("Switch", "RefSwitch", "Enter", "RefEnter", "Exit", "RefExit", "NextIteration")
_GRADIENTS = "gradients/"
# Later outputs are the kernel's own, and may contain anything.
_NUM_RESULTS = {"FusedBatchNorm": 3, "FusedBatchNormV2": 3, "FusedBatchNormV3": 3}


@dataclasses.dataclass(frozen=True)
class FirstNonFinite:
    """The first tensor that went bad among the sources of the bad result."""

    tensor: str
    operation: str  # its type, e.g. "Conv2D"
    layer: str  # scope of the operation
    is_gradient: bool
    shape: List[int]
    num_nan: int
    num_inf: int
    low: Optional[float]  # extremes of the finite values; None without any
    high: Optional[float]

    def sentence(self) -> str:
        size = int(np.prod(self.shape))
        counts = [
            f"{count} {name}"
            for count, name in ((self.num_nan, "NaN"), (self.num_inf, "inf"))
            if count
        ]
        others = "" if self.low is None else f", the others in {self.low:.4g}..{self.high:.4g}"
        where = "of the gradients " if self.is_gradient else ""
        return (
            f"{self.tensor} ({self.operation} {where}in {self.layer or 'the graph'}): "
            f"{' and '.join(counts)} of {size} values{others}"
        )


def find_first(
    session: tf1.Session, targets: Sequence[tf.Tensor], feeds: Dict[tf.Tensor, Any]
) -> Optional[FirstNonFinite]:
    """The first tensor behind targets that is not finite; None if all is finite this time.

    Runs the default graph again, with a check for every tensor of floating point that the targets
    are computed from, and searches from the targets back: a tensor that is not finite but does not
    reach a target, such as the logarithm of 0 behind a `where`, is not the cause.
    """
    graph = tf1.get_default_graph()
    fed = {tensor.op for tensor in feeds}
    origins = _reached(
        [tensor.op for tensor in targets],
        lambda operation: () if operation in fed else [x.op for x in operation.inputs],
    )
    # Operations are listed as they were made, which follows the computation.
    order = {operation: i for i, operation in enumerate(graph.get_operations())}
    tensors = [
        tensor
        for operation in sorted(origins, key=order.__getitem__)
        if operation.type not in _UNASKABLE
        for tensor in operation.outputs[: _NUM_RESULTS.get(operation.type)]
        if tensor.dtype.is_floating and graph.is_fetchable(tensor)
    ]
    # Flat, for some kernels give another rank than they promise.
    flat = [tf.reshape(tensor, [-1]) for tensor in tensors]
    finite = session.run([tf.reduce_all(tf.math.is_finite(tensor)) for tensor in flat], feeds)
    bad = {tensor.ref() for tensor, is_finite in zip(tensors, finite) if not is_finite}
    causes = _reached(
        bad.intersection(tensor.ref() for tensor in targets),
        lambda ref: bad.intersection(source.ref() for source in ref.deref().op.inputs),
    )
    if not causes:
        return None
    first = min((ref.deref() for ref in causes), key=lambda tensor: order[tensor.op])
    return _describe(first, session.run(first, feeds))


def _reached(starts: Iterable[Any], sources_of: Callable[[Any], Iterable[Any]]) -> Set[Any]:
    """The starts, their sources, the sources of these, and so on."""
    reached: Set[Any] = set()
    open_ends = list(starts)
    while open_ends:
        end = open_ends.pop()
        if end not in reached:
            reached.add(end)
            open_ends += sources_of(end)
    return reached


def _describe(tensor: tf.Tensor, value: Any) -> FirstNonFinite:
    value = np.asarray(value).astype(np.float64)
    finite = value[np.isfinite(value)]
    name = tensor.op.name
    return FirstNonFinite(
        tensor=tensor.name,
        operation=tensor.op.type,
        layer=name.replace(_GRADIENTS, "", 1).rpartition("/")[0],
        is_gradient=_GRADIENTS in name,
        shape=list(value.shape),
        num_nan=int(np.isnan(value).sum()),
        num_inf=int(np.isinf(value).sum()),
        low=float(finite.min()) if finite.size else None,
        high=float(finite.max()) if finite.size else None,
    )
