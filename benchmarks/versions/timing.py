"""Speed of two environments: `benchmarks.speed` in each, in turns."""

from __future__ import annotations

import json
from typing import Any, Dict, List

from benchmarks.versions import environment

# Figures of `benchmarks.speed` and their names here; more of those per second is better.
FIGURES = {
    "floor_seconds": "bare network, forward and backward (s)",
    "step_seconds": "training step with input (s)",
    "input_images_per_second": "input pipeline (images/s)",
    "first_step_seconds": "process start to first step (s)",
    "peak_memory_gb": "memory of training (GB)",
    "evaluate_seconds": "evaluation of 10 images (s)",
    "latency_1_ms": "SavedModel, batch 1 (ms)",
    "latency_8_ms": "SavedModel, batch 8 (ms)",
}


def report(pythons: List[str], arguments: List[str], repeats: int) -> List[str]:
    """Lines of a Markdown table: the best of each figure, and second over first.

    Arguments are those of `benchmarks.speed`; each environment gets `repeats` turns.
    """
    both = environment.find_two(pythons)
    measured: List[List[Dict[str, Any]]] = [[], []]
    for turn in range(repeats):
        for env, results in zip(both, measured):
            environment.log(f"{env.name}: turn {turn + 1} of {repeats}")
            printed = environment.run(env.python, "-m", "benchmarks.speed", *arguments)
            results.append(json.loads(printed.splitlines()[-1]))
    lines = [f"| | {both[0].name} | {both[1].name} | second / first |", "|---|---|---|---|"]
    for key, name in FIGURES.items():
        if key in measured[0][0]:
            first, second = (best(key, [result[key] for result in results]) for results in measured)
            lines.append(f"| {name} | {first:.3g} | {second:.3g} | {second / first:.2f} |")
    return lines


def best(key: str, values: List[float]) -> float:
    """The fastest of several measurements."""
    return max(values) if key.endswith("_per_second") else min(values)
