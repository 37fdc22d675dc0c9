"""`python -m benchmarks.versions --python A --python B`: two environments against each other.

Each interpreter trains the same steps from the same seed, resumes from the other's checkpoint,
exports, and runs the other's SavedModel. Prints the largest differences; the exit status is 1 if
one is over its limit. With `--speed` it measures both instead, in turns; other arguments are those
of `benchmarks.speed`.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import tempfile
from typing import Any, Dict, List, Optional, Tuple

from benchmarks.versions import agreement, environment

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


def _parse(argv: Optional[List[str]]) -> Tuple[argparse.Namespace, List[str]]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.versions", description=__doc__)
    parser.add_argument(
        "--python", action="append", required=True, help="an interpreter; give two of them"
    )
    parser.add_argument("--steps", type=int, default=20, help="training steps to compare")
    parser.add_argument("--speed", action="store_true", help="measure instead of comparing")
    parser.add_argument("--repeats", type=int, default=2, help="--speed: turns of each")
    parser.add_argument("--output_dir", type=pathlib.Path, help="keep the files there")
    arguments, others = parser.parse_known_args(argv)
    if len(arguments.python) != 2:
        parser.error("--python: give it twice")
    if others and not arguments.speed:
        parser.error(f"unknown arguments: {' '.join(others)}")
    return arguments, others


def _speed_lines(pythons: List[str], arguments: List[str], repeats: int) -> List[str]:
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
            first, second = (
                _best(key, [result[key] for result in results]) for results in measured
            )
            lines.append(f"| {name} | {first:.3g} | {second:.3g} | {second / first:.2f} |")
    return lines


def _best(key: str, values: List[float]) -> float:
    """The fastest of several measurements."""
    return max(values) if key.endswith("_per_second") else min(values)


def main(argv: Optional[List[str]] = None) -> int:
    """Compares, prints, and returns 1 if the two do not agree."""
    arguments, others = _parse(argv)
    if arguments.speed:
        print("\n".join(_speed_lines(arguments.python, others, arguments.repeats)))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.output_dir or pathlib.Path(scratch)
        lines, agree = agreement.report(folder, arguments.python, arguments.steps)
    print("\n".join(lines))
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
