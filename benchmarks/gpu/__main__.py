"""`python -m benchmarks.gpu`: images per second of trainings on a GPU, in a table for each model.

Each training runs in a process of its own. Some start side by side, and take turns on the device.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
from typing import Any, Dict, List, Optional

from benchmarks.gpu.case import (
    BFLOAT16,
    ESTIMATOR,
    MAX_SECONDS,
    MIRRORED,
    PRECISIONS,
    TF32,
    TORCHVISION,
    Case,
    Plan,
    command,
)

MODELS = ("ssd_mobilenet_v2_coco", "faster_rcnn_resnet50_coco")
THEIR_MODELS = ("ssdlite320_mobilenet_v3_large", "ssd300_vgg16", "fasterrcnn_resnet50_fpn")
ROOT = pathlib.Path(__file__).resolve().parents[2]

Figures = Dict[str, Any]


def _parse(argv: Optional[List[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--configs", required=True, help="folder of .config files")
    parser.add_argument("--record", required=True, help="TFRecord file with JPEG images")
    parser.add_argument("--label_map", required=True)
    parser.add_argument("--models", nargs="*", default=MODELS, help="names of configurations")
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--precisions", nargs="*", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--torch", help="interpreter that has torchvision, to compare with")
    parser.add_argument("--their_models", nargs="*", default=THEIR_MODELS)
    parser.add_argument(
        "--compiled", nargs="*", default=(), help="models to compile by XLA too, in minutes each"
    )
    parser.add_argument("--calls", type=int, default=60, help="timed at most in each training")
    parser.add_argument("--processes", type=int, default=3, help="that start side by side")
    return parser.parse_args(argv)


def cases(arguments: argparse.Namespace) -> List[Case]:
    """TF32 at all batch sizes, other precisions and other ways to train at one."""
    sizes = sorted(arguments.batch_sizes)
    least, largest = sizes[0], sizes[-1]
    chosen = []
    for model in arguments.models:
        chosen += [Case(model, size) for size in sizes]
        chosen += [Case(model, largest, each) for each in arguments.precisions if each != TF32]
        chosen += [Case(model, largest, trainer=each) for each in (ESTIMATOR, MIRRORED)]
        chosen += [Case(model, least, steps_per_call=10)]
    chosen += [Case(model, largest, jit_compile=True) for model in arguments.compiled]
    if arguments.torch:
        for model in arguments.their_models:
            chosen += [Case(model, size, TF32, TORCHVISION) for size in sizes]
            chosen += [Case(model, largest, BFLOAT16, TORCHVISION)]
    return chosen


def measure(torch: Optional[str], plan: Plan, case: Case) -> Figures:
    """Figures of a case, or its `error`."""
    is_theirs = case.trainer == TORCHVISION
    module = f"benchmarks.gpu.{'torchvision_training' if is_theirs else 'training'}"
    interpreter = str(torch) if is_theirs else sys.executable
    process = subprocess.run(
        [interpreter, *command(module, case, plan)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=case.environment,
    )
    if process.returncode == -signal.SIGALRM:
        return {"error": f"not done after {MAX_SECONDS} s"}
    if process.returncode:
        return {"error": process.stderr[-3000:] or f"exit code {process.returncode}"}
    return json.loads(process.stdout.splitlines()[-1])


def table(results: Dict[Case, Figures]) -> List[str]:
    """Markdown: images/s, share of the time that steps wait for input, and memory in GB."""
    columns = sorted({case.column for case in results}, key=_place)
    rows: Dict[Any, Dict[str, str]] = {}
    for case, figures in results.items():
        rows.setdefault((case.model, case.batch_size), {})[case.column] = _cell(figures)
    lines = ["| Model | Batch | " + " | ".join(columns) + " |", "|---" * (2 + len(columns)) + "|"]
    for (model, batch_size), cells in rows.items():
        texts = [f"`{model}`", str(batch_size), *(cells.get(column, "") for column in columns)]
        lines.append("| " + " | ".join(texts) + " |")
    return lines


def _place(column: str) -> Any:
    """Precisions first, then what has more words."""
    precision, *others = column.split(", ")
    return len(others), PRECISIONS.index(precision), others


def _cell(figures: Figures) -> str:
    if "error" in figures:
        return "failed"
    text = f"{figures['images_per_second']:.3g}"
    if "input_wait" in figures:
        text += f", {figures['input_wait']:.0%}"
    return f"{text}, {figures['memory_gb']:.2g} GB"


def main(argv: Optional[List[str]] = None) -> int:
    """Prints the tables, then all figures as one JSON line; 1 if a training failed."""
    arguments = _parse(argv)
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(
            configs=os.path.abspath(arguments.configs),
            record=os.path.abspath(arguments.record),
            label_map=os.path.abspath(arguments.label_map),
            lock=os.path.join(folder, "device"),
            calls=arguments.calls,
        )
        chosen = cases(arguments)
        run = functools.partial(measure, arguments.torch, plan)
        results = {}
        with concurrent.futures.ThreadPoolExecutor(arguments.processes) as pool:
            for case, figures in zip(chosen, pool.map(run, chosen)):
                results[case] = figures
                print(json.dumps({**vars(case), **figures}), file=sys.stderr, flush=True)
    print("\n".join(table(results)))
    print(json.dumps([{**vars(case), **figures} for case, figures in results.items()]))
    return int(any("error" in figures for figures in results.values()))


if __name__ == "__main__":
    sys.exit(main())
