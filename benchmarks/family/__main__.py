"""`python -m benchmarks.family`: one row a configuration, seconds in each stage, and peak memory.

Every configuration is parsed, built for training, evaluation and prediction, trained for two steps,
evaluated, exported, and its SavedModel detects in a picture; each in a process of its own, at its
own image size. Configurations with a graph_rewriter run in float.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from typing import Dict, List, Optional, Sequence

from estimator_det.config import pipeline

NAMES = ("parse", "build", "train", "evaluate", "export", "detect")
PEAK = "peak GB"


def _parse(argv: Optional[List[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.family", description=__doc__)
    parser.add_argument("--configs", type=pathlib.Path, required=True, help="folder of configs")
    parser.add_argument("--record", required=True, help="TFRecord file with JPEG images")
    parser.add_argument("--label_map", required=True)
    parser.add_argument("--model", default="ssd", help="kind of model, e.g. ssd")
    parser.add_argument("--only", default="*", help="glob over the names, e.g. 'ssd_mobilenet_v1*'")
    parser.add_argument("--batch_size", type=int, default=2)
    parser.add_argument("--until", choices=NAMES, default=NAMES[-1], help="the last stage to run")
    parser.add_argument("--scratch", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if not arguments.configs.is_dir():
        parser.error(f"{arguments.configs}: not a folder")
    return arguments


def _is_wanted(path: pathlib.Path, kind: str) -> bool:
    """Whether a configuration is of this kind of model; one that cannot be read may be."""
    try:
        return pipeline.read_pipeline(path).model.WhichOneof("model") == kind
    except pipeline.ConfigError:
        return True


def _run(path: pathlib.Path, arguments: argparse.Namespace) -> None:
    """All stages of one configuration; prints a line of JSON after each."""

    def report(stage: str, start: float) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(json.dumps({stage: time.monotonic() - start, PEAK: peak}), flush=True)

    start = time.monotonic()
    config = pipeline.read_pipeline(path)
    report(NAMES[0], start)
    from benchmarks.family import stages  # TensorFlow's import takes seconds

    config = stages.configured(config, arguments.record, arguments.label_map, arguments.batch_size)
    run = stages.Run(config, arguments.record, arguments.scratch)
    for name in _wanted_stages(arguments)[1:]:
        start = time.monotonic()
        stages.STAGES[name](run)
        report(name, start)


def _wanted_stages(arguments: argparse.Namespace) -> Sequence[str]:
    return NAMES[: NAMES.index(arguments.until) + 1]


def _row(path: pathlib.Path, arguments: argparse.Namespace, argv: List[str]) -> List[str]:
    """Cells: seconds, and where a stage failed its error, the last of the row."""
    seconds: Dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        only = ["--only", path.stem, "--scratch", scratch]
        command = [sys.executable, "-m", "benchmarks.family", *argv, *only]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    for line in result.stdout.splitlines():
        if line.startswith("{"):
            seconds.update(json.loads(line))
    wanted = _wanted_stages(arguments)
    cells = [f"{seconds[name]:.1f}" for name in wanted if name in seconds]
    if result.returncode or len(cells) < len(wanted):
        lines = result.stderr.strip().splitlines() or [f"exit status {result.returncode}"]
        return [*cells, f"FAILED: {lines[-1][:300]}"]
    return [*cells, f"{seconds[PEAK]:.2f}"]


def main(argv: Optional[List[str]] = None) -> int:
    """Prints the table; 0 if every configuration came through, 1 if not or there is none."""
    argv = sys.argv[1:] if argv is None else argv
    arguments = _parse(argv)
    paths = sorted(
        path
        for path in arguments.configs.glob("*.config")
        if fnmatch.fnmatch(path.stem, arguments.only)
    )
    if arguments.scratch:
        _run(paths[0], arguments)
        return 0
    paths = [path for path in paths if _is_wanted(path, arguments.model)]
    if not paths:
        print(f"no {arguments.model} configuration matches {arguments.only!r}", file=sys.stderr)
        return 1
    print(" | ".join(["configuration", *_wanted_stages(arguments), PEAK]))
    failed = 0
    for path in paths:
        cells = _row(path, arguments, argv)
        failed += any(cell.startswith("FAILED") for cell in cells)
        print(" | ".join([path.stem, *cells]), flush=True)
    print(f"{len(paths) - failed} of {len(paths)} configurations came through")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
