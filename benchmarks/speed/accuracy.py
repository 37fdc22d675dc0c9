"""Time that a training needs to be accurate."""

from __future__ import annotations

import argparse
import time
from typing import Any, Dict

GOALS = (50, 70, 80)  # mAP@.50 in percent
EVALUATIONS = 16


def accuracy(arguments: argparse.Namespace) -> Dict[str, Any]:
    """Seconds of a training until mAP@.50 reaches each of `GOALS`, as `init` configures it."""
    # Here, because other measurements time the imports of a process.
    from estimator_det.programs import starter, starter_plan
    from exporters.benchmark.report import MAP_50
    from inputs.datasets import shapes
    from model_fn.evaluation import history
    from model_fn.runs import runner
    from model_fn.runs.options import EvaluationOptions

    folder = arguments.records
    if folder is None:
        folder = str(arguments.scratch / "records")
        shapes.make_dataset(folder, seed=0)
    budget = starter.Budget(hours=arguments.hours)
    config = starter_plan.make_plan(folder, budget, model=None, weights=None).config
    interval = max(1, config.train_config.num_steps // EVALUATIONS)
    model_dir = str(arguments.scratch / "accuracy")
    start = time.time()
    evaluating = EvaluationOptions(every_steps=interval, export_final=False)
    runner.train_and_evaluate(config, model_dir, seed=0, progress=False, evaluation=evaluating)
    figures: Dict[str, Any] = {}
    for evaluation in history.read(model_dir, "0"):
        figures["final_accuracy"] = evaluation.value(MAP_50)
        for goal in GOALS:
            if figures["final_accuracy"] >= goal / 100:
                figures.setdefault(f"seconds_to_{goal}", evaluation.time - start)
    return figures
