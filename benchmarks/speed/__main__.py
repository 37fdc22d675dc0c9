"""`python -m benchmarks.speed`: each part in a process of its own, as ratios to lower bounds.

`floor` is the bare network, to which `step`, `start` and `memory` are compared; `start` leaves the
checkpoint for `evaluation` and `serving`. With `--against TREE` each part runs in turns with the
same part of another checkout, and the ratios are to its figures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Optional, Sequence, Tuple

from benchmarks.speed import growth
from benchmarks.speed.accuracy import GOALS
from benchmarks.speed.parts import PARTS

TURNS = 3  # measurements of each place
ROOT = str(pathlib.Path(__file__).resolve().parents[2])

Place = Tuple[str, str]  # interpreter and checkout


def _parse(argv: Optional[List[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument("--config", required=True, help="pipeline configuration to measure")
    parser.add_argument("--record", required=True, help="TFRecord file with JPEG images")
    parser.add_argument("--label_map", required=True)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--only", choices=PARTS, action="append", help="measure just these parts")
    parser.add_argument("--records", help="folder of `convert` for accuracy; default: shapes")
    parser.add_argument("--hours", type=float, default=0.1, help="length of that training")
    parser.add_argument("--against", metavar="TREE", help="another checkout to compare with")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=pathlib.Path, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _measure(
    part: str, arguments: argparse.Namespace, place: Place, scratch: str
) -> Dict[str, Any]:
    """Runs a part in a fresh process; its last line of output is a JSON object."""
    python, tree = place
    command = [python, "-m", "benchmarks.speed", "--part", part]
    for name in ("config", "record", "label_map"):
        command += [f"--{name}", os.path.abspath(getattr(arguments, name))]
    command += ["--batch_size", str(arguments.batch_size), "--hours", str(arguments.hours)]
    if arguments.records:
        command += ["--records", os.path.abspath(arguments.records)]
    command += [word for override in arguments.overrides for word in ("--set", override)]
    command += ["--started", repr(time.time()), "--scratch", scratch]
    environment = {**os.environ, "PYTHONPATH": tree}
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tree, env=environment
    )
    if result.returncode:
        raise RuntimeError(f"part {part!r} of {tree} failed:\n{result.stderr[-4000:]}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def _measure_all(
    arguments: argparse.Namespace, places: Sequence[Place], turns: int
) -> List[Dict[str, Any]]:
    """Figures of each place, by turns if there are several: medians of `turns` measurements."""
    figures: List[Dict[str, Any]] = [{} for _ in places]
    with contextlib.ExitStack() as stack:
        scratch = [stack.enter_context(tempfile.TemporaryDirectory()) for _ in places]
        for part in arguments.only or PARTS:
            print(f"measuring {part} …", file=sys.stderr, flush=True)
            measurements = [
                [_measure(part, arguments, *each) for each in zip(places, scratch)]
                for _ in range(turns if len(places) > 1 else 1)
            ]
            for figures_of_place, measured in zip(figures, zip(*measurements)):
                # Not every training reaches each accuracy.
                keys = [key for key in measured[0] if all(key in each for each in measured)]
                figures_of_place.update(
                    {key: _median([each[key] for each in measured]) for key in keys}
                )
    return figures


def _median(values: List[Any]) -> Any:
    # Only numbers have a median; of tables, the last turn counts.
    return statistics.median(values) if isinstance(values[0], (int, float)) else values[-1]


# key, text with the value, key of the lower bound
LINES = (
    ("step_seconds", "training step with input: {:.3g} s", "floor_seconds"),
    ("step_cached_seconds", "training step without input: {:.3g} s", "floor_seconds"),
    ("graph_ops", "training graph: {} operations", ""),
    ("first_step_seconds", "process start to first step: {:.3g} s", "floor_first_step_seconds"),
    ("peak_memory_gb", "peak memory of training: {:.3g} GB", "floor_memory_gb"),
    ("input_images_per_second", "input pipeline: {:.4g} images/s", "decode_images_per_second"),
    (
        "input_processor_ms",
        "processor time of the input pipeline: {:.2f} ms an image",
        "decode_processor_ms",
    ),
    ("evaluate_seconds", "evaluation of 10 images: {:.1f} s", ""),
    (
        "evaluate_images_per_second",
        "evaluation, graph warm: {:.1f} images/s",
        "served_images_per_second",
    ),
    ("latency_1_ms", "SavedModel, batch 1: {:.0f} ms", "predict_1_ms"),
    ("latency_8_ms", "SavedModel, batch 8: {:.0f} ms", "predict_8_ms"),
    ("postprocess_1_ms", "post-processing, batch 1: {:.1f} ms", "predict_1_ms"),
    ("postprocess_8_ms", "post-processing, batch 8: {:.1f} ms", "predict_8_ms"),
    ("postprocess_ops", "post-processing: {} operations", ""),
    ("serving_growth", "growth of memory while serving: {:.1%}", ""),
    ("conversion_ms", "conversion of COCO: {:.2f} ms an image", "conversion_loop_ms"),
    ("replicas_one_images_per_second", "1 replica on one core: {:.1f} images/s", ""),
    ("replicas_two_images_per_second", "2 replicas on two cores: {:.1f} images/s", ""),
    ("efficiency_two", "efficiency of 2 replicas: {:.2f}", ""),
    ("replicas_workers_two_images_per_second", "2 workers on two cores: {:.1f} images/s", ""),
    ("replicas_workers_four_images_per_second", "4 workers on two cores: {:.1f} images/s", ""),
    ("ring_hop_ms", "exchange of workers, each hop: {:.1f} ms", ""),
    ("ring_transfer_ms", "exchange of workers, all gradients: {:.1f} ms", ""),
    ("efficiency_apart", "the most that the cores allow: {:.2f}", ""),
    *((f"seconds_to_{goal}", f"mAP@.50 of .{goal} after {{:.0f}} s", "") for goal in GOALS),
    ("final_accuracy", "mAP@.50 at the end: {:.3f}", ""),
)


def _report(figures: Dict[str, Any], others: Optional[Dict[str, Any]] = None) -> List[str]:
    """Lines on the parts that were measured, with ratios to lower bounds or to another place."""
    lines = []
    for key, text, bound in LINES:
        if key not in figures:
            continue
        compared, name = figures.get(bound), bound
        if others is not None:
            compared, name = others.get(key), "the other's"
        suffix = f"; {figures[key] / compared:.2f} × {name} {compared:.3g}" if compared else ""
        lines.append(text.format(figures[key]) + suffix)
    for name, (step, kernels) in figures.get("augmentations_us", {}).items():
        ratio = step / max(kernels, 1e-9)
        lines.append(f"{name}: {step:.0f} µs an image; {ratio:.2f} × its kernels")
    return lines + growth.report_lines(figures.get("growth_ms", {}))


def compare(argv: List[str], places: Sequence[Place], turns: int = TURNS) -> None:
    """Prints the figures of the first place, with ratios to the second place if there is one."""
    figures, *others = _measure_all(_parse(argv), places, turns)
    print("\n".join(_report(figures, *others)))
    print(json.dumps(figures))


def main(argv: Optional[List[str]] = None) -> int:
    """Prints the report, and all figures as one JSON line at the end."""
    argv = sys.argv[1:] if argv is None else argv
    arguments = _parse(argv)
    if arguments.part:
        print(json.dumps(PARTS[arguments.part](arguments)))
        return 0
    trees = [ROOT, *([os.path.abspath(arguments.against)] if arguments.against else [])]
    compare(argv, [(sys.executable, tree) for tree in trees])
    return 0


if __name__ == "__main__":
    sys.exit(main())
