"""Accumulator of an evaluation: metrics, counts, matches and a chart from detections.

The accumulator is a plain Python object: a graph feeds it through the operation of `eval_ops`;
without a graph, `add` is called in a loop.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, NamedTuple, Sequence

from estimator_det.protos import eval_pb2
from model_fn.evaluation.diagnostics import EvalDiagnostics
from model_fn.evaluation.matching import Matches
from model_fn.evaluation.metrics.base import EVERY_OBJECT, EvaluatedBatch, Scope, make_named_metrics


class Results(NamedTuple):
    """Results of one evaluation."""

    metrics: Dict[str, float]
    matches: Matches
    chart: bytes  # PNG; empty if no image was evaluated
    details: Dict[str, Any]  # JSON values, see `model_fn.evaluation.details`
    scopes: Dict[str, Scope]  # the objects that each metric counts


class Accumulator:
    """Metrics sets and diagnostics of one evaluation.

    Attributes:
        named_sets: The metrics sets, each with the field of the configuration that asks for it.
        needs: What they need, together.
    """

    def __init__(
        self, eval_config: eval_pb2.EvalConfig, categories: Sequence[Dict[str, Any]]
    ) -> None:
        self.named_sets = make_named_metrics(eval_config, categories)
        self.needs = {need for each in self.named_sets for need in each.metrics.needs}
        self._diagnostics = EvalDiagnostics(categories, eval_config.min_score_threshold)

    def add(self, batch: EvaluatedBatch) -> None:
        for each in self.named_sets:
            each.metrics.add(batch)
        self._diagnostics.add(batch)

    @functools.cached_property
    def results(self) -> Results:
        """Results of all batches; nothing is added after it was read."""
        values: Dict[str, float] = {}
        scopes: Dict[str, Scope] = {}
        for metrics in (each.metrics for each in self.named_sets):
            values.update(metrics.results())
            scopes.update(dict.fromkeys(metrics.names, EVERY_OBJECT))
            scopes.update(getattr(metrics, "scopes", {}))
        return Results(values, *self._diagnostics.results(), scopes)
