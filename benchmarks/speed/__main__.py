"""`python -m benchmarks.speed`: every figure in one run, each part in a process of its own."""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Optional

PARTS = ("floor", "step", "decode", "pipeline", "checks", "startup", "evaluate", "latency", "graph")


def _parse(argv: Optional[List[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    parser.add_argument("--config", required=True, help="pipeline configuration to measure")
    parser.add_argument("--record", required=True, help="TFRecord file with JPEG images")
    parser.add_argument("--label_map", required=True)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--only", choices=PARTS, action="append", help="measure just these parts")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=pathlib.Path, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _measure(part: str, argv: List[str], scratch: str) -> Dict[str, Any]:
    """Runs one part in a fresh process; its last line of output is a JSON object."""
    command = [sys.executable, "-m", "benchmarks.speed", *argv, "--part", part]
    command += ["--started", repr(time.time()), "--scratch", scratch]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"part {part!r} failed:\n{result.stderr[-4000:]}")
    return json.loads(result.stdout.strip().splitlines()[-1])


def _table(m: Dict[str, Any]) -> List[str]:
    """Lines of the report on the parts that were measured."""
    lines: List[str] = []

    def ratio(name: str, value: str, floor: str, unit: str) -> None:
        if value not in m:
            return
        share = f"; {m[value] / m[floor]:.2f} x {floor} {m[floor]:.3g}" if floor in m else ""
        lines.append(f"{name}: {m[value]:.3g} {unit}{share}")

    ratio("training step with input", "step_seconds", "floor_seconds", "s")
    ratio("training step, input taken away", "step_cached_seconds", "floor_seconds", "s")
    to_first_step = "process start to first finished step"
    ratio(to_first_step, "first_step_seconds", "floor_first_step_seconds", "s")
    ratio("peak memory of training", "peak_memory_gb", "floor_memory_gb", "GB")
    ratio("input pipeline", "pipeline_images_per_second", "decode_images_per_second", "images/s")
    if "checks_cpu_ratio" in m:
        lines.append(
            "record checks on clean data: {checks_cpu_ratio:.2f} x the processor time without; "
            "{checked_cpu_us:.0f} and {unchecked_cpu_us:.0f} µs an image; training step with input "
            "{checks_step_ratio:.3f} x that without".format(**m)
        )
    for key, text in (
        ("evaluate_seconds", "evaluation of 10 images: {:.1f} s"),
        ("evaluate_images_per_second", "evaluation, graph warm: {:.1f} images/s"),
        ("latency_1_ms", "SavedModel, batch 1: {:.0f} ms"),
        ("latency_8_ms", "SavedModel, batch 8: {:.0f} ms"),
        ("predict_1_ms", "predict, batch 1: {:.0f} ms"),
        ("predict_8_ms", "predict, batch 8: {:.0f} ms"),
        ("postprocess_1_ms", "postprocess, batch 1: {:.1f} ms"),
        ("postprocess_8_ms", "postprocess, batch 8: {:.1f} ms"),
        ("postprocess_ops", "postprocess graph: {} ops"),
    ):
        if key in m:
            lines.append(text.format(m[key]))
    if "graph_ops" in m:
        sizes = ", ".join(f"{ops} ops at batch {batch}" for batch, ops in m["graph_ops"].items())
        lines.append(f"training graph: {sizes}")
    return lines


def main(argv: Optional[List[str]] = None) -> int:
    """Prints the report, and all figures as one JSON line at the end."""
    argv = sys.argv[1:] if argv is None else argv
    arguments = _parse(argv)
    if arguments.part:
        from benchmarks.speed import parts

        print(json.dumps(parts.PARTS[arguments.part](arguments)))
        return 0
    measured: Dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for part in arguments.only or PARTS:
            print(f"measuring {part} …", file=sys.stderr, flush=True)
            measured.update(_measure(part, argv, scratch))
    print("\n".join(_table(measured)))
    print(json.dumps(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
