"""Accumulator of an evaluation: metrics, counts, matches and a chart from detections.

The accumulator is a plain Python object. A graph feeds it through one operation that passes each
batch as arrays; without a graph, `add` is called in a loop.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Sequence, Tuple

import numpy as np

from estimator_det.compat import tf
from model_fn.evaluation.diagnostics import EVAL_DIAGNOSTICS, EvalDiagnostics, chart_summary
from model_fn.evaluation.matching import Matches
from model_fn.evaluation.metrics.base import (
    EvaluatedBatch,
    MetricOps,
    Metrics,
    make_named_metrics,
)
from model_fn.evaluation.metrics.run_lengths import Masks, encode_masks


class Results(NamedTuple):
    """Results of one evaluation."""

    metrics: Dict[str, float]
    matches: Matches
    chart: bytes  # PNG; empty if no image was evaluated
    details: Dict[str, Any]  # JSON values, see `model_fn.evaluation.details`


OnResults = Callable[[Results], None]


class Accumulator:
    """Metrics sets and diagnostics of one evaluation.

    Attributes:
        named_sets: The metrics sets, each with the field of the configuration that asks for it.
    """

    def __init__(self, eval_config: Any, categories: Sequence[Dict[str, Any]]) -> None:
        self._eval_config, self._categories = eval_config, categories
        self._start()

    def _start(self) -> None:
        config, categories = self._eval_config, self._categories
        self.named_sets: List[Tuple[str, Metrics]] = make_named_metrics(config, categories)
        self._diagnostics = EvalDiagnostics(categories, config.min_score_threshold)

    def add(self, batch: EvaluatedBatch) -> None:
        if isinstance(batch.masks, Masks):  # Encoded once for all sets.
            counts = (batch.num_detections, batch.num_boxes)
            masks = encode_masks(batch.masks, batch.detection_boxes, *counts)
            batch = batch._replace(masks=masks)
        for _, metrics in self.named_sets:
            metrics.add(batch)
        self._diagnostics.add(batch)

    def results(self) -> Results:
        """Results of all batches so far; starts a new evaluation."""
        values: Dict[str, float] = {}
        for _, metrics in self.named_sets:
            values.update(metrics.results())
        results = Results(values, *self._diagnostics.results())
        self._start()
        return results


def without_nones(structure: Any) -> Tuple[List[Any], Callable[[Iterable[Any]], Any]]:
    """The leaves of a structure that are not None, and its maker from other values for them."""
    leaves = tf.nest.flatten(structure)

    def restored(values: Iterable[Any]) -> Any:
        remaining = iter(values)
        filled = [None if leaf is None else next(remaining) for leaf in leaves]
        return tf.nest.pack_sequence_as(structure, filled)

    return [leaf for leaf in leaves if leaf is not None], restored


def accumulator_ops(
    accumulator: Accumulator, batch: EvaluatedBatch, handle_results: OnResults
) -> MetricOps:
    """`eval_metric_ops`: float32 scalars by name of the metric, and the chart as a Summary.

    All share one update operation, and one operation computes all values once; when they are read,
    `handle_results` is called.
    """
    tensors, restored = without_nones(batch)
    names = [name for _, metrics in accumulator.named_sets for name in metrics.names]

    def add(*arrays: np.ndarray) -> None:
        accumulator.add(restored(arrays))

    def values() -> Tuple[np.ndarray, bytes]:
        results = accumulator.results()
        handle_results(results)
        scalars = np.array([results.metrics[name] for name in names], np.float32)
        return scalars, chart_summary(results.chart)

    update = tf.numpy_function(add, tensors, [])
    scalars, summary = tf.numpy_function(values, [], [tf.float32, tf.string])
    scalars = tf.unstack(tf.ensure_shape(scalars, [len(names)]))
    ops = {name: (scalar, update) for name, scalar in zip(names, scalars)}
    return {**ops, EVAL_DIAGNOSTICS: (tf.ensure_shape(summary, []), update)}
