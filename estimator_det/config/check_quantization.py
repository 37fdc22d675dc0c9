"""Rules of `graph_rewriter` that hold without building the model."""

from __future__ import annotations

from typing import Any, Iterator

from estimator_det.config.fields import no_effect
from estimator_det.config.problem import Problem, warning

INTEGER_BITS = 8  # of the integers that TFLite computes with


def check_quantization(config: Any) -> Iterator[Problem]:
    """Warnings for a `graph_rewriter` that changes nothing, or not what it seems to."""
    if not config.HasField("graph_rewriter"):
        return
    path = "graph_rewriter.quantization"
    options = config.graph_rewriter.quantization
    if not config.graph_rewriter.HasField("quantization"):
        yield no_effect("graph_rewriter", "quantization is not set")
        return
    num_steps = config.train_config.num_steps
    if 0 < num_steps <= options.delay:
        yield warning(
            f"{path}.delay",
            f"is {options.delay}: training ends at step {num_steps}, before tensors are rounded, "
            "and only ranges are learned",
            "set it to a step before the end",
        )
    for field in ("weight_bits", "activation_bits"):
        bits = getattr(options, field)
        if bits != INTEGER_BITS:
            yield warning(
                f"{path}.{field}",
                f"is {bits}: TFLite computes with {INTEGER_BITS} bits",
                f"set it to {INTEGER_BITS}, unless this is an experiment",
            )
